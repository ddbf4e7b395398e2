"""The hands of raters in a model that is conditioned on them: one vector each, and one more from a few maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from stochseg.data.fitting import fit_example, pad_together, void_label
from stochseg.errors import UserError
from stochseg.models.base import StochasticSegmenter
from stochseg.networks.sharing import shared_copy
from stochseg.types import Batch, DatasetInfo, Example

START = 0.2
"""Standard deviation of new vectors: hands that start equal would have equal gradients for long."""


def new_hands(info: DatasetInfo, width: int) -> nn.Parameter:
    """One random vector of this width per rater of the data.

    Raises:
        UserError: if the data do not name their raters.
    """
    if not info.rater_names:
        raise UserError(
            f"rater_conditioning: the data set {info.name!r} does not name its raters; use data with label maps in "
            "labels/RATER/, import them again, or set rater_conditioning=false"
        )
    return nn.Parameter(START * torch.randn(len(info.rater_names), width))


def fit_rater(
    model: StochasticSegmenter,
    examples: Sequence[Example],
    name: str,
    *,
    steps: int = 150,
    lr: float = 0.05,
    batch_size: int = 16,
    seed: int = 0,
) -> StochasticSegmenter:
    """Teach a trained model the hand of one more rater from a few label maps.

    Only the vector of the new rater is trained, starting at that of any rater; all other weights stay as they are and
    are shared with the given model. The result can be saved like any model.

    Args:
        model: a `ccdm-fast` with rater_conditioning.
        examples: normalized images with label maps: those of the rater `name`, or all where the maps have no names.
        name: the new rater's.
        steps: of the optimizer.
        lr: learning rate.
        batch_size: images per step, drawn with replacement.
        seed: of images, time steps and noise.

    Returns:
        A model that knows one rater more.

    Raises:
        UserError: if the model is not conditioned on raters or knows this one, or if there are no maps.

    >>> import stochseg
    >>> from stochseg.data import Phantoms
    >>> data = Phantoms("train", size=16, count=4, habits=(-3.0, 3.0))
    >>> model = stochseg.create("ccdm-fast", info=data.info, tower=[8, 16], light=[8, 8], rater_conditioning=True)
    >>> new = Phantoms("train", size=16, count=2, raters=1, seed=1)  # maps without a name: all are the new rater's
    >>> fit_rater(model, [new[0], new[1]], "dana", steps=2).rater_names
    ('rater1', 'rater2', 'dana')
    """
    hands = getattr(model, "hands", None)
    if not model.rater_names or not isinstance(hands, nn.Parameter):
        raise UserError(
            f"fit_rater: model {model.name!r} has no vectors of raters; train ccdm-fast with rater_conditioning=true"
        )
    if name in model.rater_names:
        raise UserError(f"fit_rater: the model knows a rater {name!r}; choose another name")
    chosen = [_maps_of(example, name, model.info) for example in examples]
    chosen = [example for example in chosen if len(example.raters)]
    if not chosen:
        raise UserError(f"fit_rater: expected label maps of {name!r}, got none")
    fitted = shared_copy(model).eval()
    fitted.info = model.info.model_copy(update={"rater_names": (*model.rater_names, name)})
    vector = nn.Parameter(torch.zeros_like(hands[0]))
    others, optimizer = hands.detach(), torch.optim.Adam([vector], lr=lr)
    trained = {name: p.requires_grad for name, p in fitted.named_parameters()}
    fitted.requires_grad_(False)
    del fitted.hands
    generator = torch.Generator().manual_seed(seed)
    try:
        for step in range(steps):
            fitted.hands = torch.cat([others, vector[None]])
            picked = torch.randint(len(chosen), (min(batch_size, len(chosen)),), generator=generator).tolist()
            batch = _batch([chosen[i] for i in picked], fitted.info)
            keys = [(seed, step, place) for place in range(len(picked))]
            mask = None if batch.mask is None else batch.mask.to(model.device)
            about = {"keys": keys, "rater_count": batch.rater_count, "rater_index": batch.rater_index}
            optimizer.zero_grad()
            with torch.enable_grad():
                loss = fitted(batch.image.to(model.device), batch.raters.to(model.device), mask, **about)["loss"]
            loss.backward()
            for group in optimizer.param_groups:
                group["lr"] = lr * (1 - step / steps)
            optimizer.step()
    finally:  # the weights are those of the given model, too
        for key, p in fitted.named_parameters():
            p.requires_grad_(trained[key])
    del fitted.hands
    fitted.hands = nn.Parameter(torch.cat([others, vector.detach()[None]]))
    return fitted


def _maps_of(example: Example, name: str, info: DatasetInfo) -> Example:
    """The maps of one rater, fitted to the model's size; all maps are theirs if no names say whose they are."""
    maps = example.raters
    if example.rater_names:
        maps = maps[[each == name for each in example.rater_names]]
    example = replace(example, raters=maps, rater_names=(name,) * len(maps))
    return example if info.fit is None else fit_example(example, info.fit, void_label(info))


def _batch(examples: Sequence[Example], info: DatasetInfo) -> Batch:
    void = void_label(info)
    return Batch.collate(pad_together(examples, void), void, info.rater_names)
