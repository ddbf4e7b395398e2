"""The commands `stochseg paper …`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stochseg.cli.options import Device
from stochseg.cli.terminal import console, messages, say, shell_command
from stochseg.errors import unknown_name

app = typer.Typer(
    help="Repeat the tables and figures of the CCDM paper.", no_args_is_help=True, rich_markup_mode="rich"
)
TableName = Annotated[str, typer.Argument(metavar="TABLE", help="A table of `stochseg paper list`.")]
Out = Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of all runs and scores.")]
OUT = Path("runs/paper")


@app.command("list")
def list_(
    table: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="Show the rows of this table, with values and costs.")
    ] = None,
) -> None:
    """List the tables and figures, or the rows of one table with their printed values and estimated costs."""
    from stochseg.experiments.paper.listing import list_rows, list_tables

    console.print(list_tables() if table is None else list_rows(table))


@app.command()
def run(
    table: TableName,
    row: Annotated[
        list[str] | None, typer.Option(metavar="ROW", help="Row to compute; may be repeated. Default: all.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="STORE",
            help='Packed store, or "synthetic" to try a small experiment. Default: the path in the list.',
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Trainings per row.")] = 3,
    scale: Annotated[
        float,
        typer.Option(
            metavar="S", help="Scale steps, batch size, scored images and network evaluations down, e.g. 0.001."
        ),
    ] = 1.0,
    minutes: Annotated[
        float | None,
        typer.Option(metavar="M", help="Instead of --scale: train each seed for M minutes, and score for as long."),
    ] = None,
    encoder_weights: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help='Pretrained weights of the row\'s encoder; for DINO also "download" (by timm).'
        ),
    ] = None,
    out: Out = OUT,
    device: Device = "auto",
) -> None:
    """Train and score rows of a table. Repeat the command to resume; different rows can run on different machines."""
    from stochseg.experiments.paper import RunSettings, find_table, run_rows

    settings = RunSettings(out, data, seeds, scale, minutes, encoder_weights, device)
    run_rows(find_table(table), row or [], settings, messages)
    say(f"done. Next: {shell_command('paper', 'table', table, '--out', out)}")


@app.command("table")
def table_(
    table: TableName,
    style: Annotated[str, typer.Option("--format", metavar="NAME", help="markdown, csv or latex.")] = "markdown",
    out: Out = OUT,
) -> None:
    """Print a table of the paper with our scores next to the printed ones, mean ± standard deviation over seeds."""
    from stochseg.experiments.paper import FORMATS, find_table, format_table

    if style not in FORMATS:
        raise unknown_name("format", style, FORMATS)
    say(format_table(find_table(table), out, style))


@app.command()
def figure(
    name: Annotated[str, typer.Argument(metavar="FIGURE", help="A figure of `stochseg paper list`.")],
    data: Annotated[
        Path | None, typer.Option(metavar="STORE", help="Packed store. Default: the path that the list shows.")
    ] = None,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="Picture to write. Default: FIGURE.png.")] = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Trainings to average, as they were run.")] = 3,
    images: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of images. Default: the paper's.")
    ] = None,
    out: Out = OUT,
    device: Device = "auto",
) -> None:
    """Draw a figure of the paper from trained rows (`stochseg paper run`)."""
    from stochseg.cli.options import check_writable
    from stochseg.experiments.paper.figures import FigureSettings, draw_figure
    from stochseg.plotting import write_figure

    target = file or Path(f"{name}.png")
    check_writable(target)
    drawn = draw_figure(name, FigureSettings(out, data, seeds, images, device))
    write_figure(drawn, target)
    say(f"written to {target}")
