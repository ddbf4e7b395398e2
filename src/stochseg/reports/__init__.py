"""Reports: self-contained HTML pages about predictions and about trained models."""

from stochseg.reports.predictions import is_predictions, report_predictions
from stochseg.reports.runs import RunFacts, report_run

__all__ = ["RunFacts", "is_predictions", "report_predictions", "report_run"]
