"""The program `stochseg`: one file per command, without logic of its own."""

from stochseg.cli.app import main

__all__ = ["main"]
