"""Configs: frozen, strict about keys, with errors that name the mistake."""

from typing import ClassVar

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


def test_an_unknown_key_lists_the_known_keys_of_its_level():
    with pytest.raises(UserError, match=r"run\.yaml: unknown key 'wdth'; known keys: extra, inner, width"):
        Outer.parse({"width": 1, "wdth": 2}, where="run.yaml")
    with pytest.raises(UserError, match=r"unknown key 'inner\.dept'; known keys: depth$"):
        Outer.parse({"width": 1, "inner": {"dept": 2}})


def test_every_mistake_is_reported_with_its_value():
    with pytest.raises(UserError) as caught:
        Outer.parse({"width": "wide", "inner": {"depth": 1.5}, "x": 0})
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert any("'width'" in line and "'wide'" in line for line in lines)
    assert any("'inner.depth'" in line and "1.5" in line for line in lines)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "nan"])
def test_numbers_must_be_finite(value):
    with pytest.raises(UserError, match="'width'"):
        Outer.parse({"width": value})


@pytest.mark.parametrize("values", [3, "width", None, [1, 2]])
def test_values_must_be_a_mapping(values):
    with pytest.raises(UserError, match="config: expected keys such as extra, inner, width; got"):
        Outer.parse(values)


def test_configs_are_frozen():
    config = Outer.parse({"width": 1})
    with pytest.raises(ValidationError):
        config.width = 2


class Renamed(Inner):
    renamed_keys: ClassVar = {"wide": "width"}
    width: int = 1


class RenamedTwice(Renamed):
    renamed_keys: ClassVar = {"deep": "depth"}


def test_old_keys_are_read_under_their_current_names():
    assert RenamedTwice.parse({"wide": 3, "deep": 2}) == RenamedTwice(width=3, depth=2)
    with pytest.raises(UserError, match="^config: 'wide'.*'width'.*remove one"):
        RenamedTwice.parse({"wide": 3, "width": 3})
    with pytest.raises(UserError, match="unknown key 'deep'"):
        Renamed.parse({"deep": 2})
