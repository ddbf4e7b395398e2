"""Reports: one page that needs nothing else, names every image, and says what the samples say."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

import stochseg
from stochseg.analysis import Question
from stochseg.data import Phantoms
from stochseg.errors import UserError
from stochseg.evaluation import evaluate
from stochseg.inference import Options, predict
from stochseg.metrics import diversity, ged
from stochseg.models.sampling import SamplingOptions
from stochseg.plotting import report_figures as figures
from stochseg.plotting.output import embed_picture
from stochseg.plotting.pictures import shrink
from stochseg.reports import report_predictions, report_run
from stochseg.reports.image import ImageReport
from stochseg.reports.runs import Collector, RunFacts, _cases, _draw
from stochseg.reports.saved_prediction import read_image, read_result
from stochseg.reports.text import mean_and_interval
from stochseg.training import train
from stochseg.types import Batch, DatasetInfo, Samples

RNG = np.random.default_rng(0)
ASK = Question.parse("longest diameter > 6 px")


class Page(HTMLParser):
    """What a page holds: addresses, places, headings, all text."""

    def __init__(self, file):
        super().__init__()
        self.images, self.links, self.places, self.tags, self.words = [], [], [], [], []
        self.feed(file.read_text())
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.tags.append(tag)
        self.places += [values["id"]] if "id" in values else []
        if tag == "img":
            self.images.append((values["alt"], values["src"]))
        self.links += [values[key] for key in ("href", "src") if key in values and tag != "img"]

    def handle_data(self, data):
        self.words.append(data)

    def check(self):
        assert self.images
        for alt, source in self.images:
            assert alt
            assert re.match(r"data:image/(png|jpeg|svg\+xml);base64,", source)
        assert not {"script", "link", "iframe", "object"}.intersection(self.tags)
        for link in self.links:
            assert link.startswith("#")
            assert link[1:] in self.places
        assert len(set(self.places)) == len(self.places)
        return self


def lively(name="ccdm-fast", **config):
    """A tiny model whose labels depend on the image."""
    torch.manual_seed(0)
    small = {"tower": [8, 16], "light": [8, 8], "tower_blocks": 1, "num_timesteps": 20, "steps": 3}
    model = stochseg.create(name, 2, 1, **{**small, **config})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model.eval()


@pytest.fixture(scope="module")
def model():
    return lively()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Two pictures and a volume with millimeters."""
    folder = tmp_path_factory.mktemp("inputs")
    for name, size in (("a", (20, 24)), ("b <&>", (12, 9))):
        Image.fromarray(RNG.integers(0, 256, size, dtype=np.uint8)).save(folder / f"{name}.png")
    volume = RNG.integers(0, 256, (12, 10, 4)).astype(np.float32)
    nibabel.Nifti1Image(volume, np.diag([0.5, 0.8, 2.0, 1.0])).to_filename(folder / "volume.nii.gz")
    return folder


@pytest.fixture(scope="module")
def predicted(model, inputs, tmp_path_factory):
    out = tmp_path_factory.mktemp("predicted") / "out"
    assert all(o.status == "done" for o in predict(model, [inputs], out, Options(samples=7), origin="tiny"))
    return out


@pytest.fixture
def copied(predicted, tmp_path):
    """The result of one picture, free to be spoiled."""
    (tmp_path / "out/a").mkdir(parents=True)
    for file in (predicted / "a").iterdir():
        (tmp_path / "out/a" / file.name).write_bytes(file.read_bytes())
    return tmp_path / "out"


# --- predictions ------------------------------------------------------------------------------------------


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


def test_of_a_volume_all_is_measured_and_the_most_disputed_slice_is_shown(model, inputs, predicted):
    image = read_image(predicted / "volume", read_result(predicted / "volume"))
    values = np.moveaxis(np.asarray(nibabel.load(inputs / "volume.nii.gz").dataobj), (2, 1, 0), (0, 1, 2))
    drawn = [model.sample(part, 7) for part in values]
    shown = int(np.argmax([float(d.entropy.sum()) for d in drawn]))
    assert image.slice_name == f"slice {shown + 1} of 4"
    assert (image.samples.labels == drawn[shown].labels).all()
    assert image.spacing == pytest.approx((0.8, 0.5))
    pixels = sum((d.labels[0] == 1).flatten(1).sum(1).double().numpy() for d in drawn)
    np.testing.assert_allclose(image.volume[1].values, pixels * 0.8, rtol=1e-5)
    assert image.volume[1].unit == "mm³"
    middle = float(np.median(pixels)) * 0.8 + 0.3  # between two values
    asked = Question.parse(f"volume > {middle} mm3")
    again = read_image(predicted / "volume", read_result(predicted / "volume"), None, [asked])
    assert again.answers[0].probability == pytest.approx((pixels * 0.8 > middle).mean())
    assert f"volume of {model.info.names[1]}" in str(again.section().parts[-1].table.rows)


def test_a_question_about_a_volume_looks_at_all_its_slices(run, model, inputs, predicted, tmp_path):
    values = np.moveaxis(np.asarray(nibabel.load(inputs / "volume.nii.gz").dataobj), (2, 1, 0), (0, 1, 2))
    areas = np.stack([stochseg.measure(model.sample(v, 7), "area", spacing=(0.8, 0.5)).values for v in values])
    largest = areas.max(0)
    limit = float(np.median(largest)) - 0.1
    assert len(set(areas.argmax(0))) > 1, "or one slice would do"
    result = read_result(predicted / "volume")
    image = read_image(predicted / "volume", result, None, [Question.parse(f"area > {limit} mm2")])
    assert image.answers[0].probability == pytest.approx((largest > limit).mean())
    code, out, said = run("report", predicted / "volume", "--out", tmp_path / "p.html", "--ask", f"area > {limit:.3f}")
    assert code == 0, said
    assert out.splitlines()[0].endswith("%), largest of all slices")
    text = Page(tmp_path / "p.html").check().text
    assert f"{image.slice_name}, on which the samples disagree most." in text
    assert "voxels of 2 × 0.8 × 0.5 mm (slice, row, column). Up is posterior, left is the patient's left." in text


def test_pictures_are_to_scale():
    """Pixels of 3 mm by 1 mm: a disc of 12 mm is round on the page, and so is what it is seen through."""
    y, x = np.mgrid[:40, :120]
    disc = torch.from_numpy(np.hypot((y - 20) * 3.0, x - 60.0) < 6).long()[None]
    mean = torch.stack([1.0 - disc, disc.float()], 1)
    samples = Samples(disc[None], mean, torch.ones(1, 1), 0)
    info = DatasetInfo(num_classes=2, image_channels=1)
    image = ImageReport("disc", np.zeros((40, 120, 3)), samples, info, (3.0, 1.0))
    rows, columns = image.window
    assert (rows.stop - rows.start) * 3 == pytest.approx(columns.stop - columns.start, abs=3)
    assert disc[0, rows, columns].sum() == disc.sum()
    for figure in (
        figures.locator(image.picture, image.window, image.aspect),
        figures.value_map(np.zeros((40, 120)), 1.0, "magma", "", image.aspect),
        figures.label_overlay(image.picture, disc[0].numpy(), info, image.aspect),
        figures.sample_outlines(image.picture, disc.numpy(), np.ones(1), info, [1], image.aspect),
        figures.rater_outlines(image.picture, disc.numpy(), ["one"], image.aspect),
    ):
        axis = figure.axes[0]
        axis.apply_aspect()
        width, height = axis.get_position().size * figure.get_size_inches()
        assert height == pytest.approx(width)
        assert width == pytest.approx(figures.WIDTH)


def test_pages_of_the_same_predictions_are_the_same(predicted, tmp_path):
    for name in ("one", "two"):
        report_predictions(predicted / "a", tmp_path / f"{name}.html", questions=[ASK])
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


def test_limit_says_what_is_left_out(predicted, tmp_path):
    (answer,) = report_predictions(predicted, tmp_path / "page.html", limit=1, questions=[ASK])
    assert answer.startswith("a: P(")
    assert "shows 1 of them, evenly spaced" in Page(tmp_path / "page.html").text


def test_without_the_input_the_overlay_is_drawn_on(copied, tmp_path):
    record = json.loads((copied / "a/result.json").read_text())
    record["inputs"][0]["file"] = str(tmp_path / "gone.png")
    (copied / "a/result.json").write_text(json.dumps(record))
    report_predictions(copied, tmp_path / "page.html")
    assert "gone.png is missing or has changed" in Page(tmp_path / "page.html").check().text


def test_a_large_photograph_stays_small(tmp_path, model):
    picture = RNG.random((1300, 700, 3))
    plot = figures.sample_outlines(shrink(picture)[0], np.zeros((1, 434, 234)), np.ones(1), model.info, [])
    uri = embed_picture(plot)
    assert uri.startswith("data:image/jpeg")
    assert len(uri) < 600_000


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
def test_what_is_broken_is_named_and_nothing_is_written(run, copied, tmp_path, file, content, says):
    (copied / "a" / file).unlink()
    if content is not None:
        (copied / "a" / file).write_text(content)
    code, _, messages = run("report", copied, "--out", tmp_path / "page.html")
    assert code == 2
    assert re.search(says, messages)
    assert not (tmp_path / "page.html").exists()


def test_predictions_of_an_older_version(tmp_path):
    folder = Path(__file__).parents[1] / "golden/old/predictions"
    record = json.loads((folder / "P000-0/result.json").read_text())
    assert [part["colour"] for part in record["classes"]] == list(read_result(folder / "P000-0").info.colors)
    (answer,) = report_predictions(folder, tmp_path / "page.html", questions=[ASK])
    assert answer.startswith("P000-0: P(longest diameter > 6 px) = 0% (0% – ")
    page = Page(tmp_path / "page.html").check()
    assert "Predictions of runs/old" in page.text
    assert "nothing 100%" in page.text


def test_files_that_do_not_fit_each_other_are_refused(copied):
    record = json.loads((copied / "a/result.json").read_text())
    for part in record["classes"]:
        part["samples"] = part["samples"][:-1]
    (copied / "a/result.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"\(6, 2, 20, 24\) .* \(7, 2, 20, 24\)"):
        read_image(copied / "a", read_result(copied / "a"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "nowhere: expected a folder .* no such folder"),
        (["empty"], "with result.json or train.yaml in it; it is empty"),
        (["other"], "got a.txt, b.txt"),
        (["other/a.txt"], "it is a file"),
        (["lidc"], "lidc is a model without a run, .* give --data"),
        (["lidc", "--data", "no.h5"], "no data at no.h5"),
        (["out", "--spacing", "0.7,x"], "--spacing: expected millimeters a pixel"),
        (["out", "--ask", "beauty > 3"], "'beauty > 3'.*area, "),
        (["out", "--ask", "area > many"], "'area > many'.*a number"),
        (["out", "--ask", "area > 5 mm2"], "mm².*px².*--spacing"),
        (["out", "--ask", "area of moon > 5"], "'moon'; known: "),
        (["out", "--ask", "volume > 5"], "a is not a volume"),
        (["out", "--curve", "5,x"], "--curve: expected numbers of steps"),
        (["out", "--out", "empty"], "--out empty is a folder"),
    ],
)
def test_mistakes(run, copied, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "other" / name).write_text("")
    code, _, messages = run("report", *arguments)
    assert code == 2
    assert re.search(says, messages)
    assert not list(tmp_path.rglob("*.html"))


# --- a run ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tiny_run, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "run"
    train(tiny_run("data.options.size=16", "steps=2", "data.val.count=7"), out, device="cpu")
    return out


def test_page_of_a_run(run, trained):
    earlier = {"ged_4": 0.123456, "settings": {"images": 9, "samples": 4}}
    (trained / "evaluation").mkdir()
    (trained / "evaluation/metrics.json").write_text(json.dumps(earlier))
    code, out, _ = run("report", trained, "-n", 4, "--curve", "1,3", "--curve-images", 2, "--seed", 5)
    assert code == 0
    assert str(trained / "report.html") in out
    page = Page(trained / "report.html").check()
    data = Phantoms("val", size=16, count=7)
    model = stochseg.load(trained)
    result = evaluate(model, data, options=SamplingOptions(n=4, seed=5))
    for key in ("ged_4", "hm_iou_4", "ged_unbiased", "diversity_unbiased", "ece", "brier", "miou", "mode_tv"):
        assert f"{result.metrics[key]:.4f}" in page.text
    assert "0.1235" in page.text
    assert "earlier: 9 images, n = 4" in page.text
    order = np.argsort([row["ged_4"] for row in result.images], kind="stable")
    for kind, place in (("Best", order[0]), ("Worst", order[-1])):
        assert f"{kind}: {result.images[place]['id']}" in page.words
    for steps in (1, 3):
        part = evaluate(model, data, limit=2, options=SamplingOptions(n=4, evaluations=steps, seed=5))
        assert f"{steps} {part.metrics['ged_4']:.4f} {part.metrics['hm_iou_4']:.4f}" in page.text
    headings = ("Calibration", "Disagreement of model and raters", "Known truth", "Quality against steps", "Training")
    assert all(heading in page.words for heading in headings)


def test_a_model_on_a_folder_with_void_and_without_steps(run, folder_root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    info = stochseg.DatasetInfo(num_classes=2, image_channels=1, ignore=255)
    model = stochseg.create("unet-ce", 2, 1, info=info, base=4, multipliers=[1, 2], blocks=1, attention=[])
    stochseg.save(model, tmp_path / "model")
    code, _, _ = run("report", tmp_path / "model", "--data", folder_root, "-n", 2, "--spacing", 0.5)
    assert code == 0
    page = Page(tmp_path / "runs" / f"{tmp_path.name}-model" / "report.html").check()
    assert "Worst: c" in page.words
    assert "mm²" in page.text
    assert "Quality against steps" not in page.text
    code, _, messages = run("report", tmp_path / "model", "--data", folder_root, "--curve", "5")
    assert code == 2
    assert "has no steps to vary" in messages


def test_cases_are_drawn_again_as_they_were_counted(model, tmp_path):
    data = Phantoms("val", size=16, count=5)
    result = report_run(model, data, tmp_path / "page.html", RunFacts("tiny"), samples=3, curve=[], seed=2)
    rows = {row["id"]: row for row in result.images}
    out = _draw(model, data, 3, 3, 2, {}, None, ()).samples
    assert ged(out.labels, data[3].raters[None], 2).item() == pytest.approx(rows[data[3].id]["ged_3"], abs=1e-9)
    fewer = _draw(model, data, 3, 3, 2, {"steps": 1}, None, ()).samples
    assert torch.equal(fewer.mean, model.sample(data[3].image[None], 3, seed=2, evaluations=1).mean)
    assert not torch.equal(fewer.mean, out.mean)


def test_weights_count_in_how_much_samples_differ():
    data = Phantoms("val", size=16, count=1)
    batch = Batch.collate([data[0]])
    labels = torch.randint(2, (1, 3, 16, 16), generator=torch.Generator().manual_seed(0))
    for weights, expected in (
        ([0.5, 0.5, 0.0], diversity(labels[:, :2], 2, unbiased=True).item()),
        ([1.0, 0.0, 0.0], 0.0),
    ):
        seen = Collector(2)
        seen(0, batch, Samples(labels, torch.full((1, 2, 16, 16), 0.5), torch.tensor([weights]), 0))
        assert seen.difference == [pytest.approx(expected)]


def test_a_volume_whose_samples_weigh_differently_in_its_slices_is_refused(model, tmp_path):
    volume = RNG.integers(0, 256, (16, 16, 2)).astype(np.uint8)
    nibabel.Nifti1Image(volume, np.eye(4)).to_filename(tmp_path / "a.nii")
    (outcome,) = predict(model, [tmp_path / "a.nii"], tmp_path / "out", Options(samples=2))
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
    ("count", "kinds"),
    [
        (1, ["Worst"]),
        (2, ["Best", "Worst"]),
        (4, ["Best", "Median", "Worst"]),
        (9, ["Best"] * 2 + ["Median"] * 2 + ["Worst"] * 2),
    ],
)
def test_no_case_is_shown_twice(count, kinds):
    scores = RNG.permutation(count) / 10
    result = type("Result", (), {"images": [{"ged_4": score} for score in scores], "settings": {"samples": 4}})
    cases = _cases(result)
    assert [kind for kind, _ in cases] == kinds
    assert len({i for _, i in cases}) == len(cases)
    ordered = [scores[i] for _, i in cases]
    assert ordered == sorted(ordered)
    if count > 3:
        assert np.median(scores) in ordered or count % 2 == 0


def test_disagreement_is_the_mean_distance_of_two_raters_and_void_counts_for_nobody():
    labels = torch.tensor([[[1, 1, 0]], [[1, 0, 0]], [[0, 0, 0]]])
    example = stochseg.Example(torch.zeros(1, 1, 3), labels, "x")
    seen = Collector(2)
    half = stochseg.Samples(
        torch.zeros(1, 2, 1, 3, dtype=torch.long), torch.full((1, 2, 1, 3), 0.5), torch.ones(1, 2), 0
    )
    seen(0, Batch.collate([example]), half)
    assert seen.disagreement == [pytest.approx((0.5 + 1 + 1) / 3)]
    theirs = -sum(p * np.log(p) + (1 - p) * np.log(1 - p) for p in (2 / 3, 1 / 3))
    assert seen.entropy == [pytest.approx((theirs, 3 * np.log(2)))]
    void = stochseg.Example(torch.zeros(1, 1, 3), torch.tensor([[[1, 1, 9]], [[1, 9, 0]]]), "y")
    seen(1, Batch.collate([void], ignore=9), half)
    assert seen.disagreement[1] == 0
    assert seen.entropy[1] == pytest.approx((0, np.log(2)))


@pytest.mark.parametrize("text", ["area of moon > 5", "volume > 5", "area > 5 mm"])
def test_questions_about_a_run_are_checked_before_the_work(model, tmp_path, monkeypatch, text):
    monkeypatch.setattr("stochseg.reports.runs.evaluate", lambda *_, **__: pytest.fail("work was begun"))
    data = Phantoms("val", size=16, count=2)
    with pytest.raises(UserError, match="question "):
        report_run(model, data, tmp_path / "page.html", RunFacts("tiny"), questions=[Question.parse(text)])
