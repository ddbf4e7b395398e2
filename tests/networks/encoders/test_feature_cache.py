"""The feature cache: each image is computed once, and changed inputs are other entries."""

from __future__ import annotations

import pytest
import torch

from stochseg.errors import UserError
from stochseg.networks import EncoderConfig, make_encoder
from tests.support.encoders import CNN, encoder, image, info
from tests.support.extras import import_or_skip

import_or_skip("timm")


def test_cached_features_are_computed_once_and_equal(tmp_path, monkeypatch):
    plain, cached = encoder(CNN), encoder(CNN, encoder_cache=str(tmp_path / "features"))
    computed, features, x = [], cached.features, image(b=3)
    monkeypatch.setattr(cached, "features", lambda rows: computed.append(len(rows)) or features(rows))
    alone = torch.cat([plain(row[None]) for row in x])
    torch.testing.assert_close(cached(x[:2]), alone[:2], rtol=1e-5, atol=1e-6)
    first = cached(x)
    assert torch.equal(cached(x.flip(0)), first.flip(0))
    assert computed == [2, 1], "only images that are not in the cache are computed"
    assert len(list((tmp_path / "features").glob("*.npy"))) == 3


def test_another_encoder_or_image_is_another_entry(tmp_path):
    folder = str(tmp_path / "features")
    encoder(CNN, encoder_cache=folder)(image())
    torch.manual_seed(9)
    other = make_encoder(EncoderConfig(encoder=CNN, encoder_cache=folder), info())
    torch.testing.assert_close(other(image()), other.features(image()), rtol=1e-5, atol=1e-6)
    scaled = encoder(CNN, encoder_cache=folder, encoder_range=(0.0, 200.0))
    torch.testing.assert_close(scaled(image()), scaled.features(image()), rtol=1e-5, atol=1e-6)
    assert len(list((tmp_path / "features").glob("*.npy"))) == 6


def test_a_missing_cache_folder_is_ignored(tmp_path):
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
