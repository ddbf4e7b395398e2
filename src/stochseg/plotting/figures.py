"""Figures: qualitative results, the forward process, quality against steps. Each returns a matplotlib figure."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from torch import Tensor

from stochseg.core import CategoricalProcess, SeededNoise
from stochseg.files import replaced_file
from stochseg.types import DatasetInfo, Example, Normalization, Samples

CELL = 1.15  # inches a picture
INK, SECOND = "#1f4e79", "#c2571a"


def write_figure(figure: Figure, file: Path, dpi: int = 130) -> Path:
    """Write as PNG, all or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with replaced_file(file) as scratch:
        figure.savefig(scratch, dpi=dpi, format="png", facecolor="white")
    return file


def show_image(image: Tensor, normalization: Normalization) -> np.ndarray:
    """A normalized image "c h w" as RGB in [0, 1]; its own range if it is not 8-bit."""
    raw = normalization.inverse(image.cpu()).numpy()
    low, high = (0.0, 255.0) if raw.min() >= -1 and raw.max() <= 256 else (raw.min(), raw.max())
    gray = np.clip((raw - low) / max(high - low, 1e-6), 0, 1)
    rgb = gray[:3] if gray.shape[0] >= 3 else np.repeat(gray[:1], 3, axis=0)
    return rgb.transpose(1, 2, 0)


def show_labels(labels: Tensor, info: DatasetInfo) -> np.ndarray:
    """A label map "h w" as RGB by the data set's palette; void is gray."""
    palette = np.array([to_rgb(c) for c in info.colors])
    index = labels.cpu().numpy()
    known = (index >= 0) & (index < len(palette))
    return np.where(known[..., None], palette[np.where(known, index, 0)], 0.6)


def show_mean(mean: Tensor, info: DatasetInfo) -> np.ndarray:
    """Mean probabilities "l h w" as the palette's colors mixed in proportion."""
    palette = np.array([to_rgb(c) for c in info.colors])
    return np.einsum("lhw,lc->hwc", mean.cpu().numpy(), palette).clip(0, 1)


def qualitative(
    rows: Sequence[tuple[Example, Samples]],
    info: DatasetInfo,
    *,
    raters: int = 4,
    samples: int = 6,
) -> Figure:
    """One row an image: image, raters, mean and entropy of all samples, then some samples (cf. the paper's Fig. 3)."""
    raters = min(raters, max(len(example.raters) for example, _ in rows))
    samples = min(samples, *(out.labels.shape[1] for _, out in rows))
    titles = ["image", *(f"rater {i + 1}" for i in range(raters)), "mean", "entropy"]
    titles += [f"sample {i + 1}" for i in range(samples)]
    figure, axes = _grid(len(rows), titles, rows[0][0].image.shape[-2:])
    for line, (example, out) in zip(axes, rows, strict=True):
        cells: list[np.ndarray | None] = [show_image(example.image, info.normalization)]
        cells += [show_labels(example.raters[i], info) if i < len(example.raters) else None for i in range(raters)]
        cells += [show_mean(out.mean[0], info), None]
        cells += [show_labels(out.labels[0, i], info) for i in range(samples)]
        for axis, cell in zip(line, cells, strict=True):
            if cell is not None:
                axis.imshow(cell, interpolation="nearest")
        line[1 + raters + 1].imshow(out.entropy[0].cpu().numpy(), cmap="magma", vmin=0, vmax=np.log(info.num_classes))
    return figure


def comparison_grid(example: Example, samples: Mapping[str, Samples], info: DatasetInfo, *, columns: int = 8) -> Figure:
    """One image: its raters in the first row, then a row a method with mean and samples."""
    titles = ["", "", *[""] * columns]
    figure, axes = _grid(1 + len(samples), titles, example.image.shape[-2:])
    axes[0, 0].text(0.5, 0.5, "raters", ha="center", va="center", fontsize=9)
    axes[0, 1].imshow(show_image(example.image, info.normalization), interpolation="nearest")
    for axis, labels in zip(axes[0, 2:], example.raters, strict=False):
        axis.imshow(show_labels(labels, info), interpolation="nearest")
    for line, (name, out) in zip(axes[1:], samples.items(), strict=True):
        width, size = (14, 9) if len(name) <= 28 else (25, 6)  # with settings of its own a method's name is long
        line[0].text(0.5, 0.5, textwrap.fill(name, width), ha="center", va="center", fontsize=size)
        line[1].imshow(show_mean(out.mean[0].cpu(), info), interpolation="nearest")
        for axis, labels in zip(line[2:], out.labels[0], strict=False):
            axis.imshow(show_labels(labels, info), interpolation="nearest")
    for row in axes:  # _grid hides the axes and with them nothing else: texts stay
        row[0].set_xlim(0, 1)
        row[0].set_ylim(0, 1)
    return figure


def overview(image: Tensor, out: Samples, info: DatasetInfo, *, columns: int = 8) -> Figure:
    """One image "c h w" with mean, entropy, fused map, and then all samples in rows."""
    n = out.labels.shape[1]
    rows = 1 + -(-n // columns)
    figure, axes = _grid(rows, ["image", "mean", "entropy", "fused", *[""] * (columns - 4)], image.shape[-2:])
    axes[0, 0].imshow(show_image(image, info.normalization), interpolation="nearest")
    axes[0, 1].imshow(show_mean(out.mean[0], info), interpolation="nearest")
    axes[0, 2].imshow(out.entropy[0].cpu().numpy(), cmap="magma", vmin=0, vmax=np.log(info.num_classes))
    axes[0, 3].imshow(show_labels(out.fused()[0], info), interpolation="nearest")
    for i, axis in zip(range(n), axes[1:].flat, strict=False):
        axis.imshow(show_labels(out.labels[0, i], info), interpolation="nearest")
        axis.set_title(f"sample {i}", fontsize=7, pad=2)
    return figure


RATER_COLORS = ("#e8853c", "#4aa3ff", "#57d27e", "#e86bd0", "#f2d64b", "#8de3e0")


def contact_sheet(examples: Sequence[Example], info: DatasetInfo, *, columns: int = 6) -> Figure:
    """Images with every rater's outlines: one color a rater; with a single rater, one color a class."""
    rows = -(-len(examples) // columns)
    figure = Figure(figsize=(1.9 * columns, 2.05 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, example in zip(axes.flat, examples, strict=False):
        axis.imshow(show_image(example.image, info.normalization), interpolation="nearest")
        axis.set_title(f"{example.id[-24:]}  k={len(example.raters)}", fontsize=6, pad=2)
        for k, labels in enumerate(example.raters.numpy()):
            for label in range(1, info.num_classes):
                region = labels == label
                if region.any() and min(region.shape) > 1:
                    single = len(example.raters) == 1
                    color = info.colors[label] if single else RATER_COLORS[k % len(RATER_COLORS)]
                    axis.contour(region, levels=[0.5], colors=[color], linewidths=0.9)
    return figure


def forward_process(
    process: CategoricalProcess, labels: Tensor, info: DatasetInfo, *, shown: int = 8, seed: int = 0
) -> Figure:
    """A label map "h w" under the forward process at evenly spaced steps (the paper's supplementary strip)."""
    steps = torch.linspace(0, process.num_timesteps, shown).round().long()
    figure, axes = _grid(1, [f"t = {t}" for t in steps.tolist()], labels.shape)
    for axis, t in zip(axes[0], steps, strict=True):
        x_t = process.q_sample(labels[None], t[None], SeededNoise([(seed,)]))
        axis.imshow(show_labels(x_t[0], info), interpolation="nearest")
    return figure


def quality_against_steps(curves: Mapping[str, Mapping[int, Mapping[str, float]]], *, n: int = 16) -> Figure:
    """GED_n and HM-IoU_n against network calls a sample, one line a sampler (cf. the paper's Fig. 5).

    curves: sampler -> evaluations -> metrics as `evaluate` gives them.
    """
    figure = Figure(figsize=(7.2, 3.0), layout="constrained")
    ticks: list[int] = []
    for steps in sorted({steps for points in curves.values() for steps in points}, reverse=True):
        if not ticks or steps < 0.8 * ticks[-1]:  # closer labels would touch
            ticks.append(steps)
    for axis, key, title in zip(
        figure.subplots(1, 2),
        (f"ged_{n}", f"hm_iou_{n}"),
        (f"GED$_{{{n}}}$ (lower is better)", f"HM-IoU$_{{{n}}}$"),
        strict=True,
    ):
        for name, points in curves.items():
            taken = sorted(points)
            axis.plot(taken, [points[s][key] for s in taken], "o-", label=name, markersize=4)
        axis.set(xscale="log", xlabel="network evaluations a sample", title=title)
        axis.set_xticks(ticks, [str(s) for s in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    return figure


def training_curve(records: Sequence[Mapping[str, float]]) -> Figure:
    """Loss and validation GED against the step, from a run's log."""
    figure = Figure(figsize=(7.2, 2.8), layout="constrained")
    for axis, key, title in zip(
        figure.subplots(1, 2),
        ("train/loss", "val/ged"),
        ("training loss a pixel", "validation GED"),
        strict=True,
    ):
        points = [(r["step"], r[key]) for r in records if key in r]
        if points:
            step, value = np.array(points).T
            axis.plot(
                step,
                value,
                color=INK,
                alpha=0.35 if key == "train/loss" else 1,
                marker="" if len(step) > 30 else "o",
            )
            if key == "train/loss":
                axis.plot(step, _smooth(value), color=INK)
                axis.set_yscale("log")
        axis.set(xlabel="step", title=title)
        axis.grid(alpha=0.3)
    return figure


def mode_frequencies(truth: np.ndarray, frequency: np.ndarray, names: Sequence[str]) -> Figure:
    """Sampled frequency of each mode against its true probability; truth, frequency: "images m"."""
    figure = Figure(figsize=(2.6 * len(names), 2.9), layout="constrained")
    for i, (axis, name) in enumerate(zip(figure.subplots(1, len(names), sharey=True), names, strict=True)):
        axis.plot([0, 1], [0, 1], color="0.6", linewidth=1)
        axis.scatter(truth[:, i], frequency[:, i], s=16, color=SECOND, alpha=0.7, edgecolors="none")
        axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), title=name, xlabel="true probability", aspect="equal")
        axis.grid(alpha=0.3)
        if i == 0:
            axis.set_ylabel("frequency in samples")
    return figure


def _smooth(values: np.ndarray) -> np.ndarray:
    """Running mean over a twentieth of the curve, shorter at its ends."""
    half = max(1, len(values) // 40)
    return np.array([values[max(0, i - half) : i + half + 1].mean() for i in range(len(values))])


def _grid(rows: int, titles: Sequence[str], size: Sequence[int]) -> tuple[Figure, np.ndarray]:
    """Axes without frames for pictures of one size (h, w), with a title a column."""
    figure = Figure(figsize=(CELL * len(titles), CELL * rows * size[0] / size[1] + 0.25), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.01, h_pad=0.01, wspace=0.02, hspace=0.02)
    axes = figure.subplots(rows, len(titles), squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=9, pad=3)
    return figure, axes
