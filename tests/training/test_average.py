"""The moving average of the weights against a loop in numpy."""

import numpy as np
import pytest
import torch

from stochseg.models import create
from stochseg.training.average import MovingAverage


@pytest.mark.parametrize("warmup", [9, 1])
def test_moving_average_against_a_loop(warmup):
    model = create("unet-ce", 2, 1, base=4, multipliers=[1], blocks=1, attention=[])
    model.register_buffer("count", torch.zeros(()))
    average = MovingAverage(model, 0.6, warmup)
    weight, averaged = next(model.parameters()), next(average.model.parameters())
    expected = None
    for n in range(12):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter)
            model.count += 1
        average.update(model)
        current = weight.detach().double().numpy().copy()
        decay = 0.0 if n == 0 else min(0.6, (1 + n) / (1 + n + warmup))
        expected = current if expected is None else decay * expected + (1 - decay) * current
        np.testing.assert_allclose(averaged.detach().numpy(), expected, rtol=1e-5, atol=1e-6)
        assert average.model.count == n + 1


def test_with_a_warmup_of_one_it_is_the_mean_until_the_decay_is_reached():
    """The paper's 0.99995 is in force after 20,000 updates, not after 180,000."""
    model = create("unet-ce", 2, 1, base=4, multipliers=[1], blocks=1, attention=[])
    average, seen = MovingAverage(model, 0.99995, 1), []
    for _ in range(5):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter)
        average.update(model)
        seen.append(next(model.parameters()).detach().clone())
    # The first update is a copy, and the second counts a third: the mean of (first, first, second, …).
    expected = (seen[0] + torch.stack(seen).sum(0)) / 6
    torch.testing.assert_close(next(average.model.parameters()), expected)
