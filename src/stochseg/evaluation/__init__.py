"""Evaluation: compare samples with raters over a data set."""

from stochseg.evaluation.compatibility import check_compatible, match_normalization
from stochseg.evaluation.evaluator import evaluate, evaluations_curve
from stochseg.evaluation.fusion import fusion_miou
from stochseg.evaluation.results import Evaluation, ModeTable, table, write_results

__all__ = [
    "Evaluation",
    "ModeTable",
    "check_compatible",
    "evaluate",
    "evaluations_curve",
    "fusion_miou",
    "match_normalization",
    "table",
    "write_results",
]
