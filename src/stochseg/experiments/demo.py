"""The demo: train on phantoms, sample, compare with the known truth, write a page."""

from __future__ import annotations

import shlex
from pathlib import Path

import torch
from PIL import Image
from rich.console import Console

from stochseg.core import CategoricalProcess
from stochseg.data import Phantoms
from stochseg.evaluation import Evaluation, evaluate, table, write_results
from stochseg.experiments.recipes import recipe
from stochseg.experiments.runs import new_evaluation, open_run
from stochseg.models import load
from stochseg.models.categorical_diffusion import CategoricalDiffusion
from stochseg.models.sampling import SamplingOptions
from stochseg.plotting import forward_process, qualitative, write_figure
from stochseg.plotting.output import embed_picture
from stochseg.reports import RunFacts, RunPage
from stochseg.reports.page import Picture, Section
from stochseg.training import TrainConfig, train
from stochseg.training.log import LOG_FILE, last_step, read_log

IMAGES, SAMPLES = 32, 100
SAMPLES_PNG = "samples.png"


def run_demo(
    out: Path, console: Console, *, minutes: float | None = None, overrides: tuple[str, ...] = ()
) -> Evaluation:
    """Train the recipe `phantom-tiny`, evaluate it on held-out phantoms, write pictures and a page.

    Args:
        out: the run folder. A run that is already there is resumed.
        console: receives the messages.
        minutes: stop training after this many minutes.
        overrides: changes of the recipe, as `key=value`.
    """
    limit = () if minutes is None else (f"minutes={minutes}",)
    config = recipe("phantom-tiny", [*overrides, *limit])
    command = shlex.join(["stochseg", "demo", "--out", str(out), *(["--minutes", f"{minutes:g}"] if minutes else [])])
    try:
        return _run(config, out, console, command)
    except KeyboardInterrupt:
        _print(console, f"\nstopped; resume with: {command}")
        raise


def _run(config: TrainConfig, out: Path, console: Console, command: str) -> Evaluation:
    threads = torch.get_num_threads()
    time = "" if config.minutes is None else f" or {config.minutes:g} min"
    _print(console, f"1/3 training phantom-tiny for {config.steps} steps{time}; CPU threads: {threads}")
    _print(console, f"    Ctrl-C stops and keeps what is trained; {command} resumes")
    train(config, out, resume=True, device="cpu", console=console)
    unfinished = _unfinished(config, out)
    if unfinished:
        _print(console, f"    {unfinished}")
    run = open_run(out, None, "test")
    model, data = load(run.weights), run.data
    assert isinstance(data, Phantoms)
    assert isinstance(model, CategoricalDiffusion)
    count = min(IMAGES, len(data))
    _print(console, f"2/3 drawing {SAMPLES} samples of each of {count} phantoms that the model has never seen")
    scores = evaluate(model, data, options=SamplingOptions(n=SAMPLES), limit=count)
    result = run.describe(scores.with_references(data, count))
    console.print(table(result))

    _print(console, "3/3 writing pictures and the page")
    folder = new_evaluation(out, result.settings, lambda folder: _write_results(result, data, folder))
    images = out / "images"
    images.mkdir(exist_ok=True)
    for i in range(4):
        Image.fromarray(data.raw(i)).save(images / f"{data[i].id}.png")
    page = _write_page(out, result, data, model.process, unfinished)
    metrics = result.metrics
    _print(
        console,
        f"\nOpen {page} in a browser, or look at {folder / SAMPLES_PNG}.\n"
        f"Mode frequencies are within {metrics['mode_tv']:.3f} of the truth (total variation, 0 is perfect), and a "
        f"sample overlaps its nearest true reading by {metrics['mode_iou']:.2f} IoU.\n"
        f"Next: stochseg predict {shlex.quote(str(out))} {shlex.quote(str(images / data[0].id))}.png --overview",
    )
    return result


def _unfinished(config: TrainConfig, out: Path) -> str:
    """A sentence about steps that the time limit left out; "" if there are none."""
    steps = last_step(out)
    if steps >= config.steps:
        return ""
    rest = shlex.join(["stochseg", "demo", "--out", str(out)])
    return f"The time limit ended training after {steps} of {config.steps} steps; {rest} trains the rest."


def _write_results(result: Evaluation, data: Phantoms, folder: Path) -> None:
    write_results(result, folder)
    write_figure(qualitative(result.kept, data.info), folder / SAMPLES_PNG)


def _print(console: Console, text: str) -> None:
    """Print text with paths in it, which may contain brackets."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _write_page(out: Path, result: Evaluation, data: Phantoms, process: CategoricalProcess, unfinished: str) -> Path:
    strip = forward_process(process, data.truth(0).modes[-1], data.info)
    explanation = Section(
        "The forward process",
        "Training adds noise to a rater's map step by step until nothing is left; the model learns the way back, given "
        "the image.",
        pictures=[Picture(embed_picture(strip), "A label map at eight times of the forward process.", wide=True)],
    )
    run = shlex.quote(str(out))
    commands = Section(
        "Next commands",
        code=f"stochseg predict {run} {run}/images/phantom-test-00000.png -n 16 --overview\n"
        f"stochseg evaluate {run} -n 100 --curve 5,10,25\n"
        "stochseg train phantom-tiny data.options.variant=multiclass --out runs/multiclass",
    )
    page = RunPage(
        RunFacts("stochseg demo: one image, several plausible segmentations", log=read_log(out / LOG_FILE)),
        result,
        data.info,
        "The model is a small categorical diffusion model, trained on synthetic lung slices whose raters disagree in a "
        "known way: some see nothing, some outline the core, some include the halo. The samples should show the same "
        "readings in the same proportions. All results are on slices that the model has never seen. " + unfinished,
        extra=[explanation, commands],
    )
    return page.write(out / "index.html")
