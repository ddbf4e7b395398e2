"""Behavior of the base class, which no model overrides: images, options, training mode and labels."""

import numpy as np
import pytest
import torch
from PIL import Image

import stochseg
from stochseg.data.fitting import Fit
from stochseg.errors import CutLabelsWarning, UserError
from stochseg.models import CCDM, MODELS, CCDMConfig
from stochseg.models.sampling import Drawing, Drawn, SamplingOptions, cut_window, draw_samples, embed, undo_fit
from stochseg.types import DatasetInfo, Samples
from tests.support.models import fresh, images, labels, lively

GRAY = DatasetInfo(num_classes=2, image_channels=1, normalization={"mean": (90.0,), "std": (40.0,)})
RAW = np.random.default_rng(0).integers(0, 256, (9, 12), dtype=np.uint8)


def test_gray_images_in_every_accepted_form(tmp_path):
    model = fresh("unet-ce", info=GRAY)
    expected = ((torch.from_numpy(RAW).float() - 90) / 40)[None, None]
    Image.fromarray(RAW).save(tmp_path / "scan.png")
    forms = [RAW, RAW[..., None], RAW[None], RAW[None, ..., None], RAW.astype(np.float64), RAW.astype(np.uint16)]
    forms += [Image.fromarray(RAW), [RAW], tmp_path / "scan.png", str(tmp_path / "scan.png"), expected.double()]
    for form in forms:
        assert torch.equal(model.prepare(form), expected)


def test_color_images_in_every_accepted_form():
    mean, std = (90.0, 100.0, 110.0), (40.0, 50.0, 60.0)
    info = DatasetInfo(num_classes=3, image_channels=3, normalization={"mean": mean, "std": std})
    model = fresh("unet-ce", 3, 3, info=info)
    indices = RAW % 4
    palette = np.array([[0, 10, 200], [90, 90, 90], [255, 0, 0], [3, 250, 8]], np.uint8)
    raw = palette[indices]
    expected = ((torch.from_numpy(raw).float() - torch.tensor(mean)) / torch.tensor(std)).permute(2, 0, 1)[None]
    picture = Image.fromarray(indices, mode="P")
    picture.putpalette(palette.flatten().tolist())
    for form in (raw, raw.astype(np.float32), Image.fromarray(raw), picture, raw[None], [raw]):
        torch.testing.assert_close(model.prepare(form), expected)


def test_batch_gives_the_samples_of_single_images():
    model, batch = lively("unet-ce+pixels", info=GRAY), np.stack([RAW, RAW[::-1]])
    together, as_list = model.sample(batch), model.sample(list(batch))
    alone = torch.cat([model.sample(one).labels for one in batch])
    assert alone.shape == (2, 16, 9, 12), "n is 16 by default"
    assert torch.equal(together.labels, as_list.labels)
    assert torch.equal(together.labels, alone)


@pytest.mark.parametrize("training", [True, False])
def test_sampling_restores_the_training_mode(training):
    model = fresh("unet-ce").train(training)
    model.sample(images(1), 1)
    assert model.training is training
    with pytest.raises(UserError):
        model.sample(torch.zeros(1, 5, 8, 8), 1)
    assert model.training is training


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int32])
def test_labels_of_any_integer_type(kind):
    model, x, y = lively("unet-ce"), images(1), labels(1, 2, 2)
    assert torch.equal(model(x, y.to(kind), keys=[(0,)])["loss"], model(x, y, keys=[(0,)])["loss"])


@pytest.mark.parametrize("void", [1, 255, -1])
def test_any_value_may_stand_for_void(void):
    model, x, y, keys = lively("unet-ce"), images(2), labels(2, 3, 2), [(1, 0), (1, 1)]
    mask = torch.rand(y.shape) < 0.7
    expected = model(x, torch.where(mask, y, 0), mask, keys)["loss"]
    assert torch.equal(model(x, torch.where(mask, y, void), mask, keys)["loss"], expected)


def test_models_are_built_from_typed_configs():
    config = CCDMConfig(base=8, multipliers=(1, 2), blocks=1, num_timesteps=5)
    assert CCDM(GRAY, config).sample(RAW, 1).evaluations == 5


def test_every_model_class_and_config_is_exported():
    for name, cls in MODELS.items():
        assert getattr(stochseg.models, cls.__name__) is cls, name
        assert getattr(stochseg.models, cls.config_type.__name__) is cls.config_type, name
    assert set(MODELS) <= set(stochseg.list_models())


def test_options_without_a_value_take_the_default():
    defaults = SamplingOptions(evaluations=7, sampler="sticky", noise="latin")
    options = SamplingOptions(n=3, noise="independent", seed=5).or_default(defaults)
    assert (options.n, options.seed, options.noise) == (3, 5, "independent")
    assert (options.evaluations, options.sampler, options.grid) == (7, "sticky", None)


@pytest.mark.parametrize("size", [(7,), (4, 3), (2, 3, 4)])
@pytest.mark.parametrize("noise", ["independent", "latin"])
def test_loop_draws_every_row_once_in_any_number_of_dimensions(size, noise):
    """Each row shows 10·image + sample; weights and mean are those of the drawing where it gives them."""
    b, n, weights = 2, 3, torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    seen = []

    def draw(rows, noise, report):
        report(0)
        u = noise.uniform((len(rows.image), *size))
        value = (10 * rows.image + rows.sample).view(-1, *[1] * len(size)).expand(-1, *size)
        return Drawn(torch.stack([u, 1 - u], 1), value, evaluations=2)

    keys, options = [(0, 1), (0, 2)], SamplingOptions(n=n, noise=noise, seed=4)

    def run(chunk, drawing, progress=None):
        return draw_samples(
            drawing, keys, size, options, GRAY, chunk=chunk, device=torch.device("cpu"), progress=progress
        )[n]

    out = run(64, Drawing(draw, weights=weights), lambda *now: seen.append(now))
    assert seen == [(1, 1)]
    for i in range(b):
        assert out.labels[i].flatten(1)[:, 0].tolist() == [10 * i, 10 * i + 1, 10 * i + 2]
    assert (out.evaluations, out.seed, out.info) == (2, 4, GRAY)
    assert torch.equal(out.weights, weights)
    torch.testing.assert_close(out.mean.sum(1), torch.ones(b, *size))
    equal = run(64, Drawing(draw))
    torch.testing.assert_close(equal.weights, torch.full((b, n), 1 / n))
    assert not torch.allclose(equal.mean, out.mean)
    known = torch.full((b, 2, *size), 0.5)
    assert torch.equal(run(64, Drawing(draw, mean=known)).mean, known)


def test_embedded_samples_are_background_outside_the_window():
    inner = Samples(
        torch.ones(1, 2, 2, 3, dtype=torch.int64), torch.full((1, 2, 2, 3), 0.5), torch.full((1, 2), 0.5), 0
    )
    window = (slice(1, 3), slice(2, 5))
    out = embed(inner, window, (4, 6))
    assert torch.equal(cut_window(out.labels, window), inner.labels)
    assert torch.equal(cut_window(out.mean, window), inner.mean)
    assert out.labels.sum() == inner.labels.sum()
    torch.testing.assert_close(out.mean.sum(1), torch.ones(1, 4, 6))
    assert embed(inner, (slice(0, 2), slice(0, 3)), (2, 3)) is inner


def test_foreground_at_the_border_of_the_labeled_part_is_warned_of(recwarn):
    model = lively("ccdm-fast", focus=8)
    with torch.no_grad():
        drawn = model.sample(np.zeros((16, 16), np.uint8), n=4)
    assert drawn.window == ((4, 12), (4, 12))
    reaches = bool(drawn.cut_off.any())
    assert [w.category for w in recwarn] == [CutLabelsWarning] * reaches
    assert reaches
    recwarn.clear()
    whole = lively("ccdm-fast").sample(np.zeros((16, 16), np.uint8), n=4)
    assert whole.window is None
    assert not whole.cut_off.any()
    assert not list(recwarn)


@pytest.mark.parametrize("shape", [(1, 6, 8, 8), (1, 1, 6, 8, 8)])
def test_volumes_get_the_advice_for_volumes(shape):
    with pytest.raises(UserError, match='slices as an array "b h w".*stochseg predict'):
        lively("unet-ce").sample(np.zeros(shape, np.uint8), 1)


def test_a_file_with_a_volume_gets_the_advice_for_volumes(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    file = tmp_path / "a.nii.gz"
    nibabel.save(nibabel.Nifti1Image(np.zeros((8, 8, 5), np.uint8), np.eye(4)), file)
    with pytest.raises(UserError, match=r"a volume of shape \(8, 8, 5\).*stochseg predict") as caught:
        lively("unet-ce").sample(file, 1)
    assert "dataset.yaml" not in str(caught.value)


@pytest.mark.parametrize("before", [(32, 32), (16, 24), (7, 9), (50, 31)])
def test_the_window_of_a_fitted_image_is_that_of_its_labels(before):
    """Samples of images that the model resizes and pads come back with the part that it labels."""
    fit, window = Fit(before, (16, 16)), ((4, 12), (5, 13))
    inside = torch.zeros(1, 1, 16, 16, dtype=torch.int64)
    inside[:, :, 4:12, 5:13] = 1
    out = undo_fit(Samples(inside, torch.full((1, 2, 16, 16), 0.5), torch.ones(1, 1), 0, window=window), fit)
    (top, bottom), (left, right) = out.window
    expected = torch.zeros(before, dtype=torch.int64)
    expected[top:bottom, left:right] = 1
    assert torch.equal(out.labels[0, 0], expected)
    assert bool(out.cut_off.all())
