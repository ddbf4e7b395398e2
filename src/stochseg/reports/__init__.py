"""Reports: one HTML page about predictions or about a trained model."""

from stochseg.reports.predictions import is_predictions, report_predictions
from stochseg.reports.questions import Question
from stochseg.reports.runs import RunFacts, report_run

__all__ = ["Question", "RunFacts", "is_predictions", "report_predictions", "report_run"]
