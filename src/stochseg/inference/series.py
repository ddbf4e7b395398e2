"""DICOM series as stacks of slices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stochseg.data.readers import series
from stochseg.inference.stacks import Lattice, Stack, valid_dpi


def read_series(files: Sequence[Path]) -> Stack:
    """Read the slices of a DICOM series in the order along their normal, with the modality's slope and intercept."""
    found = series.read_series(files)
    if found.affine is not None:
        return Stack(found.values, Lattice(found.affine), headers=found.headers)
    dpi = None if found.spacing is None else valid_dpi((25.4 / found.spacing[1], 25.4 / found.spacing[0]))
    return Stack(found.values, dpi=dpi, headers=found.headers)
