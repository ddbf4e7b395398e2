"""The process in float32, at the paper's T=250: precision, batches of mixed jumps, forward draws, void, errors.

Exactness itself is proved in test_exact.py. Statistical tests: fixed seeds, p-value above 1e-7 (the false-alarm
rate of each).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from stochseg.core import CategoricalProcess, SeededNoise, cosine, kl_terms
from stochseg.errors import UserError

T = 250
FALSE_ALARM = 1e-7


def process(num_classes: int) -> CategoricalProcess:
    return CategoricalProcess(cosine(T), num_classes)


def predictions(num_classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x_t "12 1 1" and log_p0 "12 l 1 1" in float32: logits of scale 1, 10 and 100, x_t likely and unlikely."""
    generator = torch.Generator().manual_seed(0)
    scale = torch.tensor([1.0, 10.0, 100.0]).repeat(4).reshape(12, 1, 1, 1)
    logits = scale * torch.randn(12, num_classes, 1, 1, generator=generator)
    x_t = logits.argmax(1)
    x_t[6:] = logits[6:].argmin(1)
    return x_t, torch.log_softmax(logits, 1)


@pytest.mark.parametrize("num_classes", [2, 20])
def test_float32_posterior_is_exact_to_a_millionth_for_every_jump(num_classes):
    p = process(num_classes)
    x_t, log_p0 = predictions(num_classes)
    rows = len(x_t)
    for t in range(1, T + 1):
        jumps = torch.full((t * rows,), t), torch.arange(t).repeat_interleave(rows)
        x_ts, log_p0s = x_t.repeat(t, 1, 1), log_p0.repeat(t, 1, 1, 1)
        got = p.posterior(x_ts, log_p0s, *jumps)
        assert got.dtype == torch.float32
        got = got.double().exp()
        want = p.posterior(x_ts, log_p0s.double(), *jumps).exp()
        assert (got - want).abs().max() < 1e-6
        assert (got.sum(1) - 1).abs().max() < 1e-6


def test_the_posterior_at_zero_is_p0_itself():
    x_t, log_p0 = predictions(20)
    for t in (1, 100, T):
        got = process(20).posterior(x_t, log_p0, torch.full((12,), t), torch.zeros(12, dtype=torch.int64))
        assert torch.equal(got, log_p0)


def test_rows_of_one_batch_may_jump_differently():
    p = process(5)
    generator = torch.Generator().manual_seed(1)
    x_t = torch.randint(5, (40, 3, 2), generator=generator)
    log_p0 = torch.log_softmax(3 * torch.randn(40, 5, 3, 2, generator=generator, dtype=torch.float64), 1)
    t = torch.randint(1, T + 1, (40,), generator=generator)
    s = (torch.rand(40, generator=generator) * t).long()
    together = p.posterior(x_t, log_p0, t, s)
    for i in range(40):
        row = slice(i, i + 1)
        apart = p.posterior(x_t[row], log_p0[row], t[row], s[row])
        torch.testing.assert_close(together[row], apart, atol=1e-12, rtol=0)


def test_posterior_leaves_its_inputs_alone():
    x_t, log_p0 = predictions(4)
    before = x_t.clone(), log_p0.clone()
    process(4).posterior(x_t, log_p0, torch.full((12,), 9), torch.full((12,), 8))
    assert torch.equal(x_t, before[0])
    assert torch.equal(log_p0, before[1])


def draws(p: CategoricalProcess, x0: int, t: int, **kwargs) -> torch.Tensor:
    """100,000 forward draws of one label at step t."""
    labels = torch.full((1, 250, 400), x0)
    return p.q_sample(labels, torch.tensor([t]), SeededNoise([(11, x0, t)]), **kwargs)


@pytest.mark.parametrize("t", [20, 60, 125, 200, T])
def test_q_sample_has_the_frequencies_of_q_marginal(t):
    p = process(5)
    counts = np.bincount(draws(p, 3, t).flatten().numpy(), minlength=5)
    expected = p.q_marginal(torch.tensor([[[3]]]), torch.tensor([t]), torch.float64).exp().flatten().numpy()
    np.testing.assert_allclose(expected.sum(), 1, atol=1e-12)
    assert chisquare(counts, expected * counts.sum()).pvalue > FALSE_ALARM


def test_q_sample_at_zero_is_x0():
    assert bool((draws(process(5), 3, 0) == 3).all())


def test_q_sample_takes_one_step_per_row():
    """Row i at t[i] equals a batch of one."""
    p = process(7)
    x0 = torch.randint(7, (4, 8, 8), generator=torch.Generator().manual_seed(2))
    t = torch.tensor([0, 50, 150, T])
    together = p.q_sample(x0, t, SeededNoise((i,) for i in range(4)))
    for i in range(4):
        apart = p.q_sample(x0[i : i + 1], t[i : i + 1], SeededNoise([(i,)]))
        assert torch.equal(together[i : i + 1], apart)


def test_void_pixels_are_uniform_and_do_not_depend_on_x0():
    p = process(5)
    mask = torch.zeros(1, 250, 400, dtype=torch.bool)
    mask[:, :100] = True
    void = {}
    for x0 in (0, 4, 255):
        labels = torch.full((1, 250, 400), 2).masked_fill(~mask, x0)
        x_t = p.q_sample(labels, torch.tensor([1]), SeededNoise([(1,)]), mask)
        void[x0] = x_t[~mask]
        unmasked = p.q_sample(torch.full((1, 250, 400), 2), torch.tensor([1]), SeededNoise([(1,)]))
        assert torch.equal(x_t[mask], unmasked[mask])
    assert torch.equal(void[0], void[4])
    assert torch.equal(void[0], void[255])
    assert chisquare(np.bincount(void[255].numpy(), minlength=5)).pvalue > FALSE_ALARM


@pytest.mark.parametrize("space", [(12,), (2, 3, 2)])
def test_the_same_pixels_in_another_shape_give_the_same_draws_and_terms(space):
    p, t, generator = process(3), torch.tensor([9, T]), torch.Generator().manual_seed(3)
    x0 = torch.randint(3, (2, 12), generator=generator)
    log_p0 = torch.randn(2, 3, 12, generator=generator).log_softmax(1)
    mask = torch.rand(2, 12, generator=generator) < 0.6

    def forward(*space):
        labels, valid = x0.view(2, *space), mask.view(2, *space)
        x_t = p.q_sample(labels, t, SeededNoise([(0,), (1,)]), valid)
        return x_t.flatten(1), kl_terms(p, log_p0.view(2, 3, *space), labels, x_t, t, valid).flatten(1)

    for got, expected in zip(forward(*space), forward(3, 4), strict=True):
        assert torch.equal(got, expected)


def test_prior_is_uniform():
    counts = np.bincount(process(6).prior((1, 250, 400), SeededNoise([(0,)])).flatten().numpy(), minlength=6)
    assert chisquare(counts).pvalue > FALSE_ALARM


def test_log_onehot():
    got = process(3).log_onehot(torch.tensor([[[2, 0]]]), torch.float64)
    assert got.dtype == torch.float64
    assert got.exp()[0, :, 0].T.tolist() == [[0, 0, 1], [1, 0, 0]]


@pytest.mark.parametrize("shape", [(2, 4, 8, 8), (1, 3, 8, 8), (2, 3, 8, 9), (2, 3, 64)])
def test_a_wrong_log_p0_names_the_expected_shape(shape):
    x_t = torch.zeros(2, 8, 8, dtype=torch.int64)
    with pytest.raises(UserError) as error:
        process(3).posterior(x_t, torch.zeros(shape), torch.tensor([5, 5]), torch.tensor([4, 4]))
    assert 'log_p0 "b l *space": expected (2, 3, 8, 8)' in str(error.value)
    assert f"got {shape}" in str(error.value)


@pytest.mark.parametrize(("t", "s"), [([5, 5], [4, 5]), ([5, 5], [6, 4]), ([5, 0], [4, -1]), ([5, T + 1], [4, T])])
def test_an_impossible_jump_raises(t, s):
    x_t = torch.zeros(2, 1, 1, dtype=torch.int64)
    with pytest.raises(UserError) as error:
        process(2).posterior(x_t, torch.zeros(2, 2, 1, 1), torch.tensor(t), torch.tensor(s))
    assert str(error.value) == f"a jump needs 0 <= s < t <= 250, got t={t}, s={s}"


def test_a_single_label_raises():
    with pytest.raises(UserError, match=r"num_classes \(L\) must be at least 2, got 1"):
        process(1)
