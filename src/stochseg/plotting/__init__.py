"""All figures of the project. Each function returns a matplotlib figure."""

from stochseg.plotting.curves import (
    histogram,
    mode_frequencies,
    quality_against_cost,
    quality_against_evaluations,
    reliability_diagram,
    risk_against_coverage,
    training_curve,
)
from stochseg.plotting.grids import comparison_grid, contact_sheet, forward_process, label_strip, overview, qualitative
from stochseg.plotting.methods import learning_curves, method_bars, method_intervals
from stochseg.plotting.output import write_figure
from stochseg.plotting.summary import plot

__all__ = [
    "comparison_grid",
    "contact_sheet",
    "forward_process",
    "histogram",
    "label_strip",
    "learning_curves",
    "method_bars",
    "method_intervals",
    "mode_frequencies",
    "overview",
    "plot",
    "qualitative",
    "quality_against_cost",
    "quality_against_evaluations",
    "reliability_diagram",
    "risk_against_coverage",
    "training_curve",
    "write_figure",
]
