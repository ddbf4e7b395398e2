"""Readings: of samples with known modes, the groups are the modes."""

import numpy as np
import pytest
import torch
from scipy import stats

import stochseg
from stochseg.analysis import hypotheses
from stochseg.analysis.readings import _silhouette, group, share_interval
from stochseg.data import Phantoms
from stochseg.errors import UserError
from stochseg.metrics import pairwise_iou
from stochseg.types import DatasetInfo, Samples

VARIANTS = ("binary", "multiclass")


def wrap(maps, classes=2, weights=None):
    """Samples "1 n h w" of label maps "n h w"."""
    n = len(maps)
    weights = torch.full((n,), 1 / n) if weights is None else torch.as_tensor(weights, dtype=torch.float32)
    one_hot = torch.nn.functional.one_hot(maps, classes).float()
    return Samples(maps[None], torch.einsum("n,nhwl->lhw", weights, one_hot)[None], weights[None], 0)


def ragged(maps, rng, share):
    """Each pixel beside another label takes that label with the probability `share`."""
    padded = np.pad(maps, ((0, 0), (1, 1), (1, 1)), mode="edge")
    beside = np.stack([padded[:, 1:-1, 2:], padded[:, 1:-1, :-2], padded[:, 2:, 1:-1], padded[:, :-2, 1:-1]])
    other = np.where(beside != maps, beside, -1).max(0)
    return np.where((other >= 0) & (rng.random(maps.shape) < share), other, maps)


def draw(data, index, n, border=0.0):
    """Mode numbers and maps of the perfect sampler, with pixel noise on the borders."""
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
            found = hypotheses(wrap(maps, data.info.num_classes), info=data.info)
            assert grouping(found) == by_mode(modes)
            assert all(torch.equal(h.medoid, data.truth(index).modes[modes[h.index]]) for h in found)
            assert all(h.mean_iou == pytest.approx(1) for h in found)


@pytest.mark.parametrize("variant", VARIANTS)
def test_groups_survive_ragged_borders(variant):
    data = Phantoms("val", size=64, variant=variant)
    right = []
    for index in range(40):
        modes, maps = draw(data, index, 50, border=0.15)
        if np.bincount(modes)[np.unique(modes)].min() >= 3:  # a mode drawn once may pass for a ragged other one
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


def test_the_empty_map_is_its_own_reading():
    almost = torch.zeros(12, 16, 16, dtype=torch.long)
    almost[6:, 4, 4] = 1
    almost[9:, 4, 5] = 1
    found = hypotheses(almost)
    assert found[0].name == "nothing" or found[1].name == "nothing"
    assert frozenset(range(6)) in grouping(found)


def test_the_order_of_samples_does_not_matter():
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
    found = hypotheses(wrap(maps, weights=weights), info=data.info)
    assert [h.probability for h in found] == pytest.approx(truth.probabilities.sort(descending=True).values.tolist())
    assert grouping(found) == by_mode(np.repeat(np.arange(3), 10))


def test_a_sample_without_weight_is_in_no_reading():
    maps = torch.zeros(5, 8, 8, dtype=torch.long)
    maps[:4, 2:6, 2:6] = 1
    found = hypotheses(wrap(maps, weights=[0.25, 0.25, 0.25, 0.25, 0.0]))
    assert [h.members.tolist() for h in found] == [[0, 1, 2, 3]]


def test_medoid_and_inner_iou_against_loops():
    data = Phantoms("val", size=32)
    maps = torch.from_numpy(ragged(data.truth(1).modes[2:].numpy().repeat(9, 0), np.random.default_rng(0), 0.3))
    weights = torch.rand(9, dtype=torch.float64) + 0.1
    weights /= weights.sum()
    (one,) = hypotheses(wrap(maps, weights=weights))
    w = weights.float().double()
    iou = pairwise_iou(maps[None], maps[None], 2)[0]
    nearness = [sum(float(w[j] * iou[i, j]) for j in range(9)) for i in range(9)]
    assert one.index == int(np.argmax(nearness))
    pairs = [(i, j) for i in range(9) for j in range(9) if i != j]
    inside = sum(float(w[i] * w[j] * iou[i, j]) for i, j in pairs) / sum(float(w[i] * w[j]) for i, j in pairs)
    assert one.mean_iou == pytest.approx(inside, rel=1e-5)


def test_interval_covers_the_true_share():
    n, share = 30, np.array([0.1, 0.3, 0.7])
    for p in share:
        counts = np.arange(n + 1)
        chance = stats.binom.pmf(counts, n, p)
        held = [low <= p <= high for low, high in (share_interval(c / n, n, 0.95) for c in counts)]
        assert 0.92 < chance @ held < 0.98
    assert share_interval(0.0, n)[0] == 0
    assert share_interval(1.0, n)[1] == 1


def test_silhouette_of_equal_weights_is_the_textbooks():
    points = np.random.default_rng(0).random((12, 2))
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1)
    groups = np.repeat([0, 1, 2], 4)
    scores = []
    for i in range(12):
        to = [np.mean([distance[i, j] for j in range(12) if groups[j] == g and j != i]) for g in range(3)]
        a, b = to[groups[i]], min(to[g] for g in range(3) if g != groups[i])
        scores.append((b - a) / max(a, b))
    assert _silhouette(distance, np.full(12, 1 / 12), groups, 0.0) == pytest.approx(np.mean(scores))


def test_never_more_groups_than_asked():
    points = np.arange(12.0).repeat(3)
    distance = np.abs(points[:, None] - points[None]) / 12
    for most in (1, 2, 5):
        assert group(distance, np.full(36, 1 / 36), most=most).max() < most


# --- words ------------------------------------------------------------------------------------------------


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


def test_text_says_what_a_person_needs():
    info = DatasetInfo(num_classes=2, image_channels=1, class_names=("background", "nodule"))
    first, second = hypotheses(square(8, 8, 8, 0), info=info)
    assert str(first).startswith("nodule 75% (")
    assert str(first).endswith("nodule 64 px")
    assert str(second).startswith("nothing 25% (")
    assert first.areas == {"nodule": 64}


# --- what the user passes ---------------------------------------------------------------------------------


def test_errors_say_what_to_do():
    two = Samples(torch.zeros(2, 3, 4, 4, dtype=torch.long), torch.ones(2, 2, 4, 4) / 2, torch.ones(2, 3) / 3, 0)
    with pytest.raises(UserError, match="which=0 to which=1"):
        hypotheses(two)
    with pytest.raises(UserError, match="which=2: expected 0 to 1"):
        hypotheses(two, which=2)
    with pytest.raises(UserError, match='label maps "n h w"'):
        hypotheses(two.labels)
    with pytest.raises(UserError, match="apart"):
        hypotheses(two, which=0, apart=1.0)
    with pytest.raises(UserError, match="3 classes"):
        hypotheses(two, which=0, info=DatasetInfo(num_classes=3, image_channels=1))


def test_is_public():
    assert stochseg.hypotheses is hypotheses
    assert hypotheses(torch.zeros(1, 4, 4, dtype=torch.long))[0].probability == 1


def test_a_loose_group_does_not_fall_into_single_samples():
    """Of few samples some are closer than others by chance, and those left alone are no readings of their own."""
    distance = np.full((26, 26), 0.6)
    distance[:20, :20] = np.random.default_rng(0).uniform(0.04, 0.07, (20, 20))
    distance[20:, 20:] = np.random.default_rng(0).uniform(0.1, 0.3, (6, 6))
    distance[20, 21] = 0.05
    distance = np.minimum(distance, distance.T)
    np.fill_diagonal(distance, 0)
    groups = group(distance, np.full(26, 1 / 26))
    assert len(set(groups)) == 2
    assert len(set(groups[20:])) == 1
