"""Benchmark of sampling: cost (time, network evaluations, FLOPs, memory) and quality (GED, HM-IoU, calibration)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor, nn

from stochseg.data import SegmentationData
from stochseg.errors import UserError
from stochseg.evaluation import check_compatible, evaluate
from stochseg.evaluation.evaluator import check_counts
from stochseg.experiments.profiling import flop_counter, gemm_gflops, median_seconds, peak_memory
from stochseg.experiments.provenance import device_name, provenance
from stochseg.experiments.recipes import RECIPES, fresh_model
from stochseg.files import write_csv
from stochseg.inference import with_engine
from stochseg.metrics.table import format_metric, metric_info
from stochseg.models import StochasticSegmenter, load
from stochseg.models.io import is_model
from stochseg.models.registry import is_registered
from stochseg.models.sampling import SamplingOptions
from stochseg.plotting import quality_against_cost, write_figure
from stochseg.types import Samples

COLUMNS = (
    "evaluations_all_samples",
    "seconds",
    "core_seconds",
    "core_seconds_all_steps",
    "gflop",
    "gemm_share",
    "peak_megabytes",
)
"""Metrics of cost in the printed table."""


@dataclass(frozen=True)
class Case:
    """One way to sample: a model with its engine and these options. trained: whether its scores mean anything."""

    name: str
    model: StochasticSegmenter
    options: SamplingOptions = SamplingOptions()
    trained: bool = True

    @property
    def settings(self) -> SamplingOptions:
        """The options with the defaults of the model."""
        return self.options.or_default(self.model.default_sampling())


def make_cases(
    models: Sequence[tuple[str, Sequence[int]]],
    options: SamplingOptions,
    *,
    engines: Sequence[str] = ("eager",),
    samplers: Sequence[str] = (),
    grids: Sequence[str] = (),
    device: torch.device | None = None,
) -> list[Case]:
    """Combine models with engines, samplers, time grids and numbers of evaluations.

    Args:
        models: pairs of a model and its numbers of network evaluations; none: the default of the model. A model is a
            run folder, a saved or bundled model, or a recipe or registered model by name, which has random weights.
        options: of sampling; those of the combination are replaced.
        engines: names of engines.
        samplers: names of samplers; none: the default of the model.
        grids: names of time grids; none: the default of the model.
        device: where to sample; default: CPU.

    Raises:
        UserError: if a model is unknown or cannot sample in one of these ways.
    """
    cases, device = [], device or torch.device("cpu")
    for name, counts in models:
        fresh = (name in RECIPES or is_registered(name)) and not is_model(Path(name))
        model = fresh_model(name).to(device) if fresh else load(name, device=device)
        for engine in engines:
            accelerated = with_engine(model, engine)
            for sampler, grid, count in product(samplers or (None,), grids or (None,), counts or (None,)):
                chosen = options.model_copy(update={"sampler": sampler, "grid": grid, "evaluations": count})
                model.check_options(chosen)
                cases.append(Case(name, accelerated, chosen, trained=not fresh))
    return cases


def run_bench(
    cases: Sequence[Case],
    sizes: Sequence[tuple[int, int]],
    *,
    data: SegmentationData | None = None,
    limit: int | None = None,
    seeds: int = 1,
    repeats: int = 3,
    out: Path | None = None,
    report: Callable[[Mapping[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Measure the cost of every case at every size and, with data, its quality.

    Args:
        cases: ways to sample, with the same number of samples.
        sizes: (height, width) of the images.
        data: images with raters, to score the trained models.
        limit: maximum number of images to score, evenly spaced.
        seeds: number of sampling seeds over which scores are averaged.
        repeats: number of timings, of which the median counts.
        out: CSV file, written after every row; with scores, a figure next to it.
        report: called with every row.

    Returns:
        One row per case and size: see `cost` and `quality`.

    Raises:
        UserError: if the data do not fit a model, or there is no trained model or only one sample to score.
    """
    n, trained = cases[0].options.n, [case.model for case in cases if case.trained]
    if data is not None:
        if not trained:
            raise UserError("bench: expected a trained model to score, got random weights; use a run or a saved model")
        check_counts(cases[0].options, limit)
        for model in trained:
            check_compatible(model, data)
    facts = provenance()
    rows: list[dict[str, Any]] = []
    for case in cases:
        scores = {} if data is None else quality(case, data, limit=limit, seeds=seeds)
        for size in sizes:
            rows.append(cost(case, size, repeats=repeats) | scores)
            if out is not None:  # every row, so that an interruption loses none
                write_csv(out, [row | facts for row in rows])
            if report is not None:
                report(rows[-1])
    if out is not None and any(row.get(f"ged_{n}", "") != "" for row in rows):
        write_figure(quality_against_cost(rows, n=n), out.with_suffix(".png"))
    return rows


def cost(case: Case, size: tuple[int, int], *, repeats: int = 3) -> dict[str, Any]:
    """Measure the samples of one random image of this size.

    Args:
        case: the way to sample.
        size: (height, width) of the image.
        repeats: number of timings, of which the median counts.

    Returns:
        The settings and the metrics of cost, which `stochseg.metrics.table` explains. Blank: the label maps through the
        network of models that name no network, and the time with all steps of a single evaluation, from which it
        cannot be extrapolated.
    """
    model, settings = case.model, case.settings
    image = torch.rand(1, model.image_channels, *size, generator=torch.Generator().manual_seed(0)) * 2 - 1

    def work(options: SamplingOptions = case.options) -> Samples:
        return model.sample(image, **options.model_dump(), allow_unusual_input=True)

    work()  # engines translate or compile the networks in their first call
    with peak_memory(model.device) as memory:
        out = work()
    seconds, core_seconds = median_seconds(work, repeats)
    all_steps = _extrapolate(case, core_seconds, work, repeats)
    eager = with_engine(model, "eager")  # the counters see plain torch only
    with flop_counter() as counter, _count_maps(eager) as maps:
        eager.sample(image, **case.options.model_dump(), allow_unusual_input=True)
    gflop = counter.get_total_flops() / 1e9
    return {
        "model": case.name,
        "engine": model.engine,
        "sampler": settings.sampler or "",
        "grid": settings.grid or "",
        "noise": settings.noise or "",
        "evaluations": out.evaluations,
        "evaluations_all_samples": sum(maps) or "",
        "samples": settings.n,
        "height": size[0],
        "width": size[1],
        "seconds": round(seconds, 4),
        "core_seconds": round(core_seconds, 4),
        "core_seconds_all_steps": "" if math.isnan(all_steps) else round(all_steps, 3),
        "gflop": round(gflop, 3) or "",
        "gemm_share": round(gflop / seconds / gemm_gflops(model.device), 3) if gflop else "",
        "peak_megabytes": round(memory.rise, 1),
        "process_megabytes": round(memory.peak, 1),
        "device": device_name(model.device),
        "threads": torch.get_num_threads(),
    }


def _extrapolate(case: Case, core_seconds: float, work: Callable[[SamplingOptions], object], repeats: int) -> float:
    """Extrapolate to all T steps of a diffusion, from the time of one evaluation and of these; nan if they are one."""
    evaluations, total = case.settings.evaluations or 1, case.model.max_evaluations
    if total is None or total == evaluations:
        return core_seconds
    if evaluations == 1:
        return math.nan
    single = case.options.model_copy(update={"evaluations": 1})
    _, first = median_seconds(lambda: work(single), repeats)
    return first + (core_seconds - first) * (total - 1) / (evaluations - 1)


@contextmanager
def _count_maps(model: StochasticSegmenter) -> Iterator[list[int]]:
    """Record the batch sizes of the network that is evaluated most: the last of the accelerated modules."""
    sizes: list[int] = []

    def count(module: nn.Module, inputs: object, out: Tensor | tuple[Tensor, ...]) -> None:
        sizes.append(len(out if isinstance(out, Tensor) else out[0]))

    hooks = [model.get_submodule(name).register_forward_hook(count) for name in model.accelerated_modules[-1:]]
    try:
        yield sizes
    finally:
        for hook in hooks:
            hook.remove()


def quality(case: Case, data: SegmentationData, *, limit: int | None, seeds: int) -> dict[str, Any]:
    """Score a case, averaged over sampling seeds; `ged_n_deviation` is the standard deviation between seeds.

    Args:
        case: the way to sample; an untrained model has blanks for scores.
        data: images with raters.
        limit: maximum number of images, evenly spaced.
        seeds: number of seeds.
    """
    n = case.options.n
    keys = [f"ged_{n}", f"hm_iou_{n}", f"diversity_{n}", "ged_unbiased", "ece", "brier"]
    deviation = f"{keys[0]}_deviation"
    row: dict[str, Any] = dict.fromkeys(("images", "seeds", *keys, deviation), "")
    if not case.trained:
        return row
    seeded = [case.options.model_copy(update={"seed": seed}) for seed in range(seeds)]
    runs = [evaluate(case.model, data, options=options, limit=limit, keep=0) for options in seeded]
    row |= {"images": runs[0].settings["images"], "seeds": seeds}
    for key in runs[0].metrics.keys() & set(keys):
        row[key] = round(float(np.mean([run.metrics[key] for run in runs])), 5)
    if seeds > 1:
        row[deviation] = round(float(np.std([run.metrics[keys[0]] for run in runs], ddof=1)), 5)
    return row


def bench_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Build a table of the rows of `run_bench` for the terminal; its caption explains the columns."""
    n = rows[0]["samples"]
    shown = [key for key in (*COLUMNS, f"ged_{n}", f"hm_iou_{n}") if key in rows[0]]
    explained = (f"{metric_info(key).short}: {metric_info(key).meaning}" for key in shown)
    table = Table(title=f"{n} samples of one image on {rows[0]['device']}", caption="\n".join(explained))
    table.caption_justify = "left"
    table.add_column("model@evaluations")
    for key in shown:
        table.add_column(metric_info(key).short, justify="right")
    varied = [key for key in ("sampler", "grid", "engine", "height", "width") if len({row[key] for row in rows}) > 1]
    for row in rows:
        words = [f"{row['model']}@{row['evaluations']}", *(str(row[key]) for key in varied)]
        table.add_row(" ".join(words), *(format_metric(key, row[key] if row[key] != "" else None) for key in shown))
    return table
