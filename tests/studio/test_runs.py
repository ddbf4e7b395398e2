"""Finished runs and predictions in the studio."""

import io
import json

import numpy as np
import pytest
from PIL import Image

import stochseg
from stochseg.evaluation import evaluate
from stochseg.experiments.runs import open_run, write_evaluation
from stochseg.inference import PredictOptions, predict
from stochseg.models.sampling import SamplingOptions
from stochseg.studio import StudioError
from stochseg.training import train
from tests.studio.test_flow import gray

pytestmark = pytest.mark.xdist_group("studio")


@pytest.fixture(scope="module")
def runs(server, tiny_run, tiny_models):
    """Trained and evaluated runs, one as a rater, and folders of predictions, where the server looks for them."""
    folder = server.folder / "runs"
    towers = "{name: ccdm-fast, options: {tower: [8, 16], light: [8, 8], tower_blocks: 1, rater_conditioning: true}}"
    changes = f"model={towers}", "data.options={size: 16, habits: [-3, 3]}"
    for name, config, rater in (("mine", tiny_run(), None), ("second-rater", tiny_run(*changes), "1")):
        train(config, folder / name, device="cpu")
        run, options = open_run(folder / name, None, "val"), SamplingOptions(n=3, rater=rater)
        model = stochseg.load(run.weights)
        write_evaluation(run.describe(evaluate(model, run.data, options=options)), run, model, None, options=options)
    for seed in (1, 2):
        Image.fromarray(gray(seed=seed)).save(server.folder / f"{seed}.png")
    pictures = [server.folder / f"{seed}.png" for seed in (1, 2)]
    predict(stochseg.load(tiny_models[0]), pictures, folder / "predictions", PredictOptions(n=2), origin="tiny")
    as_ana = PredictOptions(n=2, rater="ana", guidance=2)
    predict(stochseg.load(tiny_models[2]), pictures[1], folder / "as-ana", as_ana)
    return {run["name"]: run for run in get(server.client, "runs")}


def get(client, path):
    return json.loads(client.request("GET", f"/api/v1/{path}"))


def open_case(client, run, case):
    return json.loads(client.request("POST", f"/api/v1/runs/{run['id']}/cases/{case}/open"))


def test_runs_are_listed_with_their_scores(runs):
    kinds = {"mine": "run", "second-rater": "run", "predictions": "predictions", "as-ana": "predictions"}
    assert {name: run["kind"] for name, run in runs.items()} == kinds
    ged = next(metric for metric in runs["mine"]["metrics"] if metric["key"] == "ged_3")
    assert ged["better"] == "lower"
    assert float(ged["text"]) == pytest.approx(ged["value"], abs=1e-3)
    assert (runs["mine"]["cases"], runs["predictions"]["cases"]) == (4, 2)
    assert "path" not in runs["mine"]


def test_case_of_an_evaluation_is_drawn_again_with_its_raters(server, runs):
    client = server.client
    cases = get(client, f"runs/{runs['mine']['id']}/cases?sort=ged")
    scores = [case["scores"]["ged_3"] for case in cases]
    assert scores == sorted(scores, reverse=True)
    job = client.wait(open_case(client, runs["mine"], cases[0]["id"])["id"])
    result = client.result(job["id"])
    assert result["scores"]["ged"] == pytest.approx(scores[0], abs=1e-5)
    assert len(result["raters"]["names"]) == 4


def test_cases_stay_those_of_their_rater(server, runs):
    client = server.client
    for case in get(client, f"runs/{runs['second-rater']['id']}/cases?sort=ged"):
        job = client.wait(open_case(client, runs["second-rater"], case["id"])["id"])
        result = client.result(job["id"])
        assert (job["parameters"]["rater"], result["drawn_as"]) == ("rater2", "rater2")
        assert result["raters"]["names"] == ["rater2"]
        assert result["scores"]["ged"] == pytest.approx(case["scores"]["ged_3"], abs=1e-5)
    job = open_case(client, runs["as-ana"], 0)
    assert job["parameters"]["rater"] == "ana"
    assert client.result(job["id"])["drawn_as"] == "ana (guidance 2)"


def test_prediction_opens_as_a_finished_job(server, runs):
    client = server.client
    job = open_case(client, runs["predictions"], 1)
    assert job["state"] == "done"
    assert len(client.result(job["id"])["samples"]) == 2
    image = Image.open(io.BytesIO(client.request("GET", f"/api/v1/inputs/{job['input']}/image")))
    assert (np.asarray(image) == gray(seed=2)).all()
    assert [event.kind for event in client.events(job["id"])] == ["state", "result", "state"]
    (server.folder / "1.png").write_bytes(b"changed")
    with pytest.raises(StudioError, match="changed"):
        open_case(client, runs["predictions"], 0)
    with pytest.raises(StudioError, match="no case"):
        open_case(client, runs["predictions"], 2)
