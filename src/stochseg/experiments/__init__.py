"""Experiments: recipes, comparisons, benchmarks and the demo. They know training, evaluation and inference."""
