"""Reports: self-contained HTML pages about predictions and about trained models; growth between predictions."""

from stochseg.reports.evaluation import report_run
from stochseg.reports.follow_up import check_same_rater, compare_predictions
from stochseg.reports.predictions import is_predictions, report_predictions
from stochseg.reports.raters import report_raters
from stochseg.reports.run import RunFacts, RunPage

__all__ = [
    "RunFacts",
    "RunPage",
    "check_same_rater",
    "compare_predictions",
    "is_predictions",
    "report_predictions",
    "report_raters",
    "report_run",
]
