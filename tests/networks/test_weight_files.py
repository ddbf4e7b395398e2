"""Files of weights: read without running code, and whether a network really got what a file has."""

from __future__ import annotations

import os
import zipfile
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn

from stochseg.errors import UserError
from stochseg.networks.weight_files import check_loaded, read_tensor_file


def network() -> nn.Module:
    return nn.Sequential(*(nn.Conv2d(64, 64, 3) for _ in range(5)))


def test_weights_count_as_loaded_in_any_memory_layout_and_under_any_name():
    own = network()
    renamed = {f"old.{i}": value for i, value in enumerate(deepcopy(own).state_dict().values())}
    check_loaded(own.to(memory_format=torch.channels_last), renamed, "weights.pth")


def test_a_network_that_kept_its_random_weights_is_refused():
    with pytest.raises(UserError, match=r"weights\.pth.*5 of 5.*0\.weight"):
        check_loaded(network(), network().state_dict(), "weights.pth")


class Code:
    """An object whose pickle would run a command."""

    def __reduce__(self):
        return os.system, ("touch pwned",)


@pytest.mark.parametrize("module", [b"numpy._core.multiarray", b"numpy.core.multiarray"], ids=["numpy 2", "numpy 1"])
def test_arrays_next_to_tensors_are_read(tmp_path, module):
    """Schedulers of learning rates leave numpy arrays in checkpoints; their names depend on the version of numpy."""
    torch.save({"w": torch.ones(2), "lr": [np.array([0, 5]), np.array([1.0, 0.0]), np.float64(2)]}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as own, zipfile.ZipFile(tmp_path / "b.pt", "w") as other:
        for name in own.namelist():
            content = own.read(name).replace(b"numpy._core.", b"numpy.core.")
            other.writestr(name, content.replace(b"numpy.core.multiarray", module))
    found = read_tensor_file(tmp_path / "b.pt", "checkpoint")
    assert found["lr"][0].tolist() == [0, 5]
    assert found["lr"][2] == 2


def test_code_in_a_file_is_refused_and_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"w": torch.ones(2), "trap": Code()}, "code.pt")
    with pytest.raises(UserError, match=r"checkpoint: code\.pt.*system.*none of it was run"):
        read_tensor_file(tmp_path.relative_to(tmp_path) / "code.pt", "checkpoint")
    assert [file.name for file in tmp_path.iterdir()] == ["code.pt"]
