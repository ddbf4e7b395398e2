"""stochseg: sample the plausible label maps of an image.

model = stochseg.load("runs/demo")
out = model.sample(image, n=16, seed=0)
out.labels, out.mean, out.entropy, out.fused()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stochseg._version import __version__
from stochseg.notebook import VIEWS

if TYPE_CHECKING:
    from stochseg.analysis import hypotheses, measure, measurements
    from stochseg.errors import UserError
    from stochseg.models import MODELS, StochasticSegmenter, create, list_models, load, register, save
    from stochseg.plotting import plot
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
    "hypotheses": "stochseg.analysis",
    "measure": "stochseg.analysis",
    "measurements": "stochseg.analysis",
    "plot": "stochseg.plotting",
    "list_models": "stochseg.models",
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
    "list_models",
    "load",
    "measure",
    "measurements",
    "plot",
    "register",
    "save",
]

_MODULES = {
    "analysis",
    "core",
    "data",
    "evaluation",
    "experiments",
    "inference",
    "memory",
    "metrics",
    "models",
    "networks",
    "plotting",
    "reports",
    "training",
}


def _view(function: str) -> Any:
    """A notebook view by the name of its function, imported when something is shown."""
    return lambda value: getattr(import_module("stochseg.plotting.views"), function)(value)


VIEWS.update(Samples=_view("samples_html"), Hypotheses=_view("hypotheses_html"))


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _MODULES:
        return import_module(f"stochseg.{name}")
    raise AttributeError(f"module 'stochseg' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
