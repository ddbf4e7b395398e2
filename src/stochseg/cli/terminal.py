"""The terminal: consoles, progress bars, and commands quoted for the shell."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from rich.progress import TaskID

# Names of files, classes and data sets may look like markup.
console = Console(markup=False, emoji=False)
messages = Console(stderr=True, markup=False, emoji=False)


def say(text: str, to: Console = console) -> None:
    """Print text that may contain paths, which may contain brackets and be longer than a line."""
    to.print(text, highlight=False, soft_wrap=True)


def note(text: str, kind: str = "") -> None:
    """Print a message to stderr, after its kind in red if it has one."""
    if kind:
        messages.print(Text(f"{kind}: ", "bold red"), end="")
    say(text, messages)


def shell_command(*words: object) -> str:
    """Quote a call of this program for the shell.

    >>> shell_command("evaluate", "my runs/a")
    "stochseg evaluate 'my runs/a'"
    """
    return shlex.join(["stochseg", *map(str, words)])


@contextmanager
def progress_bars() -> Iterator[Callable[[str, float, float], None]]:
    """Show progress bars, one per activity; yields a function of (activity, done, total)."""
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=messages, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def update(activity: str, done: float, total: float) -> None:
            if activity not in tasks:
                tasks[activity] = bars.add_task(escape(activity))
            bars.update(tasks[activity], completed=done, total=total)

        yield update


@contextmanager
def progress_bar(activity: str) -> Iterator[Callable[[float, float], None]]:
    """Show the progress bar of one activity; yields a function of (done, total)."""
    with progress_bars() as update:
        update(activity, 0, 1)
        yield lambda done, total: update(activity, done, total)
