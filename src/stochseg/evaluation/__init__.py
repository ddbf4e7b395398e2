"""Evaluation: compare samples with raters over a data set."""

from stochseg.evaluation.evaluator import Evaluation, evaluate, evaluations_curve, table, write_results
from stochseg.evaluation.fusion import fusion_miou

__all__ = ["Evaluation", "evaluate", "evaluations_curve", "fusion_miou", "table", "write_results"]
