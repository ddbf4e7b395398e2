"""Evaluate a model on a data set: every number from one set of samples an image."""

from __future__ import annotations

import csv
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from stochseg._version import __version__
from stochseg.data import KnownTruth, SegmentationData, spread
from stochseg.errors import UserError
from stochseg.files import replaced_file, write_text
from stochseg.metrics import (
    brier_sums,
    calibration_bins,
    confusion_matrix,
    diversity_from_iou,
    ece,
    foreground_bins,
    ged_from_iou,
    hm_iou_from_iou,
    iou_blocks,
    miou,
    without_void,
)
from stochseg.metrics.calibration import LIKELY
from stochseg.models import StochasticSegmenter
from stochseg.models.sampling import SamplingOptions
from stochseg.types import Batch, DatasetInfo, Example, Samples, Truth

SAMPLE_COUNTS = (16, 32, 50, 100)
"""The n of GED_n and HM-IoU_n found in the literature."""


@dataclass
class Evaluation:
    """metrics: one number a name; images: one row an image; kept: examples with their samples, for pictures."""

    metrics: dict[str, float]
    images: list[dict[str, Any]]
    settings: dict[str, Any]
    kept: list[tuple[Example, Samples]] = field(default_factory=list)
    modes: ModeTable | None = None

    @property
    def calls(self) -> str:
        """Of the network for a sample, in words."""
        count = round(self.metrics["evaluations_per_sample"])
        return f"{count} network evaluation{'s' if count > 1 else ''}"


@dataclass(frozen=True)
class ModeTable:
    """True and sampled frequency of each mode, "images m"."""

    names: tuple[str, ...]
    truth: np.ndarray
    frequency: np.ndarray


def evaluate(
    model: StochasticSegmenter,
    data: SegmentationData,
    *,
    options: SamplingOptions = SamplingOptions(n=100),
    limit: int | None = None,
    keep: int = 4,
    each: Callable[[int, Batch, Samples], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Draw `samples` label maps for each image (or for `limit` of them, evenly spread) and compare with the raters.

    GED_n and HM-IoU_n for every n of the literature up to `samples` use the first n of the same draws, and the unbiased
    GED takes all draws to be independent: where they share out the probabilities (Latin noise) there are only GED_n and
    HM-IoU_n with n = `samples`.
    each: is shown every image's number in the data, its batch of one and its samples.
    """
    samples = options.n
    if samples < 2:
        raise UserError(f"evaluate needs at least 2 samples per image, got {samples}")
    if len(data) == 0:
        raise UserError("evaluate: the split is empty")
    if limit is not None and limit < 1:
        raise UserError(f"evaluate: limit must be at least 1, got {limit}")
    check_fits(model, data)
    model.check_options(options)
    settings = options.or_default(model.default_sampling())
    independent = model.independent and settings.noise == "independent"
    counts = sorted({n for n in SAMPLE_COUNTS if n <= samples and independent} | {samples})
    chosen = spread(len(data), len(data) if limit is None else limit)
    rows, kept, bins, marked, confusion, squares = [], [], [], [], [], []
    for done, i in enumerate(chosen):
        example = data[i].rated(data.info.ignore)
        if len(example.raters) == 0:  # all of it is void, which no sample can contradict
            continue
        image = for_model(example.image, data.info, model.info)
        began = time.perf_counter()
        out = model.sample(image[None], **options.model_dump()).to("cpu")
        seconds = time.perf_counter() - began
        batch = Batch.collate([example], data.info.ignore)
        truth = data.truth(i) if isinstance(data, KnownTruth) else None
        scores = _image_metrics(out, batch, counts, truth, independent)
        calls = float(out.evaluations)
        rows.append({"id": example.id, **scores, "seconds_per_image": seconds, "evaluations_per_sample": calls})
        bins.append(calibration_bins(out.mean, batch.raters, mask=batch.mask))
        marked.append(foreground_bins(out.mean, batch.raters, mask=batch.mask, at_least=LIKELY))
        squares.append(torch.stack(brier_sums(out.mean, batch.raters, mask=batch.mask)))
        confusion.append(_confusion(out, example.raters, data.info.ignore))
        if each is not None:
            each(i, batch, out)
        if len(kept) < keep:
            kept.append((example, out))
        if progress is not None:
            progress(done + 1, len(chosen))

    if not rows:
        raise UserError("evaluate: no image has a labelled pixel, all are void")
    numbers = [key for key, value in rows[0].items() if isinstance(value, float)]
    metrics = {key: float(np.mean([row[key] for row in rows])) for key in numbers}
    metrics["miou"] = miou(torch.stack(confusion).sum(0)).item()
    metrics["ece"] = ece(sum(bins[1:], start=bins[0])).item()
    foreground = sum(marked[1:], start=marked[0])
    if foreground.count.sum() > 0:  # a model that sees nothing anywhere has none
        metrics["ece_foreground"] = ece(foreground).item()
    total, counted = torch.cat(squares, dim=1).sum(1).tolist()
    metrics["brier"] = total / counted
    facts = {
        "model": model.name,
        "data": data.info.name,
        "images": len(rows),
        **settings.model_dump(),
        "stochseg": __version__,
        "torch": torch.__version__,
        "device": str(model.device),
        "engine": model.engine,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }
    modes = _mode_table(rows, truth)
    if modes is not None:
        metrics["mode_tv_overall"] = float(abs(modes.truth.mean(0) - modes.frequency.mean(0)).sum() / 2)
    return Evaluation(metrics, rows, facts, kept, modes)


def check_fits(model: StochasticSegmenter, data: SegmentationData) -> None:
    """UserError for data of other classes or image channels than the model's."""
    if (data.info.num_classes, data.info.image_channels) != (model.num_classes, model.image_channels):
        raise UserError(
            f"the model {model.name!r} has {model.num_classes} classes and {model.image_channels} image channel(s), "
            f"the data {data.info.num_classes} and {data.info.image_channels}; evaluate a model on data like its own"
        )


def for_model(image: Tensor, data: DatasetInfo, model: DatasetInfo) -> Tensor:
    """The image as the model expects it: data of another folder may be normalized in another way."""
    if data.normalization == model.normalization:
        return image
    return model.normalization(data.normalization.inverse(image))


def _image_metrics(
    out: Samples, batch: Batch, counts: Sequence[int], truth: Truth | None, independent: bool
) -> dict[str, Any]:
    """All metrics of one image, those without bias of independent samples alone. The IoU of all pairs is computed
    once."""
    blocks = iou_blocks(*without_void(out.labels, batch.raters, batch.mask), out.num_classes)
    row: dict[str, Any] = {}
    for n in counts:
        part = blocks.first(n)
        # Weights of fewer samples than were drawn are those of the first n, renormalized.
        weights = out.weights[:, :n].double()
        equal = bool((weights == weights[:, :1]).all())
        row[f"ged_{n}"] = ged_from_iou(*part, weights=weights).item()
        row[f"hm_iou_{n}"] = hm_iou_from_iou(part.samples_raters, weights=None if equal else weights).item()
        row[f"diversity_{n}"] = diversity_from_iou(part.samples_samples, weights=weights).item()
    if independent:
        row["ged_unbiased"] = ged_from_iou(*blocks, weights=out.weights, unbiased=True).item()
        apart = diversity_from_iou(blocks.samples_samples, weights=out.weights, unbiased=True)
        row["diversity_unbiased"] = apart.item()
    if truth is not None:
        row.update(_truth_metrics(out, truth, independent))
    return row


def _truth_metrics(out: Samples, truth: Truth, independent: bool) -> dict[str, Any]:
    """Against a known distribution: each sample counts for the mode that it overlaps most."""
    modes, probabilities = truth.modes[None], truth.probabilities[None].double()
    blocks = iou_blocks(out.labels, modes, out.num_classes)
    best, index = blocks.samples_raters[0].max(1)
    frequency = torch.zeros(modes.shape[1], dtype=torch.float64).index_add_(0, index, out.weights[0].double())
    row: dict[str, Any] = {}
    if independent:
        distance = ged_from_iou(*blocks, weights=out.weights, rater_weights=probabilities, unbiased=True)
        row["ged_truth_unbiased"] = distance.item()
    return row | {
        "mode_tv": (frequency - probabilities[0]).abs().sum().item() / 2,
        "mode_iou": float(out.weights[0].double() @ best),
        "mode_truth": probabilities[0].tolist(),
        "mode_frequency": frequency.tolist(),
    }


def _confusion(out: Samples, raters: Tensor, ignore: int | None) -> Tensor:
    """Confusion of the fused map with every rater."""
    fused = out.fused("mean")[0].expand_as(raters)
    return confusion_matrix(fused, raters, out.num_classes, ignore)


def _mode_table(rows: list[dict[str, Any]], truth: Truth | None) -> ModeTable | None:
    if truth is None:
        return None
    pick = (np.array([row.pop(key) for row in rows]) for key in ("mode_truth", "mode_frequency"))
    return ModeTable(truth.names, *pick)


def evaluations_curve(
    model: StochasticSegmenter,
    data: SegmentationData,
    evaluations: Sequence[int],
    *,
    options: SamplingOptions = SamplingOptions(n=100),
    limit: int | None = None,
) -> dict[int, dict[str, float]]:
    """Metrics by network evaluations per sample, of which a corrector makes more than its time grid has entries."""
    found = [
        evaluate(model, data, options=options.model_copy(update={"evaluations": count}), limit=limit, keep=0).metrics
        for count in evaluations
    ]
    return {round(metrics["evaluations_per_sample"]): metrics for metrics in found}


# ---------------------------------------------------------------------- what is printed and written

NAMES = {
    "ged_unbiased": "GED, unbiased in n",
    "diversity_unbiased": "diversity, unbiased in n",
    "miou": "mIoU of the fused map",
    "ece": "calibration error (ECE)",
    "ece_foreground": f"ECE of foreground labels given {LIKELY:.0%} or more",
    "brier": "Brier score",
    "ged_truth_unbiased": "GED to the known truth, unbiased in n",
    "mode_tv": "mode frequencies, total variation to the truth",
    "mode_tv_overall": "the same of frequencies averaged over images",
    "mode_iou": "IoU with the nearest true mode",
    "seconds_per_image": "seconds an image",
    "evaluations_per_sample": "network evaluations a sample",
}


def metric_rows(result: Evaluation) -> list[tuple[str, str, str]]:
    """Every metric that a person reads: key, name, value as text."""
    counts = [int(key.removeprefix("ged_")) for key in result.metrics if key.removeprefix("ged_").isdigit()]
    named = [
        (f"{stem}_{n}", f"{name}, n = {n}")
        for stem, name in (("ged", "GED"), ("hm_iou", "HM-IoU"), ("diversity", "diversity"))
        for n in counts
    ]
    named += [(key, name) for key, name in NAMES.items() if key in result.metrics]
    digits = {"evaluations_per_sample": 0}
    return [(key, name, f"{result.metrics[key]:.{digits.get(key, 4)}f}") for key, name in named]


def table(result: Evaluation, published: Mapping[str, float] | None = None) -> Table:
    """The metrics for the terminal, beside the published ones where there are any."""
    s = result.settings
    out = Table(title=f"{s['model']} on {s['images']} images of {s['data']}, {s['n']} samples each")
    out.add_column("metric")
    out.add_column("value", justify="right")
    if published:
        out.add_column("published", justify="right")
    for key, name, value in metric_rows(result):
        out.add_row(name, value, *([f"{published[key]:.3f}" if key in published else ""] if published else []))
    return out


def write_results(result: Evaluation, folder: Path) -> list[Path]:
    """metrics.json, metrics.csv (one row) and images.csv (one row an image)."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "metrics.json", folder / "metrics.csv", folder / "images.csv"]
    write_text(files[0], json.dumps({**result.metrics, "settings": result.settings}, indent=2) + "\n")
    write_csv(files[1], [{**result.settings, **result.metrics}])
    write_csv(files[2], result.images)
    return files


def write_csv(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with replaced_file(file) as scratch, scratch.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(
            stream, fieldnames=list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(rows)
