"""Inputs of `predict`: folders, globs, and the names of their results."""

import nibabel
import numpy as np
import pytest
from PIL import Image

from stochseg.data.example import write_example_folder
from stochseg.data.folder import init_folder
from stochseg.errors import UserError
from stochseg.inference import predict
from stochseg.inference.sources import find_sources
from tests.support.predictions import QUICK, gray


def test_folders_are_searched_recursively_except_results(model, tmp_path):
    (tmp_path / "in/deep").mkdir(parents=True)
    Image.fromarray(gray()).save(tmp_path / "in/a.png")
    Image.fromarray(gray()).save(tmp_path / "in/deep/b.PNG")
    nibabel.Nifti1Image(np.zeros((6, 7, 2), np.int16), np.eye(4)).to_filename(tmp_path / "in/scan.v1.nii.gz")
    (tmp_path / "in/notes.txt").write_text("hello")
    (tmp_path / "in/.hidden.png").write_bytes(b"")
    outcomes = predict(model, [tmp_path / "in"], tmp_path / "in/out", QUICK)
    assert [o.notices for o in outcomes if o.status == "note"] == [
        (f"{tmp_path / 'in'}: skipped 1 file(s) that are not images",)
    ]
    assert sorted(p.name for p in (tmp_path / "in/out").iterdir()) == ["a", "deep-b", "scan.v1"]
    again = predict(model, [tmp_path / "in"], tmp_path / "in/out", QUICK)
    assert sorted(o.status for o in again) == ["kept", "kept", "kept", "note"]


def test_folders_and_globs_without_images(model, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").mkdir()
    (tmp_path / "text/readme.md").write_text("hello")
    given = [tmp_path / "empty", tmp_path / "text", tmp_path / "*.png", tmp_path / "nowhere.png"]
    messages = ("contains no image", "contains no image", "no file matches this pattern", "no such file or folder")
    with pytest.raises(UserError, match=".*; .*".join(messages)):
        predict(model, given, tmp_path / "out", QUICK)
    assert not (tmp_path / "out").exists()
    Image.fromarray(gray()).save(tmp_path / "a.png")
    outcomes = predict(model, [*given[:2], given[3], tmp_path / "a.png"], tmp_path / "out", QUICK)
    assert [o.status for o in outcomes] == ["failed"] * 3 + ["done"]


def test_globs_skip_results(model, tmp_path):
    (tmp_path / "in").mkdir()
    Image.fromarray(gray()).save(tmp_path / "in/a.png")
    pattern = str(tmp_path / "in/**/*.png")
    for _ in range(2):
        assert len(predict(model, [pattern], tmp_path / "in/out", QUICK)) == 1


def test_equal_names_are_extended_or_refused(tmp_path):
    files = [tmp_path / name for name in ("a.png", "a.tif", "p1/ct/a.png", "p2/ct/a.png", "deep/b.png", "deep-b.png")]
    for file in files:
        file.parent.mkdir(exist_ok=True, parents=True)
        Image.fromarray(gray()).save(file)

    def names(*given):
        return [s.name for s in find_sources(given).sources]

    assert names(files[0], files[1], tmp_path / "p1/../a.png") == ["a.png", "a.tif"]
    assert names(files[2], files[3]) == ["p1-ct-a.png", "p2-ct-a.png"]
    assert names(tmp_path / "p1/ct", tmp_path / "p2/ct") == ["p1-a.png", "p2-a.png"]
    with pytest.raises(UserError, match=r"several inputs would be written to the folder '.*deep-b.png'.*another --out"):
        names(tmp_path)


def test_globs(tmp_path):
    (tmp_path / "x/y").mkdir(parents=True)
    for name in ("x/1.png", "x/y/2.png", "x/[3].png"):
        Image.fromarray(gray()).save(tmp_path / name)
    assert [s.name for s in find_sources([str(tmp_path / "**/*.png")]).sources] == ["1", "[3]", "2"]
    assert [s.name for s in find_sources([str(tmp_path / "x/[3].png")]).sources] == ["[3]"], (
        "the name of a file, not a pattern"
    )


def test_of_a_data_set_only_the_images_are_segmented(model, tmp_path):
    root = write_example_folder(tmp_path / "mine", count=12, size=16)
    init_folder(root)
    note, *outcomes = predict(model, [root], tmp_path / "out", QUICK)
    assert "label maps are not" in note.notices[0]
    assert sorted(o.folder.name for o in outcomes) == [f"P{i // 4:03d}-{i % 4}" for i in range(12)]
