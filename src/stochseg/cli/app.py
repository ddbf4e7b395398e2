"""The program `stochseg`. Commands import the library when they run, so that --help is instant."""

from __future__ import annotations

import errno
import io
import signal
import sys
import warnings
from typing import Annotated, NoReturn

import typer

from stochseg._version import __version__
from stochseg.cli import (
    bench,
    calibrate,
    compare,
    convert,
    data,
    demo,
    evaluate,
    export,
    gather,
    growth,
    paper,
    predict,
    report,
    studio,
    train,
)
from stochseg.cli.terminal import console, note
from stochseg.errors import CutLabelsWarning, UserError
from stochseg.memory import keep_freed_memory
from stochseg.threads import limit_threads

app = typer.Typer(
    name="stochseg",
    help="Sample the plausible label maps of an image. Start with: stochseg demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        console.print(__version__, highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


app.command()(demo.demo)
# Unknown options reach the command, which answers `--steps 10` with the setting `steps=10`.
app.command(epilog=train.EPILOG, context_settings={"ignore_unknown_options": True})(train.train)
app.command(epilog=predict.EPILOG)(predict.predict)
app.command(epilog=gather.EPILOG)(gather.gather)
app.command()(evaluate.evaluate)
app.command(epilog=calibrate.EPILOG)(calibrate.calibrate)
app.command(epilog=report.EPILOG)(report.report)
app.command(epilog=growth.EPILOG)(growth.growth)
app.command(epilog=studio.EPILOG)(studio.studio)
app.command(epilog=compare.EPILOG)(compare.compare)
app.command(epilog=bench.EPILOG)(bench.bench)
app.command()(export.export)
app.command(epilog=convert.EPILOG)(convert.convert)
app.add_typer(data.app, name="data")
app.add_typer(paper.app, name="paper")


def main() -> NoReturn:
    """Run the program. Exit codes: 0 success, 2 mistake of the user, 130 stopped by the user."""
    # A job manager's SIGTERM ends the program like Ctrl-C: with a checkpoint.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    limit_threads()  # before torch is imported
    keep_freed_memory()
    warnings.simplefilter("ignore", CutLabelsWarning)  # results and pages say it
    for stream in (sys.stdout, sys.stderr):  # file names are not always valid text
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except UserError as error:
        _fail(error)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
        if error.filename is None and not full:
            raise
        remedy = "; free some space there or choose another --out" if full else ""
        _fail(f"{error.filename or 'cannot write'}: {error.strerror}{remedy}")
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(0)


def _fail(problem: object) -> NoReturn:
    note(str(problem), "error")
    sys.exit(2)
