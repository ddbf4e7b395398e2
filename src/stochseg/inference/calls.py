"""Recorded calls of modules, from which ONNX graphs are made."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Call:
    """The arguments of one call of a module.

    Its tensors, whose first axis is the batch, are the inputs of a graph; all other arguments (such as None) are
    constants of the graph.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def tensors(self) -> list[Tensor]:
        return [x for x in self._values if isinstance(x, Tensor)]

    @property
    def _values(self) -> tuple[Any, ...]:
        return (*self.args, *self.kwargs.values())

    @property
    def form(self) -> tuple[Any, ...]:
        """Everything except the batch size and the values: two calls of one form can share a graph of fixed size."""
        parts = (
            (x.dtype, tuple(x.shape[1:]), x.ndim) if isinstance(x, Tensor) else ("constant", x) for x in self._values
        )
        return (len(self.args), *self.kwargs, *parts)

    def with_tensors(self, tensors: Sequence[Tensor]) -> Call:
        """Return the same call with other tensors."""
        rest = iter(tensors)
        values = [next(rest) if isinstance(x, Tensor) else x for x in self._values]
        count = len(self.args)
        return Call(tuple(values[:count]), dict(zip(self.kwargs, values[count:], strict=True)))

    def with_larger_batch(self) -> Call:
        """Return the same call with a batch of at least 2: the exporter takes an axis of length 1 for a constant."""
        return self.with_tensors([torch.cat([x, x]) if len(x) == 1 else x for x in self.tensors])

    def names(self, module: nn.Module) -> list[str]:
        """Name each tensor by its parameter of `forward`; those of a `*name` are numbered."""
        found = []
        bound = inspect.signature(type(module).forward).bind(module, *self.args, **self.kwargs)
        for name, value in list(bound.arguments.items())[1:]:
            several = isinstance(value, tuple)
            parts = {f"{name}_{i}": x for i, x in enumerate(value)} if several else {name: value}
            found += [key for key, x in parts.items() if isinstance(x, Tensor)]
        return found

    def apply(self, module: nn.Module) -> tuple[Tensor, ...]:
        """Call the module; a single output becomes a tuple."""
        out = module(*self.args, **self.kwargs)
        return (out,) if isinstance(out, Tensor) else tuple(out)
