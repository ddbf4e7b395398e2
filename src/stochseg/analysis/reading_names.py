"""Names of readings by what distinguishes them: "nothing", "larger nodule", "with halo", "no vessel"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Maps = npt.NDArray[np.integer[Any]]

SAME_SIZE = 0.2
"""Areas or volumes that differ by less than this fraction are distinguished by place, not by size."""


def name_readings(maps: Maps, class_names: Sequence[str]) -> list[str]:
    """Name each reading, given one label map per reading, "r *space", the most probable first."""
    foreground = range(1, len(class_names))
    sizes = np.stack([(maps == c).reshape(len(maps), -1).sum(1) for c in range(len(class_names))], 1)
    marked: list[int] = np.flatnonzero(sizes[:, 1:].any(1)).tolist()
    names = ["nothing"] * len(maps)
    if not marked:
        return names
    first = marked[0]
    varying = [c for c in foreground if any(_class_difference(maps, sizes, c, first, r)[1] for r in marked)]
    if len(marked) > 1 and len(varying) == 1 and _all_sizes_differ(sizes[marked, varying[0]]):
        ranks = _size_words(len(marked))
        for rank, position in enumerate(np.argsort(sizes[marked, varying[0]])):
            names[marked[position]] = f"{ranks[rank]} {class_names[varying[0]]}"
    else:
        names[first] = ", ".join(class_names[c] for c in foreground if sizes[first, c])
        for r in marked[1:]:
            names[r] = _difference(maps, sizes, first, r, class_names)
    return _numbered(names)


def _numbered(names: Sequence[str]) -> list[str]:
    """Add letters to names that occur several times."""
    repeated = {name for name, count in Counter(names).items() if count > 1}
    letters = [chr(ord("a") + names[:i].count(name)) for i, name in enumerate(names)]
    return [f"{name} ({letter})" if name in repeated else name for name, letter in zip(names, letters, strict=True)]


def _size_words(count: int) -> list[str]:
    """Ranks by size: smaller and larger of two; smallest, 2nd smallest, ..., largest of more."""
    if count == 2:
        return ["smaller", "larger"]
    between = [f"{i}{ {2: 'nd', 3: 'rd'}.get(i, 'th') } smallest" for i in range(2, count)]
    return ["smallest", *(["medium"] if count == 3 else between), "largest"]


def _all_sizes_differ(sizes: Maps) -> bool:
    """Whether none is empty and each exceeds the next smaller by more than `SAME_SIZE`."""
    ordered = np.sort(sizes)
    return bool(ordered[0] > 0 and (ordered[1:] > ordered[:-1] * (1 + SAME_SIZE)).all())


def _class_difference(maps: Maps, sizes: Maps, c: int, first: int, other: int) -> tuple[float, str]:
    """IoU of one class in two readings, and the word pattern of its difference, "" if it is about the same."""
    a, b = maps[first] == c, maps[other] == c
    before, after = int(sizes[first, c]), int(sizes[other, c])
    iou = float((a & b).sum() / max(1, (a | b).sum()))
    if before == after == 0:
        return iou, ""
    if after == 0:
        return iou, "no {}"
    if before == 0:
        return iou, "with {}"
    if max(before, after) > (1 + SAME_SIZE) * min(before, after):
        return iou, "larger {}" if after > before else "smaller {}"
    return iou, "{} elsewhere" if iou < 0.5 else ""


def _difference(maps: Maps, sizes: Maps, first: int, other: int, class_names: Sequence[str]) -> str:
    """Differences of the reading `other` from the first, at most three, the strongest first."""
    present = [c for c in range(1, len(class_names)) if sizes[first, c] or sizes[other, c]]
    found = [(*_class_difference(maps, sizes, c, first, other), class_names[c]) for c in present]
    clear = sorted((iou, pattern.format(name)) for iou, pattern, name in found if pattern)
    if clear:
        return ", ".join(text for _, text in clear[:3])
    return f"other shape of {min(found)[2]}"
