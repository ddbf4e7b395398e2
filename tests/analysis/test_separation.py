"""Lesions: connected components of all that any sample marks."""

import numpy as np
import pytest
import torch

import stochseg
from stochseg.analysis import hypotheses, lesions, measure
from stochseg.types import DatasetInfo
from tests.support.samples import as_samples

SPACING = (2.0, 0.5, 0.5)
WEIGHTS = [0.4, 0.3, 0.2, 0.1]
INFO = DatasetInfo(num_classes=3, image_channels=1, spatial_dims=3, class_names=("background", "nodule", "vessel"))


@pytest.fixture
def samples():
    """A large lesion in all samples, in two pieces in one; a small one in two samples; a vessel beside both."""
    maps = torch.zeros(1, 4, 8, 20, 20, dtype=torch.long)
    maps[:, :, 1:5, 2:8, 2:8] = 1
    maps[:, 1, 3] = 0
    maps[:, 2:, 6:, 14:17, 14:17] = 1
    maps[:, :, 6:, 2:4, 2:15] = 2
    return as_samples(maps, 3, WEIGHTS)


def test_sizes_of_lesions_add_up(samples):
    found = lesions(samples, label="nodule", info=INFO)
    assert [lesion.name for lesion in found] == ["lesion 1", "lesion 2"]
    parts = [measure(lesion.samples, "volume", spacing=SPACING) for lesion in found]
    whole = measure(samples, "volume", label=1, spacing=SPACING)
    assert sum(part.values for part in parts) == pytest.approx(whole.values)
    assert [lesion.presence.probability for lesion in found] == pytest.approx([1, 0.3])
    assert measure(found[0].samples, "components").values.tolist() == [1, 2, 1, 1]
    assert hypotheses(found[1].samples)[0].name == "nothing"


def test_place_of_a_lesion(samples):
    first, second = lesions(samples, label=1)
    assert [(side.start, side.stop) for side in second.window] == [(6, 8), (14, 17), (14, 17)]
    assert second.center in {(6, 15, 15), (7, 15, 15)}
    for lesion in (first, second):
        assert (samples.labels[(0, slice(None), *lesion.center)] == 1).any()


def test_all_foreground_nothing_and_samples_without_weight(samples):
    assert len(lesions(samples)) == 3
    assert len(lesions(samples, label="vessel", info=INFO)) == 1
    assert lesions(torch.zeros(3, 4, 5, 5, dtype=torch.long)) == []
    bridge = samples.labels.clone()
    bridge[:, 3] = 1
    assert len(lesions(as_samples(bridge, 3, WEIGHTS))) == 1
    assert len(lesions(as_samples(bridge, 3, [0.5, 0.3, 0.2, 0.0]))) == 3


def test_images_have_lesions_too():
    maps = torch.from_numpy(np.eye(8, dtype=np.int64))[None].repeat(2, 1, 1)
    maps[:, 3, 3] = 0
    assert [len(lesion.samples.labels[0]) for lesion in stochseg.lesions(maps)] == [4, 3]
