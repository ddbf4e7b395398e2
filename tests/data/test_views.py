"""Patches of volumes: inside the volume, fair, and padded with void."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from stochseg.data import Patches, Phantoms, PhantomVolumes, Store, Subset, views, write_store
from stochseg.data.importers.plans import Item, Plan, Provenance, Record
from stochseg.errors import UserError
from stochseg.types import DatasetInfo

INFO = DatasetInfo(name="toy", num_classes=3, image_channels=1, spatial_dims=3)
SPACES = [(40, 9, 8), (3, 12, 5), (1, 8, 8)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Volumes whose voxels have different intensities; label 1 is rare, label 2 rarer."""

    def read(i: int) -> Record:
        space = SPACES[i]
        image = np.arange(np.prod(space), dtype=np.float32).reshape(*space, 1)
        raters = np.zeros((2, *space), np.uint8)
        raters[0, -1, 0, :5] = 1
        raters[1, 0, 1, 2] = 2
        return Record(f"v{i}", f"v{i}", "train", image, raters)

    items = [Item(f"v{i}", f"v{i}", "train", partial(read, i)) for i in range(len(SPACES))]
    plan = Plan(INFO, Provenance(kind="toy", source="toy"), items, 2)
    return Store("train", path=str(write_store(plan, tmp_path / "toy.h5")))


def corner(data: Patches, example) -> tuple[int, ...]:
    """Where in its volume a patch without padding starts."""
    first = INFO.normalization.inverse(example.image).flatten()[0].round().long()
    return tuple(int(n) for n in np.unravel_index(int(first), SPACES[int(example.id[1:])]))


def test_patches_are_windows_of_the_volume_and_all_are_equally_likely(store):
    data, rng = Patches(store, (38, 8, 8), foreground=0), np.random.default_rng(0)
    corners = []
    for _ in range(600):
        example = data.random_patch(0, rng)
        corners.append(corner(data, example))
        d, h, w = corners[-1]
        assert torch.equal(example.image, store[0].image[:, d : d + 38, h : h + 8, w : w + 8])
        assert torch.equal(example.raters, store[0].raters[:, d : d + 38, h : h + 8, w : w + 8])
    places, counts = np.unique(corners, axis=0, return_counts=True)
    assert len(places) == 3 * 2
    assert counts.min() > 60


def test_patches_on_the_foreground_hold_each_class_alike(store, monkeypatch):
    monkeypatch.setattr(views, "SLAB", 7)
    data, rng = Patches(store, (4, 3, 3), foreground=1), np.random.default_rng(0)
    examples = [data.random_patch(0, rng) for _ in range(200)]
    present = torch.tensor([[bool((e.raters == label).any()) for label in (1, 2)] for e in examples])
    assert present.any(1).all()
    assert 70 < int(present[:, 1].sum()) < 130, "the rare class as often as the other"
    plain = Patches(store, (4, 3, 3), foreground=0)
    assert sum(bool((plain.random_patch(0, rng).raters > 0).any()) for _ in range(200)) < 60


def test_foreground_places_are_a_fair_choice(monkeypatch):
    """Also if they are found slab by slab: here half of them are in the last two of twelve slices."""
    monkeypatch.setattr(views, "SLAB", 5)
    monkeypatch.setattr(views, "PLACES", 100)
    info = INFO.model_copy(update={"num_classes": 2})
    volumes = PhantomVolumes("train", size=16, slices=12, count=1)
    example = volumes[0]
    raters = torch.zeros_like(example.raters)
    raters[0, :10, :4, :5] = 1
    raters[1, 10:, :10, :10] = 1

    class Fixed:
        def __len__(self) -> int:
            return 50

        def __getitem__(self, index: int):
            return type(example)(example.image, raters, "a")

    Fixed.info = info
    data = Patches(Fixed(), (1, 1, 1))
    late = [float((data._foreground(i)[0][:, 0] >= 10).mean()) for i in range(50)]
    assert all(len(data._foreground(i)[0]) == 100 for i in range(50))
    assert np.mean(late) == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize("view", [lambda data: data, lambda data: Subset(data, range(3))])
def test_small_volumes_are_padded_in_plane_with_void(store, view):
    data = Patches(view(store), (8, 10, 8))
    assert data.info.ignore == 255
    example = data.random_patch(1, np.random.default_rng(0))
    assert example.image.shape == (1, 3, 10, 8), "slices are not padded"
    assert (example.raters[..., 0] == 255).all()
    assert (example.raters[..., 1:6] != 255).all()
    assert torch.equal(example.image[..., 0], example.image[..., 1]), "the edge is repeated"
    assert data[2].raters.shape == (2, 1, 10, 8), "one slice is a volume"


def test_the_patch_of_an_index_is_central(store):
    assert corner(Patches(store, (4, 3, 4)), Patches(store, (4, 3, 4))[0]) == (18, 3, 2)


def test_patches_depend_on_the_generator_alone(store):
    data = Patches(store, (4, 3, 3), foreground=0.5)
    copy = pickle.loads(pickle.dumps(data))
    copy.random_patch(1, np.random.default_rng(5))
    for seed in range(20):
        first, second = (each.random_patch(0, np.random.default_rng(seed)) for each in (data, copy))
        assert torch.equal(first.image, second.image)


@pytest.mark.parametrize(
    ("data", "size", "chance"),
    [(Phantoms, (1, 8, 8), 0.0), (PhantomVolumes, (0, 8, 8), 0.0), (PhantomVolumes, (1, 8, 8), 2.0)],
)
def test_impossible_patches_are_refused(data, size, chance):
    with pytest.raises(UserError, match="patches: expected"):
        Patches(data("val", size=16), size, foreground=chance)
