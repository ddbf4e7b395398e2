"""Types that all packages share: DatasetInfo, Example, Batch, Samples.

Letters in shape patterns: b batch, n samples, k raters, m modes, l labels, c channels, d h w or *space for the spatial
axes: h w of an image, d h w of a volume.
"""

from stochseg.types.examples import Batch, Example, Losses, Spacing, Truth
from stochseg.types.info import DEFAULT_PALETTE, RATIO, VOID, DatasetInfo, Intensities, Normalization, distinct_colors
from stochseg.types.preparation import Preparation
from stochseg.types.samples import Samples, Window, central, reaches_border

__all__ = [
    "DEFAULT_PALETTE",
    "RATIO",
    "VOID",
    "Batch",
    "DatasetInfo",
    "Example",
    "Intensities",
    "Losses",
    "Normalization",
    "Preparation",
    "Samples",
    "Spacing",
    "Truth",
    "Window",
    "central",
    "distinct_colors",
    "reaches_border",
]
