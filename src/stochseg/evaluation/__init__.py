"""Evaluation: compare samples with raters over a data set."""

from stochseg.evaluation.evaluator import Evaluation, evaluate, steps_curve, table, write_results
from stochseg.evaluation.fusion import fusion_miou

__all__ = ["Evaluation", "evaluate", "fusion_miou", "steps_curve", "table", "write_results"]
