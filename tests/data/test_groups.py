"""Groups found in names, and leaks between splits."""

import json
import shutil

import numpy as np
import pytest
import yaml
from PIL import Image

from stochseg.data import Folder
from stochseg.data.checks import check_data
from stochseg.data.example import write_example_folder
from stochseg.data.folder import init_folder, read_splits
from stochseg.data.folder.config import FolderConfig
from stochseg.data.folder.groups import describe_groups, find_group
from stochseg.errors import UserError

NAMES = {
    "patient and slice": ({f"P{p:03d}-{s}": f"P{p:03d}" for p in range(4) for s in range(3)}),
    "words": ({f"case{p}_slice{s:03d}": f"case{p}" for p in range(9, 13) for s in range(2)}),
    "eyes": ({f"RET{p:03d}{eye}": f"RET{p:03d}" for p in range(5) for eye in ("OD", "OS")}),
    "sides": ({f"Image_{p:02d}{eye}": f"Image_{p:02d}" for p in range(5) for eye in "LR"}),
    "letters": ({f"p{p:02d}{visit}": f"p{p:02d}" for p in range(5) for visit in "abc"}),
    "study below patient": ({f"P{p}-{v}-{s:02d}": f"P{p}" for p in range(4) for v in range(2) for s in range(3)}),
    "one prefix with a digit": ({f"BraTS2020_{p:03d}_{s}": f"BraTS2020_{p:03d}" for p in range(4) for s in range(3)}),
    "LIDC": ({f"LIDC-IDRI-{p:04d}-{s:03d}": f"LIDC-IDRI-{p:04d}" for p in range(4) for s in range(2)}),
    "folders": ({f"{name}/{s}": name for name in ("anna", "bob", "cid") for s in range(3)}),
    "folders with numbers": ({f"P{p}/img_{s}": f"P{p}" for p in range(4) for s in range(3)}),
    "some without number": ({f"P{p}-{s}": f"P{p}" for p in range(4) for s in range(2)} | {"atlas": "atlas"}),
    "one patient": ({f"P000-{s}": "P000" for s in range(5)}),
    "two patients": ({f"P{p}-{s}": f"P{p}" for p in range(2) for s in range(5)}),
    "most patients once": ({f"P{p}-0": f"P{p}" for p in range(20)} | {"P3-1": "P3"}),
}


@pytest.mark.parametrize("kind", NAMES)
def test_groups_are_found(kind):
    pattern = find_group(NAMES[kind])
    config = FolderConfig(num_classes=2, image_channels=1, group=pattern)
    assert {id: config.group_of(id) for id in NAMES[kind]} == NAMES[kind]


@pytest.mark.parametrize(
    "names",
    [
        [f"img_{i:03d}" for i in range(50)],
        [f"{i:05d}" for i in range(50)],
        [f"ISIC_{i:07d}_segmentation" for i in range(50)],
        [f"COCO_train2014_{i:012d}" for i in range(50)],
        [f"{year}_{i:06d}" for year in (2007, 2008, 2009) for i in range(10)],
        ["heart", "liver", "lung"],
        [np.random.default_rng(i).bytes(8).hex() for i in range(300)],
        [f"{'a1' * 120}{i}" for i in range(50)],
        ["a"],
        [],
    ],
)
def test_images_that_stand_alone(names):
    assert find_group(names) is None


def test_examples_of_groups_are_named():
    text = describe_groups(r"^(P\d+)", ["P0-0", "P1-0", "P1-1", "P2-0", "P2-1", "P2-2"])
    assert text == "3 groups, such as P1 (P1-0, P1-1, …) and P2 (P2-0, P2-1, …)"


# ---------------------------------------------------------------------- leaks


@pytest.fixture
def folder(tmp_path):
    return write_example_folder(tmp_path / "mine", count=48, size=16)


def test_our_own_example_does_not_leak(folder):
    """As the guide walks through it: init, then check."""
    config = init_folder(folder)
    assert config.group_of("P003-2") == "P003"
    groups = [{id.split("-")[0] for id in ids} for ids in read_splits(folder).values()]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 12
    assert check_data(folder).problems == []
    assert "12 groups, such as P000 (P000-0, P000-1, …)" in (folder / "dataset.yaml").read_text()


def test_a_single_patient_is_never_split(tmp_path):
    folder = write_example_folder(tmp_path / "mine", count=4, size=16)
    with pytest.raises(UserError, match=r"one patient, P000 \(P000-0, P000-1, .*'group=\(\.\+\)'.*'group=\^\(P000\)'"):
        init_folder(folder)
    assert not (folder / "dataset.yaml").exists()
    init_folder(folder, {"group": "^(P000)"})
    assert {split: len(ids) for split, ids in read_splits(folder).items()} == {"train": 4, "val": 0, "test": 0}
    assert all("is empty; add images of other patients" in problem for problem in check_data(folder).problems)
    (folder / "dataset.yaml").unlink()
    (folder / "splits.json").unlink()
    init_folder(folder, {"group": "(.+)"})
    assert all(read_splits(folder).values())
    assert check_data(folder).problems == []


def test_other_layouts_get_a_hint(tmp_path):
    folder = write_example_folder(tmp_path / "mine", count=8, size=16)
    (folder / "labels/ana").rename(folder / "masks")
    shutil.rmtree(folder / "labels")
    with pytest.raises(UserError, match=r"labels/RATER/ID\.\*, found none; if masks .* labels/rater1"):
        init_folder(folder)
    (folder / "labels").mkdir()
    (folder / "masks").rename(folder / "labels/rater1")
    init_folder(folder)
    (folder / "images").rename(folder / "pictures")
    (folder / "dataset.yaml").unlink()
    with pytest.raises(UserError, match="if pictures has the images, move it to images"):
        init_folder(folder)


def test_hints_are_quoted_for_the_shell(tmp_path):
    folder = write_example_folder(tmp_path / "my data", count=8, size=16)
    with pytest.raises(UserError, match=rf"stochseg data init '{folder}'"):
        check_data(folder)
    with pytest.raises(UserError, match="no such folder"):
        init_folder(tmp_path / "nowhere")


def without_group(folder):
    """What an earlier version wrote: no group, images of a patient in all splits."""
    init_folder(folder, {"group": None})
    ids = sorted(file.stem for file in (folder / "images").iterdir())
    (folder / "splits.json").write_text(json.dumps({"train": ids[::3], "val": ids[1::3], "test": ids[2::3]}))


def test_check_finds_patients_in_several_splits_by_their_names(folder):
    without_group(folder)
    (problem,) = check_data(folder).problems
    assert "P000-0 (train)" in problem or "P000-3 (train)" in problem
    assert all(word in problem for word in ("`group: ", "splits.json", f"stochseg data init {folder}", "'(.+)'"))
    description = yaml.safe_load((folder / "dataset.yaml").read_text())
    (folder / "dataset.yaml").write_text(yaml.safe_dump({**description, "group": "(.+)"}))
    assert check_data(folder).problems == [], "the user says that every image is its own group"


def test_the_remedy_for_a_leak_works(folder):
    without_group(folder)
    pattern = check_data(folder).problems[0].split("`group: '")[1].split("'")[0]
    description = yaml.safe_load((folder / "dataset.yaml").read_text())
    (folder / "dataset.yaml").write_text(yaml.safe_dump({**description, "group": pattern}))
    (folder / "splits.json").unlink()
    init_folder(folder)
    assert check_data(folder).problems == []


def test_copies_of_an_image_in_two_splits_are_found(folder):
    init_folder(folder)
    splits = read_splits(folder)
    shutil.copy(folder / f"images/{splits['train'][0]}.png", folder / f"images/{splits['test'][0]}.png")
    (problem,) = check_data(folder).problems
    assert f"{splits['train'][0]} (train)" in problem
    assert "keep it in one" in problem


def test_images_may_be_in_folders_of_their_patients(folder):
    for file in [*folder.rglob("*.png")]:
        patient, number = file.stem.split("-")
        (file.parent / patient).mkdir(exist_ok=True)
        file.rename(file.parent / patient / f"{number}.png")
    init_folder(folder)
    data = Folder("train", root=str(folder))
    assert {data[i].group for i in range(len(data))} == {id.split("/")[0] for id in read_splits(folder)["train"]}
    assert check_data(folder).problems == []


def test_sizes_are_noted(folder):
    init_folder(folder)
    assert check_data(folder).notes == []
    for file in folder.rglob("P000-1.png"):
        Image.open(file).resize((20, 30), Image.Resampling.NEAREST).save(file)
    (note,) = check_data(folder).notes
    assert all(word in note for word in ("2 sizes", "16 to 30", "16 to 20", "data.size"))
