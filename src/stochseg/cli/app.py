"""The program `stochseg`. Commands import the library when they run, so that --help is instant."""

from __future__ import annotations

import errno
import io
import logging
import os
import signal
import sys
import tempfile
import traceback
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
    push,
    report,
    studio,
    train,
)
from stochseg.cli.terminal import console, log, messages, problem, say, shell_command, show_messages
from stochseg.errors import CutLabelsWarning, UserError
from stochseg.memory import keep_freed_memory
from stochseg.threads import limit_threads

DISTRIBUTED = ("train", "paper")
"""Commands that share their work under torchrun."""

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
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show results and errors only: no notes, no progress bars.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also show what is done, and where in the code an error was raised.")
    ] = False,
) -> None:
    copies = os.environ.get("WORLD_SIZE", "1") if "TORCHELASTIC_RUN_ID" in os.environ else "1"  # set by torchrun
    if copies != "1" and context.invoked_subcommand not in DISTRIBUTED:
        raise UserError(
            f"torchrun started `stochseg {context.invoked_subcommand}` {copies} times, to do the same; only "
            "training uses torchrun. Run the command alone; predict, evaluate and compare have --workers N"
        )
    if quiet and verbose:
        raise UserError("--quiet and --verbose: expected at most one, got both")
    show_messages(quiet=quiet, verbose=verbose)


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
app.command(epilog=push.EPILOG)(push.push)
app.add_typer(data.app, name="data")
app.add_typer(paper.app, name="paper")


def main() -> NoReturn:
    """Run the program.

    Exit codes: 0 success, 1 some inputs failed, 2 mistake of the user, 70 mistake of the program, 130 stopped.
    """
    # A job manager's SIGTERM ends the program like Ctrl-C: with a checkpoint.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    limit_threads()  # before torch is imported
    keep_freed_memory()
    show_messages()
    warnings.simplefilter("ignore", CutLabelsWarning)  # results and pages say it
    for stream in (sys.stdout, sys.stderr):  # file names are not always valid text
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except UserError as error:
        log.debug("raised here:", exc_info=error)
        _fail(error)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
        if error.filename is None and not full:
            _crash(error)
        remedy = "; free some space there or choose another --out" if full else ""
        _fail(f"{error.filename or 'cannot write'}: {error.strerror}{remedy}")
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        _crash(error)
    sys.exit(0)


def _fail(text: object) -> NoReturn:
    problem(str(text), "error")
    sys.exit(2)


def _crash(error: Exception) -> NoReturn:
    """Report a mistake of this program: its traceback is in a file, or here with --verbose."""
    text = "".join(traceback.format_exception(error))
    if log.isEnabledFor(logging.DEBUG):
        say(text, messages)
        where = "above"
    else:
        with tempfile.NamedTemporaryFile(
            "w", prefix="stochseg-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(f"{shell_command(*sys.argv[1:])}\nstochseg {__version__}, Python {sys.version}\n\n{text}")
        where = file.name
    first = (str(error) or "no message").splitlines()[0]
    problem(f"{type(error).__name__}: {first}. This is a mistake of stochseg; please report it with {where}", "crash")
    sys.exit(70)
