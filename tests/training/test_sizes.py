"""Images of several sizes: trained padded or resized, and sampled at their own size."""

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from stochseg.data import open_path
from stochseg.errors import UserError
from stochseg.evaluation import evaluate
from stochseg.experiments.runs import open_run
from stochseg.inference import PredictOptions, predict
from stochseg.models import load
from stochseg.models.intensities import with_intensities
from stochseg.models.sampling import SamplingOptions
from stochseg.training import open_split, read_config, train
from stochseg.training.stream import TrainingStream
from tests.support.predictions import read_result
from tests.support.runs import stop_at, values

SIZES = {"a": (15, 20), "b": (20, 15), "c": (9, 24), "d": (15, 20)}


@pytest.fixture
def photographs(folder_root):
    """The folder with images of several sizes, and no void pixels."""
    rng = np.random.default_rng(0)
    for name, size in SIZES.items():
        Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8)).save(folder_root / f"images/{name}.png")
        for file in folder_root.glob(f"labels/*/{name}.png"):
            Image.fromarray(np.tri(*size, dtype=np.uint8)).save(file)
    config = yaml.safe_load((folder_root / "dataset.yaml").read_text())
    (folder_root / "dataset.yaml").write_text(yaml.safe_dump({**config, "ignore": None}))
    return folder_root


@pytest.fixture
def config(tiny_run, photographs):
    def make(*changes):
        data = [f"data={{name: folder, options: {{root: '{photographs}'}}, augment: flip-rotate}}"]
        return tiny_run("steps=2", "batch_size=2", *data, *changes)

    return make


def test_a_batch_of_several_sizes_is_padded_and_its_padding_masked(photographs):
    data = open_path(photographs, "train")
    batch = TrainingStream(data, batch_size=2, seed=0)[0].batch
    assert batch.image.shape[-2:] == (20, 20)
    for i, id in enumerate(batch.ids):
        assert int(batch.mask[i, 0].sum()) == np.prod(SIZES[id])
    same = TrainingStream(open_path(photographs, "val"), batch_size=2, seed=0)[0].batch
    assert same.mask is None


def test_images_of_several_sizes_train_without_resizing(config, tmp_path):
    run = train(config(), tmp_path / "run", device="cpu")
    assert np.isfinite(list(values(run, "train/loss").values())).all()
    assert load(run).info.fit is None


def test_a_model_of_resized_images_samples_at_the_size_of_the_image(config, photographs, tmp_path):
    run = train(config("data.size=12"), tmp_path / "run", device="cpu")
    model = load(run)
    assert (model.info.fit, model.info.ignore, model.info.size) == ((12, 12), None, None)
    image = photographs / "images/c.png"
    samples = model.sample(image, 3)
    assert samples.labels.shape == (1, 3, 9, 24)
    assert samples.mean.shape == (1, 2, 9, 24)
    seen = model.sample(model.fit(9, 24).image(model.prepare(image)), 3)
    assert seen.labels.shape == (1, 3, 12, 12)
    assert torch.equal(model.fit(9, 24).undo_labels(seen.labels), samples.labels)
    sizes = {**SIZES, "large": (600, 30)}  # the network sees it in 12×12
    Image.fromarray(np.zeros(sizes["large"], np.uint8)).save(photographs / "images/large.png")
    for outcome in predict(model, [photographs / "images"], tmp_path / "out", PredictOptions(n=2)):
        size = sizes[outcome.folder.name]
        assert outcome.notices == ()
        record = read_result(outcome.folder)
        assert (record["image"]["height"], record["image"]["width"]) == size
        assert not record["tiled"]
        assert np.array(Image.open(outcome.folder / "fused.png")).shape == size


def test_evaluate_scores_at_the_size_of_the_data(config, photographs, tmp_path):
    run = train(config("data.size=[12, 12]"), tmp_path / "run", device="cpu")
    source, model = open_run(run, None, "test"), load(run)
    result = evaluate(model, source.data, options=SamplingOptions(n=2))
    ((example, samples),) = result.kept
    assert tuple(example.image.shape[-2:]) == samples.labels.shape[-2:] == SIZES["d"]
    assert (
        result.metrics["ged_2"]
        == evaluate(model, open_path(photographs, "test"), options=SamplingOptions(n=2)).metrics["ged_2"]
    )


def test_runs_from_before_keep_stretching(config, tmp_path):
    run = train(config("data.size=[12, 12]", "data.resize=stretch"), tmp_path / "run", device="cpu")
    assert (load(run).info.fit, load(run).info.size) == (None, (12, 12))
    text = (run / "train.yaml").read_text()
    assert "  resize: stretch\n" in text
    (run / "train.yaml").write_text(text.replace("  resize: stretch\n", ""))
    assert read_config(run / "train.yaml").data.resize == "stretch"
    assert tuple(open_run(run, None, "test").data[0].image.shape[-2:]) == (12, 12)
    (tmp_path / "mine.yaml").write_text("data: {name: phantom, size: 12}\nmodel: {name: ccdm}\nsteps: 1\nbatch_size: 1")
    assert read_config(tmp_path / "mine.yaml").data.fit == (12, 12)


@pytest.mark.parametrize("size", ["abc", "[1]", "[1, 2, 3]", "0", "[0, 4]"])
def test_wrong_sizes_are_explained(tiny_run, size):
    with pytest.raises(UserError, match=r"data\.size"):
        tiny_run(f"data.size={size}")


def test_a_failed_start_leaves_no_run(config, photographs, tmp_path, monkeypatch):
    """Whether the folder was there or not, and the corrected command starts."""
    out = tmp_path / "run"
    label = photographs / "labels/anna/a.png"
    good = label.read_bytes()
    label.write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"a\.png"):
        train(config(), out, device="cpu")
    assert not out.exists()
    label.write_bytes(good)
    for prepare in (lambda: None, out.mkdir):
        prepare()
        with monkeypatch.context() as patch:
            stop_at(patch, 1, UserError("first step"))
            with pytest.raises(UserError, match="first step"):
                train(config(), out, device="cpu")
        assert not list(out.glob("*"))
    train(config(), out, device="cpu")
    with pytest.raises(UserError, match="already contains a run"):
        train(config(), out, device="cpu")


def test_a_run_from_before_there_was_a_choice_resumes(tiny_run, tmp_path):
    """Without a size, both ways of resizing are the same."""
    train(tiny_run("steps=1"), tmp_path / "run", device="cpu")
    file = tmp_path / "run/train.yaml"
    text = file.read_text()
    assert "resize: fit\n" in text
    file.write_text(text.replace("  resize: fit\n", ""))
    train(tiny_run("steps=2"), tmp_path / "run", resume=True, device="cpu")
    with pytest.raises(UserError, match=r"data\.size \(None, now \[8, 8\]\)"):
        train(tiny_run("steps=3", "data.size=8"), tmp_path / "run", resume=True, device="cpu")


def test_intensities_are_those_of_the_images_as_they_are(config, photographs, tmp_path):
    """Resizing smooths single bright pixels away, which a user's images still have."""
    small = config("data.size=12")
    train(small, tmp_path / "run", device="cpu")
    model, stored = load(tmp_path / "run"), open_split(small, "train")
    assert model.info.fit is not None
    assert model.info.intensities == with_intensities(stored).intensities
    assert model.info.ignore == stored.info.ignore
