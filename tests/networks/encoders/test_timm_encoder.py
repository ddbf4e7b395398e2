"""Encoders of timm: normalization, features, weights, and models that contain one."""

from __future__ import annotations

import copy
import json
import sys

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from stochseg.errors import UserError
from stochseg.extras import repair_torchvision
from stochseg.files import write_manifest
from stochseg.models import create, load, save
from stochseg.training.average import MovingAverage
from stochseg.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from tests.support.encoders import CNN, UNET, VIT, encoder, image, info
from tests.support.extras import import_or_skip
from tests.support.released import dino_keys, dino_positions

repair_torchvision()
timm = import_or_skip("timm")

DINO = "timm:vit_small_patch8_224.dino"
MEAN, STD = (torch.tensor(x).view(3, 1, 1) for x in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


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


# --- normalization ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalization", [{}, {"mean": (90.0, 100.0, 110.0), "std": (40.0, 50.0, 60.0)}])
def test_images_are_normalized_as_in_pretraining(normalization):
    data = info(3, **normalization)
    raw = torch.randint(256, (3, 16, 16)).float()
    seen = encoder("timm:test_resnet.r160_in1k", data=data).renormalize(data.normalization(raw)[None])[0]
    own = timm.create_model("test_resnet.r160_in1k").pretrained_cfg
    mean, std = (torch.tensor(own[key]).view(3, 1, 1) for key in ("mean", "std"))
    torch.testing.assert_close(seen, (raw / 255 - mean) / std, rtol=1e-4, atol=1e-4)


def test_gray_fills_the_three_channels():
    gray = image(1)
    torch.testing.assert_close(encoder(CNN, 1)(gray), encoder(CNN, 3)(gray.expand(-1, 3, -1, -1)))


def test_encoder_range_maps_other_intensities_to_black_and_white():
    """CT from -1000 to 400 Hounsfield units looks like a photograph from 0 to 255."""
    raw = torch.rand(1, 1, 16, 16)
    ct = encoder(CNN, data=info(1, mean=(-300.0,), std=(200.0,)), encoder_range=(-1000.0, 400.0))
    plain = encoder(CNN, data=info(1))
    torch.testing.assert_close(
        ct.renormalize((raw * 1400 - 1000 + 300) / 200),
        plain.renormalize((raw * 255 - 127.5) / 127.5),
        rtol=1e-4,
        atol=1e-4,
    )


def test_impossible_images_and_ranges_are_refused():
    with pytest.raises(UserError, match=r"test_resnet.*4 channels.*hog"):
        encoder(CNN, 4)
    with pytest.raises(UserError, match=r"encoder_range.*\(5\.0, 5\.0\)"):
        encoder(CNN, 3, encoder_range=(5.0, 5.0))


# --- features -----------------------------------------------------------------------------------------------------


def keys_by_hook(model, seen):
    """The keys of the last block, recorded in a whole forward pass, "b c h w" at the patch's stride."""
    outputs = []
    handle = model.blocks[-1].attn.qkv.register_forward_hook(lambda module, given, out: outputs.append(out))
    with torch.no_grad():
        model.forward_features(seen)
    handle.remove()
    tokens = outputs[0].chunk(3, dim=-1)[1][:, model.num_prefix_tokens :]
    h, w = (n // p for n, p in zip(seen.shape[-2:], model.patch_embed.patch_size, strict=True))
    return tokens.transpose(1, 2).unflatten(2, (h, w))


def test_dino_features_are_the_keys_of_the_last_block(weights):
    """ViT-S/8: 384 channels at 1/8 without any resizing."""
    _, file = weights(DINO)
    made = encoder(DINO, weights=file)
    x = image(h=32, w=48)
    assert sum(p.numel() for p in made.parameters()) == pytest.approx(21.7e6, rel=0.01)
    torch.testing.assert_close(made.renormalize(x), ((x + 1) / 2 - MEAN) / STD, rtol=1e-4, atol=1e-4)
    out = made(x)
    assert made.channels == 384
    assert out.shape == (2, 384, 4, 6)
    expected = dino_keys(torch.load(file, weights_only=True), made.renormalize(x))
    by_head = expected.unflatten(1, (64, 6)).transpose(1, 2).flatten(1, 2)
    torch.testing.assert_close(out, by_head, rtol=1e-3, atol=1e-4)


def position_encoder(**options):
    """A small ViT whose position embeddings matter."""
    made = encoder(VIT, **options)
    torch.nn.init.normal_(made.body.pos_embed, generator=torch.Generator().manual_seed(3))
    return made


def tokens_of(made, x):
    """The tokens that enter the first block, position embeddings included."""
    seen = []
    handle = made.body.blocks[0].register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    made(x)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize(("h", "w"), [(128, 256), (256, 512), (160, 32), (160, 160)])
def test_dino_positions_are_resampled_as_in_its_code(h, w):
    made = position_encoder(encoder_positions="dino")
    x = image(h=h, w=w, b=1)
    assert made.body.patch_embed.grid_size == (10, 10)
    patches = F.conv2d(made.renormalize(x), *made.body.patch_embed.proj.parameters(), stride=16)
    plain = torch.cat([made.body.cls_token, patches.flatten(2).transpose(1, 2)], dim=1)
    found = tokens_of(made, x) - plain
    torch.testing.assert_close(found, dino_positions(made.body.pos_embed, h // 16, w // 16), rtol=1e-4, atol=1e-4)
    timm_own = tokens_of(position_encoder(encoder_positions="timm"), x) - plain
    assert torch.allclose(found, timm_own, atol=1e-4) == (h == w == 160), "equal only at the native size"


def test_dino_is_resampled_as_in_its_code_unless_the_config_says_otherwise():
    models = {
        (name, choice): encoder(name, encoder_positions=choice) for name in (VIT, DINO) for choice in (None, "timm")
    }
    assert [key for key, made in models.items() if made.variant] == [(DINO, None)]


def test_dino_positions_need_a_vit_like_it():
    with pytest.raises(UserError, match=r"encoder_positions.*test_resnet"):
        encoder(CNN, encoder_positions="dino")


def test_cached_features_are_those_of_their_positions(tmp_path):
    x = image(h=64, w=32)
    one, two = (position_encoder(encoder_positions=p, encoder_cache=str(tmp_path)) for p in ("dino", "timm"))
    assert not torch.allclose(one(x), two(x), atol=1e-3)


def test_saved_models_keep_the_positions_they_were_trained_with(tmp_path):
    """Models from before the key existed used timm's; new ones say what they use."""
    model = create("unet-ce", 2, 1, encoder=VIT, encoder_weights="random", encoder_positions="dino", **UNET)
    file = save(model, tmp_path / "model") / "config.json"
    assert load(tmp_path / "model").encoder.variant
    old = json.loads(file.read_text())
    del old["config"]["encoder_positions"]
    file.write_text(json.dumps(old))
    write_manifest(file.parent)
    again = load(tmp_path / "model")
    assert again.config.encoder_positions == "timm"
    assert not again.encoder.variant


def test_the_keys_of_a_coarser_vit_are_resized():
    made = encoder(VIT)
    x = image(h=32, w=48)
    assert made.body.patch_embed.patch_size == (16, 16)
    coarse = keys_by_hook(made.body, made.renormalize(x))
    expected = F.interpolate(coarse, size=(4, 6), mode="bilinear", align_corners=False)
    torch.testing.assert_close(made(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [(8, 8), (24, 40)])
@pytest.mark.parametrize("name", [VIT, CNN, "timm:test_convnext"])
def test_any_size_gives_a_map_at_an_eighth(name, size):
    made = encoder(name)
    out = made(image(h=size[0], w=size[1]))
    assert out.shape == (2, made.channels, size[0] // 8, size[1] // 8)
    assert torch.isfinite(out).all()


def test_a_name_unknown_to_timm_is_refused():
    with pytest.raises(UserError, match=r"vit_tremendous.*list_models"):
        encoder("timm:vit_tremendous")


# --- weights ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [VIT, CNN])
def test_the_weights_of_the_file_are_loaded(weights, name):
    model, file = weights(name)
    own, known = encoder(name, weights=file).body.state_dict(), model.state_dict()
    shared = [key for key in own if key in known]
    assert len(shared) > 10
    assert all(torch.equal(own[key], known[key]) for key in shared)


def test_a_frozen_encoder_without_weights_is_refused():
    with pytest.raises(UserError, match=r'test_resnet.*encoder_weights.*"download"'):
        create("unet-ce", 2, 3, encoder=CNN, **UNET)


@pytest.mark.parametrize("name", [VIT, "timm:test_convnext"])
def test_weights_of_another_network_are_refused(weights, name):
    _, file = weights(CNN)
    with pytest.raises(UserError, match=rf"{file}.*another network"):
        encoder(name, weights=file)


@pytest.mark.parametrize("name", [VIT, "efficientnet-lite0"])
def test_a_missing_package_names_the_extra(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=rf"{name} needs timm; .*stochseg\[zoo\]"):
        encoder(name)


# --- in a model ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ccdm", "unet-ce"])
def test_a_saved_model_contains_its_encoder_and_needs_no_file(tmp_path, name):
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
    options = {"evaluations": 2} if name == "ccdm" else {}
    assert torch.equal(model.sample(x, 1, **options).mean, again.sample(x, 1, **options).mean)


def test_the_state_of_a_run_leaves_the_encoder_out(tmp_path):
    def parts(seed):
        torch.manual_seed(seed)
        model = create("unet-ce", 2, 1, encoder=CNN, encoder_weights="random", **UNET)
        optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        return model, MovingAverage(model, 0.9), optimizer

    model, average, optimizer = parts(0)
    before = copy.deepcopy(model.encoder.state_dict())
    model(image(1, 16, 16), torch.zeros(2, 1, 16, 16, dtype=torch.int64))["loss"].backward()
    optimizer.step()
    average.update(model)
    assert all(torch.equal(value, before[key]) for key, value in average.model.encoder.state_dict().items())
    save_checkpoint(tmp_path / "last", model, average, optimizer, Progress(step=1))
    assert not any(key.startswith("encoder.") for key in load_file(tmp_path / "last/state/model.safetensors"))
    other = parts(1)
    load_checkpoint(tmp_path / "last", *other)
    for mine, theirs in ((model, other[0]), (average.model, other[1].model)):
        assert all(torch.equal(value, mine.state_dict()[key]) for key, value in theirs.state_dict().items())
