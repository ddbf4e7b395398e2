"""Files of pretrained weights: whether a network really got what a file has."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from stochseg.errors import UserError
from stochseg.networks.weight_files import check_loaded


def network() -> nn.Module:
    return nn.Sequential(*(nn.Conv2d(64, 64, 3) for _ in range(5)))


def test_weights_count_as_loaded_in_any_memory_layout_and_under_any_name():
    own = network()
    renamed = {f"old.{i}": value for i, value in enumerate(deepcopy(own).state_dict().values())}
    check_loaded(own.to(memory_format=torch.channels_last), renamed, "weights.pth")


def test_a_network_that_kept_its_random_weights_is_refused():
    with pytest.raises(UserError, match=r"weights\.pth.*5 of 5.*0\.weight"):
        check_loaded(network(), network().state_dict(), "weights.pth")
