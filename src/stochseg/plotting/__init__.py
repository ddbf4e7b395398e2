"""Every figure of the project. Each function returns a matplotlib figure."""

from stochseg.plotting.figures import forward_process, qualitative, quality_against_steps, write_figure
from stochseg.plotting.summary import plot

__all__ = ["forward_process", "plot", "qualitative", "quality_against_steps", "write_figure"]
