"""Calling `predict` again: complete results are kept, others are processed or refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image

from stochseg.files import sha256
from stochseg.inference import PredictOptions, predict
from stochseg.models import load
from tests.support.predictions import QUICK, gray, small_model


def test_complete_results_are_kept_and_broken_ones_made_again(model, tmp_path):
    for name in "abc":
        Image.fromarray(gray()).save(tmp_path / f"{name}.png")
    files = [tmp_path / f"{name}.png" for name in "abc"]
    predict(model, files[:2], tmp_path / "out", QUICK)
    stamp = (tmp_path / "out/a/result.json").stat().st_mtime_ns
    (tmp_path / "out/b/mean.tif").unlink()
    outcomes = predict(model, files, tmp_path / "out", QUICK)
    assert [o.status for o in outcomes] == ["kept", "done", "done"]
    assert (tmp_path / "out/a/result.json").stat().st_mtime_ns == stamp
    assert (tmp_path / "out/b/mean.tif").exists()
    assert [o.status for o in predict(model, files, tmp_path / "out", QUICK, overwrite=True)] == ["done"] * 3


def test_an_overview_is_added_to_results_without_one_and_kept_in_those_with_one(model, tmp_path):
    Image.fromarray(gray()).save(tmp_path / "a.png")
    status = []
    for overview in (False, True, True, False):
        options = QUICK.model_copy(update={"overview": overview})
        (outcome,) = predict(model, [tmp_path / "a.png"], tmp_path / "out", options)
        status.append(outcome.status)
    assert status == ["done", "done", "kept", "kept"]
    assert (tmp_path / "out/a/overview.png").is_file()


def test_results_of_other_options_models_and_inputs_are_refused(model, tmp_path):
    Image.fromarray(gray()).save(tmp_path / "a.png")
    predict(model, [tmp_path / "a.png"], tmp_path / "out", QUICK)

    def message(network=model, options=QUICK):
        (outcome,) = predict(network, [tmp_path / "a.png"], tmp_path / "out", options)
        assert outcome.status == "failed"
        return outcome.problem

    assert "another n, seed; replace it with --overwrite" in message(options=PredictOptions(seed=1))
    other = small_model()
    with torch.no_grad():
        next(other.parameters()).add_(0.1)
    assert "another model;" in message(other)
    Image.fromarray(gray()).save(tmp_path / "a.png")
    assert "another input;" in message()


def test_results_written_before_keys_were_renamed_are_kept(tmp_path):
    """Config keys of the model, options and facts about the data had other names when this result was written."""
    old = Path(__file__).parents[1] / "golden/old"
    shutil.copytree(old / "predictions", tmp_path / "out")
    Image.fromarray(gray(16, 16)).save(tmp_path / "P000-0.png")
    file = tmp_path / "out/P000-0/result.json"
    record = json.loads(file.read_text())
    assert {"samples", "steps"} <= set(record["options"])
    record["inputs"] = [{"file": "P000-0.png", "sha256": sha256(tmp_path / "P000-0.png")}]
    file.write_text(json.dumps(record))

    network = load(old / "run")

    def outcome(**options):
        return predict(network, [tmp_path / "P000-0.png"], tmp_path / "out", PredictOptions(n=3, **options))[0]

    assert outcome().status == "kept"
    assert "another evaluations" in outcome(evaluations=1).problem
    with torch.no_grad():
        next(network.parameters()).add_(0.1)
    assert "another model" in outcome().problem


def test_an_interrupted_call_leaves_only_complete_results(model, tmp_path, monkeypatch):
    for name, width in (("a", 8), ("b", 9)):
        Image.fromarray(gray(8, width)).save(tmp_path / f"{name}.png")
    sample = type(model).sample

    def stop(self, image, *args, **kwargs):
        if image.shape[-1] == 9:
            raise KeyboardInterrupt
        return sample(self, image, *args, **kwargs)

    monkeypatch.setattr(type(model), "sample", stop)
    with pytest.raises(KeyboardInterrupt):
        predict(model, [tmp_path], tmp_path / "out", QUICK)
    monkeypatch.undo()
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["a"]
    outcomes = predict(model, [tmp_path / "a.png", tmp_path / "b.png"], tmp_path / "out", QUICK)
    assert [o.status for o in outcomes] == ["kept", "done"]
