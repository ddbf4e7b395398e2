"""An image with two readings, which a model of distributions must draw with their frequencies."""

from __future__ import annotations

import torch

from stochseg.models import StochasticSegmenter


def learn_readings(
    model: StochasticSegmenter,
    *,
    steps: int,
    lr: float,
    batch: int = 16,
    size: int = 4,
    depth: int | None = None,
    readings: tuple[int, int] = (1, 0),
) -> tuple[float, float]:
    """Train on a blank image: 7 of 10 raters give every pixel the first of two labels, 3 raters the second.

    With a depth, the image is a volume of so many slices.

    Returns:
        The fractions of 200 samples that show either label in more than 95% of the pixels.
    """
    space = (size, size) if depth is None else (depth, size, size)
    image = torch.zeros(batch, 1, *space)
    raters = torch.tensor(7 * readings[:1] + 3 * readings[1:]).view(-1, *[1] * len(space)).expand(batch, -1, *space)
    groups = [{"params": group["params"], "factor": group.get("lr_factor", 1.0)} for group in model.parameter_groups()]
    optimizer = torch.optim.Adam(groups)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * group["factor"] * min(1.0, 2 * (1 - step / steps))
        optimizer.zero_grad()
        model(image, raters, keys=[(step, i) for i in range(batch)])["loss"].backward()
        optimizer.step()
    labels = model.sample(image[:1], 200).labels[0]
    first, second = (((labels == label).float().flatten(1).mean(1) > 0.95).float().mean().item() for label in readings)
    return first, second
