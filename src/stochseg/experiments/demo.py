"""The demo: train on phantoms, sample, compare with the known truth, write a page to look at."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image
from rich.console import Console

from stochseg.core import CategoricalProcess
from stochseg.data import Phantoms
from stochseg.evaluation import Evaluation, evaluate, table, write_results
from stochseg.experiments.recipes import recipe
from stochseg.models import load
from stochseg.models.categorical_diffusion import CategoricalDiffusion
from stochseg.models.sampling import SamplingOptions
from stochseg.plotting import forward_process, qualitative, write_figure
from stochseg.plotting.output import embed_picture
from stochseg.reports import RunFacts, RunPage
from stochseg.reports.page import Picture, Section
from stochseg.reports.run import read_log
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
    assert isinstance(model, CategoricalDiffusion)
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
    picture = write_figure(qualitative(result.kept, data.info), folder / "samples.png")
    page = _write_page(out, result, data, model.process)
    metrics = result.metrics
    console.print(
        f"\nLook at [bold]{page}[/] (open it in a browser) and {picture}.\n"
        f"Mode frequencies are within {metrics['mode_tv']:.3f} of the truth (total variation, 0 is perfect), and a "
        f"sample overlaps its nearest true reading by {metrics['mode_iou']:.2f} IoU.\n"
        f"Next: stochseg predict {out} {out}/images/{data[0].id}.png --overview",
        highlight=False,
    )
    return result


def _write_page(out: Path, result: Evaluation, data: Phantoms, process: CategoricalProcess) -> Path:
    strip = forward_process(process, data.truth(0).modes[-1], data.info)
    explanation = Section(
        "The forward process",
        "Training adds noise to a rater's map step by step until nothing is left; the model learns the way back, given "
        "the image.",
        pictures=[Picture(embed_picture(strip), "A label map at eight times of the forward process.", wide=True)],
    )
    commands = Section(
        "Next commands",
        code=f"stochseg predict {out} {out}/images/phantom-test-00000.png -n 16 --overview\n"
        f"stochseg evaluate {out} -n 100 --curve 5,10,25\n"
        "stochseg train phantom-tiny data.options.variant=multiclass --out runs/multiclass",
    )
    page = RunPage(
        RunFacts("stochseg demo: one image, several plausible segmentations", log=read_log(out / LOG_FILE)),
        result,
        data.info,
        "The model is a small categorical diffusion model, trained on synthetic lung slices whose raters disagree in a "
        "known way: some see nothing, some outline the core, some include the halo. The samples should show the same "
        "readings in the same proportions. All results are on slices that the model has never seen.",
        extra=[explanation, commands],
    )
    return page.write(out / "index.html")
