"""Configs: frozen, strict about keys, with errors a person can act on."""

import pytest
from pydantic import ValidationError

from stochseg.config import Config
from stochseg.errors import UserError


class Inner(Config):
    depth: int = 1


class Outer(Config):
    width: float
    inner: Inner = Inner()
    extra: tuple[int, ...] = ()


def test_unknown_keys_are_answered_with_the_known_ones_of_their_level():
    with pytest.raises(UserError, match=r"run\.yaml: unknown key 'wdth'; known keys: extra, inner, width"):
        Outer.parse({"width": 1, "wdth": 2}, where="run.yaml")
    with pytest.raises(UserError, match=r"unknown key 'inner\.dept'; known keys: depth$"):
        Outer.parse({"width": 1, "inner": {"dept": 2}})


def test_every_mistake_is_reported_with_what_came():
    with pytest.raises(UserError) as caught:
        Outer.parse({"width": "wide", "inner": {"depth": 1.5}, "x": 0})
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert any("'width'" in line and "'wide'" in line for line in lines)
    assert any("'inner.depth'" in line and "1.5" in line for line in lines)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "nan"])
def test_numbers_are_finite(value):
    with pytest.raises(UserError, match="'width'"):
        Outer.parse({"width": value})


@pytest.mark.parametrize("values", [3, "width", None, [1, 2]])
def test_what_is_no_mapping_is_refused(values):
    with pytest.raises(UserError, match="config: expected keys such as extra, inner, width; got"):
        Outer.parse(values)


def test_a_config_cannot_change_after_it_was_made():
    config = Outer.parse({"width": 1})
    with pytest.raises(ValidationError):
        config.width = 2
