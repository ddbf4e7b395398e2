"""Samples as one of the raters would draw them, over HTTP."""

import json

import pytest
import tifffile
from PIL import Image

import stochseg
from stochseg.inference import PredictOptions, predict
from stochseg.studio import StudioError
from tests.studio.test_flow import gray, png

pytestmark = pytest.mark.xdist_group("studio")
MODEL = "tiny-raters"


@pytest.fixture(scope="module")
def jobs(server):
    """A picture drawn as any rater would, and as each; submitted at once, so that the jobs wait together."""
    client = server.client
    input = client.upload_parts([("files", "a.png", png(gray()))])["id"]
    submitted = {rater: client.submit(input, MODEL, samples=4, rater=rater) for rater in (None, "ana", "ben")}
    return {rater: client.wait(job["id"]) for rater, job in submitted.items()}


def growth(client, before, after):
    body = json.dumps({"before": before["id"], "after": after["id"], "measure": "area-1"}).encode()
    return client.request("POST", "/api/v1/growth", body, {"Content-Type": "application/json"})


def test_models_tell_the_raters_that_they_know_apart(client):
    names = {model["name"]: model["rater_names"] for model in client.models()}
    assert names[MODEL] == ["ana", "ben"]
    assert names["tiny"] == []


def test_samples_are_those_of_the_rater_and_the_record_names_them(client, jobs, tiny_models, tmp_path):
    Image.fromarray(gray()).save(tmp_path / "a.png")
    model = stochseg.load(tiny_models[2])
    seen = set()
    for rater, job in jobs.items():
        assert job["parameters"]["rater"] == rater
        options = PredictOptions(n=4, rater=rater)
        (outcome,) = predict(model, tmp_path / "a.png", tmp_path / str(rater), options)
        samples = client.file(job["id"], "samples.tif")
        (tmp_path / "samples.tif").write_bytes(samples)
        expected = tifffile.imread(outcome.folder / "samples.tif")
        assert (tifffile.imread(tmp_path / "samples.tif") == expected).all()
        record = json.loads(client.file(job["id"], "result.json"))
        assert record["options"].get("rater") == rater
        assert client.result(job["id"])["drawn_as"] == rater
        assert ("drawn as" in client.file(job["id"], "report.html").decode()) == (rater is not None)
        seen.add(expected.tobytes())
    assert len(seen) == 3


def test_calibration_of_other_samples_is_not_applied(client, jobs):
    anyone, ana = (client.result(jobs[rater]["id"]) for rater in (None, "ana"))
    assert anyone["calibration"]
    assert ana["calibration"] is None
    assert "rater is ana" in " ".join(ana["notes"])
    assert all(measure["calibrated"] is None for measure in ana["measures"])


@pytest.mark.parametrize(
    ("model", "expected", "remedy"), [(MODEL, "null or one of ana, ben", "one of them"), ("tiny", "null", "omit")]
)
def test_unknown_rater_is_refused(client, jobs, model, expected, remedy):
    with pytest.raises(StudioError, match=r"rater: expected .*, got carl") as refused:
        client.submit(jobs[None]["input"], model, rater="carl")
    assert refused.value.status == 422
    assert refused.value.facts["expected"].startswith(expected)
    assert refused.value.facts["got"] == "carl"
    assert remedy in refused.value.facts["remedy"]


def test_growth_is_not_measured_between_raters(client, jobs):
    assert growth(client, jobs["ana"], jobs["ana"])
    for before, after in ((None, "ana"), ("ben", "ana")):
        with pytest.raises(StudioError, match=f"{before or 'any rater'} and ana"):
            growth(client, jobs[before], jobs[after])
