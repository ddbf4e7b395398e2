"""The command `stochseg growth`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from stochseg.cli.terminal import note, say
from stochseg.errors import UserError

EPILOG = "Example: stochseg growth predictions/2025 predictions/2026 --days 365"


def growth(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="Result folder of `predict` of the first scan.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Result folder of `predict` of the second scan.")],
    label: Annotated[
        str | None, typer.Option(metavar="NAME", help="Class to compare. Default: all foreground.")
    ] = None,
    threshold: Annotated[
        float, typer.Option(metavar="PERCENT", help="Relative change that counts as growth, in percent.")
    ] = 25.0,
    days: Annotated[
        float | None, typer.Option(metavar="N", help="Days between the scans, for the volume doubling time.")
    ] = None,
) -> None:
    """Compare the volumes of two scans of one lesion: distribution of the change, P(growth > 25%), doubling time.

    Every sample of one scan is compared with every sample of the other."""
    from stochseg.reports import compare_predictions

    if not 0 <= threshold < math.inf:
        raise UserError(f"--threshold: expected percent of at least 0, such as 25, got {threshold:g}")
    found, remark = compare_predictions(before, after, label=label, threshold=threshold / 100, days=days)
    say(str(found))
    if remark:
        note(remark)
