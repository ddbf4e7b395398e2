"""`stochseg bench`: its table, its files and its errors."""

import csv
import shutil
from pathlib import Path

import pytest


def read(file: Path) -> list[dict[str, str]]:
    with file.open() as stream:
        return list(csv.DictReader(stream))


def test_every_combination_has_a_row(run, trained, tmp_path):
    file = tmp_path / "new" / "bench.csv"
    arguments = ("--size", 16, "-n", 2, "--out", file, "--device", "cpu", "--repeats", 1)
    code, out, _ = run("bench", f"{trained}@1,2", "--sampler", "ancestral,sticky", *arguments)
    assert code == 0
    assert "core s" in out
    rows = read(file)
    assert [(row["sampler"], row["evaluations"]) for row in rows] == [
        (sampler, count) for sampler in ("ancestral", "sticky") for count in "12"
    ]
    assert float(rows[1]["gflop"]) == pytest.approx(2 * float(rows[0]["gflop"]), rel=0.1, abs=0.002)
    for row in rows:
        assert float(row["seconds"]) > 0
        assert float(row["process_megabytes"]) > float(row["peak_megabytes"]) >= 0
        assert 0 < float(row["gemm_share"]) < 1
        assert row["hardware"]
        assert "@1,2" in row["command"]
    assert not file.with_suffix(".png").exists(), "no figure without scores"


def test_the_last_at_sign_separates_the_evaluations(run, trained, tmp_path):
    there = shutil.copytree(trained, tmp_path / "ann@corp" / "run")
    code, _, messages = run("bench", f"{there}@1", "--size", 16, "-n", 1, "--device", "cpu", "--repeats", 1)
    assert code == 0
    assert f"{there}, eager: 1 evaluations done" in messages


def test_data_add_scores_and_a_figure(run, trained, folder_root, tmp_path):
    file = tmp_path / "bench.csv"
    arguments = ("--size", 8, "-n", 2, "--data", folder_root, "--seeds", 2, "--repeats", 1, "--out", file)
    code, *_ = run("bench", f"{trained}@1,2", "--sampler", "sticky,one-step-kernel", *arguments)
    assert code == 0
    rows = read(file)
    assert len(rows) == 4
    for row in rows:
        assert (row["images"], row["seeds"]) == ("1", "2")
        assert 0 <= float(row["hm_iou_2"]) <= 1
        assert float(row["ged_2_deviation"]) >= 0
    assert file.with_suffix(".png").stat().st_size > 1000


def test_only_trained_weights_are_scored(run, trained, folder_root, tmp_path, monkeypatch):
    file = tmp_path / "bench.csv"
    arguments = ("--size", 8, "-n", 2, "--data", folder_root, "--repeats", 1, "--out", file)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unet-ce").mkdir()  # a folder of the same name, without a model
    code, out, _ = run("bench", "unet-ce", f"{trained}@1", *arguments)
    assert code == 0
    assert f"written to {file} and {file.with_suffix('.png')}" in out
    fresh, known = read(file)
    assert (fresh["model"], fresh["ged_2"]) == ("unet-ce", "")
    assert float(known["ged_2"]) >= 0


@pytest.mark.parametrize("numbers", ["5,x", "0", "5,,6", "-3"])
def test_wrong_numbers_are_named(run, trained, numbers):
    after_at = ((f"{trained}@{numbers}",), "evaluations after @")
    for arguments, option in (after_at, ((trained, f"--size={numbers}"), "--size")):
        code, _, messages = run("bench", *arguments)
        assert code == 2
        assert option in messages


def test_mistakes_are_found_before_measuring(run, trained, folder_root, tmp_path, monkeypatch):
    monkeypatch.setattr("stochseg.experiments.bench.cost", lambda *_, **__: pytest.fail("measuring started"))
    three = Path(shutil.copytree(folder_root, tmp_path / "three"))
    (tmp_path / "folder.csv").mkdir()
    (three / "dataset.yaml").write_text((three / "dataset.yaml").read_text().replace("classes: 2", "classes: 3"))
    for arguments, message in (
        ((f"{trained}@9",), "between 1 and T=8, got 9"),
        ((trained, "--sampler", "euler"), "unknown sampler 'euler'"),
        ((trained, "--grid", "odd"), "unknown grid 'odd'"),
        ((trained, "--engine", "steam"), "unknown engine 'steam'"),
        ((trained, "--noise", "pink"), "unknown noise 'pink'"),
        ((trained, "--data", three), "has 2 classes and 1 image channel(s), the data have 3 and 1"),
        (("lidc-9m", "--data", folder_root), "expected a trained model to score"),
        ((trained, "--out", tmp_path / "bench.png"), "--out: expected a file that ends in .csv"),
        ((trained, "--out", tmp_path / "folder.csv"), "folder.csv is a folder"),
        ((trained, "--out", three / "dataset.yaml" / "bench.csv"), "bench.csv cannot be written ("),
        ((trained, "--size", "128x"), "--size: expected a number of pixels"),
        ((trained, "--data", folder_root, "-n", 1), "at least 2 samples per image, got 1"),
        (("prob-unet", "--sampler", "sticky"), "model 'prob-unet' has no choice of sampler, got 'sticky'"),
        (("prob-unet@4",), "model 'prob-unet' has no choice of evaluations, got 4"),
    ):
        code, _, messages = run("bench", *arguments)
        assert code == 2
        assert message in messages
