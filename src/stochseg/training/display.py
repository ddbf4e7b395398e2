"""Progress of a run on the console: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from stochseg.training.checkpoint import Progress
from stochseg.training.config import TrainConfig

SECONDS_BETWEEN_LINES = 20.0
GROWTH = 0.05
"""Fraction of the time so far that passes between two lines, so that a run of days does not print thousands."""

Show = Callable[[float], None]
"""Called with the loss after each step."""


@contextmanager
def display(console: Console, config: TrainConfig, progress: Progress) -> Iterator[Show]:
    """Show step, loss and time left of the run whose state is `progress`."""
    start = replace(progress)
    if not console.is_terminal:
        yield _lines(console, config, progress, start)
        return
    text = TextColumn("loss {task.fields[loss]}, {task.fields[speed]} steps/s, {task.fields[left]}")
    with Bar(TextColumn("training"), BarColumn(), MofNCompleteColumn(), text, console=console) as bar:
        task = bar.add_task("training", total=config.steps, completed=start.step, loss="–", speed="–", left="–")

        def show(loss: float) -> None:
            speed = (progress.step - start.step) / max(progress.seconds - start.seconds, 1e-9)
            left = time_left(config, progress, start)
            bar.update(task, completed=progress.step, loss=f"{loss:.4g}", speed=f"{speed:.2f}", left=left)

        yield show


def _lines(console: Console, config: TrainConfig, progress: Progress, start: Progress) -> Show:
    due = start.seconds + SECONDS_BETWEEN_LINES

    def show(loss: float) -> None:
        nonlocal due
        if progress.seconds < due or config.is_over(progress.step, progress.seconds):
            return
        due = progress.seconds + max(SECONDS_BETWEEN_LINES, GROWTH * (progress.seconds - start.seconds))
        left = time_left(config, progress, start)
        console.print(f"step {progress.step} of {config.steps}, loss {loss:.4g}, {left}", highlight=False)

    return show


def time_left(config: TrainConfig, progress: Progress, start: Progress) -> str:
    """Estimate the time left from the speed since `start`, such as "about 7 min left"."""
    per_step = (progress.seconds - start.seconds) / max(progress.step - start.step, 1)
    seconds = (config.steps - progress.step) * per_step
    if config.minutes is not None:
        seconds = min(seconds, max(0.0, 60 * config.minutes - progress.seconds))
    if seconds < 60:
        return "less than 1 min left"
    return f"about {seconds / 60:.0f} min left" if seconds < 2 * 3600 else f"about {seconds / 3600:.1f} h left"
