"""A bound on the tensors that a config may create, checked before each of them is allocated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from stochseg.errors import UserError
from stochseg.limits import VARIABLE, max_file_bytes

MAX_TENSORS = 6_000
"""Tensors of a network: the largest that are published have 3,000."""
_FACTORIES = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye)


class TensorBudget(TorchFunctionMode):
    """Context in which new tensors may take a number of bytes together, and not more.

    Args:
        limit: Bytes. Default: the memory that one file may ask for.
        remedy: What to do if the tensors need more.

    >>> with TensorBudget(limit=1000):
    ...     torch.zeros(1000, 1000).shape
    Traceback (most recent call last):
    stochseg.errors.UserError: its tensors need 4 MB or more, expected at most 0 MB; use fewer channels, or raise the \
limit with the environment variable STOCHSEG_MAX_FILE_MB
    """

    def __init__(self, limit: int | None = None, remedy: str = ""):
        super().__init__()
        self.limit = max_file_bytes() if limit is None else limit
        self.remedy = remedy or f"use fewer channels, or raise the limit with the environment variable {VARIABLE}"
        self.bytes = self.tensors = 0
        self.is_meta = torch.get_default_device().type == "meta"

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _FACTORIES and not self.is_meta and torch.device(kwargs.get("device") or "cpu").type != "meta":
            self._add(args, kwargs)
        return func(*args, **kwargs)

    def _add(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        size = kwargs.get("size", args[0] if args and isinstance(args[0], Sequence) else args)
        self.bytes += math.prod(size) * (kwargs.get("dtype") or torch.float32).itemsize
        self.tensors += 1
        if self.bytes > self.limit:
            need, expected = (f"{number / 10**6:,.0f} MB" for number in (self.bytes, self.limit))
            raise UserError(f"its tensors need {need} or more, expected at most {expected}; {self.remedy}")
        if self.tensors > MAX_TENSORS:
            raise UserError(f"it has more than {MAX_TENSORS:,} tensors; use fewer levels, blocks or layers")
