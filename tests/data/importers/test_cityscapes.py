"""Cityscapes from all three forms of its label maps, from folders and zips."""

import json
import shutil
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from stochseg.data.importers import cityscapes as module
from stochseg.data.importers.cityscapes import LABEL_NAMES, NAMES, TRAIN_IDS
from stochseg.data.importers.plans import plan_import
from stochseg.data.store import Store, write_store
from stochseg.errors import UserError

FRAMES = (("train", "aachen", 0), ("train", "bochum", 1), ("val", "lindau", 2))
SIZE = (32, 64)
SHAPES = (
    ("road", [(0, 20), (63, 20), (63, 31), (0, 31)]),
    ("sky", [(0, 0), (63, 0), (63, 8), (0, 8)]),
    ("cargroup", [(5, 15), (20, 15), (20, 25), (5, 25)]),
    ("license plate", [(8, 20), (12, 20), (12, 22), (8, 22)]),
    ("polegroup", [(30, 5), (33, 5), (33, 22), (30, 22)]),
    ("person", [(15, 12), (18, 12), (18, 27), (15, 27)]),
    ("rail track", [(40, 22), (60, 22), (60, 30), (40, 30)]),
)


def stem(split: str, city: str, number: int) -> str:
    return f"{split}/{city}/{city}_{number:06d}_000019"


def label_ids() -> np.ndarray:
    """The map that SHAPES mean, drawn by hand: a group is its members, a license plate is part of the car."""
    canvas = Image.new("L", SIZE[::-1], 0)
    for label, points in SHAPES:
        if label != "license plate":
            value = {"road": 7, "sky": 23, "cargroup": 26, "polegroup": 18, "person": 24, "rail track": 10}[label]
            ImageDraw.Draw(canvas).polygon(points, fill=value)
    return np.asarray(canvas)


def write_labels(root, form: str) -> None:
    ids = label_ids()
    for frame in FRAMES:
        file = root / f"gtFine/{stem(*frame)}_gtFine_{form}"
        file.parent.mkdir(parents=True, exist_ok=True)
        if form == "polygons.json":
            things = [{"label": label, "polygon": points} for label, points in SHAPES]
            things.append({"label": "sky", "polygon": [(0, 0), (63, 0), (63, 31)], "deleted": 1})
            file.write_text(json.dumps({"imgHeight": SIZE[0], "imgWidth": SIZE[1], "objects": things}))
        else:
            Image.fromarray(TRAIN_IDS[ids] if form == "labelTrainIds.png" else ids).save(file)


@pytest.fixture
def root(tmp_path):
    """Three pictures of noise and a dummy of the test split; no labels yet."""
    rng = np.random.default_rng(0)
    for frame in (*FRAMES, ("test", "berlin", 3)):
        file = tmp_path / f"city/leftImg8bit/{stem(*frame)}_leftImg8bit.png"
        file.parent.mkdir(parents=True)
        Image.fromarray(rng.integers(0, 256, (*SIZE, 3), dtype=np.uint8)).save(file)
    return tmp_path / "city"


def packed(source, out, *folders: str):
    with zipfile.ZipFile(out, "w") as archive:
        for folder in folders:
            for file in sorted((source / folder).rglob("*.*")):
                archive.write(file, file.relative_to(source).as_posix())
    return out


def records(plan):
    return [item.read() for item in plan.items]


def test_classes_are_the_official_ones():
    assert len(NAMES) == 19
    assert len(LABEL_NAMES) == 34
    known = {7: 0, 8: 1, 11: 2, 12: 3, 13: 4, 17: 5, 19: 6, 20: 7, 21: 8, 22: 9}
    known |= {23: 10, 24: 11, 25: 12, 26: 13, 27: 14, 28: 15, 31: 16, 32: 17, 33: 18}
    assert [known.get(i, 255) for i in range(34)] == TRAIN_IDS.tolist()


@pytest.mark.parametrize("form", ["labelTrainIds.png", "labelIds.png", "polygons.json"])
def test_all_forms_of_labels_are_equal(root, form):
    write_labels(root, form)
    for record in records(plan_import("cityscapes", root)):
        np.testing.assert_array_equal(record.raters, TRAIN_IDS[label_ids()][None])
    assert set(np.unique(record.raters)) == {0, 10, 11, 13, 255}


def test_preferred_form_is_read(root):
    for form in ("labelTrainIds.png", "labelIds.png", "polygons.json"):
        write_labels(root, form)
    plan = plan_import("cityscapes", root)
    for folder in (root / "gtFine").rglob("*_polygons.json"):
        folder.write_text("damaged, but not needed")
    assert len(records(plan)) == 3


def test_ids_splits_and_images(root):
    write_labels(root, "labelIds.png")
    plan = plan_import("cityscapes", root)
    assert [(item.id, item.group, item.split) for item in plan.items] == [
        ("aachen_000000_000019", "aachen", "train"),
        ("bochum_000001_000019", "bochum", "train"),
        ("lindau_000002_000019", "lindau", "val"),
    ]
    file = root / f"leftImg8bit/{stem(*FRAMES[0])}_leftImg8bit.png"
    np.testing.assert_array_equal(records(plan)[0].image, np.asarray(Image.open(file)))
    assert plan.info.normalization.mean == pytest.approx((123.675, 116.28, 103.53))
    assert plan.info.normalization.std == pytest.approx((58.395, 57.12, 57.375))
    assert (plan.info.num_classes, plan.info.ignore, plan.info.palette[0]) == (19, 255, "#804080")


@pytest.mark.parametrize("layout", ["one zip", "two zips in a folder", "images unpacked, labels zipped"])
def test_zips_are_read_without_unpacking(root, tmp_path, layout):
    write_labels(root, "polygons.json")
    expected = records(plan_import("cityscapes", root))
    source = tmp_path / "download"
    source.mkdir()
    if layout == "one zip":
        source = packed(root, source / "city.zip", "leftImg8bit", "gtFine")
    elif layout == "two zips in a folder":
        packed(root, source / "leftImg8bit_trainvaltest.zip", "leftImg8bit")
        packed(root, source / "gtFine_trainvaltest.zip", "gtFine")
    else:
        shutil.copytree(root / "leftImg8bit", source / "leftImg8bit")
        packed(root, source / "gtFine_trainvaltest.zip", "gtFine")
    got = records(plan_import("cityscapes", source))
    assert [r.id for r in got] == [r.id for r in expected]
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a.image, b.image)
        np.testing.assert_array_equal(a.raters, b.raters)


@pytest.mark.parametrize("size", [(128, 256), (256, 512)])
def test_reduced_sizes(root, size):
    """Intensities are averaged, labels are never mixed."""
    for file in (root / "leftImg8bit").rglob("*.png"):
        halves = np.zeros((size[0] * 4, size[1] * 4, 3), np.uint8)
        halves[::2] = 200
        Image.fromarray(halves).save(file)
    ids = np.kron(label_ids(), np.ones((halves.shape[0] // SIZE[0],) * 2, np.uint8))
    for frame in FRAMES:
        file = root / f"gtFine/{stem(*frame)}_gtFine_labelIds.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(ids).save(file)
    plan = plan_import(f"cityscapes-{size[0]}x{size[1]}", root)
    record = plan.items[0].read()
    assert record.image.shape == (*size, 3)
    assert np.abs(record.image.astype(int) - 100).max() <= 13  # the nearest pixel would give 0 or 200
    factor = size[0] // SIZE[0]
    np.testing.assert_array_equal(record.raters[0], TRAIN_IDS[np.kron(label_ids(), np.ones((factor,) * 2, np.uint8))])
    assert f"{size[0]}×{size[1]}" in plan.provenance.note


def test_end_to_end(root, tmp_path):
    write_labels(root, "polygons.json")
    out = write_store(plan_import("cityscapes", root), tmp_path / "city.h5")
    data = Store("val", path=str(out))
    assert (len(data), len(Store("train", path=str(out)))) == (1, 2)
    assert torch.equal(data[0].raters[0], torch.from_numpy(TRAIN_IDS[label_ids()].astype(np.int64)))
    assert data[0].image.shape == (3, *SIZE)
    with pytest.raises(UserError, match="split.*'test'"):
        Store("test", path=str(out))


def first_label(root, form):
    write_labels(root, form)
    return root / f"gtFine/{stem(*FRAMES[0])}_gtFine_{form}"


def other_ids(root):
    Image.fromarray(np.full(SIZE, 40, np.uint8)).save(first_label(root, "labelIds.png"))


def other_train_ids(root):
    Image.fromarray(np.full(SIZE, 19, np.uint8)).save(first_label(root, "labelTrainIds.png"))


def other_size(root):
    Image.fromarray(np.zeros((16, 16), np.uint8)).save(first_label(root, "labelIds.png"))


def other_name(root):
    drawing = {"imgHeight": 8, "imgWidth": 8, "objects": [{"label": "horsegroup", "polygon": []}]}
    first_label(root, "polygons.json").write_text(json.dumps(drawing))


def cut_picture(root):
    write_labels(root, "labelIds.png")
    file = root / f"leftImg8bit/{stem(*FRAMES[0])}_leftImg8bit.png"
    file.write_bytes(file.read_bytes()[:200])


MISTAKES = {
    "no labels": (lambda root: None, r"aachen_000000_000019_leftImg8bit\.png has no label map.*gtFine"),
    "no pictures": (lambda root: shutil.rmtree(root / "leftImg8bit"), r"city: .*leftImg8bit/train/CITY"),
    "undeclared labelIds": (other_ids, r"labelIds\.png: .*0\.\.33.*\[40\]"),
    "undeclared classes": (
        other_train_ids,
        r"labelTrainIds\.png: .*0\.\.18 or 255.*\[19\]",
    ),
    "another size": (other_size, r"labelIds\.png: .*32×64.*\(16, 16\)"),
    "unknown outline": (other_name, r"polygons\.json: .*'horsegroup'.*unlabeled"),
    "cut outlines": (lambda r: first_label(r, "polygons.json").write_text("{"), r"polygons\.json.*JSON"),
    "empty outlines": (lambda r: first_label(r, "polygons.json").write_text("{}"), r"polygons\.json.*JSON"),
    "cut picture": (cut_picture, r"aachen_000000_000019_leftImg8bit\.png cannot be read as an image"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake(root, mistake):
    make, pattern = MISTAKES[mistake]
    make(root)
    with pytest.raises(UserError, match=pattern):
        records(plan_import("cityscapes", root))


def test_zip_with_names_outside_it_is_refused(root):
    with zipfile.ZipFile(root / "gtFine_trainvaltest.zip", "w") as archive:
        archive.writestr("../gtFine/train/a.png", b"")
    with pytest.raises(UserError, match="outside the archive"):
        module.cityscapes(root)
