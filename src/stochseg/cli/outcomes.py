"""Outcomes of commands with one result per input, as lines on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from stochseg.cli.terminal import note, problem, say

if TYPE_CHECKING:
    from stochseg.inference import Outcome


def report_outcome(outcome: Outcome) -> None:
    """Print the outcome of one input, with its notices."""
    for notice in outcome.notices:
        note(f"note: {outcome.source}: {notice}" if outcome.source else f"note: {notice}")
    if outcome.status == "failed":
        problem(f"skipped: {outcome.source}: {outcome.problem}")
    elif outcome.status == "done":
        say(f"{outcome.source} -> {outcome.folder}")


def finish(outcomes: Sequence[Outcome], out: Path) -> None:
    """Print how many inputs are done, and exit with code 1 if some failed."""
    done, kept, failed = (sum(o.status == status for o in outcomes) for status in ("done", "kept", "failed"))
    counts = {"done": done, "already done": kept, "skipped": failed}
    words = ", ".join(f"{count} {word}" for word, count in counts.items() if count or word == "done")
    where = f"results in {out}" if done or kept else "nothing was written"
    say(f"{words}; {where}")
    if failed:
        raise typer.Exit(1)
