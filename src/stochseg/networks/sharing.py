"""Copies of modules that share the weights of the original."""

from __future__ import annotations

import copy
from itertools import chain
from typing import TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


def shared_copy(module: M) -> M:
    """Copy a module but not its weights. Mode, attributes and `forward` of the copy's submodules may change."""
    weights = {id(x): x for x in chain(module.parameters(), module.buffers())}
    return copy.deepcopy(module, weights)
