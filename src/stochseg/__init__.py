"""stochseg: sample the plausible label maps of an image.

model = stochseg.load("runs/demo")
out = model.sample(image, n=16, seed=0)
out.labels, out.mean, out.entropy, out.fused()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stochseg._version import __version__

if TYPE_CHECKING:
    from stochseg.errors import UserError
    from stochseg.inference import hypotheses, measure, plot
    from stochseg.models import MODELS, StochasticSegmenter, create, load, register, save
    from stochseg.types import DatasetInfo, Example, Samples

# Found on first use, so that `stochseg --help` does not wait for torch.
_HOMES = {
    "UserError": "stochseg.errors",
    "DatasetInfo": "stochseg.types",
    "Example": "stochseg.types",
    "Samples": "stochseg.types",
    "MODELS": "stochseg.models",
    "StochasticSegmenter": "stochseg.models",
    "create": "stochseg.models",
    "hypotheses": "stochseg.inference",
    "measure": "stochseg.inference",
    "plot": "stochseg.inference",
    "load": "stochseg.models",
    "register": "stochseg.models",
    "save": "stochseg.models",
}

__all__ = [
    "MODELS",
    "DatasetInfo",
    "Example",
    "Samples",
    "StochasticSegmenter",
    "UserError",
    "__version__",
    "create",
    "hypotheses",
    "load",
    "measure",
    "plot",
    "register",
    "save",
]

_MODULES = {
    "core",
    "data",
    "evaluation",
    "inference",
    "memory",
    "metrics",
    "models",
    "networks",
    "recipes",
    "reports",
    "training",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _MODULES:
        return import_module(f"stochseg.{name}")
    raise AttributeError(f"module 'stochseg' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
