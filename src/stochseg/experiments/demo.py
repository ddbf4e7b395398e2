"""The demo: train on phantoms, sample, compare with the known truth, write a page to look at."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from PIL import Image
from rich.console import Console

from stochseg.data import Phantoms
from stochseg.evaluation.evaluator import Evaluation, evaluate, metric_rows, table, write_results
from stochseg.experiments.recipes import recipe
from stochseg.models import load
from stochseg.models.sampling import SamplingOptions
from stochseg.plotting import (
    forward_process,
    mode_frequencies,
    qualitative,
    training_curve,
    write_figure,
)
from stochseg.reports.page import Section, write_page
from stochseg.training import open_split, train
from stochseg.training.log import LOG_FILE

IMAGES, SAMPLES = 32, 100


def run_demo(out: Path, console: Console, *, overrides: tuple[str, ...] = ()) -> Evaluation:
    """Train the recipe `phantom-tiny` (or go on with it), evaluate on held-out phantoms, write pictures and a page."""
    config = recipe("phantom-tiny", overrides)
    console.print(f"[bold]1/3[/] training phantom-tiny for {config.steps} steps on {torch.get_num_threads()} threads")
    train(config, out, resume=True, device="cpu", console=console)
    model = load(out)
    data = open_split(config, "test")
    assert isinstance(data, Phantoms)
    count = min(IMAGES, len(data))
    console.print(f"[bold]2/3[/] drawing {SAMPLES} samples of each of {count} phantoms the model has never seen")
    result = evaluate(model, data, options=SamplingOptions(n=SAMPLES), limit=count)
    console.print(table(result))

    console.print("[bold]3/3[/] writing pictures and the page")
    folder = out / "evaluation"
    write_results(result, folder)
    for i in range(4):
        file = out / "images" / f"{data[i].id}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(data.raw(i)).save(file)
    pictures = {
        "samples": qualitative(result.kept, data.info),
        "modes": mode_frequencies(result.modes.truth, result.modes.frequency, result.modes.names),
        "forward": forward_process(model.process, data.truth(0).modes[-1], data.info),
        "training": training_curve([json.loads(line) for line in (out / LOG_FILE).read_text().splitlines()]),
    }
    written = {name: write_figure(figure, folder / f"{name}.png") for name, figure in pictures.items()}
    page = _page(out, result, written)
    metrics = result.metrics
    console.print(
        f"\nLook at [bold]{page}[/] (open it in a browser) and {written['samples']}.\n"
        f"Mode frequencies are within {metrics['mode_tv']:.3f} of the truth (total variation, 0 is perfect), and a "
        f"sample overlaps its nearest true reading by {metrics['mode_iou']:.2f} IoU.\n"
        f"Next: stochseg predict {out} {out}/images/{data[0].id}.png --overview",
        highlight=False,
    )
    return result


def _page(out: Path, result: Evaluation, pictures: dict[str, Path]) -> Path:
    metrics = result.metrics
    rows = [(name, value) for _, name, value in metric_rows(result)]
    return write_page(
        out / "index.html",
        "stochseg demo: one image, several plausible segmentations",
        "A small categorical diffusion model was trained on synthetic lung slices whose raters disagree in a known "
        "way. All results below are on slices it has never seen.",
        [
            Section(
                "Images, raters and samples",
                "Each row is one image. The raters disagree: some see nothing, some outline the core, some include the "
                "halo. The samples should show the same readings in the same proportions; the mean and the entropy "
                "sum up all samples.",
                pictures["samples"],
            ),
            Section(
                "Does it know how likely each reading is?",
                f"Each point is one image: the true probability of a reading against its share of {SAMPLES} samples. "
                f"On the diagonal is perfect. Mean total variation: {metrics['mode_tv']:.3f}.",
                pictures["modes"],
            ),
            Section("Numbers", rows=rows),
            Section(
                "The forward process",
                "Training noises a rater's map step by step until nothing is left; the model learns the way back, "
                "given the image.",
                pictures["forward"],
            ),
            Section("Training", picture_file=pictures["training"]),
            Section(
                "Go on",
                code=f"stochseg predict {out} {out}/images/phantom-test-00000.png --samples 16 --overview\n"
                f"stochseg evaluate {out} --samples 100 --curve 5,10,25\n"
                "stochseg train phantom-tiny data.options.variant=multiclass --out runs/multiclass",
            ),
        ],
    )
