"""Uniforms and the draws made of them. Statistical tests: fixed seeds, p-value above 1e-7 (the false-alarm rate)."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, norm

from stochseg.core import (
    NOISES,
    BatchNoise,
    LatinNoise,
    SeededNoise,
    draw_categorical,
    draw_normal,
    draw_uniform_labels,
)
from stochseg.errors import UserError

LARGEST = 1 - 2**-24  # the largest float32 below 1, and the largest uniform either generator returns
FALSE_ALARM = 1e-7

uniforms = st.one_of(st.sampled_from([0.0, 2**-24, 0.5, LARGEST]), st.floats(0, LARGEST, width=32))
weights = st.lists(st.one_of(st.just(0.0), st.floats(1e-30, 1.0)), min_size=2, max_size=24).filter(any)


def log_probabilities(values: list[float], offset: float = 0.0) -> torch.Tensor:
    """One pixel, "1 l 1 1": the normalized weights, all logs off by `offset`."""
    total = math.fsum(values)
    logs = [math.log(v / total) + offset if v else -math.inf for v in values]
    return torch.tensor(logs, dtype=torch.float32).reshape(1, -1, 1, 1)


@settings(deadline=None, derandomize=True)
@given(values=weights, u=uniforms, offset=st.floats(-0.1, 0.1))
@example(values=[0.0, 1.0, 0.0], u=0.0, offset=0.0)
@example(values=[0.0, 1.0, 0.0], u=LARGEST, offset=-0.1)
@example(values=[1.0, 1e-30, 0.0], u=LARGEST, offset=0.1)
def test_draw_equals_a_brute_force_search_and_is_never_an_impossible_label(values, u, offset):
    log_p = log_probabilities(values, offset)
    drawn = draw_categorical(log_p, torch.full((1, 1, 1), u)).item()
    p = log_p.exp().flatten().tolist()
    running = list(itertools.accumulate(p))
    assert drawn == next(k for k, end in enumerate(running) if end > u * running[-1])
    assert p[drawn] > 0


@pytest.mark.parametrize("u", [0.0, LARGEST])
@pytest.mark.parametrize("label", range(20))
def test_a_certain_label_is_drawn_at_either_end(u, label):
    log_p = log_probabilities([float(k == label) for k in range(20)])
    assert draw_categorical(log_p, torch.full((1, 1, 1), u)).item() == label


def test_draw_has_the_frequencies_of_the_distribution():
    p = np.array([0.001, 0.5, 0.0, 0.2, 0.249, 0.05])
    log_p = torch.tensor(p, dtype=torch.float32).log().reshape(1, 6, 1, 1).expand(4, 6, 250, 400)
    drawn = draw_categorical(log_p, SeededNoise((7, i) for i in range(4)).uniform((4, 250, 400)))
    assert drawn.dtype == torch.int64
    counts = np.bincount(drawn.flatten().numpy(), minlength=6)
    assert counts[2] == 0
    seen = p > 0
    assert chisquare(counts[seen], p[seen] * counts.sum()).pvalue > FALSE_ALARM


def test_a_thousand_labels_are_drawn_as_exactly_as_two():
    """The running sum must not lose digits: in float32 about ten of these pixels would get a neighbor."""
    log_p = torch.randn(1000, generator=torch.Generator().manual_seed(0)).log_softmax(0)
    u = SeededNoise([(5,)]).uniform((1, 100, 100))
    running = np.cumsum(log_p.exp().double().numpy())
    expected = np.searchsorted(running, u.double().numpy() * running[-1], side="right")
    drawn = draw_categorical(log_p.reshape(1, 1000, 1, 1).expand(1, 1000, 100, 100), u)
    np.testing.assert_array_equal(drawn, expected)


def test_each_pixel_uses_its_own_distribution():
    labels = torch.randint(5, (2, 3, 4), generator=torch.Generator().manual_seed(0))
    log_p = torch.full((2, 5, 3, 4), -math.inf).scatter_(1, labels[:, None], 0.0)
    assert torch.equal(draw_categorical(log_p, torch.rand(2, 3, 4)), labels)


def test_normal_numbers_are_the_quantiles_of_their_uniforms():
    u = torch.linspace(0.001, 0.999, 101)
    np.testing.assert_allclose(draw_normal(u).numpy(), norm.ppf(u.double().numpy()), rtol=1e-4, atol=1e-6)


def test_normal_numbers_are_finite_and_symmetric_to_the_last_uniform():
    low, high = torch.tensor([0.0, 2**-24, 0.25]), torch.tensor([LARGEST, LARGEST - 2**-24, 0.75 - 2**-24])
    assert torch.equal(draw_normal(low), -draw_normal(high))
    assert 5 < draw_normal(torch.tensor(LARGEST)) < 5.5


def test_uniform_labels_reach_both_ends_and_no_further():
    ends = torch.tensor([0.0, LARGEST])
    for num_classes in range(2, 1001):
        assert draw_uniform_labels(ends, num_classes).tolist() == [0, num_classes - 1]


def test_uniform_labels_are_uniform():
    drawn = draw_uniform_labels(SeededNoise([(3,)]).uniform((1, 200_000)), 19)
    assert chisquare(np.bincount(drawn.flatten().numpy(), minlength=19)).pvalue > FALSE_ALARM


KEYS = [(5, image, sample) for image in range(4) for sample in range(4)]


@settings(deadline=None, derandomize=True)
@given(order=st.permutations(range(len(KEYS))), size=st.integers(1, len(KEYS)))
def test_a_row_depends_on_its_key_only(order, size):
    """Two draws of 16 rows, against any smaller batch of them in any order."""
    together = SeededNoise(KEYS)
    first, second = together.uniform((16, 3, 5)), together.uniform((16, 2))
    rows = list(order[:size])
    apart = SeededNoise(KEYS[i] for i in rows)
    assert torch.equal(apart.uniform((size, 3, 5)), first[rows])
    assert torch.equal(apart.uniform((size, 2)), second[rows])


def test_a_stream_continues_across_calls():
    """Only the number of values drawn so far matters, odd counts included."""
    whole = SeededNoise([(1, 2)]).uniform((1, 12))
    parts = SeededNoise([(1, 2)])
    assert torch.equal(torch.cat([parts.uniform((1, n)) for n in (3, 4, 5)], dim=1), whole)


def test_different_keys_give_different_streams():
    keys = [(1, 2), (1, 2, 0), (1, 2, 0, 0), (2, 1), (1,), (1, 0), (0, 1), (12,), (2**62, 0), (2**62 + 1, 0)]
    rows = SeededNoise(keys).uniform((len(keys), 8))
    for a, b in itertools.combinations(range(len(keys)), 2):
        assert not torch.equal(rows[a], rows[b]), (keys[a], keys[b])


def test_seeded_uniforms_are_float32_in_the_unit_interval():
    u = SeededNoise([(0,)]).uniform((1, 1_000_000))
    assert u.dtype == torch.float32
    assert u.min() >= 0
    assert u.max() <= LARGEST
    assert chisquare(np.histogram(u.numpy(), bins=50, range=(0, 1))[0]).pvalue > FALSE_ALARM


def test_a_wrong_number_of_rows_raises():
    with pytest.raises(UserError, match="2 rows.*got 3"):
        SeededNoise([(0,), (1,)]).uniform((3, 4, 4))


def test_batch_noise_follows_its_generator():
    noise, again = (BatchNoise(torch.Generator().manual_seed(4)) for _ in range(2))
    first = noise.uniform((2, 3))
    assert torch.equal(first, again.uniform((2, 3)))
    assert not torch.equal(first, noise.uniform((2, 3)))


def test_batch_noise_without_a_generator_is_the_global_one():
    torch.manual_seed(9)
    expected = torch.rand(2, 3)
    torch.manual_seed(9)
    assert torch.equal(BatchNoise().uniform((2, 3)), expected)


IMAGES = [(5, 0), (5, 1), (5, 2)]


@pytest.mark.parametrize("n", [1, 2, 7, 16])
def test_latin_noise_fills_every_part_once_at_every_place(n):
    u = LatinNoise(IMAGES, n, range(3 * n)).uniform((3 * n, 20, 11))
    assert u.dtype == torch.float32
    assert 0 <= u.min() <= u.max() <= LARGEST
    parts = (u.double() * n).floor().view(3, n, 20, 11).sort(1).values
    assert torch.equal(parts, torch.arange(n, dtype=torch.float64).view(1, n, 1, 1).expand_as(parts))


def test_no_two_samples_of_latin_noise_are_correlated_more_than_necessary():
    """n values that fill n parts once correlate by -1/(n - 1) on average; no pair of samples should stand out."""
    n = 16
    correlation = np.corrcoef(LatinNoise(IMAGES[:1], n, range(n)).uniform((n, 100_000)).numpy())
    assert np.abs(correlation[~np.eye(n, dtype=bool)] + 1 / (n - 1)).max() < 0.06


def test_one_sample_of_latin_noise_is_plain_uniform():
    noise = LatinNoise([(4,)], 8, range(8))
    for row in noise.uniform((8, 100_000)):
        assert chisquare(np.histogram(row.numpy(), bins=64, range=(0, 1))[0]).pvalue > FALSE_ALARM
    # Places are independent of each other, also from one call to the next.
    a, b = (noise.uniform((8, 50_000))[3].numpy() for _ in range(2))
    table = np.histogram2d(a, b, bins=8, range=[[0, 1]] * 2)[0]
    assert chisquare(table.flatten()).pvalue > FALSE_ALARM


@pytest.mark.parametrize("name", NOISES)
def test_noise_of_some_rows_is_that_of_all(name):
    """A chunk of the samples receives the same noise as in one batch of all images."""
    whole = NOISES[name](IMAGES, 4, range(12), "cpu")
    first, second = whole.uniform((12, 5)), whole.uniform((12, 3, 2))
    for rows in (range(5), range(3, 4), range(4, 12), range(7, 10)):
        part = NOISES[name](IMAGES, 4, rows, "cpu")
        assert torch.equal(part.uniform((len(rows), 5)), first[rows.start : rows.stop])
        assert torch.equal(part.uniform((len(rows), 3, 2)), second[rows.start : rows.stop])
        with pytest.raises(UserError, match=f"{len(rows)} rows.*got 40"):
            part.uniform((40, 2))
