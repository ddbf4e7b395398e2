"""Parts of the inputs, each predicted by a process of its own."""

import json
from dataclasses import replace

import pytest
from PIL import Image

from stochseg.errors import UserError
from stochseg.inference import predict
from stochseg.inference.chunks import chunks_of
from stochseg.inference.sources import find_sources
from stochseg.locks import locked
from stochseg.owners import current_owner
from stochseg.parts import Part
from tests.support.predictions import QUICK, gray
from tests.support.processes import dead_owner


@pytest.fixture
def inputs(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for i in range(5):
        Image.fromarray(gray(8, 8)).save(folder / f"{i}.png")
    return folder


def samples(out):
    return {file.parent.name: file.read_bytes() for file in out.glob("*/samples.tif")}


def test_all_parts_together_are_the_whole(model, inputs, tmp_path):
    predict(model, inputs, tmp_path / "whole", QUICK)
    counts = []
    for index in (3, 1, 2):
        outcomes = predict(model, inputs, tmp_path / "parts", QUICK, part=Part(index, 3))
        counts.append([outcome.status for outcome in outcomes].count("done"))
    assert sum(counts) == 5, "no input twice"
    assert all(counts)
    assert samples(tmp_path / "parts") == samples(tmp_path / "whole")
    assert {o.status for o in predict(model, inputs, tmp_path / "parts", QUICK)} == {"kept"}


def test_more_parts_than_inputs(model, inputs, tmp_path):
    assert predict(model, inputs, tmp_path / "out", QUICK, part=Part(7, 7)) == []
    assert not (tmp_path / "out").exists()


def test_parts_write_at_the_same_time_but_nobody_else(model, inputs, tmp_path):
    one, out = Part(1, 2), tmp_path / "out"
    with locked(out, one.lock, rivals=one.rivals):
        for part in (one, Part(), Part(1, 3)):
            with pytest.raises(UserError, match="in use by process"):
                predict(model, inputs, out, QUICK, part=part)
        assert len(predict(model, inputs, out, QUICK, part=Part(2, 2))) == 2
    with locked(out), pytest.raises(UserError, match="in use by process"):
        predict(model, inputs, out, QUICK, part=one)
    assert not list(out.glob(".*"))


@pytest.mark.parametrize(("part", "is_free"), [(Part(), True), (Part(1, 2), True), (Part(1, 3), False)])
def test_locks_of_dead_parts(model, inputs, tmp_path, part, is_free):
    """A part of another division stays in the way while its process may run on another machine."""
    owner = dead_owner() if is_free else replace(current_owner(), host="000000")
    tmp_path.joinpath(Part(1, 2).lock).write_text(json.dumps({"owner": owner.tag, "pid": 1, "host": "x"}))
    if is_free:
        assert {o.status for o in predict(model, inputs, tmp_path, QUICK, part=part)} == {"done"}
        assert not list(tmp_path.glob(".*"))
    else:
        with pytest.raises(UserError, match="in use by process 1 on x"):
            predict(model, inputs, tmp_path, QUICK, part=part)


def test_chunks_depend_on_the_inputs_alone(tmp_path):
    for i in range(70):
        tmp_path.joinpath(f"{i:02}.png").touch()
    tmp_path.joinpath("04-scan.nii.gz").touch()
    sources = find_sources([tmp_path]).sources
    for n, size in ((1, 3), (32, 2), (64, 1), (1000, 1)):
        chunks = chunks_of(sources, n)
        assert [source for chunk in chunks for source in chunk] == sources
        assert max(map(len, chunks)) == size
        assert [[s.name for s in chunk] for chunk in chunks if any("scan" in s.name for s in chunk)] == [["04-scan"]]
    assert chunks_of([], 4) == []


@pytest.mark.parametrize(("text", "expected"), [("1/1", Part()), ("2/8", Part(2, 8)), ("slurm", Part(3, 4))])
def test_parse(text, expected, monkeypatch):
    for name, value in (("ID", 14), ("MIN", 10), ("STEP", 2), ("COUNT", 4)):
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", str(value))
    assert Part.parse(text) == expected


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/3", "1/99999999", "", "slurm"])
def test_wrong_parts(text, monkeypatch, run, tmp_path):
    monkeypatch.delenv("SLURM_ARRAY_TASK_ID", raising=False)
    with pytest.raises(UserError, match="--part"):
        Part.parse(text)
    if text:
        code, _, messages = run("predict", "lidc", tmp_path, "--part", text)
        assert (code, "--part" in messages) == (2, True)


def test_an_array_with_gaps(monkeypatch):
    for name, value in (("ID", 9), ("MIN", 1), ("STEP", 1), ("COUNT", 3)):
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", str(value))
    with pytest.raises(UserError, match="without gaps"):
        Part.parse("slurm")
