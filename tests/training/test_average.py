"""The moving average of the weights against a loop in numpy."""

import numpy as np
import torch

from stochseg.models import create
from stochseg.training.average import MovingAverage


def test_moving_average_against_a_loop():
    model = create("unet-ce", 2, 1, base=4, multipliers=[1], blocks=1, attention=[])
    model.register_buffer("count", torch.zeros(()))
    average = MovingAverage(model, 0.6)
    weight, averaged = next(model.parameters()), next(average.model.parameters())
    expected = None
    for n in range(12):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter)
            model.count += 1
        average.update(model)
        current = weight.detach().double().numpy().copy()
        decay = 0.0 if n == 0 else min(0.6, (1 + n) / (10 + n))
        expected = current if expected is None else decay * expected + (1 - decay) * current
        np.testing.assert_allclose(averaged.detach().numpy(), expected, rtol=1e-5, atol=1e-6)
        assert average.model.count == n + 1
