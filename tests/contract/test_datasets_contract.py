"""What every registered data set promises, over the whole registry."""

import inspect
import pickle

import pytest
import torch

from stochseg.data import AUGMENTATIONS, DATASETS, KnownTruth, SegmentationData, open_dataset
from stochseg.data.importers.plans import plan_import
from stochseg.data.store import write_store
from stochseg.errors import UserError
from stochseg.models import create
from stochseg.training.stream import TrainingStream
from stochseg.types import Batch

SPLITS = ("train", "val", "test")


@pytest.fixture(params=sorted(DATASETS))
def name(request) -> str:
    return request.param


@pytest.fixture
def needed(name, folder_root, tmp_path):
    """The options without a default, filled from what the tests can offer: a folder `root`, a packed file `path`."""

    def packed():
        pytest.importorskip("h5py")
        return write_store(plan_import("folder", folder_root), tmp_path / "slices.h5")

    offered = {"root": lambda: folder_root, "path": packed}
    parameters = list(inspect.signature(DATASETS[name]).parameters.values())[1:]
    return {p.name: str(offered[p.name]()) for p in parameters if p.default is p.empty}


@pytest.fixture(params=SPLITS)
def data(request, name, needed) -> SegmentationData:
    return open_dataset(name, request.param, **needed)


def test_examples_are_what_their_type_says(data):
    assert isinstance(data, SegmentationData)
    allowed = {*range(data.info.num_classes), *({data.info.ignore} - {None})}
    for i in range(min(len(data), 4)):
        example = data[i]
        k, h, w = example.raters.shape
        assert example.image.shape == (data.info.image_channels, h, w)
        assert example.image.dtype == torch.float32
        assert torch.isfinite(example.image).all()
        assert k >= 1
        assert example.raters.dtype == torch.int64
        assert set(example.raters.unique().tolist()) <= allowed
        assert isinstance(example.id, str)
        assert example.group


def test_an_index_means_the_same_example_in_every_copy(data):
    copy = pickle.loads(pickle.dumps(data))
    for first, second in ((data[0], data[0]), (data[0], copy[0]), (data[-1], data[len(data) - 1])):
        assert first.id == second.id
        assert torch.equal(first.image, second.image)
        assert torch.equal(first.raters, second.raters)
    with pytest.raises(IndexError):
        data[len(data)]


def test_splits_share_no_group(name, needed):
    opened = [open_dataset(name, split, **needed) for split in SPLITS]
    groups = [{data[i].group for i in range(min(len(data), 20))} for data in opened]
    assert len(set.union(*groups)) == sum(len(g) for g in groups)
    assert len({data.info.model_dump_json() for data in opened}) == 1


@pytest.mark.parametrize("augment", sorted(AUGMENTATIONS))
def test_a_model_learns_from_it(data, augment):
    info = data.info
    model = create(
        "unet-ce", info.num_classes, info.image_channels, info=info, base=4, multipliers=[1] * 5, blocks=1, attention=[]
    )
    draw = TrainingStream(data, batch_size=2, seed=0, augment=augment)[0]
    assert torch.isfinite(model(draw.batch.image, draw.batch.raters, draw.batch.mask, draw.keys)["loss"])


def test_the_known_truth_is_a_distribution_that_holds_the_raters(data):
    if not isinstance(data, KnownTruth):
        return
    truth, example = data.truth(0), data[0]
    assert truth.probabilities.sum().item() == pytest.approx(1)
    assert len(truth.modes) == len(truth.probabilities) == len(truth.names)
    assert all((truth.modes == rater).flatten(1).all(1).any() for rater in example.raters)


def test_wrong_splits_and_options_are_answered_with_the_known_ones(name, needed):
    with pytest.raises(UserError, match=r"'validation'.*known.*test.*train.*val"):
        open_dataset(name, "validation", **needed)
    with pytest.raises(UserError, match=f"option of data set '{name}'.*'color'.*known"):
        open_dataset(name, "train", color=1, **needed)
    for option in needed:
        with pytest.raises(UserError, match=rf"needs {option}; give it as data\.options\.{option}="):
            open_dataset(name, "train", **{k: v for k, v in needed.items() if k != option})


def test_an_unknown_data_set_is_answered_with_the_known_ones():
    with pytest.raises(UserError, match=r"unknown data set 'lidcc'.*folder.*phantom"):
        open_dataset("lidcc", "train")


def test_collate_takes_any_example(data):
    batch = Batch.collate([data[0], data[-1]], data.info.ignore)
    assert batch.raters.max() < data.info.num_classes
    assert (batch.mask is None) == (data.info.ignore is None)
