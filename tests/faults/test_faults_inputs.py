"""Wrong images and labels: the error says what was expected, what came, and what to do."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from stochseg.errors import UserError
from stochseg.models import MODELS, StochasticSegmenter, create
from stochseg.types import Batch, DatasetInfo, Example

UNET = {"base": 4, "multipliers": [1], "blocks": 1, "attention": []}
CHECKED = ("forward", "sample", "prepare", "check_options", "_draw")


@pytest.fixture(scope="module")
def model():
    return create("unet-ce", 3, 1, **UNET)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_no_model_overrides_the_checks_of_the_base_class(name):
    """So that it is enough to test them once."""
    own = {attribute for cls in MODELS[name].__mro__ for attribute in vars(cls) if issubclass(cls, nn.Module)}
    assert own.issuperset(CHECKED)
    for attribute in CHECKED:
        assert getattr(MODELS[name], attribute) is getattr(StochasticSegmenter, attribute)


def image(*shape, **options):
    return torch.zeros(*(shape or (2, 1, 8, 8)), **options)


def labels(*shape, fill=0):
    return torch.full(shape or (2, 3, 8, 8), fill)


def with_one(value):
    out = image()
    out[1, 0, 3, 3] = value
    return out


def says(*words):
    """A pattern that finds all the words, in this order."""
    return "(?s)" + ".*".join(words)


FORWARD = {
    "label too high": (image(), labels(fill=3), None, says(r"0\.\.2", r"3\.\.3", "void", "mask", "more classes")),
    "label negative": (image(), labels(fill=-1), None, says(r"0\.\.2", r"-1\.\.-1")),
    "void without a mask": (image(), labels(fill=255), None, says(r"255\.\.255", "ignore")),
    "float labels": (image(), labels().float(), None, says("expected integers", "float32", r"raters\.long\(\)")),
    "one map without the rater axis": (image(), labels(2, 8, 8), None, says(r"b k \*space", r"k >= 1", r"\(2, 8, 8\)")),
    "no rater": (image(), labels(2, 0, 8, 8), None, says("k >= 1", r"\(2, 0, 8, 8\)")),
    "labels of another size": (image(), labels(2, 3, 8, 9), None, says("8×8 like the image", r"\(2, 3, 8, 9\)")),
    "labels of another batch": (image(), labels(3, 3, 8, 8), None, says("2 images", r"\(3, 3, 8, 8\)")),
    "NaN in the image": (with_one(np.nan), labels(), None, says(r"1 value\(s\)", "NaN or infinite", "replace")),
    "infinity in the image": (with_one(np.inf), labels(), None, says("NaN or infinite")),
    "wrong channels": (image(2, 3, 8, 8), labels(), None, says("c=1", r"\(2, 3, 8, 8\)")),
    "no batch axis": (image(1, 8, 8), labels(), None, says("b c h w", "4 dimensions", r"\(1, 8, 8\)")),
    "integer image": (image(dtype=torch.int64), labels(), None, says("float tensor", "int64", "numpy array")),
    "empty image": (image(2, 1, 0, 8), labels(), None, says("empty", r"\(2, 1, 0, 8\)")),
    "mask of another shape": (
        image(),
        labels(),
        torch.ones(2, 8, 8, dtype=torch.bool),
        says("mask", r"\(2, 3, 8, 8\)", r"\(2, 8, 8\)"),
    ),
    "mask of numbers": (image(), labels(), torch.ones(2, 3, 8, 8), says("mask", "bool", "float32")),
}


@pytest.mark.parametrize("case", FORWARD)
def test_training_input(model, case):
    *inputs, pattern = FORWARD[case]
    with pytest.raises(UserError, match=pattern):
        model(*inputs)


SAMPLE = {
    "no samples": (np.zeros((8, 8)), {"n": 0}, says("sample", "'n'", "got 0")),
    "half a sample": (np.zeros((8, 8)), {"n": 2.5}, says("sample", "'n'", "integer", "got 2.5")),
    "negative seed": (np.zeros((8, 8)), {"seed": -1}, says("sample", "'seed'", "got -1")),
    "evaluations of a single pass": (np.zeros((8, 8)), {"evaluations": 5}, says("unet-ce", "evaluations", "5", "omit")),
    "unknown sampler": (np.zeros((8, 8)), {"sampler": "ancestral"}, says("unet-ce", "sampler", "ancestral", "omit")),
    "unknown noise": (np.zeros((8, 8)), {"noise": "pink"}, says("noise 'pink'", "independent", "latin")),
    "empty array": (np.zeros((0, 8)), {}, says("empty", r"\(1, 1, 0, 8\)")),
    "empty list": ([], {}, says("h w c", "empty list")),
    "list of numbers": ([[0.0, 1.0], [2.0, 3.0]], {}, says("list of numbers", r"numpy\.asarray")),
    "list of two sizes": ([np.zeros((8, 8)), np.zeros((8, 9))], {}, says("one size", "8×8", "8×9", "one at a time")),
    "five dimensions": (np.zeros((1, 8, 8, 1, 1)), {}, says("h w c", r"\(1, 8, 8, 1, 1\)")),
    "missing file": ("scan.png", {}, says("scan.png")),
    "None": (None, {}, says("h w c", "NoneType")),
    "object": (object(), {}, says("h w c", "object")),
    "color array": (np.zeros((8, 8, 3)), {}, says(r"1 channel\(s\)", "got 3", "grayscale")),
    "color picture": (Image.new("RGB", (8, 8)), {}, says(r"1 channel\(s\)", "got 3", "grayscale")),
    "NaN": (np.full((8, 8), np.nan), {}, says(r"64 value\(s\)", "NaN or infinite")),
    "infinite in float32": (np.full((8, 8), 1e300), {}, says("NaN or infinite")),
    "tensor beyond float32": (torch.full((1, 1, 8, 8), 1e300, dtype=torch.float64), {}, says("NaN or infinite")),
    "complex": (np.zeros((8, 8), complex), {}, says("h w c", "complex128")),
    "integer tensor": (torch.zeros(1, 1, 8, 8, dtype=torch.uint8), {}, says("float tensor", "uint8", "numpy array")),
}


@pytest.mark.parametrize("case", SAMPLE)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_sampling_input(model, case):
    given, options, pattern = SAMPLE[case]
    with pytest.raises(UserError, match=pattern):
        model.sample(given, **{"n": 2, **options})


def test_every_such_error_is_a_value_error(model):
    with pytest.raises(ValueError, match="'n'"):
        model.sample(np.zeros((8, 8)), 0)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_unknown_config_key_is_answered_with_the_known_ones(name):
    known = sorted(MODELS[name].config_type.model_fields)
    with pytest.raises(UserError, match=says(f"model '{name}'", "unknown key 'bas'", *known)):
        create(name, 2, 1, bas=16)


def test_unknown_model_and_contradicting_info():
    with pytest.raises(UserError, match=says("unknown model 'ccmd'", "known:", "ccdm", "unet-ce")):
        create("ccmd", 2, 1)
    with pytest.raises(UserError, match=says("3 classes", "2", "same numbers")):
        create("ccdm", 2, 1, info=DatasetInfo(num_classes=3, image_channels=1))
    with pytest.raises(UserError, match=says("create", "num_classes", "got 1")):
        create("ccdm", 1, 1)
    with pytest.raises(UserError, match=says("unknown image encoder 'dino'", "known:", "hog")):
        create("ccdm", 2, 1, encoder="dino", base=4, multipliers=[1, 1, 1, 1])


def example(size, labels_size=None):
    return Example(torch.zeros(1, *size), torch.zeros(1, *(labels_size or size), dtype=torch.int64), "x")


@pytest.mark.parametrize("second", [example((8, 9)), example((8, 8), (8, 7))])
def test_batch_of_mixed_sizes(second):
    with pytest.raises(UserError, match=says("one size", r"\(8, 8\)", "resize or crop", "batch_size=1")):
        Batch.collate([example((8, 8)), second])
