"""Who drew which label map: from files, through stores, views and training batches."""

import json

import numpy as np
import pytest
import torch

from stochseg.data import Cropped, Fitted, Folder, Patches, Phantoms, Resized, Store, Subset, open_path, plan_import
from stochseg.data.example import write_example_folder
from stochseg.data.folder import init_folder
from stochseg.data.store import write_store
from stochseg.training.stream import TrainingStream
from stochseg.types import Batch, Example


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = write_example_folder(tmp_path_factory.mktemp("raters") / "mine", count=24, size=16)
    init_folder(root)
    return root


@pytest.fixture(scope="module")
def store(folder):
    return write_store(plan_import("folder", folder), folder.with_suffix(".h5"))


def test_folder_and_store_name_all_raters_in_one_order(folder, store):
    for split in ("train", "val"):
        for data in (Folder(split, root=str(folder)), Store(split, path=str(store))):
            assert data.info.rater_names == ("ana", "ben", "chi")
            assert data[0].rater_names in [("ana", "ben"), ("ana", "ben", "chi")]


def test_views_keep_names(store):
    data = open_path(store, "train")
    views = [Subset(data, [2]), Resized(data, (8, 8)), Cropped(data, (8, 8)), Fitted(data, (8, 12))]
    assert {view.info.rater_names for view in views} == {data.info.rater_names}
    assert all(len(view[0].rater_names) == len(view[0].raters) for view in views)


def test_training_batches_number_the_rater_of_every_map(store):
    data, seen = Fitted(open_path(store, "train"), (16, 16)), 0
    batch = TrainingStream(data, batch_size=8, seed=0, augment="flip-rotate")[0].batch
    for row, count in zip(batch.rater_index.tolist(), batch.rater_count.tolist(), strict=True):
        assert row[:count] == [0, 1, 2][:count]
        assert set(row[count:]) <= {-1}
        seen |= 1 << count
    assert seen == 0b1100  # images of two and of three raters


def example(names, maps=2):
    return Example(torch.zeros(1, 4, 4), torch.zeros(maps, 4, 4, dtype=torch.int64), "a", rater_names=names)


def test_numbers_follow_names_not_places():
    batch = Batch.collate([example(("chi", "ana")), example(("ben",), 1)], rater_names=("ana", "ben", "chi"))
    assert batch.rater_index.tolist() == [[2, 0], [1, -1]]


@pytest.mark.parametrize("names", [(), ("ana",), ("dan", "eve")])
def test_unknown_raters_are_minus_one(names):
    assert Batch.collate([example(names)], rater_names=("ana", "ben")).rater_index.tolist() == [[-1, -1]]


def test_void_maps_leave_the_other_names():
    maps = torch.stack([torch.full((4, 4), 255), torch.zeros(4, 4, dtype=torch.int64)])
    rated = Example(torch.zeros(1, 4, 4), maps, "a", rater_names=("ana", "ben")).rated(255)
    assert Batch.collate([rated], 255, ("ana", "ben")).rater_index.tolist() == [[1]]


def test_facts_without_named_raters_are_stored_as_before():
    assert "rater_names" not in json.loads(Phantoms("train", size=16, count=1).info.model_dump_json())


def test_patches_keep_names():
    from stochseg.data import PhantomVolumes

    patch = Patches(PhantomVolumes("train", size=16, slices=6, count=1), (4, 8, 8))
    assert patch.random_patch(0, np.random.default_rng(0)).rater_names == patch.data[0].rater_names
