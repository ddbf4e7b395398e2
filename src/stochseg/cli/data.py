"""The commands `stochseg data …`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stochseg.cli.options import PLAIN, console, messages

app = typer.Typer(
    help="Bring data in, check it, look at it.", no_args_is_help=True, rich_markup_mode="rich", add_completion=False
)
DataPath = Annotated[Path, typer.Argument(help="A packed store (.h5), or a folder with dataset.yaml.")]


@app.command("import", epilog="Then: stochseg data check OUT; stochseg train small --data OUT")
def import_(
    kind: Annotated[
        str, typer.Argument(help="lidc-slices, lidc-v1, lidc-v2, lidc-dicom, cityscapes, camvid, folder …")
    ],
    source: Annotated[
        Path,
        typer.Argument(help="The folder or file as it was downloaded; only lidc-dicom wants its archives unpacked."),
    ],
    out: Annotated[Path, typer.Argument(help="The store to write, e.g. data/lidc.h5.")],
) -> None:
    """Pack a data set into one file made for random reads. An interrupted import goes on when called again."""
    from rich.progress import Progress

    from stochseg.data import plan_import, write_store

    plan = plan_import(kind, source)
    with Progress(console=messages, transient=True) as bar:
        task = bar.add_task(f"importing {kind}", total=len(plan.items))
        write_store(plan, out, progress=lambda done, total: bar.update(task, completed=done, total=total))
    splits: dict[str, list[str]] = {}
    for item in plan.items:
        splits.setdefault(item.split, []).append(item.group)
    for split, groups in splits.items():
        console.print(f"{split}: {len(groups):,} examples of {len(set(groups)):,} groups", **PLAIN)
    console.print(
        f"written to {out} ({out.stat().st_size / 2**20:.1f} MB); license: {plan.provenance.license}", **PLAIN
    )


@app.command()
def example(
    out: Annotated[Path, typer.Argument(help="The folder to make.")],
    count: Annotated[int, typer.Option(min=1, help="Images.")] = 400,
    size: Annotated[int, typer.Option(min=8, help="Height and width.")] = 64,
) -> None:
    """Make a folder of synthetic images with three raters, laid out as your own data should be."""
    from rich.progress import Progress

    from stochseg.data.example import write_example_folder

    with Progress(console=messages, transient=True) as bar:
        task = bar.add_task("drawing", total=count)
        write_example_folder(out, count=count, size=size, progress=lambda done, _: bar.update(task, completed=done))
    console.print(f"written: {out}/images/ and {out}/labels/RATER/. Next: stochseg data init {out}", **PLAIN)


@app.command()
def init(folder: Annotated[Path, typer.Argument(help="A folder with images/ID.* and labels/RATER/ID.*")]) -> None:
    """Write a first dataset.yaml and splits.json for your own folder, by looking at its files. Edit them freely."""
    from stochseg.data.folder import init_folder

    config = init_folder(folder)
    console.print(
        f"{folder}/dataset.yaml and {folder}/splits.json are there: {config.num_classes} classes, "
        f"{config.image_channels} image channel(s). Read dataset.yaml once and correct it.\n"
        f"Next: stochseg data check {folder}",
        **PLAIN,
    )


@app.command()
def check(path: DataPath) -> None:
    """Read every example: sizes, label values, empty maps, images or patients in two splits, agreement of the raters.

    Exit code 1 if something is wrong."""
    from rich.progress import Progress

    from stochseg.evaluation.data_report import report_data

    with Progress(console=messages, transient=True) as bar:
        task = bar.add_task("reading")
        report = report_data(path, lambda done, total: bar.update(task, completed=done, total=total))
    console.print(report.table())
    for problem in report.check.problems:
        messages.print("[bold red]problem:[/] ", end="")
        messages.print(problem, **PLAIN)
    if report.check.problems:
        raise typer.Exit(1)
    console.print("no problems found", **PLAIN)


@app.command()
def show(
    path: DataPath,
    out: Annotated[Path, typer.Option(help="The picture to write.")] = Path("data.png"),
    split: Annotated[str, typer.Option(help="train, val or test.")] = "train",
    count: Annotated[int, typer.Option(min=1, help="Examples to show, spread over the split.")] = 24,
) -> None:
    """A contact sheet: images with the outlines of every rater."""
    from stochseg.data import open_path, pick_examples
    from stochseg.plotting import contact_sheet, write_figure

    data = open_path(path, split)
    write_figure(contact_sheet(pick_examples(data, count), data.info), out)
    console.print(f"written to {out}", **PLAIN)
