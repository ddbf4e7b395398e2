"""The inputs of `predict` in chunks, which are the unit of work of processes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stochseg.data.readers.pictures import SUFFIXES as PICTURES
from stochseg.inference.sources import Source

SAMPLES_PER_CHUNK = 64
"""Samples of the pictures of a chunk, as many as those of 128×128 pixels that share a call of the model."""
MIN_CHUNKS = 32
"""Few inputs are split into at least this many chunks, so that no worker waits long for the last one."""


def chunks_of(sources: Sequence[Source], n: int) -> list[list[Source]]:
    """Split inputs into chunks of consecutive pictures; a volume is a chunk of its own.

    Inputs share calls of the model within a chunk only. The chunks depend on the inputs and the number n of samples
    alone, so the results do not depend on the number of processes, not even in their last bits.
    """
    size = max(1, min(SAMPLES_PER_CHUNK // n, math.ceil(len(sources) / MIN_CHUNKS)))
    chunks: list[list[Source]] = []
    room = 0
    for source in sources:
        is_picture = len(source.files) == 1 and source.files[0].name.lower().endswith(PICTURES)
        if room == 0 or not is_picture:
            chunks.append([])
            room = size if is_picture else 1
        chunks[-1].append(source)
        room -= 1
    return chunks
