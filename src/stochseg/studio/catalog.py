"""The examples that the studio offers, by name."""

from __future__ import annotations

from typing import NamedTuple

MAX_NUMBER = 999
"""The last of the images of an example."""


class Example(NamedTuple):
    """An example: its title, the axes of its images, and the bundled model that suits it."""

    title: str
    spatial_dims: int
    model: str
    later_scan_of: str | None = None
    """Name of the example that shows the same lesions earlier."""
    channels: int = 1


EXAMPLES = {
    "phantom": Example("Phantom slice", 2, "lidc"),
    "phantom-3d": Example("Phantom volume", 3, "lidc-3d"),
    "phantom-later": Example("Phantom slice, later scan", 2, "lidc", "phantom"),
    "phantom-ct": Example("Phantom CT, click on the nodule", 3, "lidc-3d"),
}
"""Name -> example."""
