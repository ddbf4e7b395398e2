"""The commands `stochseg data …`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stochseg.cli.options import Split, check_writable
from stochseg.cli.terminal import console, log, note, problem, progress_bar, say, shell_command

app = typer.Typer(help="Import, check and show data.", no_args_is_help=True, rich_markup_mode="rich")
StoreOrFolder = Annotated[Path, typer.Argument(metavar="PATH", help="Packed store (.h5), or folder with dataset.yaml.")]


@app.command("import", epilog="Next: stochseg data check STORE; stochseg train small --data STORE")
def import_(
    kind: Annotated[
        str,
        typer.Argument(metavar="KIND", help="lidc-slices, lidc-nodules, lidc-dicom, cityscapes, nnunet, folder, …"),
    ],
    source: Annotated[
        Path,
        typer.Argument(metavar="SOURCE", help="Folder or file as downloaded; archives of DICOM must be unpacked."),
    ],
    out: Annotated[Path, typer.Argument(metavar="STORE", help="Packed store to write, e.g. data/lidc.h5.")],
) -> None:
    """Pack a data set into one file for fast random reads. Run the command again to resume an interrupted import."""
    from stochseg.data import plan_import, write_store

    plan = plan_import(kind, source)
    with progress_bar(f"importing {kind}") as progress:
        write_store(plan, out, progress=progress)
    splits: dict[str, list[str]] = {}
    for item in plan.items:
        splits.setdefault(item.split, []).append(item.group)
    for split, groups in splits.items():
        say(f"{split}: {len(groups):,} examples of {len(set(groups)):,} groups")
    if plan.provenance.note:
        note(plan.provenance.note)
    say(f"written to {out} ({out.stat().st_size / 2**20:.1f} MB); license: {plan.provenance.license}")


@app.command("export", epilog="Example: stochseg data export nnunet my-data nnUNet_raw/Dataset123_Nodules")
def export_(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="nnunet.")],
    source: StoreOrFolder,
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write; it must not exist.")],
    consensus: Annotated[
        str, typer.Option(metavar="RULE", help="One label map of several raters: majority or staple.")
    ] = "majority",
) -> None:
    """Write a data set in the layout of another library. `data import` of the same kind restores it."""
    from stochseg.data.exporters import EXPORTERS, open_records
    from stochseg.errors import lookup

    write = lookup("kind of export", EXPORTERS, kind)
    records = open_records(source)
    with progress_bar(f"exporting {kind}") as progress:
        write(records, out, progress, consensus)
    say(f"written to {out}: {len(records):,} cases")


@app.command()
def example(
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder to write.")],
    count: Annotated[int, typer.Option(min=1, max=10**6, metavar="N", help="Number of images.")] = 400,
    size: Annotated[int, typer.Option(min=8, max=4096, metavar="N", help="Height and width of the images.")] = 64,
) -> None:
    """Write a folder of synthetic images with three raters, in the layout that your own data should have."""
    from stochseg.data.example import write_example_folder

    with progress_bar("drawing") as progress:
        write_example_folder(out, count=count, size=size, progress=progress)
    say(f"written: {out}/images/ and {out}/labels/RATER/. Next: {shell_command('data', 'init', out)}")


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder with images/ID.* and labels/RATER/ID.*.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Keys of dataset.yaml that you know, e.g. threshold=128 num_classes=4."
        ),
    ] = None,
) -> None:
    """Write dataset.yaml and splits.json for your own folder, with values inferred from its files, for you to edit."""
    from stochseg.data.folder import describe_groups, init_folder, read_splits
    from stochseg.training import override

    config = init_folder(folder, override({}, settings or []))
    splits = read_splits(folder)
    if config.group is not None:
        ids = [id for part in splits.values() for id in part]
        say(f"images that share a group stay in one split: {describe_groups(config.group, ids)}; see `group`")
    if not splits.get("val", True):
        log.warning("all images are of one group, so that all are in train: training needs images of another in val")
    say(
        f"written: {folder}/dataset.yaml and {folder}/splits.json ({config.num_classes} classes, "
        f"{config.image_channels} image channel(s)); read dataset.yaml and correct it.\n"
        f"Next: {shell_command('data', 'check', folder)}"
    )


@app.command()
def check(path: StoreOrFolder) -> None:
    """Read every example and report sizes, label values, empty maps, images or patients in two splits, and the
    agreement of the raters. Exit code 1: there are problems."""
    from stochseg.evaluation.data_report import report_data

    with progress_bar("reading") as progress:
        report = report_data(path, progress)
    console.print(report.table())
    for text in report.check.notes:
        note(f"note: {text}")
    for text in report.check.problems:
        problem(text, "problem")
    if report.check.problems:
        raise typer.Exit(1)
    say("no problems found")


@app.command(epilog="A consensus of the raters: stochseg.data.consensus in Python, or stochseg data export nnunet.")
def raters(
    path: StoreOrFolder,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Page to write.")] = Path("raters.html"),
) -> None:
    """Measure how much raters agree: Dice, IoU, surface distance, Fleiss' kappa, and each rater's confusion and bias,
    with intervals by patient; writes a page."""
    from rich.table import Table

    from stochseg.reports.raters import agreement_rows, report_raters

    check_writable(out)
    with progress_bar("comparing") as progress:
        report = report_raters(path, out, progress)
    head, rows = agreement_rows(report)
    table = Table(*head, title=f"{report.info.name}: {report.images} images, {len(report.groups)} patients")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    say(f"written to {out}; open it in a browser")


@app.command()
def show(
    path: StoreOrFolder,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Picture to write.")] = Path("data.png"),
    split: Split = "train",
    count: Annotated[int, typer.Option(min=1, metavar="N", help="Show at most N evenly spaced examples.")] = 24,
) -> None:
    """Draw a contact sheet: images with the outlines of every rater."""
    from stochseg.data import open_path, pick_examples
    from stochseg.plotting import contact_sheet, write_figure

    check_writable(out)
    data = open_path(path, split)
    write_figure(contact_sheet(pick_examples(data, count), data.info), out)
    say(f"written to {out}")
