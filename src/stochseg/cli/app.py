"""The command `stochseg`. Heavy imports wait inside the commands, so that help is instant."""

from __future__ import annotations

import errno
import io
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from stochseg._version import __version__
from stochseg.cli import bench as bench_commands
from stochseg.cli import data as data_commands
from stochseg.cli import report as report_command
from stochseg.cli.options import (
    PLAIN,
    Device,
    Engine,
    Evaluations,
    GridName,
    NoiseName,
    SamplerName,
    Samples,
    Seed,
    check_writable,
    console,
    height_width,
    home,
    messages,
    numbers,
    open_run,
)
from stochseg.errors import UserError
from stochseg.memory import keep_freed_memory
from stochseg.threads import limit_threads

app = typer.Typer(
    name="stochseg",
    help="Sample the plausible label maps of an image. Begin with: stochseg demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_commands.app, name="data")


def _version(asked: bool) -> None:
    if asked:
        console.print(__version__, highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Run folder. A run that is already there is resumed.")] = Path("runs/demo"),
    minutes: Annotated[
        float | None, typer.Option(min=0.1, help="Stop training after this many minutes. Default: train all steps.")
    ] = None,
) -> None:
    """Train a small model on synthetic slices and show what it does: minutes on two cores, nothing to download."""
    from stochseg.experiments.demo import run_demo

    run_demo(out, console, minutes=minutes)


@app.command(
    epilog="Recipes: phantom-tiny (synthetic, minutes on two cores); small (for data of your own); lidc-fast-s (LIDC, "
    "an hour and a half on two cores), lidc-fast-m, lidc-fast-l (larger, for a GPU); lidc-9m, lidc-41m, "
    "cityscapes-30m (the paper's; they need their data and a GPU). Any model trains by its own name. Several GPUs: "
    "torchrun --nproc-per-node 4 -m stochseg train …"
)
def train(
    recipe: Annotated[
        str, typer.Argument(help="A recipe's name, or a YAML file of the same form (RUN/train.yaml is one).")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Changes, e.g. steps=2000 lr=5e-4 model.options.base=32.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Train on this packed store (.h5) or folder instead of the recipe's data.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. Default: below runs/, named after the recipe.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the run's last checkpoint.")] = False,
    device: Device = "auto",
) -> None:
    """Train a model. The run folder gets best/ and last/ checkpoints, TensorBoard logs and sample pictures."""
    from stochseg.experiments.recipes import recipe as find_recipe
    from stochseg.training import train as run

    config = find_recipe(recipe, overrides or [], data)
    out = out or Path("runs") / Path(recipe).stem
    try:
        run(config, out, resume=resume, device=device, console=messages)
    except KeyboardInterrupt:
        source = [] if data is None else ["--data", str(data)]
        again = shlex.join(["stochseg", "train", recipe, *(overrides or []), *source, "--out", str(out), "--resume"])
        messages.print(f"\nstopped; go on with: {again}", **PLAIN)
        raise
    if os.environ.get("RANK", "0") == "0":
        console.print(f"done: {out}. Next: stochseg evaluate {out}", **PLAIN)


@app.command(
    epilog="Exit code 0: all done; 1: some inputs were skipped, each with its reason; 2: nothing was begun. "
    "An interrupted call goes on where it stopped."
)
def predict(
    model: Annotated[Path, typer.Argument(help="A run folder, a saved model, or a shipped model's name.")],
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Files, folders and globs: PNG, JPEG, TIFF, NIfTI images and volumes, DICOM files, and folders of "
            "DICOM series. Volumes are segmented slice by slice.",
            metavar="INPUT...",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Where to write, one folder an input.")] = Path("predictions"),
    samples: Samples = 16,
    evaluations: Evaluations = None,
    sampler: SamplerName = None,
    grid: GridName = None,
    noise: NoiseName = None,
    seed: Seed = 0,
    engine: Engine = "eager",
    axis: Annotated[
        int | None,
        typer.Option(
            min=0, max=2, help="Axis along which NIfTI volumes are cut. Default: one of length 1, else the last."
        ),
    ] = None,
    tile: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Cut larger images into windows of so many pixels a side; 0 never. Default: 512, for models that can.",
        ),
    ] = None,
    overlap: Annotated[int, typer.Option(min=8, help="Pixels that neighboring windows share.")] = 96,
    overview: Annotated[
        bool, typer.Option("--overview", help="Also write overview.png, a picture of all samples, per input.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Do inputs again that have a result.")] = False,
    device: Device = "auto",
) -> None:
    """Segment files, folders and volumes: all samples, the fused map, mean probabilities and entropy as TIFF, NIfTI and
    DICOM SEG with the input's geometry, an overlay, and result.json with the sizes of all classes."""
    from rich.progress import Progress

    from stochseg.devices import pick_device
    from stochseg.inference import Outcome, PredictOptions
    from stochseg.inference import predict as run
    from stochseg.models import load

    options = PredictOptions(
        n=samples,
        evaluations=evaluations,
        sampler=sampler,
        grid=grid,
        noise=noise,
        seed=seed,
        engine=engine,
        tile=tile,
        overlap=overlap,
        axis=axis,
        overview=overview,
    )
    network = load(model, device=pick_device(device))
    with Progress(console=messages, transient=True) as bar:
        task = bar.add_task("predicting")

        def report(outcome: Outcome) -> None:
            for notice in outcome.notices:
                messages.print(f"note: {outcome.source}: {notice}" if outcome.source else f"note: {notice}", **PLAIN)
            if outcome.status == "failed":
                messages.print(f"skipped: {outcome.source}: {outcome.problem}", **PLAIN)
            elif outcome.status == "done":
                console.print(f"{outcome.source} -> {outcome.folder}", **PLAIN)

        try:
            outcomes = run(
                network,
                inputs,
                out,
                options,
                overwrite=overwrite,
                origin=str(model),
                report=report,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
        except KeyboardInterrupt:
            again = "without --overwrite" if overwrite else "again"
            messages.print(f"stopped; what is done is in {out}, the same call {again} goes on", **PLAIN)
            raise
    counts = {status: sum(outcome.status == status for outcome in outcomes) for status in ("done", "kept", "failed")}
    kept = f", {counts['kept']} were done before" if counts["kept"] else ""
    failed = f", {counts['failed']} skipped" if counts["failed"] else ""
    written = f"results in {out}" if counts["done"] or counts["kept"] else "nothing was written"
    console.print(f"{counts['done']} done{kept}{failed}; {written}", **PLAIN)
    if counts["failed"]:
        raise typer.Exit(1)


@app.command()
def evaluate(
    run: Annotated[
        Path,
        typer.Argument(help="A run folder, as `train` writes it; with --data also a saved or shipped model (lidc)."),
    ],
    samples: Annotated[
        int, typer.Option("--samples", "-n", min=2, help="Number of label maps to sample per image.")
    ] = 100,
    evaluations: Evaluations = None,
    sampler: SamplerName = None,
    grid: GridName = None,
    noise: NoiseName = None,
    seed: Seed = 0,
    data: Annotated[
        Path | None, typer.Option(help="Evaluate on this packed store (.h5) or folder instead of the run's data.")
    ] = None,
    split: Annotated[str, typer.Option(help="train, val or test; val chose the best checkpoint.")] = "val",
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many images, evenly spread.")] = None,
    curve: Annotated[
        str | None, typer.Option(help="Also quality against these numbers of network evaluations, e.g. 5,10,25,250.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Where to write. Default: RUN/evaluation; below runs/ for a model without a run."),
    ] = None,
    engine: Engine = "eager",
    device: Device = "auto",
) -> None:
    """Compare a model's samples with the raters: GED, HM-IoU, diversity, mIoU, calibration, time. Writes a table,
    JSON, CSV, a picture and a page."""
    from rich.progress import Progress

    from stochseg import evaluation, plotting
    from stochseg.devices import pick_device
    from stochseg.evaluation import check_compatible
    from stochseg.files import write_csv
    from stochseg.inference import with_engine
    from stochseg.models import load
    from stochseg.models.sampling import SamplingOptions
    from stochseg.reports import RunFacts, RunPage
    from stochseg.reports.run import Curve

    points = numbers("--curve", curve)
    config, chosen = open_run(run, data, split)
    network = with_engine(load(run, device=pick_device(device)), engine)
    check_compatible(network, chosen)
    options = SamplingOptions(n=samples, evaluations=evaluations, sampler=sampler, grid=grid, noise=noise, seed=seed)
    for count in (evaluations, *points):
        network.check_options(options.model_copy(update={"evaluations": count}))
    folder = out or home(run) / "evaluation"
    check_writable(folder / "metrics.json")
    with Progress(console=messages, transient=True) as bar:
        task = bar.add_task("evaluating")
        result = evaluation.evaluate(
            network,
            chosen,
            options=options,
            limit=limit,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    console.print(evaluation.table(result, config.published if config else None))
    evaluation.write_results(result, folder)
    plotting.write_figure(plotting.qualitative(result.kept, chosen.info), folder / "samples.png")
    measured = None
    if points:
        metrics = evaluation.evaluations_curve(network, chosen, points, options=options, limit=limit)
        name = sampler or network.default_sampling().sampler or network.name
        figure = plotting.quality_against_evaluations({name: metrics}, n=samples)
        plotting.write_figure(figure, folder / "steps.png")
        measured = Curve(name, metrics, result.settings["images"])
        write_csv(folder / "steps.csv", [{"evaluations": count, **row} for count, row in metrics.items()])
    facts = RunFacts(f"Evaluation of {run.name or run}", config.published if config else {})
    page = RunPage(facts, result, chosen.info, curve=measured).write(folder / "index.html")
    console.print(f"written to {folder}; look at {page}", **PLAIN)


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="A run folder, a saved model, or a shipped one by name (lidc).")],
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    size: Annotated[str, typer.Option(help="Height and width of the images: 128, or 128x256.")] = "128",
) -> None:
    """Write a model for other languages: its networks as ONNX files, and export.json, which says how to sample."""
    from stochseg.inference import export as write
    from stochseg.models import load

    folder = write(load(model), out, height_width(size))
    console.print(f"written to {folder}; begin with {folder}/export.json", **PLAIN)


app.command()(bench_commands.bench)
app.command()(bench_commands.compare)
app.command(
    epilog='Predictions: stochseg report predictions --spacing 0.7 --ask "longest diameter > 6 mm". A run: stochseg '
    "report runs/mine --limit 50. A shipped model: stochseg report lidc --data data/lidc.h5."
)(report_command.report)


def main() -> NoReturn:
    """Run the command: 0 done, 2 the user's mistake, 130 stopped by the user."""
    # A job manager's polite stop ends like Ctrl-C: with a checkpoint.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    limit_threads()  # before torch is imported
    keep_freed_memory()
    for stream in (sys.stdout, sys.stderr):  # names of files need not be text
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except UserError as error:
        _complain(str(error))
    except OSError as error:
        if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            raise
        if error.filename is None:
            _complain(f"cannot write: {error.strerror}; free some space or give another place")
        _complain(f"{error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        sys.exit(130)


def _complain(text: str) -> NoReturn:
    messages.print("[bold red]error:[/] ", end="")
    messages.print(text, **PLAIN)
    sys.exit(2)


if __name__ == "__main__":
    main()
