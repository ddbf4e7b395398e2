"""Evaluation: metrics over a data set, tables, figures."""

from stochseg.evaluation.evaluate import Evaluation, evaluate, steps_curve, table, write_results
from stochseg.evaluation.figures import forward_process, qualitative, quality_against_steps, write_figure
from stochseg.evaluation.fusion import fusion_miou
from stochseg.evaluation.page import evaluation_page

__all__ = [
    "Evaluation",
    "evaluate",
    "evaluation_page",
    "forward_process",
    "fusion_miou",
    "qualitative",
    "quality_against_steps",
    "steps_curve",
    "table",
    "write_figure",
    "write_results",
]
