"""The command `stochseg`: one file per command, no logic of its own."""

from stochseg.cli.app import main

__all__ = ["main"]
