"""Large images: tiled, or taken whole up to a limit."""

import pytest
import tifffile
from PIL import Image

from stochseg.errors import UserError
from stochseg.inference import PredictOptions, predict
from stochseg.inference.stacks import read_picture
from tests.support.predictions import failure, gray, read_result, small_model


def test_large_images_are_tiled(model, tmp_path):
    Image.fromarray(gray(150, 90)).save(tmp_path / "a.png")
    options = PredictOptions(n=2, tile=64, overlap=32)
    (outcome,) = predict(model, [tmp_path / "a.png"], tmp_path / "out", options)
    assert read_result(outcome.folder)["tiled"] is True
    expected = model.tiled(64, 32).sample(read_picture(tmp_path / "a.png").values[0], 2).labels[0].numpy()
    assert (tifffile.imread(outcome.folder / "samples.tif") == expected).all()


def test_models_that_cannot_be_tiled_take_images_whole_up_to_a_limit(tmp_path, monkeypatch):
    Image.fromarray(gray(40, 30)).save(tmp_path / "a.png")
    focused = small_model(focus=8)
    with pytest.raises(UserError, match="with focus 8 cannot be tiled"):
        predict(focused, [tmp_path / "a.png"], tmp_path / "out", PredictOptions(n=2, tile=64, overlap=16))
    monkeypatch.setattr("stochseg.inference.plan.DEFAULT_TILE", 32)
    (outcome,) = predict(focused, [tmp_path / "a.png"], tmp_path / "out", PredictOptions(n=2))
    assert "taken whole: model 'ccdm-fast' with focus 8 cannot be tiled" in outcome.notices[0]
    assert read_result(outcome.folder)["tiled"] is False
    monkeypatch.setattr("stochseg.inference.plan.MAX_WHOLE", 1000)
    message = failure(focused, tmp_path / "a.png", tmp_path / "other", PredictOptions(n=2))
    assert "40×30 pixels are too many" in message
    assert "At most 1,000 pixels" in message
    (outcome,) = predict(focused, [tmp_path / "a.png"], tmp_path / "third", PredictOptions(n=2, tile=0))
    assert outcome.status == "done"
