"""The page about predictions."""

import json
import re
import shutil
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

import stochseg
from stochseg.analysis import Question
from stochseg.errors import UserError
from stochseg.inference import PredictOptions, predict
from stochseg.reports import report_predictions
from stochseg.reports.page import mean_and_interval
from stochseg.reports.saved_prediction import read_image
from stochseg.reports.saved_result import read_result
from tests.support.pages import Page
from tests.support.predictions import small_model

RNG = np.random.default_rng(0)
ASK = Question.parse("longest diameter > 6 px")


@pytest.fixture(scope="module")
def model():
    return small_model()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Two pictures and a volume with millimeters."""
    folder = tmp_path_factory.mktemp("inputs")
    for name, size in (("a", (20, 24)), ("b <&>", (12, 9))):
        Image.fromarray(RNG.integers(0, 256, size, dtype=np.uint8)).save(folder / f"{name}.png")
    volume = RNG.integers(0, 256, (12, 10, 4)).astype(np.float32)
    nibabel.Nifti1Image(volume, np.diag([-0.5, -0.8, 2.0, 1.0])).to_filename(folder / "volume.nii.gz")
    return folder


@pytest.fixture(scope="module")
def predicted(model, inputs, tmp_path_factory):
    out = tmp_path_factory.mktemp("predicted") / "out"
    options = PredictOptions(n=7, slices="independent")
    assert all(o.status == "done" for o in predict(model, [inputs], out, options, origin="tiny"))
    return out


@pytest.fixture
def copied(predicted, tmp_path):
    """A copy of the result of one picture, for tests that damage it."""
    (tmp_path / "out/a").mkdir(parents=True)
    for file in (predicted / "a").iterdir():
        (tmp_path / "out/a" / file.name).write_bytes(file.read_bytes())
    return tmp_path / "out"


def test_page_of_predictions(run, model, inputs, predicted, tmp_path):
    file = tmp_path / "new" / "page.html"
    code, out, said = run("report", predicted, "--out", file, "--ask", "longest diameter > 6", "--spacing", "2,3")
    assert code == 0, said
    assert f"written to {file}" in out
    assert [p.name for p in file.parent.iterdir()] == ["page.html"]
    page = Page(file).check()
    assert file.stat().st_size < 3 * 400_000
    drawn = model.sample(np.asarray(Image.open(inputs / "a.png")), 7)
    for reading in stochseg.hypotheses(drawn, info=model.info if model.info.class_names else None):
        assert f"{reading.probability:.0%}" in page.text
    area = stochseg.measure(drawn, "area", label=1, spacing=(2, 3))
    assert mean_and_interval(area) in page.text
    long = stochseg.measure(drawn, "longest diameter", spacing=(2, 3)).probability(">", 6)
    assert f"a: P(longest diameter > 6) = {long:.0%} (" in out
    assert f"P(longest diameter > 6) = {long:.0%} (" in page.text
    for name in ("a", "b <&>", "volume"):
        assert page.words.count(name) >= 2, "in the table of contents and over its section"


@pytest.fixture(scope="module")
def slices(model, inputs):
    """What the model draws for each slice of the volume: predict sampled them independently."""
    values = np.moveaxis(np.asarray(nibabel.load(inputs / "volume.nii.gz").dataobj), (2, 1, 0), (0, 1, 2))
    return [model.sample(part, 7) for part in values]


def test_volumes_are_measured_as_a_whole_and_read_by_slice(slices, predicted, model):
    result = read_result(predicted / "volume")
    image = read_image(predicted / "volume", result)
    drawn = torch.stack([part.labels[0] for part in slices], 1)
    shown = int(np.argmax([float(part.entropy.sum()) for part in slices]))
    assert (image.image.labels == image.view.crop(drawn.numpy())).all()
    assert (image.coupling, image.depth, image.spacing) == ("independent", 4, pytest.approx((2, 0.8, 0.5)))
    for reading, expected in zip(image.readings, stochseg.hypotheses(slices[shown]), strict=True):
        assert reading.members.tolist() == expected.members.tolist()
    pixels = (drawn == 1).flatten(1).sum(1).double().numpy()
    np.testing.assert_allclose(image.measured[1, "volume"].values, pixels * 0.8, rtol=1e-5)
    longest = stochseg.measure(drawn, "longest diameter", label=1, spacing=(2, 0.8, 0.5))
    np.testing.assert_allclose(image.measured[1, "longest diameter"].values, longest.values)
    assert f"slice {shown + 1} of 4 alone" in image.section().parts[0].heading
    middle = float(np.median(pixels)) * 0.8 + 0.3  # between two values
    again = read_image(predicted / "volume", result, None, [Question.parse(f"volume > {middle / 1000} ml")])
    assert again.answers[0].probability == pytest.approx((pixels * 0.8 > middle).mean())
    assert f"volume of {model.info.names[1]}" in str(again.section().parts[-1].table.rows)


def test_questions_about_images_take_the_largest_slice_of_a_volume(run, slices, predicted, tmp_path):
    areas = np.stack([stochseg.measure(part, "area", spacing=(0.8, 0.5)).values for part in slices])
    largest = areas.max(0)
    limit = float(np.median(largest)) - 0.1
    assert len(set(areas.argmax(0))) > 1, "or one slice would do"
    page = tmp_path / "p.html"
    code, out, said = run("report", predicted / "volume", "--out", page, "--ask", f"area > {limit:.3f} mm2")
    assert code == 0, said
    assert f" = {(largest > limit).mean():.0%} (" in out
    assert out.splitlines()[0].endswith("%), largest of all slices")
    text = Page(page).check().text
    assert "sampled independently" in text
    assert "voxels of 2 × 0.8 × 0.5 mm (slice, row, column). Up is anterior, left is the patient's right." in text
    assert "The head is on top of the coronal and sagittal planes." in text


def test_samples_of_whole_volumes_have_readings_of_whole_volumes(slices, predicted, tmp_path):
    """If result.json says that the slices of a sample belong together."""
    shutil.copytree(predicted / "volume", tmp_path / "volume")
    file = tmp_path / "volume/result.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "coupling": "joint"}))
    image = read_image(tmp_path / "volume", read_result(tmp_path / "volume"))
    expected = stochseg.hypotheses(torch.stack([part.labels[0] for part in slices], 1))
    assert [r.members.tolist() for r in image.readings] == [r.members.tolist() for r in expected]
    assert image.readings[0].medoid.shape == image.view.crop(slices[0].labels[0, 0].expand(4, -1, -1).numpy()).shape
    assert "whole volume" in image.section().parts[0].heading


def test_files_of_another_volume_are_refused(predicted, tmp_path):
    shutil.copytree(predicted / "volume", tmp_path / "volume")
    file = tmp_path / "volume/samples.nii.gz"
    stored = nibabel.load(file)
    nibabel.Nifti1Image(np.asarray(stored.dataobj)[:, :, :3], stored.affine).to_filename(file)
    with pytest.raises(UserError, match=r"describes \(7, 2, 4, 10, 12\).*have \(7, 2, 3, 10, 12\)"):
        read_image(tmp_path / "volume", read_result(tmp_path / "volume"))


def test_pages_are_deterministic(predicted, tmp_path):
    for name in ("one", "two"):
        report_predictions(predicted / "a", tmp_path / f"{name}.html", questions=[ASK])
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


def test_limit_is_stated_on_the_page(predicted, tmp_path):
    (answer,) = report_predictions(predicted, tmp_path / "page.html", limit=1, questions=[ASK])
    assert answer.startswith("a: P(")
    assert "shows 1 of them, evenly spaced" in Page(tmp_path / "page.html").text


def test_missing_input_is_replaced_by_its_overlay(copied, tmp_path):
    record = json.loads((copied / "a/result.json").read_text())
    record["inputs"][0]["file"] = str(tmp_path / "gone.png")
    (copied / "a/result.json").write_text(json.dumps(record))
    report_predictions(copied, tmp_path / "page.html")
    assert "gone.png is missing or has changed" in Page(tmp_path / "page.html").check().text


def test_predictions_of_an_older_version(tmp_path):
    folder = Path(__file__).parents[1] / "golden/old/predictions"
    record = json.loads((folder / "P000-0/result.json").read_text())
    assert [part["colour"] for part in record["classes"]] == list(read_result(folder / "P000-0").info.colors)
    (answer,) = report_predictions(folder, tmp_path / "page.html", questions=[ASK])
    assert answer.startswith("P000-0: P(longest diameter > 6 px) = 0% (0% – ")
    page = Page(tmp_path / "page.html").check()
    assert "Predictions of runs/old" in page.text
    assert "nothing 100%" in page.text


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("result.json", "{", "is not valid JSON .* predict this input again with --overwrite"),
        ("result.json", '{"format": "other"}', "expected format 'stochseg-prediction', got 'other'"),
        ("result.json", '{"format": "stochseg-prediction"}', "key 'inputs': Field required"),
        ("samples.tif", "no picture", "samples.tif cannot be read .* predict this input again"),
        ("mean.tif", None, "mean.tif cannot be read"),
    ],
)
def test_damaged_files_are_named_and_no_page_is_written(run, copied, tmp_path, file, content, says):
    (copied / "a" / file).unlink()
    if content is not None:
        (copied / "a" / file).write_text(content)
    code, _, messages = run("report", copied, "--out", tmp_path / "page.html")
    assert code == 2
    assert re.search(says, messages)
    assert not (tmp_path / "page.html").exists()


def test_contradicting_files_are_rejected(copied):
    record = json.loads((copied / "a/result.json").read_text())
    for part in record["classes"]:
        part["samples"] = part["samples"][:-1]
    (copied / "a/result.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"\(6, 2, 20, 24\) .* \(7, 2, 20, 24\)"):
        read_image(copied / "a", read_result(copied / "a"))
    for weights in ([], [[0.5], [0.2, 0.3]]):
        (copied / "a/result.json").write_text(json.dumps({**record, "weights": weights}))
        with pytest.raises(UserError, match=r"weights.* predict this input again"):
            read_result(copied / "a")


def test_volumes_with_different_weights_per_slice_are_rejected(model, tmp_path):
    volume = RNG.integers(0, 256, (16, 16, 2)).astype(np.uint8)
    nibabel.Nifti1Image(volume, np.eye(4)).to_filename(tmp_path / "a.nii")
    (outcome,) = predict(model, [tmp_path / "a.nii"], tmp_path / "out", PredictOptions(n=2))
    file = outcome.folder / "result.json"
    for weights in ([[0.2, 0.8], [0.2, 0.8]], [[0.2, 0.8], [0.6, 0.4]]):
        file.write_text(json.dumps({**json.loads(file.read_text()), "weights": weights}))
        if weights[0] == weights[1]:
            size = read_image(outcome.folder, read_result(outcome.folder)).size
            assert size.weights == pytest.approx([0.2, 0.8])
        else:
            with pytest.raises(UserError, match="different weights"):
                read_result(outcome.folder)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "nowhere: .* no such folder"),
        (["empty"], "result.json or train.yaml.*; it is empty"),
        (["other"], "got a.txt, b.txt"),
        (["other/a.txt"], "it is a file"),
        (["lidc"], "lidc .*--data"),
        (["lidc", "--data", "no.h5"], "no data at no.h5"),
        (["out", "--spacing", "0.7,x"], "--spacing: .*0.7,x"),
        (["out", "--ask", "beauty > 3"], "'beauty > 3'.*area, "),
        (["out", "--ask", "area > many"], "'area > many'.*a number"),
        (["out", "--ask", "area > 5 mm2"], "mm².*--spacing.*px"),
        (["out", "--ask", "area > 100 px"], "write px²"),
        (["out", "--ask", "area of moon > 5"], "'moon'; known: "),
        (["out", "--ask", "volume > 5"], "a.png: it is not a volume"),
        (["out", "--curve", "5,x"], "--curve: .*5,x"),
        (["out", "--out", "empty"], "--out empty is a folder"),
    ],
)
def test_command_line_errors(run, copied, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "other" / name).write_text("")
    code, _, messages = run("report", *arguments)
    assert code == 2
    assert re.search(says, messages)
    assert not list(tmp_path.rglob("*.html"))


def test_an_input_that_cannot_answer_does_not_stop_the_page(predicted, tmp_path):
    """Two pictures without millimeters next to a volume."""
    questions = [Question.parse("volume > 5 mm3"), Question.parse("area > 5 px2")]
    lines = report_predictions(predicted, tmp_path / "page.html", questions=questions)
    assert len(lines) == 6
    answered = [line for line in lines if "no answer" not in line]
    assert [line.split(":")[0] for line in answered] == ["a", "b <&>", "volume"]
    assert "no answer" in Page(tmp_path / "page.html").check().text
    with pytest.raises(UserError, match="--spacing"):
        report_predictions(predicted / "a", tmp_path / "other.html", questions=[Question.parse("area > 5 mm2")])
    assert not (tmp_path / "other.html").exists()


def test_the_labeled_part_and_objects_cut_off_there_are_on_the_page(inputs, tmp_path):
    predict(small_model(focus=8), [inputs / "a.png"], tmp_path / "out", PredictOptions(n=4))
    report_predictions(tmp_path / "out", tmp_path / "page.html")
    text = Page(tmp_path / "page.html").check().text
    assert "inside of the dashed box" in text
    assert "border of the central 8×8" in text
