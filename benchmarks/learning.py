"""Learning of a known distribution: `phantom-tiny` and a deterministic counterpart on phantoms.

python benchmarks/learning.py

Both are trained with the same data, steps, batch size, optimizer and network. The counterpart is a diffusion of one
step from pure noise: the network alone with cross-entropy, whose samples are all the same. Both are compared with the
raters and with the known truth, on phantoms of a new seed, because the recipe was tuned on phantoms of its own seed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.console import Console

from harness import argument_parser, write_csv
from stochseg.data import SegmentationData
from stochseg.evaluation import evaluate
from stochseg.experiments.recipes import recipe
from stochseg.models import load
from stochseg.models.sampling import SamplingOptions
from stochseg.training import TrainConfig, open_split, train

FRESH_SEED = 31_415
REPORTED = (
    "mode_tv",
    "mode_tv_overall",
    "mode_iou",
    "ged_truth_unbiased",
    "ged_unbiased",
    "ged_16",
    "hm_iou_16",
    "ece",
    "brier",
)


def deterministic(config: TrainConfig) -> TrainConfig:
    """The same run with a deterministic model."""
    options = {**config.model.options, "num_timesteps": 1, "evaluations": 1, "components": 1}
    return config.model_copy(update={"model": config.model.model_copy(update={"options": options})})


def fresh_phantoms(config: TrainConfig) -> SegmentationData:
    """Phantoms on which the recipe was not tuned."""
    data = config.data.model_copy(update={"options": {**config.data.options, "seed": FRESH_SEED}})
    return open_split(config.model_copy(update={"data": data}), "test")


def _rounded(value: float | None) -> float | str:
    return "" if value is None else round(value, 4)  # undefined with Latin noise


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--runs", type=Path, help="folder of the runs, which are resumed; default: a temporary folder")
    parser.add_argument("--samples", type=int, default=100, help="samples per image")
    parser.add_argument("--images", type=int, default=64, help="number of test phantoms")
    parser.add_argument("overrides", nargs="*", help="settings of the recipe, e.g. steps=500")
    arguments = parser.parse_args()
    runs = arguments.runs or Path(tempfile.mkdtemp(prefix="stochseg-learning-"))

    config = recipe("phantom-tiny", arguments.overrides)
    rows = []
    # Default noise, with steadier frequencies, and independent noise, which the unbiased GED assumes.
    for kind, case, noise in (
        ("stochastic", config, None),
        ("stochastic", config, "independent"),
        ("deterministic", deterministic(config), "independent"),
    ):
        model = load(train(case, runs / kind, resume=True, device="cpu", console=Console(stderr=True)))
        result = evaluate(
            model,
            fresh_phantoms(case),
            limit=arguments.images,
            options=SamplingOptions(n=arguments.samples, noise=noise),
        )
        about = {
            "kind": kind,
            "noise": result.settings["noise"],
            "parameters": sum(p.numel() for p in model.parameters()),
        }
        settings = {"steps": case.steps, "images": arguments.images, "samples": arguments.samples}
        rows.append({**about, **settings, **{key: _rounded(result.metrics.get(key)) for key in REPORTED}})
        print(rows[-1], flush=True)
    for key in ("ged_truth_unbiased", "ged_unbiased"):
        print(f"{key}: {rows[1][key]} against {rows[2][key]}, ratio {rows[1][key] / rows[2][key]:.3f}")
    print(write_csv("learning", rows, arguments.out))


if __name__ == "__main__":
    main()
