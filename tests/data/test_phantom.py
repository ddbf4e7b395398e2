"""Phantoms: reproducible, and labeled by their stated distribution."""

import hashlib
import pickle
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import ndimage, stats

from stochseg.data import KnownTruth, Phantoms, PhantomVolumes, SegmentationData, open_dataset
from stochseg.errors import UserError

VARIANTS = ("binary", "multiclass")
SIZES = (8, 17, 32, 128)


def fingerprint(data: Phantoms, indices: list[int]) -> str:
    digest = hashlib.sha256()
    for i in sorted(indices):
        example, truth = data[i], data.truth(i)
        for tensor in (
            example.image,
            example.raters,
            truth.modes,
            truth.probabilities,
            data.draw(i, 3, seed=5),
        ):
            digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


# --- reproducibility --------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_examples_do_not_depend_on_instance_and_order(variant):
    forwards, backwards = (Phantoms("val", size=32, variant=variant, count=9) for _ in range(2))
    for i in reversed(range(9)):
        backwards[i]
    assert fingerprint(forwards, list(range(9))) == fingerprint(backwards, list(range(9)))


def test_examples_do_not_depend_on_the_process():
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from test_phantom import fingerprint, Phantoms;"
        "print(fingerprint(Phantoms('train', size=32, seed=3), [0, 4]))"
    )
    folder = str(Path(__file__).parent)
    run = subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == fingerprint(Phantoms("train", size=32, seed=3), [0, 4])


def test_examples_do_not_depend_on_the_count():
    assert fingerprint(Phantoms("val", size=16, count=3), [2]) == fingerprint(Phantoms("val", size=16), [2])


def test_examples_do_not_depend_on_the_cache(monkeypatch):
    expected = fingerprint(Phantoms("val", size=16), [0, 1, 2])
    monkeypatch.setattr("stochseg.data.phantom.dataset.CACHE_BYTES", 0)
    assert fingerprint(Phantoms("val", size=16), [0, 1, 2]) == expected


def test_pickled_copy_is_equal():
    data = Phantoms("val", size=16)
    assert fingerprint(pickle.loads(pickle.dumps(data)), [0, 1]) == fingerprint(data, [0, 1])


def test_results_may_be_changed_in_place():
    data = Phantoms("val", size=16)
    expected = fingerprint(data, [0])
    data.raw(0)[:] = 0
    truth, example = data.truth(0), data[0]
    for tensor in (truth.modes, truth.probabilities, example.image, example.raters):
        tensor.zero_()
    assert fingerprint(data, [0]) == expected


def test_splits_and_seeds_differ():
    variants = [Phantoms(split, size=16, seed=seed) for split in ("train", "val", "test") for seed in (0, 1)]
    assert len({data.raw(0).tobytes() for data in variants}) == len(variants)
    assert len({variants[0].raw(i).tobytes() for i in range(50)}) == 50


def test_more_raters_or_draws_keep_the_first_ones():
    few, many = (Phantoms("val", size=16, raters=k) for k in (2, 7))
    for i in range(10):
        assert torch.equal(few[i].raters, many[i].raters[:2])
        assert torch.equal(few.draw(i, 2, seed=1), few.draw(i, 7, seed=1)[:2])


def test_variants_share_the_image():
    binary, multiclass = (Phantoms("val", size=32, variant=v) for v in VARIANTS)
    assert np.array_equal(binary.raw(3), multiclass.raw(3))
    assert torch.equal(binary.truth(3).modes[2] == 1, multiclass.truth(3).modes[3] == 1)


# --- the contract -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("size", SIZES)
def test_example_is_well_formed(size, variant):
    data = open_dataset("phantom", "test", size=size, variant=variant, count=20, raters=3)
    assert isinstance(data, SegmentationData)
    assert isinstance(data, KnownTruth)
    example = data[12]
    assert example.id == example.group == "phantom-test-00012"
    assert example.spacing == pytest.approx((0.7 * 128 / size,) * 2)
    assert example.image.shape == (1, size, size)
    assert example.image.dtype == torch.float32
    assert example.image.abs().max() <= 1
    assert example.raters.shape == (3, size, size)
    assert example.raters.dtype == torch.int64
    raw = data.info.normalization.inverse(example.image)[0].round().numpy()
    assert np.array_equal(raw.astype(np.uint8), data.raw(12))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("size", SIZES)
def test_truth_is_well_formed(size, variant):
    data = Phantoms("train", size=size, variant=variant, count=60 if size < 128 else 10)
    for i in range(len(data)):
        truth = data.truth(i)
        assert len(truth.modes) == len(truth.names) == {"binary": 3, "multiclass": 4}[variant]
        assert truth.probabilities.dtype == torch.float64
        assert truth.probabilities.sum().item() == pytest.approx(1.0, abs=1e-12)
        assert truth.probabilities.min() > 0
        assert len(torch.unique(truth.modes, dim=0)) == len(truth.modes)
        assert truth.modes.min() >= 0
        assert truth.modes.max() < data.info.num_classes
        for labels in (*data[i].raters, *data.draw(i, 3, seed=0)):
            assert any(torch.equal(labels, mode) for mode in truth.modes)


def test_multiclass_modes_share_the_vessel_and_nest():
    data = Phantoms("train", size=32, variant="multiclass", count=50)
    for i in range(50):
        nothing, core, halo, solid = data.truth(i).modes
        vessel = nothing == 3
        assert vessel.sum() >= 5
        assert all(torch.equal(mode == 3, vessel) for mode in (core, halo, solid))
        assert set(nothing.unique().tolist()) == {0, 3}
        assert set(halo.unique().tolist()) == {0, 1, 2, 3}
        assert torch.equal(core == 1, halo == 1)
        assert torch.equal((halo == 1) | (halo == 2), solid == 1)


@pytest.mark.parametrize("size", [16, 32, 128])
def test_core_and_halo_have_a_sensible_size(size):
    data = Phantoms("train", size=size, count=60)
    for i in range(60):
        nothing, core, whole = data.truth(i).modes
        assert not nothing.any()
        assert core.sum() >= 12 * (size / 32) ** 2
        assert (core <= whole).all()
        assert 0.2 < (core.sum() / whole.sum()).item() < 0.601


@pytest.mark.parametrize("index", [5, -6])
def test_index_out_of_range(index):
    data = Phantoms("val", size=16, count=5)
    for call in (data.__getitem__, data.truth, data.raw, lambda i: data.draw(i, 1, seed=0)):
        with pytest.raises(IndexError):
            call(index)
    assert data[-1].id == data[4].id
    assert len(list(data)) == 5


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"split": "dev"}, "test, train, val"),
        ({"size": 7}, "size"),
        ({"variant": "ternary"}, "variant"),
        ({"count": 0}, "count"),
        ({"raters": 0}, "raters"),
        ({"seed": -1}, "seed"),
    ],
)
def test_invalid_option_is_named(options, named):
    with pytest.raises(UserError, match=named):
        Phantoms(**{"split": "val", **options})


@pytest.mark.parametrize(("n", "seed"), [(0, 0), (2, -1)])
def test_invalid_draw_is_refused(n, seed):
    with pytest.raises(UserError, match=f"n={n}, seed={seed}"):
        Phantoms("val", size=16).draw(0, n, seed)


# --- the distribution -------------------------------------------------------------------------------------

ALARM = 1e-4  # false-alarm rate of each chi-square test below over random seeds


@lru_cache
def many_images(variant: str) -> Phantoms:
    return Phantoms("train", size=8, variant=variant, count=1500, raters=4)


def chi_square_tail(observed: np.ndarray, expected: np.ndarray) -> float:
    return float(stats.chi2.sf(((observed - expected) ** 2 / expected).sum(), len(observed) - 1))


def mode_counts(labels: torch.Tensor, modes: torch.Tensor) -> np.ndarray:
    return (labels[:, None] == modes).all(-1).all(-1).sum(0).numpy()


@pytest.mark.parametrize("variant", VARIANTS)
def test_raters_follow_the_truth_over_many_images(variant):
    """Compare counts of each mode among images of similar P(mode), in four groups per mode.

    Grouping detects a bias towards likely modes that leaves the totals unchanged. Within a group the count is a sum of
    independent draws; the binomial variance n·p·(1-p) of its mean probability is an upper bound, so the test is
    conservative. Bonferroni over the groups keeps the stated rate.
    """
    data = many_images(variant)
    truths = [data.truth(i) for i in range(len(data))]
    p = np.stack([t.probabilities.numpy() for t in truths])
    counts = np.stack([mode_counts(data[i].raters, t.modes) for i, t in enumerate(truths)])
    for mode in range(p.shape[1]):
        for group in np.array_split(np.argsort(p[:, mode]), 4):
            n, mean = 4 * len(group), p[group, mode].mean()
            observed = np.array([counts[group, mode].sum(), n - counts[group, mode].sum()])
            assert chi_square_tail(observed, n * np.array([mean, 1 - mean])) > ALARM / (4 * p.shape[1])


@pytest.mark.parametrize("variant", VARIANTS)
def test_draws_of_one_image_follow_its_truth(variant):
    data = Phantoms("val", size=8, variant=variant)
    for i in range(5):
        truth = data.truth(i)
        observed = mode_counts(data.draw(i, 4000, seed=11), truth.modes)
        assert chi_square_tail(observed, 4000 * truth.probabilities.numpy()) > ALARM / 5


def test_raters_are_independent_of_each_other():
    """Two raters agree as often as independent draws do (z-test)."""
    data = many_images("binary")
    agree = np.array([torch.equal(*example.raters[:2]) for example in data], float)
    chance = np.array([(data.truth(i).probabilities ** 2).sum().item() for i in range(len(data))])
    z = (agree - chance).sum() / np.sqrt((chance * (1 - chance)).sum())
    assert 2 * stats.norm.sf(abs(z)) > ALARM


def test_probabilities_cover_their_ranges():
    data = many_images("multiclass")
    p = np.stack([data.truth(i).probabilities.numpy() for i in range(len(data))])
    nothing, halo = p[:, 0], p[:, 2:].sum(1) / p[:, 1:].sum(1)
    solid = p[:, 3] / p[:, 2:].sum(1)
    assert nothing.min() >= 0.05 - 1e-9
    assert nothing.max() <= 0.70 + 1e-9
    for values, low, high in ((nothing, 0.15, 0.60), (halo, 0.18, 0.82), (solid, 0.18, 0.82)):
        assert np.quantile(values, 0.1) < low
        assert np.quantile(values, 0.9) > high


# --- the image determines the probabilities ----------------------------------------------------------


def readings(data: Phantoms, index: int) -> tuple[float, float]:
    """Median contrasts of core and halo against the tissue around them, in gray levels."""
    image, (_, core, whole) = data.raw(index).astype(float), data.truth(index).modes.bool().numpy()
    around = ndimage.binary_dilation(whole, iterations=max(2, data.config.size // 12)) & ~whole
    tissue = np.median(image[around])
    return np.median(image[core]) - tissue, np.median(image[whole & ~core]) - tissue


@pytest.mark.parametrize("size", [32, 128])
def test_contrast_predicts_the_probabilities(size):
    data = Phantoms("train", size=size, variant="binary", count=150)
    core, halo = np.array([readings(data, i) for i in range(150)]).T
    p = np.stack([data.truth(i).probabilities.numpy() for i in range(150)])
    with_halo = p[:, 2] / (p[:, 1] + p[:, 2])
    assert np.corrcoef(core, p[:, 0])[0, 1] < -0.9
    assert np.corrcoef(halo, with_halo)[0, 1] > 0.9


@pytest.mark.parametrize("size", [32, 128])
def test_gap_between_core_and_halo_predicts_all_solid(size):
    binary, multiclass = (Phantoms("train", size=size, variant=v, count=150) for v in VARIANTS)
    gap = [np.subtract(*readings(binary, i)) for i in range(150)]
    p = np.stack([multiclass.truth(i).probabilities.numpy() for i in range(150)])
    assert np.corrcoef(gap, p[:, 3] / p[:, 2:].sum(1))[0, 1] < -0.9


# --- volumes -----------------------------------------------------------------------------------------------


def test_readings_of_a_volume_hold_together():
    """Each rater draws a whole mode, in proportion to its probability, and modes differ in several slices."""
    data = PhantomVolumes("train", size=32, slices=12, count=4, raters=300)
    for i in range(len(data)):
        truth, raters = data.truth(i), data[i].raters
        assert tuple(truth.modes.shape) == (3, 12, 32, 32)
        same = (raters[:, None] == truth.modes).flatten(2).all(2)
        assert (same.sum(1) == 1).all()
        frequencies = same.double().mean(0)
        assert stats.chisquare(300 * frequencies, 300 * truth.probabilities).pvalue > 1e-4
        nothing, core, whole = truth.modes
        assert nothing.sum() == 0
        assert (core <= whole).all()
        assert core.sum() <= 0.6 * whole.sum()
        differ = (core != whole).flatten(1).any(1)
        assert differ.sum() >= 4


def test_core_and_halo_of_a_volume_are_solid_balls_that_can_be_seen():
    data = PhantomVolumes("val", size=64, slices=18, count=12)
    for i in range(len(data)):
        core, whole = data.truth(i).modes[1:].bool().numpy()
        for part in (core, whole):
            assert ndimage.label(part)[1] == 1
            deep, wide = (np.ptp(np.flatnonzero(part.any(axes))) + 1 for axes in ((1, 2), (0, 1)))
            assert 0.6 < deep * 2.0 / (wide * 1.4) < 1.4, "slices are 2 mm apart, columns 1.4 mm"
        image = data.raw(i).astype(float)
        rim = ndimage.binary_dilation(whole, iterations=3) & ~whole
        assert image[core].mean() > image[whole & ~core].mean() + 10
        assert image[whole & ~core].mean() > np.median(image[rim]) + 5


def test_one_slice_is_a_volume():
    data = PhantomVolumes("val", size=16, slices=1, count=2)
    assert data[0].image.shape == (1, *data.space(0)) == (1, 1, 16, 16)
    with pytest.raises(UserError, match="slices.* 0"):
        PhantomVolumes("val", slices=0)
