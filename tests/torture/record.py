"""Where and how a long test ran: columns of its CSV."""

from __future__ import annotations

import shlex
import sys
from functools import cache
from pathlib import Path

from stochseg.experiments.provenance import commit, hardware


@cache
def facts() -> dict[str, str]:
    """Hardware, commit and command of this process."""
    command = shlex.join(["python", "-m", f"tests.torture.{Path(sys.argv[0]).stem}", *sys.argv[1:]])
    return {"hardware": hardware(), "commit": commit(), "command": command}
