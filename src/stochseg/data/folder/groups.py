"""Groups of images, such as the slices of a patient, found in their names."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

WANTED = 3
"""Groups that make train, val and test; a finer pattern is tried if a coarse one finds fewer."""
MAX_DEPTH = 12
"""Parts of a name that are tried."""
_PART = r"\D*\d[^-_. /]*"
"""A name up to the end of its first part with a digit; parts end at these characters."""
_LETTERS = r"^(.*?\d+)[A-Za-z]+\d*$"
"""A number and letters at the end, without anything between them."""
ALONE = "(.+)"
"""The pattern that makes every image its own group."""


def find_group(ids: Iterable[str]) -> str | None:
    """Find a pattern of the names by which several images belong together.

    The candidates are the folders of the images, the beginning of their names up to a number (`P000` of `P000-1`,
    `case12` of `case12_slice003`), and a number followed by letters (`RET002` of `RET002OD`). The coarsest one with at
    least `WANTED` groups is taken, because groups that are too small make scores too good. Without any, a number that
    all names begin with (`P000-0`, `P000-1`) is a single group.

    Args:
        ids: Names of the images, without suffix, with their folders.

    Returns:
        A regular expression for `group` of dataset.yaml; None if each image seems to stand alone.

    Example:
        >>> find_group(["P000-0", "P000-1", "P001-0", "P002-0"])
        '^(\\\\D*\\\\d[^-_. /]*)'
        >>> find_group(["scan_001", "scan_002", "scan_003"]) is None
        True
    """
    names, coarse = list(ids), None
    for pattern in _candidates(names):
        groups = members(pattern, names)
        if _is_plausible(pattern, groups, len(names)):
            if len(groups) >= WANTED:
                return pattern
            coarse = coarse or pattern
    single = f"^({_PART})"
    return coarse or (single if _is_single(members(single, names), len(names)) else None)


def members(pattern: str, ids: Iterable[str]) -> dict[str, list[str]]:
    """Sort images by their group."""
    groups: dict[str, list[str]] = defaultdict(list)
    for id in ids:
        match = re.search(pattern, id)
        groups[match[1] if match is not None else id].append(id)
    return dict(groups)


def describe_groups(pattern: str, ids: Iterable[str]) -> str:
    """Describe the groups, with two of them as examples."""
    groups = members(pattern, ids)
    count = f"{len(groups)} group{'s' * (len(groups) > 1)}"
    largest = sorted(groups, key=lambda group: (-len(groups[group]), group))[:2]
    examples = " and ".join(f"{group} ({', '.join(groups[group][:2])}, …)" for group in sorted(largest))
    return f"{count}, such as {examples}"


def _candidates(names: Sequence[str]) -> Iterator[str]:
    """Yield patterns, coarse ones first; each matches every name."""
    folders = range(max((name.count("/") for name in names), default=0))
    starts = [f"(?:[^/]+/){{{depth}}}[^/]+(?=/)" for depth in folders]
    starts += [_PART + f"(?:[-_. /]{_PART}){{{depth}}}" * (depth > 0) for depth in range(MAX_DEPTH)]
    for start in starts:
        matching = sum(re.match(start, name) is not None for name in names)
        if matching:
            yield f"^({start})" if matching == len(names) else f"^({start}|.+)"
    if all(re.search(_LETTERS, name) for name in names):
        yield _LETTERS


def _is_plausible(pattern: str, groups: Collection[str], images: int) -> bool:
    """Whether there are several groups, some of several images, that are not just years."""
    if pattern == _LETTERS and len(groups) > 0.75 * images:  # random names share a beginning by chance
        return False
    return 1 < len(groups) < images and not _are_years(groups)


def _is_single(groups: Collection[str], images: int) -> bool:
    return len(groups) == 1 < images and not _are_years(groups)


def _are_years(groups: Iterable[str]) -> bool:
    return all(re.fullmatch(r"\D*(19|20)\d\d", group) for group in groups)
