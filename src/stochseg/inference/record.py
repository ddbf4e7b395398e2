"""Facts about a prediction for result.json."""

from __future__ import annotations

import importlib.metadata
import platform
from contextlib import suppress
from typing import Any

from stochseg._version import __version__
from stochseg.inference.jobs import Job
from stochseg.inference.plan import Plan
from stochseg.inference.result_folder import FORMAT

VERSION = 1
PACKAGES = ("torch", "numpy", "pillow", "tifffile", "nibabel", "pydicom", "highdicom")


def describe(job: Job, plan: Plan, evaluations: int) -> dict[str, Any]:
    """Describe inputs, model, options and versions of a prediction as JSON values."""
    model = plan.model
    height, width = job.images.shape[-2:]
    return {
        "format": FORMAT,
        "version": VERSION,
        "inputs": job.files,
        "model": {
            "name": model.name,
            "origin": plan.origin,
            "sha256": plan.fingerprint,
            "config": model.config.model_dump(mode="json"),
            "data": model.info.name,
        },
        "options": plan.options.model_dump(mode="json"),
        "evaluations": evaluations,
        "tiled": plan.is_large(height, width) and plan.tiled is not None,
        "notices": list(job.notices),
        "seconds": round(job.seconds, 3),
        "device": str(model.device),
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    versions = {"stochseg": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions
