"""`Samples` made of given label maps."""

import torch

from stochseg.types import Samples


def as_samples(maps, num_classes=2, weights=None):
    """Samples of label maps "n h w" or "b n *space"; their mean is the weighted frequency of the labels."""
    maps = maps[None] if maps.ndim == 3 else maps
    b, n = maps.shape[:2]
    weights = torch.full((b, n), 1 / n) if weights is None else torch.as_tensor(weights, dtype=torch.float32)
    weights = weights.expand(b, n)
    one_hot = torch.nn.functional.one_hot(maps, num_classes).float()
    return Samples(maps, torch.einsum("bn,bn...l->bl...", weights, one_hot), weights, 0)
