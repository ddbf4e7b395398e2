"""Processes that are dead, for tests of what they leave behind."""

from dataclasses import replace

from stochseg.owners import Owner, current_owner


def dead_owner() -> Owner:
    """A process of this machine that does not run: its number is ours, but it began earlier."""
    return replace(current_owner(), start=1)


def dead_tag() -> str:
    """The tag of a dead process."""
    return dead_owner().tag
