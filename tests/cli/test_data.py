"""`stochseg data …`: from a folder to a checked store and a contact sheet, and the errors of bad input."""

from __future__ import annotations

import json
import re

import h5py
import numpy as np
import pytest
import yaml
from PIL import Image

from stochseg.data import Store
from stochseg.data.example import write_example_folder
from stochseg.data.folder import init_folder
from stochseg.evaluation.data_report import report_data
from tests.support.volume_files import write_nifti


@pytest.fixture
def folder(tmp_path):
    """An example folder with dataset.yaml and splits by patient."""
    root = write_example_folder(tmp_path / "mine", count=48, size=16)
    init_folder(root)
    return root


def test_folder_to_trained_model(run, tmp_path):
    """The five commands of docs/guide/own_data.md."""
    mine, out = tmp_path / "mine", tmp_path / "run"
    assert run("data", "example", mine, "--count", 40, "--size", 16)[0] == 0
    code, said, _ = run("data", "init", mine)
    assert code == 0
    assert "10 groups, such as P000 (P000-0, P000-1, …) and P001 (P001-0, P001-1, …)" in said
    assert run("data", "check", mine)[0] == 0
    tiny = "model.options={tower: [4, 8], light: [4, 4], tower_blocks: 1, components: 2, num_timesteps: 4, steps: 2}"
    small = ("steps=3", "batch_size=4", "validation={every: 3, images: 2, samples: 2}")
    assert run("train", "small", tiny, *small, "--data", mine, "--out", out)[0] == 0
    code, shown, _ = run("evaluate", out, "--samples", 4, "--limit", 2)
    assert code == 0
    assert "GED, n = 4" in shown
    assert len(list(out.glob("evaluations/*/index.html"))) == 1
    config = yaml.safe_load((out / "train.yaml").read_text())
    assert config["data"]["name"] == "folder"
    assert config["data"]["augment"] == "flip-rotate", "settings of the recipe are kept"


def test_interrupted_example_leaves_nothing(tmp_path):
    def stop(done, total):
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_example_folder(tmp_path / "mine", count=5, size=16, progress=stop)
    assert list(tmp_path.iterdir()) == []
    write_example_folder(tmp_path / "mine", count=5, size=16)


def test_import_check_show(run, folder, tmp_path):
    store, sheet = tmp_path / "mine.h5", tmp_path / "sheet.png"
    code, out, _ = run("data", "import", "folder", folder, store)
    assert code == 0
    assert re.search(r"train: \d+ examples of \d+ groups", out)
    sizes = {split: len(Store(split, path=str(store))) for split in ("train", "val", "test")}
    assert sum(sizes.values()) == 48
    code, out, _ = run("data", "check", store)
    assert code == 0
    row = next(line for line in out.splitlines() if "examples" in line)
    assert [int(n) for n in re.findall(r"\d+", row)] == [sizes[s] for s in ("test", "train", "val")]
    assert "no problems found" in out
    assert run("data", "show", store, "--out", sheet, "--count", 7)[0] == 0
    picture = np.asarray(Image.open(sheet))
    assert picture.shape[0] > 200
    assert picture.std() > 10


@pytest.mark.parametrize("target", [".", "", "/"])
def test_a_folder_is_no_file_to_write(run, folder, target):
    for words, match in (
        (("import", "folder", folder, target), "expected a file to write"),
        (("show", folder, "--out", target), "is a folder; pass the name of a file"),
    ):
        code, _, messages = run("data", *words)
        assert code == 2
        assert match in messages


def test_volumes_init_check_show_import(run, tmp_path):
    root = tmp_path / "mine"
    for i in range(4):
        volume = np.random.default_rng(i).integers(0, 256, (20, 16, 4 + i)).astype(np.int16)
        for folder, values in (("images", volume), ("labels/ana", (volume > 128).astype(np.uint8))):
            write_nifti(root / folder / f"p{i}.nii.gz", values, np.diag([-0.7, -0.7, 2.5 + i % 2, 1]))
    assert run("data", "init", root, "group=(.+)")[0] == 0
    code, out, err = run("data", "check", root)
    assert code == 0
    assert re.search(r"\d×16×20", out)
    assert "2 spacings: slices 2.5 to 3.5 mm" in err
    for source in (root, tmp_path / "mine.h5"):
        if source.suffix:
            assert run("data", "import", "folder", root, source)[0] == 0
        assert run("data", "show", source, "--out", tmp_path / "sheet.png")[0] == 0
        assert np.asarray(Image.open(tmp_path / "sheet.png")).std() > 10
    write_nifti(root / "labels/ana/p1.nii.gz", np.zeros((20, 16, 4), np.uint8), np.diag([-0.7, -0.7, 3.5, 1]))
    code, _, err = run("data", "check", root)
    assert code == 1
    assert re.search(r"ana/p1\.nii\.gz.*images/p1\.nii\.gz", err, re.DOTALL)


def test_check_finds_every_problem(run, folder):
    """A cut file and an image in two splits are both reported, with exit code 1."""
    splits = json.loads((folder / "splits.json").read_text())
    train, test = splits["train"], splits["test"]
    (folder / "images" / f"{test[0]}.png").write_bytes((folder / "images" / f"{train[0]}.png").read_bytes())
    cut = folder / "images" / f"{train[1]}.png"
    cut.write_bytes(cut.read_bytes()[:50])
    code, out, err = run("data", "check", folder)
    assert code == 1
    assert f"{train[1]}.png cannot be read" in err
    assert f"{test[0]} (test), {train[0]} (train)" in err
    assert "examples" in out, "the table is printed too"


def test_check_finds_a_patient_in_two_splits(run, folder, tmp_path):
    """`import` refuses this, but another program may have written the store."""
    store = tmp_path / "mine.h5"
    assert run("data", "import", "folder", folder, store)[0] == 0
    with h5py.File(store, "r+") as handle:
        rows = handle["examples"][()]
        rows["group"][rows["split"] == b"test"] = rows["group"][rows["split"] == b"train"][0]
        handle["examples"][...] = rows
        del handle.attrs["sha256"]
    code, _, err = run("data", "check", store)
    assert code == 1
    assert re.search(r"group 'P\d+' .*test, train", err)


def test_facts_equal_the_files(folder):
    report = report_data(folder)
    splits = json.loads((folder / "splits.json").read_text())
    for split, facts in report.check.splits.items():
        ids = splits[split]
        assert facts.examples == len(ids)
        assert facts.groups == {name.split("-")[0] for name in ids}
        maps = {
            name: [np.asarray(Image.open(file)) > 0 for file in sorted(folder.glob(f"labels/*/{name}.png"))]
            for name in ids
        }
        assert facts.raters == {k: sum(len(m) == k for m in maps.values()) for k in {len(m) for m in maps.values()}}
        drawn = [sum(bool(m.any()) for m in of) for of in maps.values()]
        assert facts.drawn == {n: drawn.count(n) for n in set(drawn)}
        agreement = [
            np.mean([_iou(a, b) for i, a in enumerate(of) for j, b in enumerate(of) if i != j])
            for of in maps.values()
            if len(of) > 1
        ]
        assert np.mean(report.agreement[split]) == pytest.approx(np.mean(agreement))


def _iou(a: np.ndarray, b: np.ndarray) -> float:
    return 1.0 if not (a | b).any() else (a & b).sum() / (a | b).sum()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("import", "nonsense", ".", "x.h5"), "'nonsense'; known: camvid"),
        (("import", "folder", "nowhere", "x.h5"), "nowhere"),
        (("check", "nowhere.h5"), "no data at nowhere.h5"),
        (("show", "nowhere.h5"), "no data at nowhere.h5"),
        (("init", "nowhere"), "nowhere"),
    ],
)
def test_bad_input_is_refused(run, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, _, err = run("data", *arguments)
    assert code == 2
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_lidc_recipe_names_the_import_command(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = run("train", "lidc-9m")
    assert code == 2
    assert re.search("data/lidc.h5.*stochseg data import", err)


def test_init_takes_keys_of_the_description(run, tmp_path):
    mine = write_example_folder(tmp_path / "mine", count=12, size=16)
    code, _, err = run("data", "init", mine, "group=(")
    assert code == 2
    assert "not a regular expression" in err
    assert run("data", "init", mine, "threshold=128", "class_names=[nothing, nodule]")[0] == 0
    written = yaml.safe_load((mine / "dataset.yaml").read_text())
    assert (written["threshold"], written["class_names"], written["values"]) == (128, ["nothing", "nodule"], {})
    assert run("data", "check", mine)[0] == 0


@pytest.mark.parametrize("recipe", ["small", "ssn"])
def test_training_of_own_data_says_how_to_pass_them(run, tmp_path, monkeypatch, recipe):
    monkeypatch.chdir(tmp_path)
    code, _, err = run("train", recipe)
    assert code == 2
    assert "--data" in err
    assert list(tmp_path.iterdir()) == []
