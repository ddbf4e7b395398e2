"""Random label maps, weights and probabilities for the tests of metrics, and the slowest possible IoU."""

from __future__ import annotations

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

few_examples = settings(max_examples=60, deadline=None)
sizes = st.integers(1, 5)
classes = st.sampled_from([2, 3, 19])
seeds = st.integers(0, 10_000)
spaces = st.sampled_from([(20,), (5, 4), (2, 5, 2)])


def maps(seed: int, b: int, n: int, num_classes: int, space: tuple[int, ...] = (5, 4)) -> Tensor:
    """Random label maps "b n *space": a third of them empty, the others with few or many labels."""
    generator = torch.Generator().manual_seed(seed)
    ones = [1] * len(space)
    labels = torch.randint(num_classes, (b, n, *space), generator=generator)
    upper = torch.randint(1, num_classes + 1, (b, n, *ones), generator=generator)
    seen = torch.rand(b, n, *ones, generator=generator) > 1 / 3
    return torch.where(seen & (labels < upper), labels, 0)


def map_weights(seed: int, b: int, n: int) -> Tensor:
    """Random unnormalized weights "b n", some of them zero, never all."""
    weights = torch.rand(b, n, generator=torch.Generator().manual_seed(seed))
    weights[:, 1:][weights[:, 1:] < 0.2] = 0
    return weights + torch.eye(1, n) * 0.1


def probabilities(seed: int, b: int, num_classes: int, space: tuple[int, ...] = (5, 4)) -> Tensor:
    """Random probabilities "b l *space"."""
    logits = torch.randn(b, num_classes, *space, generator=torch.Generator().manual_seed(seed))
    return (2 * logits).softmax(1)


def slow_iou(a: Tensor, b: Tensor, num_classes: int) -> float:
    """Mean IoU of the foreground classes of two maps, by sets of pixels."""
    scores = []
    for label in range(1, num_classes):
        in_a = {i for i, value in enumerate(a.flatten().tolist()) if value == label}
        in_b = {i for i, value in enumerate(b.flatten().tolist()) if value == label}
        scores.append(len(in_a & in_b) / len(in_a | in_b) if in_a | in_b else 1.0)
    return sum(scores) / len(scores)
