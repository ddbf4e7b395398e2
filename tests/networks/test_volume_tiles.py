"""Tiling of volumes: windows along three axes, one component of a mixture, encoded windows in a file."""

import math

import pytest
import torch
from torch import nn

from stochseg.errors import UserError
from stochseg.models.sampling import SamplingOptions
from stochseg.networks import Condition, Denoiser, Tiled, Tiling, blended
from stochseg.networks.shelf import Shelf
from tests.support.models import lively

SIZE = (11, 70, 40)
TILING = Tiling((6, 40, 40), (3, 8, 8))


def volume(*size, b=1):
    return torch.rand(b, 1, *size, generator=torch.Generator().manual_seed(1)) * 2 - 1


class Mixture(Denoiser):
    """Components whose weights and maps depend on each voxel alone."""

    components = 3

    def encode(self, image):
        return Condition((image,), tuple(image.shape[2:]))

    def propose(self, x_t, t, condition):
        (image,) = condition.tensors
        mean = image.flatten(1).mean(1)
        log_weight = torch.log_softmax(8 * torch.stack([mean, -mean, mean**2], 1), 1)
        logits = torch.stack([torch.cat([image * k, x_t[:, None] * 1.0], 1) for k in range(1, 4)], 1)
        return log_weight, logits


def test_windows_cover_a_volume_and_their_weights_sum_to_one():
    total = torch.zeros(SIZE)
    layout = TILING.windows(SIZE)
    for window in layout:
        window(total).add_(window.weight)
        assert window.weight.shape == window(total).shape
    torch.testing.assert_close(total, torch.ones(SIZE))
    assert {part.start for window in layout for part in window.parts[:1]} == {0, 2, 5}


def test_one_number_is_for_rows_and_columns():
    assert Tiling.of(64, 16, 3) == Tiling((16, 64, 64), (4, 16, 16))
    assert Tiling.of((6, 40, 40), (3, 8, 8), 3) == TILING
    with pytest.raises(UserError, match="or 3, one per axis"):
        Tiling.of((64, 64), (8, 8), 3)
    with pytest.raises(UserError, match="slices and a tile of more slices, got tile 4 and overlap 4"):
        Tiling((4, 40, 40), (4, 8, 8))


def test_a_local_network_predicts_the_same_in_windows():
    """Its reach is one voxel, below the margin without weight."""
    torch.manual_seed(0)
    net = nn.Conv3d(1, 3, 3, padding=1).requires_grad_(False)
    tiling = Tiling((6, 40, 40), (4, 8, 8))
    x = volume(*SIZE)
    torch.testing.assert_close(blended(net, x, tiling).softmax(1), net(x).softmax(1), rtol=0, atol=1e-5)


def test_samples_of_the_model_hardly_depend_on_the_tiling():
    model, x = lively("ccdm-fast", spatial_dims=3, num_timesteps=20, evaluations=3), volume(12, 70, 64)
    tiled = [model.tiled(*layout).sample(x, 2).labels for layout in (((8, 64, 64), (4, 16, 16)), (64, 16))]
    assert tiled[0].float().mean() > 0.05
    assert (tiled[0] == tiled[1]).float().mean() > 0.95
    with pytest.raises(UserError, match="with focus 8 cannot be tiled"):
        lively("ccdm-fast", spatial_dims=3, focus=8).tiled(64, 16)


def test_one_drawn_component_is_distributed_as_the_averaged_weights(monkeypatch):
    """A component of a random window, over all values of the two uniforms."""
    x, x_t, t = volume(*SIZE), torch.zeros(1, *SIZE, dtype=torch.uint8), torch.tensor([1])
    x = x + torch.linspace(-0.6, 0.6, SIZE[1])[:, None]
    tiled = Tiled(Mixture(), TILING)
    condition = tiled.encode(x)
    log_weight, logits = tiled.propose(x_t, t, condition)
    monkeypatch.setattr("stochseg.networks.denoisers.MAX_HELD", 100)
    windows, found = len(TILING.windows(SIZE)), torch.zeros(3, dtype=torch.float64)
    for place in range(windows):
        seen = []

        def choose(log_p, place=place, seen=seen):
            seen.append(log_p)
            return torch.tensor([place if len(seen) == 1 else 1])

        chosen_weight, chosen = tiled.propose_chosen(x_t, t, condition, choose)
        torch.testing.assert_close(seen[0].exp(), torch.full((1, windows), 1 / windows))
        found += seen[1][0].double().exp() / windows
        assert torch.equal(chosen_weight, torch.zeros(1, 1))
        torch.testing.assert_close(chosen[:, 0], logits[:, 1])
    torch.testing.assert_close(found, log_weight[0].double().exp(), rtol=1e-5, atol=0)


def test_several_rows_choose_their_own_component(monkeypatch):
    x, x_t, t = volume(*SIZE, b=2), torch.zeros(3, *SIZE, dtype=torch.int64), torch.tensor([1, 1, 1])
    tiled, rows = Tiled(Mixture(), TILING), torch.tensor([1, 0, 1])
    condition = tiled.encode(x)[rows]
    _, logits = tiled.propose(x_t, t, condition)
    monkeypatch.setattr("stochseg.networks.denoisers.MAX_HELD", 100)
    choices = iter([torch.tensor([0, 2, 1]), torch.tensor([2, 0, 1])])
    _, chosen = tiled.propose_chosen(x_t, t, condition, lambda _: next(choices))
    for row, component in enumerate([2, 0, 1]):
        torch.testing.assert_close(chosen[row, 0], logits[row, component])


def test_broken_weights_of_a_drawn_component_are_seen(monkeypatch):
    x, x_t, t = volume(*SIZE), torch.zeros(1, *SIZE, dtype=torch.int64), torch.tensor([1])
    tiled = Tiled(Mixture(), TILING)
    monkeypatch.setattr("stochseg.networks.denoisers.MAX_HELD", 100)
    log_weight, _ = tiled.propose_chosen(x_t, t, tiled.encode(x * torch.nan), lambda _: torch.tensor([0]))
    assert bool(log_weight.isnan().all())


def test_a_model_that_holds_one_component_at_a_time_uses_one_per_sample(monkeypatch):
    monkeypatch.setattr("stochseg.networks.denoisers.MAX_HELD", 100)
    model = lively("ccdm-fast+mixture", spatial_dims=3, num_timesteps=20, evaluations=1)

    def propose(x_t, t, condition):
        logits = 50 * torch.eye(3)[:, :2, None, None, None].expand(len(x_t), 3, 2, *x_t.shape[1:])
        return torch.tensor([0.5, 0.5, 1e-9]).log().expand(len(x_t), 3), logits

    model.denoiser.propose = propose
    labels = model.tiled((6, 40, 40), (3, 8, 8)).sample(volume(*SIZE), 12).labels
    assert (labels == labels[..., :1, :1, :1]).all()
    assert labels.unique().numel() == 2


def test_encoded_windows_in_a_file_give_the_same_bits(monkeypatch):
    model, x = lively("ccdm-fast", spatial_dims=3, num_timesteps=20, evaluations=2), volume(*SIZE)
    tiled = model.tiled((6, 40, 40), (3, 8, 8))
    held = tiled.sample(x, 2)
    monkeypatch.setattr("stochseg.networks.tiles.KEPT_BYTES", 1000)
    stored = tiled.sample(x, 2)
    assert torch.equal(stored.labels, held.labels)
    assert torch.equal(stored.mean, held.mean)


@pytest.mark.parametrize("limit", [0, 70, 1000])
def test_a_shelf_returns_what_it_was_given(limit):
    shelf = Shelf(limit)
    given = [
        (torch.arange(6).view(2, 3).T, torch.tensor(math.pi, dtype=torch.float64)),
        (torch.rand(2, 2).bfloat16(),),
        (torch.tensor([True, False]),),
    ]
    for tensors in given:
        shelf.append(tensors)
    for number in (2, 0, 1):
        for got, expected in zip(shelf[number], given[number], strict=True):
            assert got.dtype == expected.dtype
            assert torch.equal(got, expected)


def test_parts_of_the_samples_are_all_of_them():
    for name in ("ccdm-fast+mixture", "unet-ce+pixels", "ssn"):
        model, x = lively(name, spatial_dims=3, chunk=1), volume(2, 128, 64)
        options = SamplingOptions(n=5, seed=3, noise="latin")
        whole = model.sample(x, 5, seed=3, noise="latin")
        parts = list(model.sample_parts(model.prepare(x), options))
        assert len(parts) == 5
        assert torch.equal(torch.cat([part.labels for part in parts], 1), whole.labels)
        mean = sum(part.mean * part.weights.sum() for part in parts)
        torch.testing.assert_close(mean, whole.mean)
