"""Samples of a probability map, which some other segmenter has computed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from stochseg.core import NOISES, coherent_uniform, draw_categorical
from stochseg.errors import UserError
from stochseg.types import DatasetInfo, Samples
from stochseg.types.samples import as_tensor, check_probabilities


def sample_soft_map(
    probabilities: Any,
    n: int = 16,
    *,
    coherence: float | Sequence[float] | None = None,
    seed: int = 0,
    info: DatasetInfo | None = None,
) -> Samples:
    """Draw label maps of one probability map, with its probabilities at every pixel and with spatial coherence.

    Each sample compares the cumulated probabilities of every pixel with a uniform that neighbors share (see
    `stochseg.core.coherent_uniform`). By default all pixels share one, spread evenly over the samples: outlines are
    nested, from the largest plausible to the smallest, the fraction of samples with a label is its probability within
    1/n, and the spread of sizes is the widest that the map allows. With a length, places further apart vary
    independently. A probability map does not contain which of these is true.

    Args:
        probabilities: "l *space", floats that sum to 1 over the labels, with the background first.
        n: number of samples.
        coherence: pixels over which the label maps vary together, one number or one per axis; None: all of the image.
        seed: same seed, same samples.
        info: class names and colors, if known.

    Returns:
        Samples of one image, whose mean is the map itself.

    Raises:
        UserError: if the values are no probabilities, or the coherence is longer than the image.

    >>> soft = np.array([[[0.75, 0.5, 0.0]], [[0.25, 0.5, 1.0]]])
    >>> sample_soft_map(soft, n=4).frequency[0, 1].tolist()
    [[0.25, 0.5, 1.0]]
    """
    soft = as_tensor(probabilities, "sample_soft_map")
    if soft.ndim not in (3, 4) or not soft.is_floating_point() or n < 1:
        raise UserError(
            f'sample_soft_map: expected floats "l h w" or "l d h w" and n of at least 1, got shape {tuple(soft.shape)} '
            f"{soft.dtype} and n {n}"
        )
    check_probabilities(soft, "sample_soft_map", axis=0)
    size = soft.shape[1:]
    lengths = coherence if coherence is None or isinstance(coherence, Sequence) else [coherence] * len(size)
    content = soft.cpu().numpy()
    key = (seed, int.from_bytes(hashlib.sha256(np.ascontiguousarray(content).tobytes()).digest()[:8], "big"))
    make_noise = NOISES["latin" if lengths is None else "independent"]
    labels = torch.empty(1, n, *size, dtype=torch.int64)
    log_p = soft.clamp_min(0).log()[None].cpu()
    for i in range(n):  # one by one, because a volume is large
        uniform = coherent_uniform(make_noise([key], n, range(i, i + 1), "cpu"), 1, size, lengths)
        labels[:, i] = draw_categorical(log_p, uniform)
    return Samples(labels, soft.float()[None].cpu().clamp(0, 1), torch.full((1, n), 1 / n), seed, info=info)
