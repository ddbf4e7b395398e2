"""Does the model learn the distribution? `phantom-tiny` and its deterministic rival, on phantoms with a known truth.

Both train with the same data, steps, batch, optimizer and network. The rival is a diffusion of one step, from noise
that tells nothing: the network alone with cross-entropy, whose most likely map is the same at every draw. Both are
judged against the raters and against the truth itself, on phantoms of a seed of their own: the recipe was chosen by
looking at phantoms of the recipe's seed.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from rich.console import Console

from harness import write_csv
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


def rival(config: TrainConfig) -> TrainConfig:
    """The same run as a deterministic segmenter."""
    options = {**config.model.options, "num_timesteps": 1, "evaluations": 1, "components": 1}
    return config.model_copy(update={"model": config.model.model_copy(update={"options": options})})


def fresh_phantoms(config: TrainConfig) -> SegmentationData:
    """Phantoms that nobody looked at while the recipe was made."""
    data = config.data.model_copy(update={"options": {**config.data.options, "seed": FRESH_SEED}})
    return open_split(config.model_copy(update={"data": data}), "test")


def _rounded(value: float | None) -> float | str:
    return "" if value is None else round(value, 4)  # Latin samples do not tell it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="CSV file; default: benchmarks/results/learning-<hardware>.csv")
    parser.add_argument("--runs", type=Path, help="keep the runs here (and go on with them); default: a scratch folder")
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("overrides", nargs="*", help="changes of the recipe, e.g. steps=500")
    arguments = parser.parse_args()
    runs = arguments.runs or Path(tempfile.mkdtemp(prefix="stochseg-learning-"))

    config = recipe("phantom-tiny", arguments.overrides)
    rows = []
    # Noise first as the recipe has it, whose frequencies are steadier, then independent, as the unbiased GED assumes.
    for kind, case, noise in (
        ("stochastic", config, None),
        ("stochastic", config, "independent"),
        ("deterministic", rival(config), "independent"),
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
