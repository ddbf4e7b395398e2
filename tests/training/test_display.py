"""Progress of a run on the console: lines without a terminal, a bar with one."""

import io

import pytest
from rich.console import Console

from stochseg.training.checkpoint import Progress
from stochseg.training.display import display, time_left


def shown(config, seconds_per_step: float, *, start: int = 0, terminal: bool = False) -> str:
    """Everything that a run prints whose steps take equally long."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=terminal, width=200)
    progress = Progress(step=start, seconds=start * seconds_per_step)
    with display(console, config, progress) as show:
        while not config.is_over(progress.step, progress.seconds):
            progress.step += 1
            progress.seconds += seconds_per_step
            show(1.5 / progress.step)
    return text.getvalue()


def test_a_line_every_20_seconds(tiny_run):
    lines = shown(tiny_run("steps=100"), 1.0).splitlines()
    assert lines == [
        "step 20 of 100, loss 0.075, about 1 min left",
        "step 40 of 100, loss 0.0375, about 1 min left",
        "step 60 of 100, loss 0.025, less than 1 min left",
        "step 80 of 100, loss 0.01875, less than 1 min left",
    ]


def test_short_runs_print_no_line(tiny_run):
    assert shown(tiny_run("steps=100"), 0.1) == ""


def test_a_run_of_days_prints_some_hundred_lines(tiny_run):
    lines = shown(tiny_run("steps=170000"), 1.0).splitlines()
    assert 100 < len(lines) < 200
    assert "about 47.2 h left" in lines[0]


def test_a_resumed_run_estimates_from_its_own_steps(tiny_run):
    first = shown(tiny_run("steps=1000"), 2.0, start=400).splitlines()[0]
    assert first == "step 410 of 1000, loss 0.003659, about 20 min left"


def test_a_terminal_shows_a_bar(tiny_run):
    text = shown(tiny_run("steps=30"), 2.0, terminal=True)
    assert "30/30" in text
    assert "0.50 steps/s" in text


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        (["steps=110"], "less than 1 min left"),
        (["steps=1000"], "about 15 min left"),
        (["steps=1000", "minutes=5"], "about 3 min left"),
        (["steps=1000", "minutes=1"], "less than 1 min left"),
        (["steps=10000"], "about 2.8 h left"),
    ],
)
def test_time_left(tiny_run, changes, left):
    """100 steps in 100 seconds."""
    assert time_left(tiny_run(*changes), Progress(step=100, seconds=100.0), Progress()) == left
