"""First functions of other processes. Heavy imports happen there: the server itself imports neither torch nor numpy."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from stochseg.studio.settings import Limits
from stochseg.studio.store import Json


def start_work(pipe: Connection, models: dict[str, str], device: str, limits: Limits) -> None:
    """Work for the server at the other end of the pipe."""
    from stochseg.studio.worker import work

    work(pipe, models, device, limits)


def warm_up() -> None:
    """Import what uploads need, before the first one comes."""


def read_upload(folder: Path, name: str, spacing: Sequence[float] | None, limits: Limits) -> Json:
    """See `stochseg.studio.uploads`."""
    from stochseg.studio import uploads

    return uploads.read_upload(folder, name, spacing, limits)


def make_example(name: str, number: int, folder: Path, limits: Limits) -> Json:
    """See `stochseg.studio.examples`."""
    from stochseg.studio import examples

    return examples.make_example(name, number, folder, limits)


def write_report(result: Path, page: Path, spacing: tuple[float, ...] | None) -> None:
    """Write the HTML page about a result."""
    from stochseg.reports import report_predictions

    report_predictions(result, page, spacing=spacing)


def list_runs(folders: Sequence[Path]) -> list[Json]:
    """See `stochseg.studio.runs`."""
    from stochseg.studio import runs

    return runs.list_runs(folders)


def list_cases(path: Path, sort: str) -> list[Json]:
    """See `stochseg.studio.runs`."""
    from stochseg.studio import runs

    return runs.list_cases(path, sort)


def open_case(path: Path, case: int, input: Path, job: Path, limits: Limits) -> Json:
    """See `stochseg.studio.runs`."""
    from stochseg.studio import runs

    return runs.open_case(path, case, input, job, limits)


def compare_jobs(before: Path, after: Path, measure: str, days: float | None) -> Json:
    """See `stochseg.studio.comparison`."""
    from stochseg.studio import comparison

    return comparison.compare_jobs(before, after, measure, days)


def find_shelf(models: Sequence[Path], devices: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """See `stochseg.studio.shelf`."""
    from stochseg.studio import shelf

    return shelf.find_models(models), shelf.pick_devices(devices)


def read_instances(folder: Path) -> list[Json | None]:
    """Series, instance and class of DICOM files; None for what is no image."""
    from stochseg.data.readers.dicom import is_dicom_file
    from stochseg.data.readers.series import read_header
    from stochseg.errors import UserError

    found: list[Json | None] = []
    for file in sorted(folder.iterdir()):
        try:
            header = read_header(file) if is_dicom_file(file) else {}
            tags = {"series": "SeriesInstanceUID", "instance": "SOPInstanceUID", "class": "SOPClassUID"}
            facts = {key: str(header.get(tag) or "") for key, tag in tags.items()}
            found.append(facts if all(facts.values()) and "Rows" in header else None)
        except UserError:
            found.append(None)
    return found
