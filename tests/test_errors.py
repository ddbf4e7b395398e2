"""Names in registries: hyphens where users type them, underscores of older files still accepted."""

from __future__ import annotations

import pytest

from stochseg.core import GAUSSIAN_STEPS, GRIDS, NOISES, OBJECTIVES, SAMPLERS, SCHEDULES
from stochseg.errors import UserError, lookup


@pytest.mark.parametrize("name", ["one-step-kernel", "one_step_kernel"])
def test_both_spellings_find_the_entry(name):
    assert lookup("sampler", SAMPLERS, name) is SAMPLERS["one-step-kernel"]


def test_a_name_with_underscores_of_its_own_is_found():
    assert lookup("metric", {"hm_iou": 1, "hm-iou": 2}, "hm_iou") == 1


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UserError, match="unknown sampler 'euler'; known: a, b"):
        lookup("sampler", {"b": 1, "a": 2}, "euler")


def test_a_name_of_another_type_is_unknown():
    with pytest.raises(UserError, match="unknown sampler 3; known: a"):
        lookup("sampler", {"a": 1}, 3)


@pytest.mark.parametrize("registry", [GAUSSIAN_STEPS, GRIDS, NOISES, OBJECTIVES, SAMPLERS, SCHEDULES])
def test_names_that_users_type_have_no_underscores(registry):
    assert [name for name in registry if "_" in name] == []
