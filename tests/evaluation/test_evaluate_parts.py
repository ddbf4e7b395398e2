"""Evaluation in parts, each by a process of its own: the numbers of one process, to the last digit."""

import shutil
from functools import partial

import pytest

from stochseg.data import Phantoms, plan_import
from stochseg.data.example import write_example_folder
from stochseg.data.folder import init_folder
from stochseg.errors import UserError
from stochseg.evaluation import StoredScores, evaluate, evaluate_seeds
from stochseg.locks import locked
from stochseg.models import SamplingOptions, save
from stochseg.parts import Part
from stochseg.workers import run_here
from tests.evaluation.test_evaluate_workers import OPTIONS, Voids, assert_same
from tests.support.models import lively

DATA = Phantoms("val", size=16, count=7)


@pytest.fixture(scope="module")
def model():
    return lively("ccdm-fast", 2, num_timesteps=20)


def add_up(stored, model, count=None):
    """The runner of the last command; it may score `count` images itself."""
    scored = []

    def runner(act, chunks, lost):
        for result in run_here(lambda: model, act, chunks, lost):
            scored.append(result.index)
            assert count is None or len(scored) <= count
            yield result

    return stored.runner(runner)


@pytest.mark.parametrize(("data", "classes"), [(DATA, 2), (Voids(), 3)], ids=["known truth", "voids, fused, classes"])
def test_the_same_to_the_last_digit(tmp_path, data, classes):
    model = lively("ccdm-fast", classes, num_timesteps=20)
    stored = StoredScores(tmp_path, "a")
    seen = []
    counts = [
        stored.write(model, data, Part(i, 3), [OPTIONS], progress=lambda *step: seen.append(step)) for i in (2, 3, 1)
    ]
    assert sum(counts) == len(data)
    assert seen[-1] == (counts[-1], counts[-1])
    assert_same(
        evaluate(model, data, options=OPTIONS, runner=add_up(stored, model, 0)), evaluate(model, data, options=OPTIONS)
    )


def test_seeds_and_limits(tmp_path, model):
    options, stored = SamplingOptions(n=2), StoredScores(tmp_path, "a")
    ways = [options, SamplingOptions(n=2, seed=1)]
    for i in (1, 2):
        stored.write(model, DATA, Part(i, 2), ways, limit=5)
    found = evaluate_seeds(model, DATA, 2, options=options, limit=5, runner=add_up(stored, model, 0))
    assert_same(found, evaluate_seeds(model, DATA, 2, options=options, limit=5))


def test_what_is_missing_or_damaged_is_scored_again(tmp_path, model):
    stored = StoredScores(tmp_path, "a")
    for i in (1, 3):
        stored.write(model, DATA, Part(i, 3), [OPTIONS])
    first, third = sorted(tmp_path.glob("*.jsonl"))
    lines = first.read_bytes().splitlines(keepends=True)
    wrong = lines[1].replace(b'"index": 3', b'"index": 4')
    assert wrong != lines[1]
    first.write_bytes(lines[0] + wrong + lines[2][:-5])  # one was changed, one cut short; part 2 of 3 is missing
    expected = evaluate(model, DATA, options=OPTIONS)
    copy = StoredScores(shutil.copytree(tmp_path, tmp_path / "copy"), "a")
    assert_same(evaluate(model, DATA, options=OPTIONS, runner=add_up(copy, model, 4)), expected)
    stored.write(model, DATA, Part(1, 3), [OPTIONS])  # an interrupted part continues
    stored.write(model, DATA, Part(2, 3), [OPTIONS])
    assert_same(evaluate(model, DATA, options=OPTIONS, runner=add_up(stored, model, 0)), expected)
    assert len(third.read_bytes().splitlines()) == 2


def test_samples_that_are_kept_for_pictures_are_drawn_again_if_damaged(tmp_path, model):
    stored = StoredScores(tmp_path, "a")
    stored.write(model, DATA, Part(1, 1), [OPTIONS])
    next(iter(tmp_path.glob("*-samples-0.npz"))).write_bytes(b"x")
    found = evaluate(model, DATA, options=OPTIONS, runner=add_up(stored, model, 1))
    assert_same(found, evaluate(model, DATA, options=OPTIONS))


def test_parts_of_another_evaluation_are_refused(tmp_path, model):
    StoredScores(tmp_path, "a").write(model, DATA, Part(1, 2), [OPTIONS])
    for options, checksum in ((SamplingOptions(n=3), "a"), (OPTIONS, "b")):
        with pytest.raises(UserError, match="another model, version or other options"):
            evaluate(model, DATA, options=options, runner=add_up(StoredScores(tmp_path, checksum), model))
    other = Phantoms("val", size=16, count=7, seed=5)
    with pytest.raises(UserError, match="has changed since its part was scored"):
        evaluate(model, other, options=OPTIONS, runner=add_up(StoredScores(tmp_path, "a"), model))


def test_two_processes_do_not_write_one_part(tmp_path, model):
    write = partial(StoredScores(tmp_path, "a").write, model, DATA)
    with locked(tmp_path, Part(1, 2).lock):
        for part in (Part(1, 2), Part(1, 3), Part(1, 1)):
            with pytest.raises(UserError, match="in use by process"):
                write(part, [OPTIONS])
        assert write(Part(2, 2), [OPTIONS]) == 3


def test_the_command(tmp_path, run, monkeypatch):
    root = write_example_folder(tmp_path / "mine", count=16, size=16)
    init_folder(root)
    info = plan_import("folder", root).info
    saved = save(lively("unet-ce", 2, 1, info, base=4, multipliers=[1]), tmp_path / "model")
    command = ("evaluate", saved, "--data", root, "--split", "train", "-n", 2, "--device", "cpu")
    assert run(*command, "--part", "1/2")[0] == 2
    for name, value in (("ID", 1), ("MIN", 1), ("STEP", 1), ("COUNT", 2)):
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", str(value))
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    for part in ("slurm", "2/2"):
        code, text, _ = run(*command, "--out", parts, "--part", part)
        assert (code, "images scored" in text) == (0, True)
        assert not (parts / "metrics.json").exists()
    for out in (parts, whole):
        assert run(*command, "--out", out)[0] == 0
    lines = [
        [line.rsplit(",", 2)[0] for line in (out / "images.csv").read_text().splitlines()] for out in (parts, whole)
    ]
    assert lines[0] == lines[1]
    assert (parts / "samples.png").read_bytes() == (whole / "samples.png").read_bytes()
