"""Samplers: one file per algorithm, all with the signature `base.Sampler`.

Example:
    >>> import torch
    >>> from stochseg.core import CategoricalProcess, SeededNoise, cosine, make_grid
    >>> process, noise = CategoricalProcess(cosine(250), num_classes=3), SeededNoise([(0, 0), (0, 1)])
    >>> def network(x_t, t):  # all labels equally likely
    ...     return torch.zeros(2, 3, 8, 8)
    >>> grid = make_grid("even", process.schedule, 5)
    >>> out = SAMPLERS["ancestral"](network, process.prior((2, 8, 8), noise), grid, process, noise)
    >>> out.labels.shape, out.evaluations
    (torch.Size([2, 8, 8]), 5)

Users name samplers with hyphens; `errors.lookup` also takes the underscores of older files.
"""

from stochseg.core.samplers.ancestral import ancestral
from stochseg.core.samplers.base import Sampler
from stochseg.core.samplers.corrector import corrector
from stochseg.core.samplers.ddim import ddim
from stochseg.core.samplers.one_step_kernel import one_step_kernel
from stochseg.core.samplers.polished import polished
from stochseg.core.samplers.sticky import sticky

SAMPLERS: dict[str, Sampler] = {
    "ancestral": ancestral,
    "sticky": sticky,
    "ddim": ddim,
    "corrector": corrector(ancestral),
    "one-step-kernel": one_step_kernel,
}

MASKED_SAMPLERS: dict[str, Sampler] = {"polished": polished}
"""Samplers of `MaskedProcess` alone."""
