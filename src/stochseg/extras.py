"""Packages that the base install does without, and the one that breaks others where it is half there.

torchvision from the package registry is built for CUDA. Beside a CPU build of torch its compiled part does not load, so
the operators it registers Python functions for do not exist, and `import torchvision` fails with "operator
torchvision::nms does not exist"; with it fail timm, segmentation_models_pytorch and torchmetrics, none of which calls
these operators here. `repair_torchvision` declares them, with the signatures that torchvision publishes and nothing
behind them, which is enough for the import. Any other failure, and any torchvision that works, is left alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import cache
from types import ModuleType

import torch

from stochseg.errors import UserError

MISSING = "operator torchvision::"
OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


@cache
def repair_torchvision() -> None:
    """Make `import torchvision` work, if it is installed. Call before importing a package that imports it."""
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if not str(error).startswith(MISSING):
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        _declare_operators()
        importlib.import_module("torchvision")


@cache
def _declare_operators() -> torch.library.Library:
    """The library of declarations; kept, because they end with it."""
    library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for schema in OPERATORS:
        library.define(schema)  # type: ignore[no-untyped-call]
    return library


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional package; without it the error names the extra that brings it."""
    if extra == "zoo":  # whose packages import torchvision
        repair_torchvision()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in (module.partition(".")[0], "torchvision"):
            raise
        raise UserError(f"{purpose} needs {error.name}; install it with: pip install 'stochseg[{extra}]'") from None
