"""Registries that other packages extend: a fake package on `sys.path` stands for an installed one."""

import sys

import pytest

from stochseg.errors import UserError
from stochseg.plugins import Registry
from tests.support.packages import install_package


@pytest.fixture
def shapes():
    registry = Registry("shape", "stochseg.shapes")
    registry["circle"] = "round"
    return registry


def test_entry_point_is_listed_before_and_loaded_when_looked_up(shapes, tmp_path, monkeypatch):
    install_package(tmp_path, monkeypatch, "hexagons", "HEXAGON = 'six'", {"stochseg.shapes": {"hexagon": "HEXAGON"}})
    assert list(shapes) == ["circle", "hexagon"]
    assert len(shapes) == 2
    assert "hexagon" in shapes
    assert "hexagons" not in sys.modules
    assert shapes.find("hexagon") == shapes["hexagon"] == "six"


def test_other_groups_are_not_searched(shapes, tmp_path, monkeypatch):
    install_package(tmp_path, monkeypatch, "hexagons", "HEXAGON = 'six'", {"stochseg.colors": {"hexagon": "HEXAGON"}})
    assert list(shapes) == ["circle"]
    assert "hexagon" not in shapes
    assert shapes.get("hexagon") is None


def test_registered_entry_takes_precedence(shapes, tmp_path, monkeypatch):
    install_package(tmp_path, monkeypatch, "circles", "CIRCLE = 'flat'", {"stochseg.shapes": {"circle": "CIRCLE"}})
    assert shapes["circle"] == "round"
    assert list(shapes) == ["circle"]


def test_module_may_register_the_name_itself(shapes, tmp_path, monkeypatch):
    code = "from tests import test_plugins\nHEXAGON = 'six'\ntest_plugins.current['hexagon'] = 'sides'"
    monkeypatch.setattr(sys.modules[__name__], "current", shapes, raising=False)
    install_package(tmp_path, monkeypatch, "hexagons", code, {"stochseg.shapes": {"hexagon": "HEXAGON"}})
    assert shapes["hexagon"] == "sides"


@pytest.mark.parametrize("code", ["import no_such_module", "other = 1", "raise RuntimeError('half installed')"])
def test_broken_entry_point_fails_only_when_looked_up(shapes, tmp_path, monkeypatch, code):
    install_package(tmp_path, monkeypatch, "hexagons", code, {"stochseg.shapes": {"hexagon": "HEXAGON"}})
    assert shapes.find("circle") == "round"
    assert sorted(shapes) == ["circle", "hexagon"]
    with pytest.raises(UserError, match="'hexagon'.*hexagons:HEXAGON"):
        shapes.find("hexagon")


def test_name_declared_by_two_packages_is_an_error(shapes, tmp_path, monkeypatch):
    for package in ("hexagons", "sixes"):
        install_package(tmp_path, monkeypatch, package, "X = 6", {"stochseg.shapes": {"hexagon": "X"}})
    with pytest.raises(UserError, match="hexagons and sixes"):
        shapes.find("hexagon")


def test_unknown_name_lists_plugins_too(shapes, tmp_path, monkeypatch):
    install_package(tmp_path, monkeypatch, "hexagons", "X = 6", {"stochseg.shapes": {"hexagon": "X"}})
    with pytest.raises(UserError, match="shape 'square'.*circle, hexagon"):
        shapes.find("square")


def test_deleted_entry_is_unknown(shapes):
    del shapes["circle"]
    assert "circle" not in shapes
    with pytest.raises(KeyError, match="circle"):
        shapes["circle"]
