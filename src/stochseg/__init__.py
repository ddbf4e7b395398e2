"""stochseg: sample the plausible label maps of an image.

>>> import numpy as np, stochseg
>>> model = stochseg.load("lidc")
>>> samples = model.sample(np.full((128, 128), 100, np.uint8), n=4, seed=0)
>>> samples.labels.shape, samples.mean.shape, samples.entropy.shape, samples.fused().shape
(torch.Size([1, 4, 128, 128]), torch.Size([1, 2, 128, 128]), torch.Size([1, 128, 128]), torch.Size([1, 128, 128]))
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stochseg._version import __version__ as __version__

if TYPE_CHECKING:
    from stochseg.analysis import growth as growth
    from stochseg.analysis import hypotheses as hypotheses
    from stochseg.analysis import lesions as lesions
    from stochseg.analysis import measure as measure
    from stochseg.analysis import measurements as measurements
    from stochseg.errors import UserError as UserError
    from stochseg.models import MODELS as MODELS
    from stochseg.models import SamplingOptions as SamplingOptions
    from stochseg.models import StochasticSegmenter as StochasticSegmenter
    from stochseg.models import create as create
    from stochseg.models import fit_rater as fit_rater
    from stochseg.models import list_models as list_models
    from stochseg.models import load as load
    from stochseg.models import push as push
    from stochseg.models import register as register
    from stochseg.models import save as save
    from stochseg.models import wrap as wrap
    from stochseg.plotting import plot as plot
    from stochseg.types import DatasetInfo as DatasetInfo
    from stochseg.types import Example as Example
    from stochseg.types import Samples as Samples

# Imported on first use, so that `stochseg --help` does not wait for torch.
_NAMES = {
    "analysis": ("growth", "hypotheses", "lesions", "measure", "measurements"),
    "errors": ("UserError",),
    "models": (
        *("MODELS", "SamplingOptions", "StochasticSegmenter", "create", "fit_rater", "list_models", "load", "push"),
        *("register", "save", "wrap"),
    ),
    "plotting": ("plot",),
    "types": ("DatasetInfo", "Example", "Samples"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
_PACKAGES = {*_NAMES, "core", "data", "evaluation", "experiments", "inference", "memory", "metrics", "networks"}
_PACKAGES |= {"reports", "training"}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"stochseg.{_HOMES[name]}"), name)
    if name in _PACKAGES:
        return import_module(f"stochseg.{name}")
    raise AttributeError(f"module 'stochseg' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
