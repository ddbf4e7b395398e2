"""The command `stochseg studio`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stochseg.cli.terminal import note, say
from stochseg.errors import UserError

EPILOG = "Example: stochseg studio --runs runs --model runs/mine. Stop it with Ctrl-C; finished jobs stay."


def studio(
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="Port; 0 takes a free one.")] = 8765,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; any other than loopback needs a token.")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")] = True,
    workspace: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of inputs and results. Default: one per user.")
    ] = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(metavar="MODEL", help="Run folder or saved model to offer next to the bundled ones; repeatable."),
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="Folder with runs and predictions to show; repeatable. Default: runs."),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Device with a worker of its own: cpu, cuda, cuda:1 …; repeatable."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File with the token that clients must send.")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Name of this server, as a reverse proxy passes it on; repeatable."),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=N", help="Change a limit, e.g. samples=64 or upload_mb=4000; repeatable."),
    ] = None,
) -> None:
    """Open a local page to segment images, volumes and lesions, and to look at what is uncertain.

    Needs the extra studio: pip install "stochseg[studio]"."""
    from stochseg.studio.serving import look_up, read_token, serve
    from stochseg.studio.settings import Limits, Settings, default_workspace

    shelf = look_up(model or [], device or ["auto"])
    found = [Path("runs")] if runs is None and Path("runs").is_dir() else runs or []
    settings = Settings(
        workspace=(workspace or default_workspace()).absolute(),
        models=shelf.models,
        devices=shelf.devices,
        runs=tuple(path.absolute() for path in found),
        hosts=tuple(allow_host or ()),
        token=None if token_file is None else read_token(token_file),
        limits=Limits.parse(_limits(limit or []), where="--limit"),
    )
    note(f"workspace: {settings.workspace}; models: {', '.join(settings.models)}; Ctrl-C stops the server")
    serve(settings, host, port, browser=browser, announce=lambda link: say(f"open {link}"))


def _limits(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for (key, sign, _), text in zip(pairs, texts, strict=True):
        if not key or not sign:
            raise UserError(f"--limit: expected KEY=N, such as samples=64, got {text!r}")
    return {key: value for key, _, value in pairs}
