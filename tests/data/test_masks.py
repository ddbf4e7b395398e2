"""Label maps whose values are not classes: JPEG, smoothed masks, gaps."""

import json

import numpy as np
import pytest
import yaml
from PIL import Image, ImageDraw

from stochseg.data import Folder
from stochseg.data.checks import check_data
from stochseg.data.folder import init_folder
from stochseg.data.folder.labels import MIN_BLENDS, count_levels, find_blends
from stochseg.errors import UserError

SIDE = 48
SHAPES = range(6)


def mask(i: int, side: int = SIDE) -> Image.Image:
    """A disk and a square of 255 on 0."""
    picture = Image.new("L", (side, side))
    draw, unit = ImageDraw.Draw(picture), side / SIDE
    draw.ellipse([unit * v for v in (4 + i, 6, 26 + i, 30 + i)], fill=255)
    draw.rectangle([unit * v for v in (30, 32 + i, 44, 42 + i)], fill=255)
    return picture


def smooth(i: int) -> Image.Image:
    return mask(i, 4 * SIDE).resize((SIDE, SIDE), Image.Resampling.BOX)


@pytest.fixture
def root(tmp_path):
    """Images without label maps; `put` adds them."""
    rng = np.random.default_rng(0)
    for name in ("images", "labels/ana"):
        (tmp_path / name).mkdir(parents=True)
    for i in SHAPES:
        Image.fromarray(rng.integers(0, 256, (SIDE, SIDE), dtype=np.uint8)).save(tmp_path / f"images/s{i}.png")
    return tmp_path


def put(root, make, suffix="png"):
    for i in SHAPES:
        make(i).save(root / f"labels/ana/s{i}.{suffix}")


def old_description(root, values):
    """The dataset.yaml that one class per value would be."""
    table = {value: i for i, value in enumerate(sorted(values))}
    content = {"num_classes": len(table), "image_channels": 1, "values": table}
    (root / "dataset.yaml").write_text(yaml.safe_dump(content))
    splits = {"train": ["s0", "s1", "s2"], "val": ["s3", "s4"], "test": ["s5"]}
    (root / "splits.json").write_text(json.dumps(splits))


def stored_values(root) -> set[int]:
    return {int(v) for file in (root / "labels/ana").iterdir() for v in np.unique(np.asarray(Image.open(file)))}


BAD = {
    "JPEG": lambda root: put(root, mask, "jpg"),
    "smoothed": lambda root: put(root, smooth),
    "JPEG saved again as PNG": lambda root: (put(root, mask, "jpg"), again(root)),
    "resized": lambda root: put(root, lambda i: mask(i, 30).resize((SIDE, SIDE), Image.Resampling.BILINEAR)),
    "smoothed in color": lambda root: put(root, lambda i: smooth(i).convert("RGB")),
}


def again(root):
    for file in (root / "labels/ana").glob("*.jpg"):
        Image.open(file).save(file.with_suffix(".png"))
        file.unlink()


@pytest.mark.parametrize("kind", BAD)
def test_init_refuses_masks_that_are_not_exact_and_its_remedy_works(root, kind):
    BAD[kind](root)
    with pytest.raises(UserError, match="threshold=128"):
        init_folder(root)
    assert not (root / "dataset.yaml").exists()
    config = init_folder(root, {"threshold": 128})
    assert (config.num_classes, config.threshold) == (2, 128)
    data = Folder("train", root=str(root))
    for i, id in enumerate(data.ids):
        expected = np.asarray(mask(int(id[1:]))) > 0
        assert (data[i].raters[0].numpy() != expected).mean() < 0.05
    assert check_data(root).problems == []


@pytest.mark.parametrize("kind", ["JPEG", "smoothed"])
def test_data_that_were_described_before_fail_when_read_and_checked(root, kind):
    BAD[kind](root)
    old_description(root, stored_values(root))
    with pytest.raises(UserError, match="threshold"):
        Folder("train", root=str(root))[0]
    problems = check_data(root).problems
    assert len(problems) == len(SHAPES)
    assert all("threshold" in problem for problem in problems)


@pytest.mark.parametrize(
    ("values", "settings", "classes"),
    [
        ((0, 1, 3), {"values": {0: 0, 1: 1, 3: 2}}, {0, 1, 2}),
        ((0, 1, 3), {"values": {0: 0, 1: 1, 2: 2, 3: 3}}, {0, 1, 3}),
        ((1, 2, 3), {"values": {1: 0, 2: 1, 3: 2}}, {0, 1, 2}),
        ((0, 2), {"values": {0: 0, 2: 1}}, {0, 1}),
        ((0, 1, 3, 255), {"ignore": 255, "values": {0: 0, 1: 1, 3: 2, 255: 255}}, {0, 1, 2, 255}),
    ],
)
def test_gaps_are_refused_until_the_user_says_what_they_mean(root, values, settings, classes):
    table = np.array(values, np.uint8)
    put(root, lambda i: Image.fromarray(table[np.indices((SIDE, SIDE)).sum(0) // 8 % len(table)]))
    with pytest.raises(UserError, match=r"stochseg data init FOLDER (ignore=255 )?'values=\{"):
        init_folder(root)
    config = init_folder(root, settings)
    assert config.num_classes == max(c for c in settings["values"].values() if c != 255) + 1
    assert set(Folder("train", root=str(root))[0].raters.unique().tolist()) == classes
    assert check_data(root).problems == []
    plain = {"num_classes": max(v for v in values if v != 255) + 1, "image_channels": 1, "ignore": 255}
    (root / "dataset.yaml").write_text(yaml.safe_dump(plain))
    (problem,) = check_data(root).problems
    assert "`values`" in problem


def test_wrong_settings_are_refused(root):
    put(root, mask)
    for settings, says in (
        ({"treshold": 1}, "unknown key of dataset.yaml: 'treshold'"),
        ({"threshold": 128, "num_classes": 3}, "num_classes: 2"),
        ({"values": {0: 0}}, r"\[255\] are not in `values`"),
        ({"num_classes": "many"}, "num_classes"),
        ({"group": "("}, "not a regular expression"),
    ):
        with pytest.raises(UserError, match=says):
            init_folder(root, settings)
        assert not (root / "dataset.yaml").exists()
    assert init_folder(root, {"num_classes": 2, "name": "disks"}).values == {0: 0, 255: 1}
    (root / "splits.json").unlink()
    with pytest.raises(UserError, match="exists and is not overwritten; set threshold there"):
        init_folder(root, {"threshold": 128})


def test_thin_classes_are_not_transitions(root):
    """Gray levels for display with one-pixel lines, specks and a rim: legitimate, and mapped in their order."""
    rng = np.random.default_rng(1)
    for i in SHAPES:
        labels = np.zeros((SIDE, SIDE), np.uint8)
        labels[10:30, 10:30] = 200
        labels[12 + i, 12:28] = 150
        labels[40, :] = 100
        labels[rng.integers(32, 39, 5), rng.integers(0, 48, 5)] = 50
        Image.fromarray(labels).save(root / f"labels/ana/s{i}.png")
    assert init_folder(root).values == {0: 0, 50: 1, 100: 2, 150: 3, 200: 4}
    assert check_data(root).problems == []


def test_levels_by_brute_force():
    levels = np.random.default_rng(0).integers(0, 5, (9, 12))
    found = count_levels(levels)
    for value in range(5):
        places = np.argwhere(levels == value)
        near = [levels[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2] for y, x in places]
        assert found[value] == (len(places), sum(n.min() < value < n.max() for n in near))
    assert len(find_blends(count_levels(np.asarray(smooth(0)).astype(int)))) >= MIN_BLENDS
    assert find_blends(count_levels(np.asarray(mask(0)).astype(int))) == []
