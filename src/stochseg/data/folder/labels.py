"""Label maps of a folder data set: from stored values or colors to classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stochseg.data.folder.config import DESCRIPTION, INIT, FolderConfig
from stochseg.data.label_maps import check_labels
from stochseg.data.readers.pictures import Pixels
from stochseg.errors import UserError

Levels: TypeAlias = Mapping[int, tuple[int, int]]
"""Pixels of each label value, and how many of them have a lower and a higher value next to them."""
BLEND = 0.6
"""A value is a transition if at least this part of its pixels lies between a lower and a higher one."""
MIN_BLENDS = 3
"""Transitions in one file that make it a smoothed one: a single thin class may lie between two others."""


def class_map(raw: Pixels, config: FolderConfig, where: str) -> Pixels:
    """Convert label values "h w" or colors "h w c" to class indices "h w"."""
    raw = without_alpha(raw, where)
    if config.threshold is not None:
        gray = raw if raw.ndim == 2 else raw.mean(-1)
        return (gray >= config.threshold).astype(np.uint8)
    check_exact(where)
    if sum(isinstance(key, int) for key in config.values) > MIN_BLENDS:
        stored = whole_numbers(raw, where) if raw.ndim == 2 else raw.sum(-1)
        if len(blends := find_blends(count_levels(stored))) >= MIN_BLENDS:
            raise smoothed(where, blends)
    indices = _from_colors(raw, config, where) if raw.ndim == 3 else _from_values(raw, config, where)
    check_labels(indices, config, where, f"correct the file, or num_classes, values or threshold in {DESCRIPTION}")
    return indices.astype(np.uint8 if indices.max(initial=0) < 256 else np.uint16)


def check_exact(where: str) -> None:
    """Raise a UserError for a label map in JPEG, which changes label values."""
    if where.lower().endswith((".jpg", ".jpeg")):
        raise UserError(
            f"{where}: JPEG changes label values, expected a format without loss; save label maps as PNG, or for masks "
            f"of two classes set `threshold: 128` in {DESCRIPTION} ({INIT} FOLDER threshold=128)"
        )


def count_levels(levels: Pixels) -> Levels:
    """Count the pixels of each level "h w", and those with a lower and a higher level next to them."""
    if levels.size and (levels == levels.flat[0]).all():  # as most slices of volumes are
        return {int(levels.flat[0]): (levels.size, 0)}
    low, high = levels, levels
    for axis in (0, 1):
        padded = [np.pad(a, [(1, 1) if i == axis else (0, 0) for i in range(2)], mode="edge") for a in (low, high)]
        parts = [[np.take(p, range(i, i + levels.shape[axis]), axis) for i in range(3)] for p in padded]
        low, high = np.minimum.reduce(parts[0]), np.maximum.reduce(parts[1])
    found, places, counts = np.unique(levels, return_inverse=True, return_counts=True)
    between = ((low < levels) & (levels < high)).ravel()
    inside = np.bincount(places.ravel(), weights=between, minlength=len(found))
    return {int(v): (int(n), int(b)) for v, n, b in zip(found, counts, inside, strict=True)}


def find_blends(levels: Levels) -> list[int]:
    """Find the levels that occur as transitions between others, as smoothing and compression make them."""
    return [level for level, (pixels, between) in levels.items() if between >= BLEND * pixels]


def smoothed(where: str, blends: Sequence[int | str]) -> UserError:
    """Build the error for a label map with gray levels between its classes."""
    return UserError(
        f"{where}: the label values {blends[:5]} occur only at edges between lower and higher ones, as in a smoothed, "
        "resized or JPEG-compressed mask; save it without smoothing (nearest neighbor, no anti-aliasing), or for two "
        f"classes set `threshold: 128` in {DESCRIPTION} ({INIT} FOLDER threshold=128)"
    )


def without_alpha(raw: Pixels, where: str) -> Pixels:
    """Remove an alpha channel, which must be opaque."""
    if raw.ndim == 2 or raw.shape[-1] not in (2, 4) or raw.dtype != np.uint8:
        return raw
    if (raw[..., -1] != 255).any():
        raise UserError(f"{where}: expected a label map without transparency; save it as gray, indexed or RGB")
    return raw[..., 0] if raw.shape[-1] == 2 else raw[..., :3]


def whole_numbers(raw: Pixels, where: str) -> npt.NDArray[np.int64]:
    """Convert label values to integers; NIfTI often stores them as floats."""
    with np.errstate(invalid="ignore"):
        values = raw.astype(np.int64)
    if (values != raw).any():
        raise UserError(f"{where}: expected integers as labels, got {raw[values != raw].flat[0]}")
    return values


def colors_of(raw: Pixels, where: str) -> tuple[list[str], list[int], npt.NDArray[np.intp]]:
    """Find the colors of an RGB label map "h w 3": "#rrggbb", their pixel counts, and their index per pixel "h w"."""
    if raw.dtype != np.uint8 or raw.shape[-1] != 3:
        raise UserError(f"{where}: expected a label map in gray or RGB of 8 bits, got shape {raw.shape} {raw.dtype}")
    codes = (raw.astype(np.int64) << np.array([16, 8, 0])).sum(-1)
    found, places, counts = np.unique(codes, return_inverse=True, return_counts=True)
    return [f"#{code:06x}" for code in found.tolist()], counts.tolist(), places.reshape(codes.shape)


def _from_values(raw: Pixels, config: FolderConfig, where: str) -> npt.NDArray[np.int64]:
    values = whole_numbers(raw, where)
    table = {key: index for key, index in config.values.items() if isinstance(key, int)}
    if not table:
        return values
    found, places = np.unique(values, return_inverse=True)
    unknown = [value for value in found.tolist() if value not in table]
    if unknown:
        raise UserError(
            f"{where}: label values {unknown[:5]} are not in `values` of {DESCRIPTION} ({sorted(table)}); "
            "add them there, or correct the file"
        )
    return np.array([table[value] for value in found.tolist()])[places.reshape(values.shape)]


def _from_colors(raw: Pixels, config: FolderConfig, where: str) -> npt.NDArray[np.int64]:
    table = {color.lower(): index for index, color in enumerate(config.palette)}
    table |= {key.lower(): index for key, index in config.values.items() if isinstance(key, str)}
    if not table:
        raise UserError(
            f"{where}: expected a label map of gray levels or palette indices, got colors; "
            f"list the color of each class as `palette` in {DESCRIPTION}, or save class numbers"
        )
    found, counts, places = colors_of(raw, where)
    unknown = {color: count for color, count in zip(found, counts, strict=True) if color not in table}
    if unknown:
        worst = ", ".join(f"{c} ({n} pixels)" for c, n in sorted(unknown.items(), key=lambda cn: -cn[1])[:5])
        raise UserError(
            f"{where}: {len(unknown)} unknown color(s): {worst}; add them to `palette` (a class) or `values` "
            f"(such as '{next(iter(unknown))}': 0) in {DESCRIPTION}, or correct the file"
        )
    return np.array([table[color] for color in found])[places]
