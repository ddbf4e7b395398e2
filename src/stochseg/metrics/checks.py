"""Checks of what the user passed to a metric: expected, got, what to do."""

from __future__ import annotations

import torch
from torch import Tensor

from stochseg.errors import UserError


def check_sets(samples: Tensor, raters: Tensor, num_classes: int) -> None:
    check_maps("samples", "b n h w", samples, num_classes)
    check_maps("raters", "b k h w", raters, num_classes)
    check_aligned("samples", samples, "raters", raters)


def check_maps(name: str, pattern: str, maps: Tensor, num_classes: int) -> None:
    if num_classes < 2:
        raise UserError(f"num_classes: expected at least 2, background and foreground, got {num_classes}")
    check_dimensions(name, pattern, maps)
    check_kind(name, maps)
    check_range(name, maps, num_classes)


def check_dimensions(name: str, pattern: str, values: Tensor) -> None:
    if values.ndim != 4:
        todo = f"add a batch dimension with {name}[None]" if values.ndim == 3 else f'pass a tensor "{pattern}"'
        raise UserError(f'{name} "{pattern}": expected 4 dimensions, got shape {tuple(values.shape)}; {todo}')
    if values.numel() == 0:
        raise UserError(
            f'{name} "{pattern}": expected at least one of each, got shape {tuple(values.shape)}; skip empty batches'
        )


def check_kind(name: str, maps: Tensor) -> None:
    if maps.is_floating_point() or maps.is_complex():
        raise UserError(
            f"{name}: expected integer labels, got {maps.dtype}; take argmax(1) of logits, "
            "or call .long() if these are labels"
        )
    if maps.dtype in (torch.uint16, torch.uint32, torch.uint64):
        raise UserError(f"{name}: torch cannot count in {maps.dtype}; call .long() first")
    if maps.device.type == "mps":
        raise UserError(f"{name}: metrics need float64, which device mps does not have; pass {name}.cpu()")


def check_range(name: str, maps: Tensor, num_classes: int) -> None:
    if maps.numel() == 0:
        return
    lowest, highest = (int(bound) for bound in maps.aminmax())
    if lowest < 0 or highest >= num_classes:
        raise UserError(
            f"{name}: expected labels 0 to {num_classes - 1}, got {lowest} to {highest}; "
            "raise num_classes, or map void labels to a class or a mask first"
        )


def check_aligned(name: str, a: Tensor, other: str, b: Tensor) -> None:
    if a.shape[0] != b.shape[0] or a.shape[-2:] != b.shape[-2:]:
        raise UserError(
            f"{name} and {other}: expected equal b, h and w, got shapes {tuple(a.shape)} and "
            f"{tuple(b.shape)}; compare maps of the same images at one resolution"
        )
