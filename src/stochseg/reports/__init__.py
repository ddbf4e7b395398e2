"""Reports: self-contained HTML pages about predictions and about trained models."""

from stochseg.reports.evaluation import report_run
from stochseg.reports.predictions import is_predictions, report_predictions
from stochseg.reports.run import RunFacts, RunPage

__all__ = ["RunFacts", "RunPage", "is_predictions", "report_predictions", "report_run"]
