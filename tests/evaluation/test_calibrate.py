"""Calibration: what is fitted, that it holds for patients left out, storage with the model, and its use."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

import stochseg
from stochseg.analysis import calibrated_interval, conformal_offset, conformity, margin_map, margin_scores, measure
from stochseg.analysis.measurement import Measurement
from stochseg.data import Phantoms
from stochseg.errors import UserError
from stochseg.evaluation import calibrate
from stochseg.evaluation.calibrating import MAX_PIXELS, choose_measures, likely_pixels
from stochseg.evaluation.fitting import CaseScores, fit_intervals, fit_scale, folds
from stochseg.inference import PredictOptions, predict
from stochseg.metrics import ece, foreground_bins, vote_bins
from stochseg.models import SamplingOptions, load, save, store_calibration
from stochseg.reports import report_predictions
from stochseg.types import DatasetInfo
from tests.support.models import lively
from tests.support.predictions import read_result, small_model

OPTIONS = SamplingOptions(n=3)


class Patients:
    """Phantoms in pairs: two images per patient."""

    def __init__(self, count=24, size=16):
        self.phantoms = Phantoms("val", size=size, count=count)
        self.info = self.phantoms.info

    def __len__(self):
        return len(self.phantoms)

    def __getitem__(self, i):
        return replace(self.phantoms[i], group=f"patient-{i // 2}")


@pytest.fixture(scope="module")
def model():
    data = Patients(2)
    return small_model(data.info.num_classes, 1, data.info)


@pytest.fixture(scope="module")
def calibration(model):
    return calibrate(model, Patients(), options=OPTIONS, confidences=(0.8, 0.9))


def test_offsets_are_those_of_conformal_offset_by_patient(model, calibration):
    data, scores, margins = Patients(), {}, {}
    for i in range(len(data)):
        example = data[i]
        drawn = model.sample(example.image[None], 3, allow_unusual_input=True)
        ours, theirs = (measure(x, "area", label=1, info=data.info) for x in (drawn, example.raters))
        scores.setdefault(example.group, []).append(conformity(ours, theirs.values, 0.8))
        margins.setdefault(example.group, []).append(margin_scores(drawn.mean[0, 1], example.raters == 1))
    assert calibration.patients == 12
    assert calibration.cases == 24
    assert calibration.interval("area", 1, 0.8).offset == pytest.approx(conformal_offset(list(scores.values()), 0.8))
    assert calibration.margin(1, 0.8).offset == pytest.approx(conformal_offset(list(margins.values()), 0.8))


def test_it_records_what_it_was_fitted_on(model, calibration):
    assert calibration.sampling == OPTIONS.or_default(model.default_sampling())
    assert calibration.evaluations == 3
    assert calibration.split == "val"
    measures = {each.measure for each in calibration.intervals}
    assert measures == {"area", "equivalent diameter", "longest diameter", "perimeter", "components"}
    assert calibration == calibrate(model, Patients(), options=OPTIONS, confidences=(0.9, 0.8))


def test_too_few_patients_have_no_finite_interval(model):
    found = calibrate(model, Patients(8), options=OPTIONS, measures=["area"])
    assert {each.offset for each in (*found.intervals, *found.margins)} == {None}
    area = measure(model.sample(Patients()[0].image[None], 3), "area", calibration=found, label=1)
    assert calibrated_interval(area) is None


def test_folds_are_of_patients_and_cover_all_once():
    groups = [f"p{i // 3}" for i in range(75)]
    parts = list(folds(groups))
    assert sorted(i for _, part in parts for i in part) == list(range(75))
    for others, part in parts:
        assert not {groups[i] for i in others} & {groups[i] for i in part}
    assert list(folds(["a", "a"])) == [([0, 1], [0, 1])]


def test_measures_by_name():
    info = DatasetInfo(num_classes=3, image_channels=1, class_names=("background", "nodule", "vessel"))
    assert choose_measures(["area of nodule"], info) == [("area", 1)]
    assert choose_measures(["area", "area of foreground"], info) == [("area", 1), ("area", 2), ("area", None)]
    assert len(choose_measures([], info)) == 15
    with pytest.raises(UserError, match="unknown measure"):
        choose_measures(["volume"], info)
    with pytest.raises(UserError, match="unknown class"):
        choose_measures(["area of kidney"], info)


def test_an_unknown_scaling_is_refused_before_sampling(model):
    done = []
    with pytest.raises(UserError, match="unknown scaling"):
        calibrate(model, Patients(2), options=OPTIONS, scaling="x", progress=lambda *at: done.append(at))
    assert not done


def test_pixels_keep_their_votes_and_the_calibration_error():
    random = torch.Generator().manual_seed(0)
    mean = torch.rand(1, 3, 20, 20, generator=random).softmax(1)
    raters = torch.randint(0, 3, (1, 4, 20, 20), generator=random)
    mask = torch.rand(raters.shape, generator=random) < 0.9
    p, votes = likely_pixels(mean[0], raters[0].masked_fill(~mask[0], 0), mask[0], 0)
    assert votes.sum() == mask.sum()
    expected = ece(foreground_bins(mean, raters, mask=mask, at_least=0.2))
    torch.testing.assert_close(ece(vote_bins(p, votes, at_least=0.2)), expected)
    large = torch.full((2, 200, 200), 0.5)
    p, votes = likely_pixels(large, torch.ones(2, 200, 200).long(), None, 0)
    assert len(p) == MAX_PIXELS
    assert votes.sum().item() == pytest.approx(2 * 200 * 200)


# --- stored with the model -----------------------------------------------------------------------------------


def test_it_is_saved_and_loaded_with_the_model(model, calibration, tmp_path):
    folder = save(model, tmp_path / "model")
    assert load(folder).calibration is None
    store_calibration(folder, calibration)
    loaded = load(folder)
    assert loaded.calibration == calibration
    again = load(save(loaded, tmp_path / "copy"))
    assert again.calibration == calibration
    store_calibration(folder, calibration.model_copy(update={"margins": ()}))
    assert load(folder).calibration.margins == ()


def test_bundled_models_are_not_written(calibration):
    with pytest.raises(UserError, match="--out FOLDER"):
        store_calibration("lidc", calibration)


def test_measurements_take_it(model, calibration):
    image = Patients()[0].image[None]
    samples = model.sample(image, 3)
    area = stochseg.measure(samples, "area", label=1, calibration=calibration)
    low, high = calibrated_interval(area, 0.8)
    assert low <= area.interval(0.8)[1] <= high or calibration.interval("area", 1, 0.8).offset < 0
    assert calibrated_interval(area, 0.7) is None
    with pytest.raises(UserError, match="3 samples, got 4"):
        stochseg.measure(model.sample(image, 4), "area", label=1, calibration=calibration)


# --- predictions ---------------------------------------------------------------------------------------------


@pytest.fixture
def calibrated(model, calibration):
    model.calibration = calibration
    yield model
    model.calibration = None


@pytest.fixture
def picture(tmp_path):
    data = Patients()
    values = data.info.normalization.inverse(data[0].image)[0].numpy()
    Image.fromarray(values.round().clip(0, 255).astype(np.uint8)).save(tmp_path / "a.png")
    return tmp_path / "a.png"


def run(model, picture, out, **options):
    chosen = PredictOptions.parse({"n": 3, "allow_unusual_input": True, **options})
    (outcome,) = predict(model, [picture], out, chosen)
    assert outcome.status == "done", outcome.problem
    return outcome


def test_predictions_state_both_intervals_and_draw_the_margin(calibrated, calibration, picture, tmp_path):
    outcome = run(calibrated, picture, tmp_path / "out", also=["calibrated-mean"])
    record = read_result(outcome.folder)
    assert record["calibration"] == calibration.model_dump(mode="json")
    samples = calibrated.sample(picture, 3, allow_unusual_input=True)
    area = stochseg.measure(samples, "area", label=1, calibration=calibration)
    (found,) = (
        each for each in record["intervals"] if (each["measure"], each["class"], each["confidence"]) == ("area", 1, 0.8)
    )
    assert found["samples"] == pytest.approx(area.interval(0.8), rel=1e-5)
    assert found["calibrated"] == pytest.approx(calibrated_interval(area, 0.8), rel=1e-5)
    margin = calibration.margin(1)
    pages = tifffile.imread(outcome.folder / "margin.tif").reshape(-1, 16, 16)
    np.testing.assert_array_equal(pages[0], margin_map(samples.mean[0, 1], margin.offset))
    assert (outcome.folder / "margin.png").is_file()
    scaled = tifffile.imread(outcome.folder / "calibrated-mean.tif")
    np.testing.assert_allclose(scaled, calibration.scaled(samples.mean)[0], atol=1e-6)
    report_predictions(tmp_path / "out", tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "calibrated on 12 patients" in text
    assert "assumes exchangeable cases" in text


def test_other_sampling_options_leave_it_out_with_a_notice(calibrated, picture, tmp_path):
    outcome = run(calibrated, picture, tmp_path / "out", n=4)
    assert "n is 4, the calibration has 3" in " ".join(outcome.notices)
    record = read_result(outcome.folder)
    assert "calibration" not in record
    assert not list(outcome.folder.glob("margin*"))
    with pytest.raises(UserError, match="calibrated-mean"):
        run(calibrated, picture, tmp_path / "other", n=4, also=["calibrated-mean"])


def test_a_result_of_another_calibration_is_not_kept(calibrated, calibration, picture, tmp_path):
    run(calibrated, picture, tmp_path / "out")
    calibrated.calibration = calibration.model_copy(update={"date": "later"})
    (outcome,) = predict(calibrated, [picture], tmp_path / "out", PredictOptions(n=3, allow_unusual_input=True))
    assert outcome.status == "failed"
    assert "another calibration" in outcome.problem


def test_volumes_have_margins_and_intervals(tmp_path):
    import nibabel

    info = DatasetInfo(num_classes=2, image_channels=1, spatial_dims=3)
    model = lively("ccdm-fast", 2, 1, info, num_timesteps=20, evaluations=3)
    random = np.random.default_rng(0)
    nibabel.Nifti1Image(random.normal(size=(16, 16, 4)), np.diag([1.0, 1.0, 2.0, 1.0])).to_filename(tmp_path / "v.nii")
    facts = {"data": "d", "data_sha256": "0" * 64, "split": "val", "patients": 20, "cases": 20, "date": "x"}
    own = SamplingOptions(n=3).or_default(model.default_sampling())
    interval = {"measure": "volume", "label": 1, "confidence": 0.9, "offset": 0.5}
    interval |= {"covered_before": 0.5, "covered": 0.9, "width_ratio": 2.0}
    margins = [{"label": 1, "confidence": 0.9, "offset": 0.4, "covered": 0.9}]
    model.calibration = stochseg.models.Calibration.parse(
        {**facts, "sampling": own.model_dump(), "evaluations": 3, "intervals": [interval], "margins": margins}
    )
    outcome = run(model, tmp_path / "v.nii", tmp_path / "out")
    (found,) = read_result(outcome.folder)["intervals"]
    assert found["unit"] == "mm³"
    assert found["calibrated"][1] > found["samples"][1]
    band = np.asarray(nibabel.load(outcome.folder / "margin.nii.gz").dataobj)
    assert band.shape == (16, 16, 4)
    report_predictions(tmp_path / "out", tmp_path / "report.html")
    assert "calibrated on 20 patients" in (tmp_path / "report.html").read_text()


def test_the_command_stores_it(model, tmp_path):
    from stochseg.experiments.runs import Run, check_calibrated, write_calibrated

    folder = save(model, tmp_path / "model")
    run_ = Run(folder, folder, "val", "", Patients(), None)
    found = calibrate(model, Patients(), options=OPTIONS, measures=["area"])
    check_calibrated(run_, None)
    assert write_calibrated(run_, model, found, None) == folder
    assert json.loads((folder / "calibration.json").read_text())["patients"] == 12
    other = small_model(model.num_classes, 1, model.info)
    with torch.no_grad():
        next(other.parameters()).add_(1)
    with pytest.raises(UserError, match="replaced while"):
        write_calibrated(run_, other, found, None)


def test_raters_without_a_value_are_left_out_and_samples_without_one_are_missed():
    nothing, values = Measurement("ratio", np.full(2, np.nan), np.full(2, 0.5)), np.array([0.5])
    known = Measurement("ratio", np.array([0.4, 0.6]), np.full(2, 0.5))
    pairs = [(known, values)] * 30 + [(known, np.empty(0))] * 5 + [(nothing, values)]
    empty = torch.zeros(0, 2)
    cases = [CaseScores(i, str(i), {("ratio", None): pair}, {}, empty, empty, 1) for i, pair in enumerate(pairs)]
    (found,) = fit_intervals(cases, [("ratio", None)], [0.9])
    assert found.covered_before == pytest.approx(30 / 31)
    assert found.offset is not None
    assert fit_intervals(cases[30:35], [("ratio", None)], [0.9]) == ()
    assert fit_scale(cases, "auto") is None
