"""Start the server: settings from the command line, the gate in front of the application, one process per workspace."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.locks import locked
from stochseg.studio.desk import call_once
from stochseg.studio.launch import find_shelf
from stochseg.studio.security import Gate, is_loopback
from stochseg.studio.settings import Settings


class Shelf(NamedTuple):
    """Models by name, and devices."""

    models: dict[str, str]
    devices: tuple[str, ...]


def look_up(models: Sequence[Path], devices: Sequence[str]) -> Shelf:
    """Find models and devices in a process of its own, so that this one stays small: it never imports torch.

    Raises:
        UserError: A path has no model, or a device is not available.
    """
    return Shelf(*call_once(find_shelf, models, devices))


def serve(
    settings: Settings, host: str, port: int, *, browser: bool, announce: Callable[[str], object] = print
) -> None:
    """Run the server until it is interrupted.

    Args:
        settings: of the server.
        host: address to listen on.
        port: to listen on; 0 takes a free one.
        browser: whether to open the page.
        announce: called with the address of the page, once the server listens.

    Raises:
        UserError: The address is in use or needs a token, or another server uses the workspace.
    """
    uvicorn = require("uvicorn", "studio", "stochseg studio")
    require("fastapi", "studio", "stochseg studio")
    require("python_multipart", "studio", "stochseg studio")
    from stochseg.studio.api import create_app

    reached = [f"--host {host}"] * (not is_loopback(host))
    reached += [f"--allow-host {name}" for name in settings.hosts if not is_loopback(name)]
    if reached and settings.token is None:
        raise UserError(f"{reached[0]} is reached from other machines: expected a token, got none; pass --token-file")
    listener = _listen(host, port)
    port = listener.getsockname()[1]
    limit = int(settings.limits.upload_mb * 10**6)
    with listener, locked(settings.workspace):
        gate = Gate(create_app(settings), (*settings.hosts, host), settings.token, limit)
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        link = f"http://{shown}:{port}/" + ("" if settings.token is None else f"?code={gate.one_time_code()}")
        config = uvicorn.Config(
            gate,
            log_level=logging.WARNING,
            access_log=False,  # the link carries a code
            lifespan="on",
            server_header=False,
            timeout_graceful_shutdown=5,
            timeout_keep_alive=30,
            limit_concurrency=1000,
        )
        server = uvicorn.Server(config)
        threading.Thread(target=_announce, args=(server, link, browser, announce), daemon=True).start()
        asyncio.run(server.serve(sockets=[listener]))
        if server.started:  # only a signal ends it, and asyncio does not always pass it on
            raise KeyboardInterrupt


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    if os.name == "posix":  # on Windows it would let two servers share a port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UserError(f"cannot listen on {host}:{port} ({error.strerror}); choose another --port") from None
    return listener


def _announce(server: object, link: str, browser: bool, announce: Callable[[str], object]) -> None:
    """Tell the address, once the server answers."""
    while not getattr(server, "started", False):
        if getattr(server, "should_exit", False):
            return
        threading.Event().wait(0.05)
    announce(link)
    if browser:
        webbrowser.open(link)


def read_token(file: Path) -> str:
    """Read the token of a file: it is in no command line, which other users of the machine see."""
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--token-file {file} cannot be read ({error})") from None
    if len(token) < 16:
        raise UserError(f"--token-file {file}: expected at least 16 characters; e.g. of: openssl rand -hex 32")
    return token
