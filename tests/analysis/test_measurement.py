"""Statistics of measurements."""

import numpy as np
import pytest

from stochseg.analysis import Measurement
from stochseg.errors import UserError


def test_integer_weights_equal_repeated_values():
    rng = np.random.default_rng(0)
    values, copies = rng.integers(0, 6, 10).astype(float), rng.integers(1, 5, 10)
    weighted = Measurement("x", values, copies / copies.sum())
    many = np.repeat(values, copies)
    assert weighted.mean == pytest.approx(many.mean())
    assert weighted.std == pytest.approx(many.std())
    for q in (0, 0.05, 0.25, 0.5, 0.9, 1):
        assert weighted.quantile(q) == np.quantile(many, q, method="inverted_cdf")
    assert weighted.interval(0.8) == (weighted.quantile(0.1), weighted.quantile(0.9))
    for sign, holds in ((">", many > 3), (">=", many >= 3), ("<", many < 3), ("<=", many <= 3), ("==", many == 3)):
        assert weighted.probability(sign, 3) == pytest.approx(holds.mean())


def test_quantiles_are_exact_despite_rounding():
    tenth = Measurement("x", np.arange(10.0), np.full(10, 0.1))
    assert [tenth.quantile(q / 10) for q in range(1, 11)] == list(range(10))
    zero = Measurement("x", np.array([5.0, 1.0, 9.0]), np.array([1.0, 0.0, 0.0]))
    assert zero.interval() == (5, 5)
    with pytest.raises(UserError, match="unknown comparison '=>'"):
        tenth.probability("=>", 3)
    with pytest.raises(UserError, match="threshold.*got '3'"):
        tenth.probability(">", "3")
    with pytest.raises(UserError, match="quantile.*got 'x'"):
        tenth.quantile("x")
    with pytest.raises(UserError, match="confidence.*got None"):
        tenth.interval(None)
    with pytest.raises(UserError, match="confidence.*90"):
        tenth.interval(90)


def test_effective_count_of_equal_and_unequal_weights():
    values = np.arange(4.0)
    assert Measurement("x", values, np.full(4, 0.25)).effective_count == pytest.approx(4)
    assert Measurement("x", values, np.array([0.5, 0.5, 0.0, 0.0])).effective_count == pytest.approx(2)


def test_repr_and_html():
    measured = Measurement("a < b", np.full(4, 6.0), np.full(4, 0.25), "mm²")
    assert repr(measured) == "a < b: 6 mm², std 0, 90% 6 to 6 mm² (4 samples)"
    assert "a &lt; b" in measured._repr_html_()
