"""Checkpoints of the CCDM authors' released code: the converted model is their network, or nothing is written."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import stochseg
from stochseg.core import cosine_released
from stochseg.errors import UserError
from stochseg.models import convert_checkpoint
from stochseg.models.conversion import load_released_unet
from stochseg.networks import UNet, UNetConfig
from stochseg.networks.shapes import one_hot
from tests.support.extras import import_or_skip
from tests.support.networks import noisy_labels
from tests.support.released import (
    cityscapes_layout,
    dino_keys,
    dino_state,
    layout,
    lidc_layout,
    random_state,
    softmax,
    write_checkpoint,
)

LIDC, CITYSCAPES = "ccdm-lidc", "ccdm-cityscapes-dino"


def denoise(model, x_t, t, image):
    with torch.no_grad():
        return torch.softmax(model.denoiser(x_t, t, model.denoiser.encode(image)), dim=1)


def count(module) -> int:
    return sum(p.numel() for p in module.parameters())


# --- the U-Net ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize(
    ("multipliers", "attention", "features", "block"),
    [((1, 2), (), 0, 1), ((1, 2, 2), (2, 4), 0, 1), ((1, 1, 1, 2), (8,), 64, 1), ((1, 1, 1, 2), (4, 8), 64, 2)],
)
def test_small_unet_is_the_released_one(multipliers, attention, features, block, prefix):
    net = layout(3, 1, 32, multipliers, attention, features, 9 + block if features else None)
    state = {name: value.double() for name, value in random_state(net, 3).items()}
    config = UNetConfig(base=32, multipliers=multipliers, attention=attention, feature_block=block)
    unet = UNet(4, 3, config, feature_channels=features)
    load_released_unet(unet, {prefix + name: value for name, value in state.items()}, "test")
    image, x_t, t = noisy_labels(3, 1, 16, 24)
    maps = torch.randn(2, features, 2, 3, dtype=torch.float64) if features else None
    with torch.no_grad():
        logits = unet.double()(torch.cat([one_hot(x_t, 3, torch.float64), image.double()], 1), t, maps)
    expected = softmax(net, state, x_t, t, image.double(), maps)
    assert 1e-3 < expected.std() < 0.5
    np.testing.assert_allclose(torch.softmax(logits, 1), expected, rtol=0, atol=1e-6)


# --- the published checkpoints ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lidc(tmp_path_factory):
    """Tensors of the 9M network and its checkpoint."""
    state = random_state(lidc_layout(), 2)
    return state, write_checkpoint(tmp_path_factory.mktemp("lidc") / "lidc.pt", state)


@pytest.fixture(scope="module")
def cityscapes(tmp_path_factory):
    """Tensors of the 30M network and of DINO, and their checkpoint."""
    state, dino = random_state(cityscapes_layout(), 20), dino_state()
    encoder = {f"extractor.model.{name}": value for name, value in dino.items()}
    file = write_checkpoint(tmp_path_factory.mktemp("cityscapes") / "dino.pt", state, cond_encoder=encoder)
    return state, dino, file


def test_lidc_checkpoint_becomes_a_saved_model(lidc, tmp_path):
    state, file = lidc
    convert_checkpoint(LIDC, file, tmp_path / "model")
    model = stochseg.load(tmp_path / "model")
    assert count(model) == sum(value.numel() for value in state.values()) == 9_056_610
    assert model.info.names == ("background", "nodule")
    assert torch.equal(model.process.schedule.alpha_bar, cosine_released(250).alpha_bar)
    assert model.default_sampling().evaluations == 250
    image, x_t, t = noisy_labels(2, 1, 32, 32)
    np.testing.assert_allclose(
        denoise(model, x_t, t, image), softmax(lidc_layout(), state, x_t, t, image), rtol=0, atol=1e-6
    )
    samples = model.sample(image[:1], 2, evaluations=3)
    assert samples.labels.shape == (1, 2, 32, 32)


def test_cityscapes_checkpoint_becomes_a_saved_model(cityscapes, tmp_path):
    """The whole path from the image: DINO's keys, their order, and the block that they join."""
    import_or_skip("timm")
    state, dino, file = cityscapes
    convert_checkpoint(CITYSCAPES, file, tmp_path / "model")
    model = stochseg.load(tmp_path / "model")
    assert count(model.denoiser.unet) == sum(value.numel() for value in state.values()) == 30_627_284
    assert (model.info.names[0], model.info.names[18:]) == ("road", ("bicycle", "void"))
    assert model.info.size == (256, 512)
    assert torch.equal(model.process.schedule.alpha_bar, cosine_released(250).alpha_bar)
    image, x_t, t = noisy_labels(20, 3, 32, 64)
    features = dino_keys(dino, image)
    expected = softmax(cityscapes_layout(), state, x_t, t, image, features)
    np.testing.assert_allclose(denoise(model, x_t, t, image), expected, rtol=0, atol=1e-6)
    other = softmax(cityscapes_layout(), state, x_t, t, image, features.flip(1))
    assert (other - expected).abs().max() > 1e-3, "the order of the keys matters"


def test_dino_may_come_from_a_file(cityscapes, lidc, tmp_path):
    import_or_skip("timm")
    state, dino, _ = cityscapes
    torch.save(dino, tmp_path / "dino.pth")
    torch.save(state, tmp_path / "unet.pt")  # tensors alone
    with pytest.raises(UserError, match=r"unet\.pt.*encoder_weights.*download"):
        convert_checkpoint(CITYSCAPES, tmp_path / "unet.pt", tmp_path / "model")
    assert not (tmp_path / "model").exists()
    weights = str(tmp_path / "dino.pth")
    model = convert_checkpoint(CITYSCAPES, tmp_path / "unet.pt", tmp_path / "model", encoder_weights=weights)
    image = noisy_labels(20, 3, 32, 64)[0]
    torch.testing.assert_close(model.denoiser.encoder(image), dino_keys(dino, image), rtol=1e-4, atol=1e-5)
    with pytest.raises(UserError, match=r"encoder_weights.*ccdm-lidc"):
        convert_checkpoint(LIDC, lidc[1], tmp_path / "lidc", encoder_weights=weights)


# --- refused tensors ----------------------------------------------------------------------------------------------


def rename(state, old, new):
    return {new if name == old else name: value for name, value in state.items()}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda s: rename(s, "out.2.bias", "out.2.bases"), r"1 missing \(out\.2\.bias\); 1 unknown \(out\.2\.bases\)"),
        (lambda s: s | {"out_ce.2.bias": torch.zeros(2)}, r"1 unknown \(out_ce\.2\.bias\)"),
        (lambda s: s | {7: torch.zeros(2)}, r"1 unknown \(7\)"),
        (lambda s: s | {"out.2.bias": torch.zeros(3)}, r"1 of another shape \(out\.2\.bias \(3,\) instead of \(2,\)\)"),
        (lambda s: s | {"out.2.bias": None}, r"out\.2\.bias \(\) instead of \(2,\)"),
        (lambda s: s | {"middle_block.1.qkv.weight": torch.zeros(192, 64, 1, 1)}, r"middle_block\.1\.qkv\.weight"),
        (lambda s: {}, r"154 missing \(.*, …\)"),
    ],
)
def test_tensors_that_do_not_fit_are_listed(damage, message):
    unet = UNet(3, 2, UNetConfig(base=32, multipliers=(1, 2)))
    before = {name: value.clone() for name, value in unet.state_dict().items()}
    with pytest.raises(UserError, match=rf"bad\.pt.*{message}"):
        load_released_unet(unet, damage(random_state(layout(2, 1, 32, (1, 2)), 2)), "bad.pt")
    assert all(torch.equal(value, before[name]) for name, value in unet.state_dict().items())


def test_weights_are_the_average_and_never_the_raw_ones(tmp_path):
    state = random_state(layout(2, 1, 32, (1, 2)), 2)
    torch.save({"model": state, "optimizer": {}}, tmp_path / "raw.pt")
    with pytest.raises(UserError, match=r"raw\.pt \(ccdm-lidc\).*unknown \(model, optimizer\)"):
        convert_checkpoint(LIDC, tmp_path / "raw.pt", tmp_path / "model")
    assert not (tmp_path / "model").exists()
