"""The terminal: consoles, messages, progress bars, and commands quoted for the shell.

Results go to stdout. Everything else is a record of the logger `stochseg`, shown on stderr: problems as errors, notes
as information, and with --verbose the details. The library logs, too; programs decide whether and where to show that.
"""

from __future__ import annotations

import logging
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
_problems = Console(stderr=True, markup=False, emoji=False)
"""Like `messages`, and never quiet."""
log = logging.getLogger("stochseg")


class _Terminal(logging.Handler):
    """Show records on stderr, after their kind in red if they have one."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.INFO:
            say(f"{record.name}: {self.format(record)}", messages)
            return
        to = _problems if record.levelno >= logging.ERROR else messages
        if kind := getattr(record, "kind", "warning" if record.levelno == logging.WARNING else ""):
            to.print(Text(f"{kind}: ", "bold red"), end="")
        say(self.format(record), to)


def show_messages(*, quiet: bool = False, verbose: bool = False) -> None:
    """Show what the logger `stochseg` gets on this terminal.

    Args:
        quiet: only errors; no progress bars.
        verbose: also what the library logs for debugging.
    """
    for handler in [each for each in log.handlers if isinstance(each, _Terminal)]:
        log.removeHandler(handler)
    log.addHandler(_Terminal())
    log.setLevel(logging.ERROR if quiet else logging.DEBUG if verbose else logging.INFO)
    messages.quiet = quiet


def say(text: str, to: Console = console) -> None:
    """Print text that may contain paths, which may contain brackets and be longer than a line."""
    to.print(text, highlight=False, soft_wrap=True)


def note(text: str) -> None:
    """Show a message about the work, which --quiet hides."""
    log.info("%s", text)


def problem(text: str, kind: str = "") -> None:
    """Show what went wrong, after its kind in red if it has one."""
    log.error("%s", text, extra={"kind": kind})


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
