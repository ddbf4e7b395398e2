"""A data set of one image with two readings, which a model of distributions must learn with their frequencies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from stochseg.models import create


@pytest.fixture
def two_readings() -> Callable[..., list[float]]:
    """Train a tiny diffusion model for a few seconds on a blank image, of which 7 of 10 raters mark the left half and 3
    the center; returns the shares of samples that are either reading (up to 5% of the pixels)."""

    def learn(name: str, steps: int, lr: float, **config) -> list[float]:
        torch.manual_seed(0)
        shape = {"base": 8, "multipliers": [1, 2], "blocks": 1, "attention": [], "num_timesteps": 40}
        model = create(name, 2, 1, **{**shape, **config}).train()
        image = torch.zeros(16, 1, 8, 8)
        readings = torch.zeros(2, 8, 8, dtype=torch.int64)
        readings[0, :, :4] = readings[1, 2:6, 2:6] = 1
        labels = readings[[0] * 7 + [1] * 3].expand(16, -1, -1, -1)
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = lr * min(1.0, 2 * (1 - step / steps))
            loss = model(image, labels, keys=[(step, i) for i in range(16)])["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        samples = model.sample(image[:1], 200).labels[0]
        return [((samples != r).float().mean((1, 2)) < 0.05).float().mean().item() for r in readings]

    return learn
