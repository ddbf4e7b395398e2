"""Evaluation of models of volumes."""

import pytest
import torch

from stochseg.errors import UserError
from stochseg.evaluation import evaluate
from stochseg.models.sampling import SamplingOptions
from stochseg.types import DatasetInfo, Example
from tests.support.models import lively


class Volumes:
    """Two volumes of several depths with three raters."""

    info = DatasetInfo(num_classes=2, image_channels=1, spatial_dims=3)
    depths = (3, 5)

    def __len__(self):
        return 2

    def space(self, i):
        return (self.depths[i], 12, 16)

    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        image = torch.rand(1, *self.space(i), generator=generator) * 2 - 1
        return Example(image, torch.randint(2, (3, *self.space(i)), generator=generator), id=f"v{i}")


def test_volumes_are_scored_as_one():
    model, data = lively("ccdm-fast", spatial_dims=3, num_timesteps=20, evaluations=2), Volumes()
    result = evaluate(model, data, options=SamplingOptions(n=4))
    samples = model.sample(data[1].image[None], 4)
    a, b = samples.labels[0].bool(), data[1].raters.bool()

    def distance(x, y):
        pairs = [1 - (p & q).sum() / (p | q).sum() for p in x for q in y]
        return torch.stack(pairs).double().mean()

    expected = 2 * distance(a, b) - distance(a, a) - distance(b, b)
    assert result.images[1]["ged_4"] == pytest.approx(float(expected), abs=1e-6)


def test_samples_that_do_not_fit_into_memory_are_refused_before_they_are_drawn(monkeypatch):
    model = lively("ccdm-fast", spatial_dims=3)
    monkeypatch.setattr("stochseg.evaluation.compatibility.physical_memory", lambda: 20 * 4 * 5 * 12 * 16 - 1)
    with pytest.raises(UserError, match="4 samples of a volume of 5×12×16 voxels need"):
        evaluate(model, Volumes(), options=SamplingOptions(n=4))
