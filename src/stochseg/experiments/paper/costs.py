"""What the paper's experiments cost: optimizer steps, and GPU-hours estimated from floating-point operations."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib.resources import files

import torch

from stochseg.evaluation.data_scores import FUSED_COUNTS
from stochseg.experiments.paper.runner import SAMPLES
from stochseg.experiments.paper.trainings import DATA, TRAININGS
from stochseg.experiments.profiling import flop_counter
from stochseg.models.diffusion import DiffusionConfig
from stochseg.models.registry import build, find_class
from stochseg.networks.encoders.pretrained import RANDOM
from stochseg.types import DatasetInfo

FILE = "costs.csv"
SUSTAINED_TFLOPS = 20.0
"""Speed of the GPU in the estimates: what a data-center GPU sustains on such networks."""
BACKWARD = 2
"""Cost of the backward pass, in forward passes."""
SCORED_IMAGES = {"lidc-v1": 3019, "lidc-v2": 1922, "cityscapes-128x256": 500, "cityscapes-256x512": 500}
"""Images of the split that is scored, from the sizes and ratios in the paper."""


@dataclass(frozen=True)
class Cost:
    """Cost of one seed of a row. gflop: of the loss of one training image; parameters: of the network as built."""

    steps: int
    batch_size: int
    parameters: int
    gflop: float
    evaluations: int
    scored_images: int
    samples: int

    @property
    def gpu_hours(self) -> float:
        """Hours of training and scoring at `SUSTAINED_TFLOPS`."""
        trained = self.steps * self.batch_size * (1 + BACKWARD)
        scored = self.scored_images * self.samples * self.evaluations
        return self.gflop * (trained + scored) / (SUSTAINED_TFLOPS * 1e3 * 3600)


def measure_row(data: str, row: str) -> dict[str, object]:
    """Count the parameters and the operations of the loss of one image, in a row of `costs.csv`."""
    form, spec = DATA[data], TRAININGS[data, row]["model"]
    options = dict(spec["options"])
    if "encoder" in options:
        options["encoder_weights"] = RANDOM
    info = DatasetInfo(num_classes=form.classes, image_channels=form.channels)
    model = build(spec["name"], info, options).eval()
    image = torch.zeros(1, form.channels, *form.size)
    raters = torch.zeros(1, 4 if form.classes == 2 else 1, *form.size, dtype=torch.int64)
    with flop_counter() as counter, torch.no_grad():
        model(image, raters, keys=[(0,)])
    parameters = sum(p.numel() for p in model.parameters())
    return {"data": data, "row": row, "parameters": parameters, "gflop": f"{counter.get_total_flops() / 1e9:.2f}"}


def cost(data: str, row: str) -> Cost:
    """Look up the cost of a row."""
    values, measured = TRAININGS[data, row], _measured()[data, row]
    cls = find_class(values["model"]["name"])
    iterative = "evaluations" in cls.sampling_choices
    config = cls.config_type.parse(values["model"]["options"], where=f"{data}/{row}")
    evaluations = 1
    if isinstance(config, DiffusionConfig):
        evaluations = config.evaluations or config.num_timesteps
    samples = 1 if not iterative else SAMPLES if DATA[data].classes == 2 else max(FUSED_COUNTS)
    return Cost(
        values["steps"],
        values["batch_size"],
        int(measured["parameters"]),
        float(measured["gflop"]),
        evaluations,
        SCORED_IMAGES[data],
        samples,
    )


def _measured() -> dict[tuple[str, str], dict[str, str]]:
    text = files("stochseg.experiments.paper").joinpath(FILE).read_text(encoding="utf-8")
    return {(line["data"], line["row"]): line for line in csv.DictReader(text.splitlines())}
