"""The contract of data sets, checked for all of the registry."""

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
from tests.support.packages import install_package

SPLITS = ("train", "val", "test")


@pytest.fixture(params=sorted(DATASETS))
def name(request) -> str:
    return request.param


@pytest.fixture
def needed(name, folder_root, tmp_path):
    """Values of the options without a default: a folder as `root`, a packed store as `path`."""

    def packed():
        pytest.importorskip("h5py")
        return write_store(plan_import("folder", folder_root), tmp_path / "slices.h5")

    offered = {"root": lambda: folder_root, "path": packed}
    parameters = list(inspect.signature(DATASETS[name]).parameters.values())[1:]
    return {p.name: str(offered[p.name]()) for p in parameters if p.default is p.empty}


@pytest.fixture(params=SPLITS)
def data(request, name, needed) -> SegmentationData:
    return open_dataset(name, request.param, **needed)


def test_examples_have_the_declared_shapes_and_types(data):
    assert isinstance(data, SegmentationData)
    allowed = {*range(data.info.num_classes), *({data.info.ignore} - {None})}
    for i in range(min(len(data), 4)):
        example = data[i]
        k, *space = example.raters.shape
        assert len(space) == data.info.spatial_dims
        assert example.image.shape == (data.info.image_channels, *space)
        assert example.spacing is None or len(example.spacing) == len(space)
        assert example.image.dtype == torch.float32
        assert torch.isfinite(example.image).all()
        assert k >= 1
        assert example.raters.dtype == torch.int64
        assert set(example.raters.unique().tolist()) <= allowed
        assert isinstance(example.id, str)
        assert example.group


def test_copies_have_the_same_examples(data):
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
def test_model_has_a_finite_loss(data, augment):
    info = data.info
    model = create(
        "unet-ce", info.num_classes, info.image_channels, info=info, base=4, multipliers=[1] * 5, blocks=1, attention=[]
    )
    draw = TrainingStream(data, batch_size=2, seed=0, augment=augment)[0]
    assert torch.isfinite(model(draw.batch.image, draw.batch.raters, draw.batch.mask, draw.keys)["loss"])


def test_known_truth_is_a_distribution_over_the_raters(data):
    if not isinstance(data, KnownTruth):
        pytest.skip("a data set without a known truth")
    truth, example = data.truth(0), data[0]
    assert truth.probabilities.sum().item() == pytest.approx(1)
    assert len(truth.modes) == len(truth.probabilities) == len(truth.names)
    assert all((truth.modes == rater).flatten(1).all(1).any() for rater in example.raters)


def test_unknown_splits_and_options_list_the_known_ones(name, needed):
    with pytest.raises(UserError, match=r"'validation'.*known.*test.*train.*val"):
        open_dataset(name, "validation", **needed)
    with pytest.raises(UserError, match=f"option of data set '{name}'.*'color'.*known"):
        open_dataset(name, "train", color=1, **needed)
    for option in needed:
        with pytest.raises(UserError, match=rf"data\.options\.{option}="):
            open_dataset(name, "train", **{k: v for k, v in needed.items() if k != option})


def test_unknown_data_set_lists_the_known_ones():
    with pytest.raises(UserError, match=r"unknown data set 'lidcc'.*folder.*phantom"):
        open_dataset("lidcc", "train")


def test_collate(data):
    batch = Batch.collate([data[0], data[-1]], data.info.ignore)
    assert batch.raters.max() < data.info.num_classes
    assert (batch.mask is None) == (data.info.ignore is None)


def test_installed_packages_add_data_sets(tmp_path, monkeypatch):
    code = "from stochseg.data import Phantoms\ndef small(split, *, count=3): return Phantoms(split, count=count)"
    install_package(tmp_path, monkeypatch, "small_data", code, {"stochseg.datasets": {"small-phantom": "small"}})
    assert "small-phantom" in DATASETS
    assert len(open_dataset("small-phantom", "val", count=5)) == 5
    del DATASETS["small-phantom"]
