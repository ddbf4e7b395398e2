"""Mistakes in a folder data set, as they happen when a person makes one."""

import json

import numpy as np
import pytest
import yaml
from PIL import Image

from stochseg.data import Folder
from stochseg.errors import UserError


def read_all(root):
    for split in ("train", "val", "test"):
        data = Folder(split, root=str(root))
        for i in range(len(data)):
            data[i]


def write(root, file, array):
    Image.fromarray(np.asarray(array, np.uint8)).save(root / file)


def cut(root, file, kept):
    (root / file).write_bytes((root / file).read_bytes()[:kept])


def splits(root, **content):
    (root / "splits.json").write_text(json.dumps(content))


def info(root, **changes):
    file = root / "dataset.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **changes}))


def no_raters(root):
    for folder in ("anna", "ben"):
        (root / "labels" / folder).rename(root / folder)


def no_map(root):
    (root / "labels/anna/b.png").unlink()


MISTAKES = {
    "truncated image": (lambda r: cut(r, "images/a.png", 60), r"images/a\.png cannot be read as an image"),
    "empty image": (lambda r: cut(r, "images/a.png", 0), r"images/a\.png cannot be read as an image"),
    "text as image": (lambda r: (r / "images/a.png").write_text("hello"), r"images/a\.png cannot be read as an image"),
    "missing image": (lambda r: (r / "images/a.png").unlink(), r"images/a\.png is missing; splits\.json names it"),
    "truncated labels": (lambda r: cut(r, "labels/ben/a.png", 60), r"labels/ben/a\.png cannot be read"),
    "undeclared label": (
        lambda r: write(r, "labels/ben/a.png", np.full((8, 8), 7)),
        r"ben/a\.png: expected labels 0\.\.1 or 255 \(ignore\), got \[7\]; correct the file or num_classes",
    ),
    "void not declared": (lambda r: info(r, ignore=None), r"expected labels 0\.\.1, got \[255\]"),
    "labels of another size": (
        lambda r: write(r, "labels/ben/a.png", np.zeros((8, 9))),
        r"ben/a\.png: expected a label map of 8×8 like its image, got shape \(8, 9\)",
    ),
    "labels in colour": (
        lambda r: write(r, "labels/ben/a.png", np.zeros((8, 8, 3))),
        r"expected a label map of 8×8 like its image, got shape \(8, 8, 3\)",
    ),
    "colour for grey": (
        lambda r: write(r, "images/a.png", np.zeros((8, 8, 3))),
        r"images/a\.png: expected 1 channel\(s\) \(dataset\.yaml\), got 3",
    ),
    "no map for an image": (no_map, r"image 'b' has no label map in .*add one or drop it from splits\.json"),
    "no rater folder": (no_raters, r"labels: expected one folder a rater with label maps, found none"),
    "splits share an image": (
        lambda r: splits(r, train=["a", "b"], val=["b"], test=["d"]),
        r"image 'b' is in both 'train' and 'val'; a split must not share images",
    ),
    "split missing": (lambda r: splits(r, train=["a"]), r"unknown split of .*'val'; known: train"),
    "splits of another form": (lambda r: splits(r, train="a", val="b"), r'expected \{"train": \[names\]'),
    "splits damaged": (lambda r: cut(r, "splits.json", 10), r"splits\.json is not valid JSON"),
    "no splits": (lambda r: (r / "splits.json").unlink(), r"splits\.json is missing; splits are stored with the data"),
    "no description": (
        lambda r: (r / "dataset.yaml").unlink(),
        r"dataset\.yaml is missing; expected a data set folder with dataset\.yaml, splits\.json, images/, labels/",
    ),
    "description damaged": (lambda r: (r / "dataset.yaml").write_text("a: [1"), r"dataset\.yaml is not valid YAML"),
    "description is a list": (lambda r: (r / "dataset.yaml").write_text("- 1"), r"expected keys such as num_classes"),
    "description misspelt": (
        lambda r: info(r, num_class=2),
        r"dataset\.yaml: unknown key 'num_class'; known keys: .*num_classes",
    ),
    "class names that do not fit": (
        lambda r: info(r, class_names=["a", "b", "c"]),
        r"dataset\.yaml: .*class_names has 3 entries, expected 2",
    ),
}


def test_the_fixture_is_sound(folder_root):
    read_all(folder_root)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake(folder_root, mistake):
    make, pattern = MISTAKES[mistake]
    make(folder_root)
    with pytest.raises(UserError, match=pattern):
        read_all(folder_root)
