"""Label maps of a folder data set: from stored values or colors to classes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stochseg.data.folder.config import DESCRIPTION, FolderConfig
from stochseg.data.label_maps import check_labels
from stochseg.data.readers.pictures import Pixels
from stochseg.errors import UserError


def class_map(raw: Pixels, config: FolderConfig, where: str) -> Pixels:
    """Convert label values "h w" or colors "h w c" to class indices "h w"."""
    raw = without_alpha(raw, where)
    indices = _from_colors(raw, config, where) if raw.ndim == 3 else _from_values(raw, config, where)
    remedy = f"correct the file or num_classes in {DESCRIPTION}"
    if where.lower().endswith((".jpg", ".jpeg")):
        remedy = "JPEG changes label values: save label maps as PNG"
    check_labels(indices, config, where, remedy)
    return indices.astype(np.uint8 if indices.max(initial=0) < 256 else np.uint16)


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
