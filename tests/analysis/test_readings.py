"""Readings: samples of known modes are grouped by mode, with probabilities, medoids and names."""

import numpy as np
import pytest
import torch

import stochseg
from stochseg.analysis import hypotheses
from stochseg.data import Phantoms
from stochseg.data.phantom import PhantomVolumes
from stochseg.errors import UserError
from stochseg.metrics import pairwise_iou
from stochseg.types import DatasetInfo
from tests.support.samples import as_samples
from tests.support.volumes import ball_samples

VARIANTS = ("binary", "multiclass")


def ragged(maps, rng, probability):
    """Replace each pixel next to another label by that label with this probability."""
    padded = np.pad(maps, ((0, 0), (1, 1), (1, 1)), mode="edge")
    neighbors = np.stack([padded[:, 1:-1, 2:], padded[:, 1:-1, :-2], padded[:, 2:, 1:-1], padded[:, :-2, 1:-1]])
    other = np.where(neighbors != maps, neighbors, -1).max(0)
    return np.where((other >= 0) & (rng.random(maps.shape) < probability), other, maps)


def draw(data, index, n, border=0.0):
    """Mode numbers and maps of a perfect sampler, with pixel noise on the borders."""
    truth, rng = data.truth(index), np.random.default_rng((index, n))
    modes = rng.choice(len(truth.names), n, p=truth.probabilities.numpy())
    return modes, torch.from_numpy(ragged(truth.modes.numpy()[modes], rng, border))


def grouping(found):
    return {frozenset(h.members.tolist()) for h in found}


def by_mode(modes):
    return {frozenset(np.flatnonzero(modes == mode).tolist()) for mode in np.unique(modes)}


# --- the groups are the modes -----------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_groups_of_the_perfect_sampler_are_the_modes(variant):
    data = Phantoms("val", size=32, variant=variant)
    for index in range(60):
        for n in (16, 50):
            modes, maps = draw(data, index, n)
            found = hypotheses(as_samples(maps, data.info.num_classes), info=data.info)
            assert grouping(found) == by_mode(modes)
            assert all(torch.equal(h.medoid, data.truth(index).modes[modes[h.medoid_index]]) for h in found)
            assert all(h.mean_iou == pytest.approx(1) for h in found)


@pytest.mark.parametrize("variant", VARIANTS)
def test_groups_survive_ragged_borders(variant):
    data = Phantoms("val", size=64, variant=variant)
    right = []
    for index in range(40):
        modes, maps = draw(data, index, 50, border=0.15)
        if np.bincount(modes)[np.unique(modes)].min() >= 3:  # a mode drawn once looks like a ragged other one
            right.append(grouping(hypotheses(maps, info=data.info)) == by_mode(modes))
    assert len(right) >= 20
    assert np.mean(right) >= 0.95


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_mode_is_one_reading(variant):
    data = Phantoms("val", size=64, variant=variant)
    for index in range(12):
        for mode in data.truth(index).modes[1:].numpy():
            maps = ragged(np.repeat(mode[None], 20, 0), np.random.default_rng(index), 0.3)
            assert len(hypotheses(torch.from_numpy(maps), info=data.info)) == 1


def test_empty_map_is_a_reading_of_its_own():
    almost = torch.zeros(12, 16, 16, dtype=torch.long)
    almost[6:, 4, 4] = 1
    almost[9:, 4, 5] = 1
    found = hypotheses(almost)
    assert found[0].name == "nothing" or found[1].name == "nothing"
    assert frozenset(range(6)) in grouping(found)


def test_order_of_samples_does_not_matter():
    data = Phantoms("val", size=32, variant="multiclass")
    _, maps = draw(data, 3, 40, border=0.1)
    order = torch.randperm(40)
    straight, mixed = hypotheses(maps), hypotheses(maps[order])
    assert grouping(straight) == {frozenset(order[h.members].tolist()) for h in mixed}
    assert [h.name for h in straight] == [h.name for h in mixed]


# --- probabilities ----------------------------------------------------------------------------------------


def test_weights_are_respected():
    data = Phantoms("val", size=32)
    truth = data.truth(0)
    # Every mode drawn equally often, and weighted to its probability.
    maps = truth.modes.repeat_interleave(10, 0)
    weights = truth.probabilities.repeat_interleave(10) / 10
    found = hypotheses(as_samples(maps, weights=weights), info=data.info)
    assert [h.probability for h in found] == pytest.approx(truth.probabilities.sort(descending=True).values.tolist())
    assert grouping(found) == by_mode(np.repeat(np.arange(3), 10))


def test_sample_of_weight_zero_is_in_no_reading():
    maps = torch.zeros(5, 8, 8, dtype=torch.long)
    maps[:4, 2:6, 2:6] = 1
    found = hypotheses(as_samples(maps, weights=[0.25, 0.25, 0.25, 0.25, 0.0]))
    assert [h.members.tolist() for h in found] == [[0, 1, 2, 3]]


def test_medoid_and_mean_iou_against_loops():
    data = Phantoms("val", size=32)
    maps = torch.from_numpy(ragged(data.truth(1).modes[2:].numpy().repeat(9, 0), np.random.default_rng(0), 0.3))
    weights = torch.rand(9, dtype=torch.float64) + 0.1
    weights /= weights.sum()
    (one,) = hypotheses(as_samples(maps, weights=weights))
    w = weights.float().double()
    iou = pairwise_iou(maps[None], maps[None], 2)[0]
    nearness = [sum(float(w[j] * iou[i, j]) for j in range(9)) for i in range(9)]
    assert one.medoid_index == int(np.argmax(nearness))
    pairs = [(i, j) for i in range(9) for j in range(9) if i != j]
    inside = sum(float(w[i] * w[j] * iou[i, j]) for i, j in pairs) / sum(float(w[i] * w[j]) for i, j in pairs)
    assert one.mean_iou == pytest.approx(inside, rel=1e-5)


# --- names ------------------------------------------------------------------------------------------------


def square(*sizes, label=1, at=2):
    out = torch.zeros(len(sizes), 32, 32, dtype=torch.long)
    for row, size in zip(out, sizes, strict=True):
        row[at : at + size, at : at + size] = label
    return out


def names(maps, info=None):
    return [h.name for h in hypotheses(maps, info=info)]


def test_names_by_size():
    info = DatasetInfo(num_classes=2, image_channels=1, class_names=("background", "nodule"))
    assert names(square(0, 0, 8, 8, 8, 16), info) == ["smaller nodule", "nothing", "larger nodule"]
    assert names(square(4, 4, 4, 8, 8, 16)) == ["smallest foreground", "medium foreground", "largest foreground"]
    assert names(square(6, 6), info) == ["nodule"]
    assert names(square(0, 0), info) == ["nothing"]
    sizes = ["smallest", "2nd smallest", "3rd smallest", "largest"]
    assert names(square(*[3] * 5, *[6] * 4, *[11] * 3, 20, 20)) == [f"{size} foreground" for size in sizes]


def test_names_by_place():
    there = torch.cat([square(6, 6, 6), square(6, 6, at=20)])
    assert names(there) == ["foreground", "foreground elsewhere"]


def test_names_by_class():
    data = Phantoms("val", size=32, variant="multiclass")
    modes = data.truth(0).modes
    vessel, core, halo, solid = modes
    maps = torch.stack([core] * 5 + [halo] * 4 + [solid] * 3 + [vessel] * 2)
    assert names(maps, data.info) == ["solid, vessel", "with ground-glass", "larger solid", "no solid"]


def test_text_has_name_probability_and_area():
    info = DatasetInfo(num_classes=2, image_channels=1, class_names=("background", "nodule"))
    first, second = hypotheses(square(8, 8, 8, 0), info=info)
    assert str(first).startswith("nodule 75% (")
    assert str(first).endswith("nodule 64 px")
    assert str(second).startswith("nothing 25% (")
    assert first.areas == {"nodule": 64}


def test_readings_of_volumes_are_whole_volumes():
    """Balls of two sizes at one place and one elsewhere, among empty volumes; slices alone could not tell."""
    sizes = ball_samples([0, 0, 4, 4.2, 8, 8.2, 8.1], weights=[0.05, 0.2, 0.2, 0.1, 0.15, 0.2, 0.1])
    found = hypotheses(sizes)
    assert [r.name for r in found] == ["larger foreground", "smaller foreground", "nothing"]
    assert [r.probability for r in found] == pytest.approx([0.45, 0.3, 0.25])
    assert [sorted(r.members) for r in found] == [[4, 5, 6], [2, 3], [0, 1]]
    assert all(r.medoid.shape == sizes.labels.shape[2:] for r in found)
    assert str(found[1]).endswith(f"foreground {int(found[1].medoid.sum())} voxels")
    up, down = (ball_samples([6, 6.2], center=(z, 14, 16)).labels for z in (3, 8))
    assert [r.name for r in hypotheses(torch.cat([up, down], 1)[0])] == ["foreground", "foreground elsewhere"]
    assert hypotheses(sizes.labels[0].to(torch.uint8))[0].medoid.dtype == torch.int64


def test_readings_of_a_perfect_sampler_of_volumes_are_the_modes():
    data = PhantomVolumes("val", size=32, slices=6, count=4)
    for i in range(len(data)):
        truth, drawn = data.truth(i), data.draw(i, 40, seed=0)
        found = hypotheses(drawn, info=data.info)
        assert len(found) == len({int(mode.sum()) for mode in drawn}), "one reading per mode that was drawn"
        for reading in found:
            assert any(torch.equal(reading.medoid, mode) for mode in truth.modes)
            share = (drawn == reading.medoid).flatten(1).all(1).double().mean()
            assert reading.probability == pytest.approx(float(share))


# --- input -----------------------------------------------------------------------------------------------


def test_errors_name_the_argument():
    two = as_samples(torch.zeros(2, 3, 4, 4, dtype=torch.long))
    with pytest.raises(UserError, match="index=0 to index=1"):
        hypotheses(two)
    with pytest.raises(UserError, match="index=2: expected 0 to 1"):
        hypotheses(two, index=2)
    with pytest.raises(UserError, match='label maps "n h w"'):
        hypotheses(two.labels, info=DatasetInfo(num_classes=2, image_channels=1))
    with pytest.raises(UserError, match='"n h w" or "n d h w"'):
        hypotheses(two.labels[None])
    with pytest.raises(UserError, match="min_separation=1.0"):
        hypotheses(two, index=0, min_separation=1.0)
    with pytest.raises(UserError, match="3 classes"):
        hypotheses(two, index=0, info=DatasetInfo(num_classes=3, image_channels=1))


def test_is_public():
    assert stochseg.hypotheses is hypotheses
    assert hypotheses(torch.zeros(1, 4, 4, dtype=torch.long))[0].probability == 1
