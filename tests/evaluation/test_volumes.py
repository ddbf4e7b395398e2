"""Evaluation of volumes."""

import numpy as np
import pytest

from stochseg.data.phantom import PhantomVolumes
from stochseg.errors import UserError
from stochseg.evaluation import evaluate
from stochseg.metrics import brier, ged, hm_iou
from stochseg.models import create
from stochseg.models.sampling import SamplingOptions
from tests.support.volumes import Balls, Smaller


def test_scores_of_volumes_are_those_of_the_metrics():
    data = Balls()
    result = evaluate(Smaller(), data, options=SamplingOptions(n=4), keep=2)
    for i, row in enumerate(result.images):
        labels, raters = Smaller().sample(data[i].image[None], 4).labels, data[i].raters[None]
        assert row["ged_4"] == pytest.approx(ged(labels.flatten(2), raters.flatten(2), 2).item())
        assert row["hm_iou_4"] == pytest.approx(hm_iou(labels.flatten(2), raters.flatten(2), 2).item())
    out = Smaller().sample(data[0].image[None], 4)
    scores = [brier(out.mean.flatten(2), data[i].raters[None].flatten(2)).item() for i in range(3)]
    assert result.metrics["brier"] == pytest.approx(np.mean(scores))
    assert {"ece", "ece_foreground", "miou"} <= result.metrics.keys()


def test_models_and_data_of_different_dimensions_are_refused():
    flat = create("unet-ce", 2, 1, base=4, multipliers=[1])
    with pytest.raises(UserError, match="takes images, the data are volumes"):
        evaluate(flat, Balls(), options=SamplingOptions(n=2))


def test_a_model_of_volumes_on_phantoms_whose_truth_is_known():
    data = PhantomVolumes("val", size=16, slices=4, count=2)
    model = create("unet-ce", 2, 1, base=4, multipliers=[1], draw="pixels", spatial_dims=3)
    result = evaluate(model, data, options=SamplingOptions(n=3))
    assert result.kept[0][1].labels.shape == (1, 3, 4, 16, 16)
    assert result.modes.frequency.sum(1) == pytest.approx(1)
    assert {"mode_tv", "ged_truth_unbiased", "hm_iou_3", "ece"} <= result.metrics.keys()


def test_samples_that_do_not_fit_into_memory_are_refused_before_they_are_drawn(monkeypatch):
    class Stored(Balls):
        def space(self, i):
            return (4 + 2 * i, 20, 20)

    monkeypatch.setattr("stochseg.evaluation.compatibility.physical_memory", lambda: 20 * 4 * 8 * 20 * 20 - 1)
    with pytest.raises(UserError, match="4 samples of a volume of 8×20×20 voxels need"):
        evaluate(Smaller(), Stored(), options=SamplingOptions(n=4))
