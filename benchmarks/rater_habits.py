"""Whose hand: frequencies of the readings that a rater-conditioned model draws for raters of known habits.

python benchmarks/rater_habits.py runs/habits --minutes 6

Trains `ccdm-fast` on phantoms with a cautious and a generous rater, and fits a third one to a few maps. Per rater: the
total variation between the mean frequencies of nothing, core and halo over the images and the true ones, and the mean
over images of that of each image.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from harness import argument_parser, write_csv
from stochseg.data import OfRater, Phantoms
from stochseg.evaluation import evaluate
from stochseg.experiments.recipes import recipe
from stochseg.models import SamplingOptions, StochasticSegmenter, fit_rater, load
from stochseg.training import train

HABITS = (-2.5, 2.5)
NEW_HABIT = 1.0
NEW = f"rater{len(HABITS) + 1}"


def trained(run: Path, minutes: float) -> StochasticSegmenter:
    if not run.exists():
        habits = f"data.options.habits={list(HABITS)}"
        further = ["model.options.rater_conditioning=true", f"minutes={minutes}", "clock=cpu", "steps=100000"]
        train(recipe("phantom-tiny", [habits, *further, "validation.every=100000"]), run, device="cpu")
    return load(run)


def row(model: StochasticSegmenter, rater: str | None, about: str, arguments: argparse.Namespace) -> dict[str, object]:
    data = Phantoms("val", size=32, count=arguments.images, habits=(*HABITS, NEW_HABIT) if rater == NEW else HABITS)
    found = evaluate(model, data, options=SamplingOptions(n=16, rater=rater), keep=0)
    assert found.modes is not None
    true, drawn = (values.mean(0) for values in (found.modes.truth, found.modes.frequency))
    by_mode = {
        f"{name} {kind}": round(float(value), 4)
        for kind, values in (("true", true), ("drawn", drawn))
        for name, value in zip(found.modes.names, values, strict=True)
    }
    scores = {"tv": round(found.metrics["mode_tv_overall"], 4), "tv_per_image": round(found.metrics["mode_tv"], 4)}
    return {"rater": rater or "anyone", "about": about, "images": arguments.images, **scores, **by_mode}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("run", type=Path, help="run folder; it is trained if it does not exist")
    parser.add_argument("--minutes", type=float, default=6.0, help="of one core, for the training")
    parser.add_argument("--images", type=int, default=100, help="number of phantoms to score")
    parser.add_argument("--maps", type=int, default=24, help="label maps from which the third rater is fitted")
    arguments = parser.parse_args()
    model = trained(arguments.run, arguments.minutes)
    rows = [row(model, None, "any of both", arguments)]
    rows += [row(model, f"rater{i + 1}", f"habit {habit:+g}", arguments) for i, habit in enumerate(HABITS)]
    examples = OfRater(Phantoms("train", size=32, count=arguments.maps, seed=1, habits=(*HABITS, NEW_HABIT)), NEW)
    fitted = fit_rater(model, [examples[i] for i in range(arguments.maps)], NEW)
    rows.append(row(fitted, NEW, f"habit {NEW_HABIT:+g}, fitted to {arguments.maps} maps", arguments))
    for each in rows:
        print(each)
    print(write_csv("rater-habits", rows, arguments.out))


if __name__ == "__main__":
    main()
