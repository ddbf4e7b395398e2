"""Exponential moving average of the weights: the model that is validated and saved."""

from __future__ import annotations

import copy

import torch

from stochseg.models import StochasticSegmenter


class MovingAverage:
    """Average of a model's parameters over its updates, with a warm-up; buffers are copied.

    The decay of update n is at most (1 + n) / (1 + n + warmup), so that the first, random weights are forgotten: with a
    warm-up of 9 about a tenth of the updates so far count; with 1 it is their plain mean until 1 / (1 - decay) updates.
    """

    def __init__(self, model: StochasticSegmenter, decay: float, warmup: float = 9.0):
        self.model = copy.deepcopy(model)
        self.decay, self.warmup = decay, warmup
        self.updates = 0

    @torch.no_grad()
    def update(self, current: StochasticSegmenter) -> None:
        """Move the average towards the current weights; the first update copies them."""
        n = self.updates
        decay = min(self.decay, (1 + n) / (1 + n + self.warmup)) if n else 0.0
        torch._foreach_lerp_(list(self.model.parameters()), list(current.parameters()), 1 - decay)
        for averaged, buffer in zip(self.model.buffers(), current.buffers(), strict=True):
            averaged.copy_(buffer)
        self.updates += 1
