"""Devices by name."""

from __future__ import annotations

import pytest
import torch

from stochseg.devices import pick_device
from stochseg.errors import UserError


@pytest.mark.parametrize("name", ["auto", "cpu"])
def test_a_device_that_works_is_returned(name):
    assert torch.ones(1, device=pick_device(name)).item() == 1


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x"])
def test_an_unknown_name_lists_the_devices_in_one_line(name):
    with pytest.raises(UserError, match=f"{name!r}.*auto, cpu, cuda, cuda:N, mps") as error:
        pick_device(name)
    assert len(str(error.value)) < 100


def test_an_unavailable_device_is_named():
    with pytest.raises(UserError, match="'cuda:99'.*--device cpu"):
        pick_device("cuda:99")
