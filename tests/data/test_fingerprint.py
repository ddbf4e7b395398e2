"""Fingerprints of volumes, and patches that fit into memory."""

import math

import numpy as np
import pytest

from stochseg.data import Phantoms, PhantomVolumes
from stochseg.data.fingerprint import Fingerprint, measure_fingerprint, plan_patch
from stochseg.errors import UserError
from stochseg.experiments.recipes import VOLUME_VOXELS, recipe
from stochseg.types import DatasetInfo
from tests.data.importers.test_nnunet import random_store


def test_medians_of_shape_spacing_and_intensities():
    data = PhantomVolumes("train", size=32, slices=6, count=3)
    found = measure_fingerprint(data)
    assert found.shape == (6, 32, 32)
    examples = [data[i] for i in range(3)]
    marked = np.concatenate([e.image[0, (e.raters != 0).any(0)].numpy() for e in examples])
    assert found.intensities[0] == pytest.approx(np.percentile(marked, [0.5, 50, 99.5]), abs=1e-5)
    with pytest.raises(UserError, match="expected volumes"):
        measure_fingerprint(Phantoms("train", size=32, count=1))


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (5.0, 0.7, 0.7), (0.5, 2.0, 2.0)])
@pytest.mark.parametrize("voxels", [64, 10_000, 2**17, 10**9])
def test_patches_fit_and_are_as_large_as_possible(spacing, voxels):
    shape = (90, 300, 280)
    patch = plan_patch(Fingerprint(shape, spacing, ()), voxels)
    assert math.prod(patch) <= voxels
    assert all(1 <= side <= n for side, n in zip(patch, shape, strict=True))
    if voxels == 10**9:
        assert patch == shape
    elif voxels == 2**17:
        assert math.prod(patch) > voxels / 3
        edges = [side * mm for side, mm in zip(patch, spacing, strict=True) if side not in shape]
        assert max(edges) / min(edges) < 1.6, "about a cube in millimeters"


def test_small_trains_on_patches_of_volumes(tmp_path):
    info = DatasetInfo(num_classes=2, image_channels=1, spatial_dims=3)
    store = random_store(tmp_path, info, (12, 160, 160), spacing=(3.0, 1.0, 1.0))
    config = recipe("small", [], store)
    assert config.data.patch is not None
    assert config.batch_size * math.prod(config.data.patch) <= VOLUME_VOXELS
    assert config.batch_size >= 2
    chosen = recipe("small", ["data.patch=[4,32,32]", "batch_size=3"], store)
    assert (chosen.data.patch, chosen.batch_size) == ((4, 32, 32), 3)
