"""The CCDM authors' released network: names and shapes of its tensors, and a forward pass straight from them.

Written apart from `stochseg.networks`, so that a converted checkpoint can be compared with it.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

State = dict[str, Tensor]
HEAD = 32
"""Channels per attention head."""


@dataclass(frozen=True)
class Part:
    """A module: "conv", "res", "attention", "down" or "up"."""

    kind: str
    name: str
    inputs: int
    outputs: int


@dataclass(frozen=True)
class Layout:
    """The modules of each input block, middle block and output block; features join input block `target`."""

    inputs: list[list[Part]]
    middle: list[Part]
    outputs: list[list[Part]]
    base: int
    target: int | None


def layout(
    labels: int,
    image: int,
    base: int,
    multipliers: tuple[float, ...],
    attention: tuple[int, ...] = (32, 16, 8),
    features: int = 0,
    target: int | None = None,
) -> Layout:
    """The released U-Net: two residual blocks per level, three in the decoder."""
    width, factor = int(base * multipliers[0]), 1
    inputs = [[Part("conv", "input_blocks.0.0", labels + image, width)]]
    skips = [width]

    def block(name: str, c_in: int, c_out: int) -> list[Part]:
        parts = [Part("res", f"{name}.0", c_in, c_out)]
        return parts + ([Part("attention", f"{name}.1", c_out, c_out)] if factor in attention else [])

    for level, multiplier in enumerate(multipliers):
        for _ in range(2):
            n, out = len(inputs), int(base * multiplier)
            inputs.append(block(f"input_blocks.{n}", width + (features if n == target else 0), out))
            skips.append(width := out)
        if level < len(multipliers) - 1:
            inputs.append([Part("down", f"input_blocks.{len(inputs)}.0.op", width, width)])
            skips.append(width)
            factor *= 2
    middle = [Part(kind, f"middle_block.{i}", width, width) for i, kind in enumerate(("res", "attention", "res"))]
    outputs: list[list[Part]] = []
    for level, multiplier in reversed(list(enumerate(multipliers))):
        for i in range(3):
            name = f"output_blocks.{len(outputs)}"
            parts = block(name, width + skips.pop(), int(base * multiplier))
            width = int(base * multiplier)
            if level and i == 2:
                parts.append(Part("up", f"{name}.{len(parts)}.conv", width, width))
                factor //= 2
            outputs.append(parts)
    return Layout(inputs, middle, outputs, base, target)


def lidc_layout() -> Layout:
    return layout(2, 1, 32, (1, 2, 2, 4, 5))


def cityscapes_layout() -> Layout:
    return layout(20, 3, 64, (1, 1, 2, 2, 4, 4), features=384, target=11)


# --- tensors ------------------------------------------------------------------------------------------------------


def random_state(net: Layout, labels: int, seed: int = 0) -> State:
    """Random tensors in the released code's order, names and shapes; no path is zero or explodes."""
    generator, time = torch.Generator().manual_seed(seed), 4 * net.base
    state: State = {}

    def affine(name: str, *shape: int) -> None:
        scale = math.prod(shape[1:]) ** -0.5
        state[f"{name}.weight"] = torch.randn(shape, generator=generator) * scale
        state[f"{name}.bias"] = torch.randn(shape[0], generator=generator) * 0.2

    def norm(name: str, width: int) -> None:
        state[f"{name}.weight"] = 1 + 0.2 * torch.randn(width, generator=generator)
        state[f"{name}.bias"] = 0.2 * torch.randn(width, generator=generator)

    affine("time_embed.0", time, net.base)
    affine("time_embed.2", time, time)
    for part in chain(*net.inputs, net.middle, *net.outputs):
        name, c_in, c_out = part.name, part.inputs, part.outputs
        if part.kind == "res":
            norm(f"{name}.in_layers.0", c_in)
            affine(f"{name}.in_layers.2", c_out, c_in, 3, 3)
            affine(f"{name}.emb_layers.1", c_out, time)
            norm(f"{name}.out_layers.0", c_out)
            affine(f"{name}.out_layers.3", c_out, c_out, 3, 3)
            if c_in != c_out:
                affine(f"{name}.skip_connection", c_out, c_in, 1, 1)
        elif part.kind == "attention":
            norm(f"{name}.norm", c_in)
            affine(f"{name}.qkv", 3 * c_in, c_in, 1)
            affine(f"{name}.proj_out", c_in, c_in, 1)
        else:
            affine(name, c_out, c_in, 3, 3)
    norm("out.0", net.base)
    affine("out.2", labels, net.base, 3, 3)
    return state


def dino_state(depth: int = 12, width: int = 384, patch: int = 8, grid: int = 28, seed: int = 1) -> State:
    """Random tensors of DINO's ViT-S/8 under the names of its code."""
    generator = torch.Generator().manual_seed(seed)
    state: State = {}

    def draw(name: str, *shape: int, scale: float = 0.02, mean: float = 0.0) -> None:
        state[name] = mean + scale * torch.randn(shape, generator=generator)

    draw("cls_token", 1, 1, width)
    draw("pos_embed", 1, 1 + grid * grid, width, scale=0.5)
    draw("patch_embed.proj.weight", width, 3, patch, patch, scale=0.1)
    draw("patch_embed.proj.bias", width)
    for i in range(depth):
        shapes = {"attn.qkv": (3 * width, width), "attn.proj": (width, width)}
        shapes |= {"mlp.fc1": (4 * width, width), "mlp.fc2": (width, 4 * width)}
        for name, shape in shapes.items():
            draw(f"blocks.{i}.{name}.weight", *shape, scale=shape[1] ** -0.5)
            draw(f"blocks.{i}.{name}.bias", shape[0])
        for name in ("norm1", "norm2"):
            draw(f"blocks.{i}.{name}.weight", width, mean=1.0)
            draw(f"blocks.{i}.{name}.bias", width)
    draw("norm.weight", width, mean=1.0)
    draw("norm.bias", width)
    return state


def write_checkpoint(file: Path, state: State, **others: object) -> Path:
    """Write a checkpoint as the released trainer does: other weights, the optimizer, a schedule with numpy arrays."""
    raw = OrderedDict((name, torch.zeros(1).expand_as(value)) for name, value in state.items())  # small on disk
    schedule = {"lr_restarts": np.array([0, 5]), "lr_restart_vals": np.array([1.0, 0.0]), "base_lr": 1e-4}
    content = {
        "model": raw,
        "average_model": OrderedDict(state),
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 1e-4, "params": [0]}]},
        "scheduler": {"base_lrs": [1e-4], "last_epoch": 3, "lr_lambdas": [schedule]},
        "engine": OrderedDict(epoch_length=1, max_epochs=2, iteration=3),
    }
    torch.save({**content, **others}, file)
    return file


# --- forward pass -------------------------------------------------------------------------------------------------


def softmax(net: Layout, state: State, x_t: Tensor, t: Tensor, image: Tensor, features: Tensor | None = None) -> Tensor:
    """The released network's output "b l h w" for labels x_t "b h w" at steps t."""

    def affine(name: str) -> tuple[Tensor, Tensor]:
        return state[f"{name}.weight"], state[f"{name}.bias"]

    def normed(name: str, h: Tensor) -> Tensor:
        return F.group_norm(h, 32, *affine(name), eps=1e-5)

    def attend(name: str, h: Tensor) -> Tensor:
        flat = h.flatten(2)
        qkv = F.conv1d(normed(f"{name}.norm", flat), *affine(f"{name}.qkv"))
        mixed = []
        for head in qkv.split(3 * HEAD, dim=1):  # heads are the outer axis of the rows
            q, k, v = head.split(HEAD, dim=1)
            weight = torch.softmax(torch.einsum("bct,bcs->bts", q, k) / math.sqrt(HEAD), dim=-1)
            mixed.append(torch.einsum("bts,bcs->bct", weight, v))
        return h + F.conv1d(torch.cat(mixed, dim=1), *affine(f"{name}.proj_out")).view_as(h)

    def residual(name: str, h: Tensor) -> Tensor:
        inner = F.conv2d(F.silu(normed(f"{name}.in_layers.0", h)), *affine(f"{name}.in_layers.2"), padding=1)
        inner = inner + F.linear(F.silu(time), *affine(f"{name}.emb_layers.1"))[:, :, None, None]
        inner = F.conv2d(F.silu(normed(f"{name}.out_layers.0", inner)), *affine(f"{name}.out_layers.3"), padding=1)
        skip = f"{name}.skip_connection"
        return inner + (F.conv2d(h, *affine(skip)) if f"{skip}.weight" in state else h)

    def apply(parts: list[Part], h: Tensor) -> Tensor:
        for part in parts:
            if part.kind == "res":
                h = residual(part.name, h)
            elif part.kind == "attention":
                h = attend(part.name, h)
            else:
                h = F.interpolate(h, scale_factor=2, mode="nearest") if part.kind == "up" else h
                h = F.conv2d(h, *affine(part.name), stride=2 if part.kind == "down" else 1, padding=1)
        return h

    half = net.base // 2
    angles = t[:, None] * torch.exp(-math.log(10_000) * torch.arange(half) / half)
    time = torch.cat([angles.cos(), angles.sin()], dim=1).to(image.dtype)
    time = F.linear(F.silu(F.linear(time, *affine("time_embed.0"))), *affine("time_embed.2"))
    labels = len(state["out.2.bias"])
    h = torch.cat([F.one_hot(x_t, labels).permute(0, 3, 1, 2).to(image.dtype), image], dim=1)
    skips = []
    for n, parts in enumerate(net.inputs):
        if n == net.target:
            assert features is not None
            h = torch.cat([h, features], dim=1)
        h = apply(parts, h)
        skips.append(h)
    h = apply(net.middle, h)
    for parts in net.outputs:
        h = apply(parts, torch.cat([h, skips.pop()], dim=1))
    logits = F.conv2d(F.silu(normed("out.0", h)), *affine("out.2"), padding=1)
    return torch.softmax(logits, dim=1)


def dino_keys(state: State, image: Tensor, heads: int = 6, patch: int = 8) -> Tensor:
    """Keys of DINO's last block as the released code orders them, channel · heads + head: "b 384 h/8 w/8"."""
    width, depth = state["cls_token"].shape[-1], max(int(k.split(".")[1]) for k in state if k.startswith("blocks")) + 1

    def affine(name: str) -> tuple[Tensor, Tensor]:
        return state[f"{name}.weight"], state[f"{name}.bias"]

    def normed(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, (width,), *affine(name), eps=1e-6)

    patches = F.conv2d(image, *affine("patch_embed.proj"), stride=patch)
    x = torch.cat([state["cls_token"].expand(len(image), -1, -1), patches.flatten(2).transpose(1, 2)], dim=1)
    x = x + dino_positions(state["pos_embed"], *patches.shape[2:])
    for i in range(depth):
        qkv = F.linear(normed(f"blocks.{i}.norm1", x), *affine(f"blocks.{i}.attn.qkv"))
        q, k, v = qkv.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
        if i == depth - 1:
            ordered = k[:, :, 1:].permute(0, 3, 1, 2)  # b, channel, head, token
            return ordered.flatten(1, 2).unflatten(2, patches.shape[2:])
        weight = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(width // heads), dim=-1)
        x = x + F.linear((weight @ v).transpose(1, 2).flatten(2), *affine(f"blocks.{i}.attn.proj"))
        hidden = F.gelu(F.linear(normed(f"blocks.{i}.norm2", x), *affine(f"blocks.{i}.mlp.fc1")))
        x = x + F.linear(hidden, *affine(f"blocks.{i}.mlp.fc2"))
    raise AssertionError("no block")


def dino_positions(table: Tensor, rows: int, columns: int) -> Tensor:
    """DINO's position embeddings for a grid, "1 1+hw c": bicubic at the scale (size + 0.1) / 28, pixel by pixel."""
    side = math.isqrt(table.shape[1] - 1)
    if (rows, columns) == (side, side):
        return table
    maps = table[0, 1:].unflatten(0, (side, side))
    down, across = (cubic_weights(n, side).to(table) for n in (rows, columns))
    resampled = torch.einsum("yi,xj,ijc->yxc", down, across, maps)
    return torch.cat([table[:, :1], resampled.flatten(0, 1)[None]], dim=1)


def cubic_weights(new: int, old: int) -> Tensor:
    """Weights "new old" of cubic convolution (a = -0.75) at (i + 1/2) / scale - 1/2, with the edge repeated."""

    def kernel(x: float) -> float:
        x, a = abs(x), -0.75
        if x <= 1:
            return (a + 2) * x**3 - (a + 3) * x**2 + 1
        return a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0

    weights = torch.zeros(new, old, dtype=torch.float64)
    for i in range(new):
        center = (i + 0.5) * old / (new + 0.1) - 0.5
        for j in range(math.floor(center) - 1, math.floor(center) + 3):
            weights[i, min(max(j, 0), old - 1)] += kernel(center - j)
    return weights
