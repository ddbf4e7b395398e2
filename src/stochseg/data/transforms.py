"""Augmentations: one function acts on an image and all its label maps at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from stochseg.types import Example


def flip_rotate(example: Example, rng: np.random.Generator) -> Example:
    """One of the 8 flips and quarter turns, all equally likely, jointly on image and label maps.

    An image that is not square keeps its shape: it gets one of the 4 flips and half turns.
    """
    height, width = example.image.shape[-2:]
    mirror = bool(rng.integers(2))
    turns = int(rng.integers(4)) if height == width else 2 * int(rng.integers(2))

    def move(maps: torch.Tensor) -> torch.Tensor:
        turned = torch.rot90(maps, turns, (-2, -1))
        return (turned.flip(-1) if mirror else turned).contiguous()

    spacing = example.spacing
    if spacing is not None and turns % 2:
        spacing = (spacing[1], spacing[0])
    return replace(example, image=move(example.image), labels=move(example.labels), spacing=spacing)
