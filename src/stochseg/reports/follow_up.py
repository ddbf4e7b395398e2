"""Growth between two scans, from what `stochseg predict` wrote about them."""

from __future__ import annotations

from pathlib import Path

from stochseg.analysis import Growth, Measurement, growth
from stochseg.errors import UserError
from stochseg.inference.result_folder import RESULT
from stochseg.reports.saved_prediction import read_sizes
from stochseg.reports.saved_result import Result, find_results, read_result
from stochseg.reports.volume import total_size

PER_SLICE = "the slices of a volume were sampled independently of each other, so the true spread is wider than this"


def compare_predictions(
    before: Path, after: Path, *, label: str | None = None, threshold: float = 0.25, days: float | None = None
) -> tuple[Growth, str]:
    """Compute the growth between two predicted scans.

    Args:
        before: the folder of one result of `stochseg predict`, of the first scan, or of one lesion in it.
        after: the same of the second scan.
        label: name of the class; None takes all foreground.
        threshold: relative change that counts as growth; 0.25 is 25%.
        days: between the scans, for the doubling time of a volume.

    Returns:
        The growth, and a note for its reader, "" if there is none.

    Raises:
        UserError: if a result is missing or damaged, if it has no such class, or if the two cannot be compared.
    """
    results = [_read(folder) for folder in (before, after)]
    check_same_rater(results[0].drawn_as, results[1].drawn_as)
    sizes = [_size(result, folder, label) for result, folder in zip(results, (before, after), strict=True)]
    found = growth(sizes[0], sizes[1], threshold=threshold, days=days)
    return found, PER_SLICE if any(result.per_slice for result in results) else ""


def check_same_rater(before: str | None, after: str | None) -> None:
    """Refuse to compare samples that were drawn as different raters would.

    Args:
        before: the rater of the first scan, None for any of them.
        after: of the second scan.

    Raises:
        UserError: if the two differ.
    """
    if before != after:
        raise UserError(
            f"expected samples of both scans drawn as the same rater would, got {before or 'any rater'} and "
            f"{after or 'any rater'}: their habits would count as growth; draw the samples of one scan again"
        )


def _read(folder: Path) -> Result:
    if not (folder / RESULT).is_file():
        raise UserError(f"{folder}: expected the folder of one result of `stochseg predict`, with {RESULT} in it")
    found = find_results(folder)
    if len(found) > 1:
        raise UserError(f"{folder}: expected the result of one lesion, got {len(found)}; pass one, such as {found[0]}")
    return read_result(found[0])


def _size(result: Result, folder: Path, label: str | None) -> Measurement:
    sizes = read_sizes(result)
    if label is None:
        return total_size(list(sizes.values()))
    names = [c.name for c in result.classes]
    if label not in names[1:]:
        raise UserError(f"{folder}: unknown class {label!r}; known: {', '.join(names[1:])}")
    return sizes[result.classes[names.index(label)].label]
