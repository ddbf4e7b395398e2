"""Growth between two finished jobs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stochseg.analysis import Measurement, growth
from stochseg.errors import UserError
from stochseg.models.io import read_json
from stochseg.reports import check_same_rater
from stochseg.studio.store import PAGE, Json

THRESHOLDS = (0.0, 0.1, 0.25, 0.5, 1.0)


def compare_jobs(before: Path, after: Path, measure: str, days: float | None) -> Json:
    """Compare a measurement of two jobs, over all pairs of samples.

    Args:
        before: folder of the job of the first scan.
        after: folder of the job of the second scan.
        measure: key of the measurement.
        days: between the scans.
    """
    first, second = (read_json(folder / PAGE / "result.json") for folder in (before, after))
    check_same_rater(first.get("drawn_as"), second.get("drawn_as"))
    found = growth(_measurement(first, measure), _measurement(second, measure), days=days)
    relative = found.relative
    finite = [float(value) if np.isfinite(value) else None for value in relative.values]
    low, high = relative.interval(0.9)
    return {
        "change": {
            "values": finite,
            "weights": relative.weights.tolist(),
            "interval": [low if np.isfinite(low) else None, high if np.isfinite(high) else None],
            "median": relative.quantile(0.5) if np.isfinite(relative.quantile(0.5)) else None,
        },
        "probability_above": [
            {"threshold": threshold, "probability": relative.probability(">", threshold)} for threshold in THRESHOLDS
        ],
        "statement": str(found),
    }


def _measurement(content: Json, key: str) -> Measurement:
    facts = {each["key"]: each for each in content["measures"]}
    if key not in facts:
        raise UserError(f"measure: expected one of {', '.join(facts)}, got {key!r}")
    samples = content["samples"]
    values = np.array([sample["measures"][key] for sample in samples], np.float64)
    weights = np.array([sample["weight"] for sample in samples], np.float64)
    name = f"{facts[key]['title'].lower()} of {content['classes'][facts[key]['class']]['name']}"
    return Measurement(name, values, weights / weights.sum(), facts[key]["unit"])
