"""The figures of the paper, drawn from its data and from trained rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from stochseg.core import SCHEDULES, CategoricalProcess, SeededNoise, ancestral, make_grid
from stochseg.data import Cropped, SegmentationData, Subset, open_path
from stochseg.devices import pick_device
from stochseg.errors import UserError, unknown_name
from stochseg.evaluation import evaluate
from stochseg.experiments.paper.trainings import DATA
from stochseg.models import StochasticSegmenter, load
from stochseg.models.categorical_diffusion import CategoricalDiffusion
from stochseg.models.sampling import SamplingOptions
from stochseg.plotting import (
    comparison_grid,
    contact_sheet,
    forward_process,
    label_strip,
    qualitative,
    quality_against_evaluations,
)

STEPS = (5, 10, 25, 50, 125, 250)
"""Network evaluations in the figure of quality against steps."""


@dataclass(frozen=True)
class FigureSettings:
    """Where a figure finds its models and data. images: their number; None: that of the paper."""

    out: Path
    data: Path | None = None
    seeds: int = 3
    images: int | None = None
    device: str = "auto"


@dataclass(frozen=True)
class PaperFigure:
    """A figure. rows: trainings it needs; images: as many as in the paper."""

    title: str
    data: str
    rows: tuple[str, ...]
    images: int
    draw: Callable[[PaperFigure, FigureSettings], Figure]

    def pick(self, settings: FigureSettings) -> list[int]:
        """Indices of random images of the scored split, the same in every call."""
        count = len(self.open_data(settings))
        chosen = np.random.default_rng(0).permutation(count)[: settings.images or self.images]
        return sorted(chosen.tolist())

    def open_data(self, settings: FigureSettings) -> SegmentationData:
        """Open the split that the paper's figure shows."""
        form = DATA[self.data]
        data = open_path(settings.data or Path(form.store), form.split)
        return data if form.crop is None else Cropped(data, (form.crop, form.crop))

    def open_model(self, row: str, seed: int, settings: FigureSettings) -> StochasticSegmenter:
        """Load a trained row, with the weights that the tables score."""
        weights = "best" if DATA[self.data].classes == 2 else "last"
        folder = settings.out / self.data / row / f"seed-{seed}" / "run" / weights
        if not folder.is_dir():
            raise UserError(
                f"no trained model in {folder}; make it with: stochseg paper run {self.data} --row {row} "
                f"--seeds {seed + 1} --out {settings.out}"
            )
        return load(folder, device=pick_device(settings.device))


def draw_figure(name: str, settings: FigureSettings) -> Figure:
    """Draw a figure of the paper.

    Args:
        name: A key of `FIGURES`.
        settings: Models and data.

    Raises:
        UserError: For an unknown name, missing data, or rows that are not trained.
    """
    if name not in FIGURES:
        raise unknown_name("figure of the paper", name, FIGURES)
    return FIGURES[name].draw(FIGURES[name], settings)


def _examples(figure: PaperFigure, settings: FigureSettings) -> Figure:
    """Images with the outlines of their raters."""
    data = figure.open_data(settings)
    return contact_sheet([data[i] for i in figure.pick(settings)], data.info)


def _samples(figure: PaperFigure, settings: FigureSettings) -> Figure:
    """Image, raters, mean and six samples."""
    data, model = figure.open_data(settings), figure.open_model(figure.rows[0], 0, settings)
    examples = [data[i] for i in figure.pick(settings)]
    drawn = [model.sample(each.image[None], 6, allow_unusual_input=True).to("cpu") for each in examples]
    return qualitative(list(zip(examples, drawn, strict=True)), data.info)


def _methods(figure: PaperFigure, settings: FigureSettings) -> Figure:
    """One image, its label map, and a sample of every method."""
    data = figure.open_data(settings)
    example = data[figure.pick(settings)[0]]
    models = {row: figure.open_model(row, 0, settings) for row in figure.rows}
    drawn = {
        row: model.sample(example.image[None], 4, allow_unusual_input=True).to("cpu") for row, model in models.items()
    }
    return comparison_grid(example, drawn, data.info, columns=6)


def _forward(figure: PaperFigure, settings: FigureSettings) -> Figure:
    """A label map under the forward process."""
    data = figure.open_data(settings)
    labels = data[figure.pick(settings)[0]].raters[0]
    if data.info.ignore is not None:
        labels = labels.masked_fill(labels == data.info.ignore, 0)
    return forward_process(CategoricalProcess(SCHEDULES["cosine"](250), data.info.num_classes), labels, data.info)


def _reverse(figure: PaperFigure, settings: FigureSettings) -> Figure:
    """A sample on its way from noise to a label map."""
    data, model = figure.open_data(settings), figure.open_model(figure.rows[0], 0, settings)
    assert isinstance(model, CategoricalDiffusion)
    image = data[figure.pick(settings)[0]].image[None].to(model.device)
    process, seen = model.process, dict[str, Tensor]()
    grid = make_grid("even", process.schedule, min(250, process.num_timesteps))
    shown = {grid[round(i)] for i in np.linspace(0, len(grid) - 1, 7)}

    def keep(index: int, t: int, x_t: Tensor, log_p0: Tensor) -> None:
        if t in shown:
            seen[f"t = {t}"] = x_t[0].cpu()

    with torch.no_grad():
        condition, noise = model.denoiser.encode(image), SeededNoise([(0,)], model.device)
        x_T = process.prior((1, *image.shape[2:]), noise)
        out = ancestral(
            lambda x, t: model.denoiser(x, t.to(x.device), condition).float(), x_T, grid, process, noise, keep
        )
    return label_strip({**seen, "t = 0": out.labels[0].cpu()}, data.info)


def _steps(figure: PaperFigure, settings: FigureSettings) -> Figure:
    """GED and HM-IoU against network evaluations, means over the seeds."""
    data = Subset(figure.open_data(settings), figure.pick(settings))
    models = [figure.open_model(figure.rows[0], seed, settings) for seed in range(settings.seeds)]
    points: dict[int, dict[str, float]] = {}
    for count in STEPS:
        found = []
        for seed, model in enumerate(models):
            options = SamplingOptions(n=16, evaluations=count, grid="trailing", noise="independent", seed=seed)
            found.append(evaluate(model, data, options=options, keep=0).metrics)
        points[count] = {key: float(np.mean([metrics[key] for metrics in found])) for key in ("ged_16", "hm_iou_16")}
    return quality_against_evaluations({figure.rows[0]: points}, n=16)


_RIVALS = ("deeplabv3-r101", "upernet-r101", "hrnet-w48", "upernet-swin-t")
FIGURES: dict[str, PaperFigure] = {
    "examples": PaperFigure("Fig. 1: slices of LIDC and their raters", "lidc-v1", (), 4, _examples),
    "reverse": PaperFigure("Fig. 2: the reverse process", "cityscapes-256x512", ("ccdm-30m",), 1, _reverse),
    "lidc-samples": PaperFigure("Fig. 3: samples on LIDC", "lidc-v1", ("ccdm-9m",), 4, _samples),
    "cityscapes-samples": PaperFigure(
        "Fig. 4 and supplement: methods on Cityscapes", "cityscapes-256x512", (*_RIVALS, "ccdm-30m-dino"), 1, _methods
    ),
    "steps": PaperFigure("Fig. 5: GED and HM-IoU against steps", "lidc-v1", ("ccdm-9m",), 500, _steps),
    "forward": PaperFigure("Supplement: the forward process", "cityscapes-256x512", (), 1, _forward),
}
"""The figures by name."""
