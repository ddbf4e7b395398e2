"""Evaluation: compare samples with raters over a data set."""

from stochseg.evaluation.calibrating import calibrate
from stochseg.evaluation.compatibility import check_compatible, match_normalization, without_void_label
from stochseg.evaluation.evaluator import default_count, evaluate, evaluations_curve, rated_by
from stochseg.evaluation.references import score_references
from stochseg.evaluation.results import Evaluation, ModeTable, class_table, reference_table, table, write_results
from stochseg.evaluation.seeds import evaluate_seeds
from stochseg.evaluation.stored import PARTS, StoredScores

__all__ = [
    "PARTS",
    "Evaluation",
    "ModeTable",
    "StoredScores",
    "calibrate",
    "check_compatible",
    "class_table",
    "default_count",
    "evaluate",
    "evaluate_seeds",
    "evaluations_curve",
    "match_normalization",
    "rated_by",
    "reference_table",
    "score_references",
    "table",
    "without_void_label",
    "write_results",
]
