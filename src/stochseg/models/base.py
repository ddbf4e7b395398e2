"""The interface of every stochastic segmenter: `forward` gives a loss, `sample` gives plausible label maps."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from stochseg.config import Config
from stochseg.core import SeededNoise
from stochseg.errors import UserError
from stochseg.types import DatasetInfo, Samples

Key = tuple[int, ...]
"""Whole numbers that name a stream of randomness, e.g. (seed, step, example)."""

Progress = Callable[[int, int], None]
"""(entries of the time grid done, entries in all)."""

PIL_MODES = {"P": "RGB", "1": "L"}
"""Palette and 1-bit pictures hold indices; their intensities are found by converting."""


@dataclass(frozen=True)
class SamplingOptions:
    """How to sample; None means the model's default."""

    steps: int | None = None
    sampler: str | None = None
    grid: str | None = None
    noise: str | None = None
    progress: Progress | None = None


class StochasticSegmenter(nn.Module):
    """Everything above the models knows only this class.

    A subclass declares `Config`, is registered under a name, and writes `loss` and `draw`.
    """

    name: ClassVar[str] = "unregistered"
    training_defaults: ClassVar[Mapping[str, Any]] = {}
    """Keys of a training config that the method's authors chose, such as lr and batch_size: `recipe(name)` takes them
    where a model is trained by its own name."""
    Config: ClassVar[type[Config]] = Config
    accelerated_modules: ClassVar[tuple[str, ...]] = ()
    """Dotted names of the modules that do the heavy work of sampling: tensors in (or None), each with the batch first,
    and a tensor or a tuple of them out. Engines compute these, and `export` writes them."""
    choices: ClassVar[tuple[str, ...]] = ()
    """Of "sampler", "grid" and "noise" what a caller may choose; a model that has some checks it in `check_options`."""
    engine: str = "eager"
    """By whom the accelerated modules are computed: see `stochseg.inference`."""

    def __init__(self, info: DatasetInfo, config: Config):
        super().__init__()
        self.info = info
        self.config = config

    @property
    def num_classes(self) -> int:
        return self.info.num_classes

    @property
    def image_channels(self) -> int:
        return self.info.image_channels

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    # ------------------------------------------------------------------ what a subclass writes

    def loss(
        self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Sequence[Key]
    ) -> dict[str, Tensor]:
        """Inputs as in `forward`, checked. Returns at least {"loss": scalar}."""
        raise NotImplementedError

    def draw(self, image: Tensor, n: int, keys: Sequence[Key], seed: int, options: SamplingOptions) -> Samples:
        """image: "b c h w", checked. keys: one an image; sample i of an image uses (*key, i)."""
        raise NotImplementedError

    def parameter_groups(self) -> list[dict[str, Any]]:
        """What the optimizer trains: groups of `params`, each with its own `lr_factor` (of the run's learning rate) and
        `betas` if it wants them. Networks that play against each other are two groups of one loss."""
        return [{"params": [p for p in self.parameters() if p.requires_grad]}]

    def settle(self, images: Sequence[Tensor]) -> None:
        """After training, on validation images "1 c h w": measure what the defaults of sampling need. Sampling may
        change, weights do not."""

    def load_pretrained(self) -> None:
        """Fill in the pretrained weights that the config names, if it does. `create` and a training that
        begins call it; `load` and one that goes on do not, because a saved model holds all its weights and the files
        they began from may be gone."""

    def adopt(self, source: StochasticSegmenter) -> list[str]:
        """Take over the weights of a trained model wherever name and shape agree; returns what begins afresh."""
        own, theirs = self.state_dict(), source.state_dict()
        fitting = {name for name in own if name in theirs and own[name].shape == theirs[name].shape}
        if not fitting:
            raise UserError(
                f"no weight of the {source.name!r} model fits this {self.name!r}; begin with a model of the same kind"
            )
        for name in fitting:
            own[name].copy_(theirs[name])
        return sorted(own.keys() - fitting)

    @property
    def independent(self) -> bool:
        """Whether the samples of an image are independent draws, unless noise is asked for that shares them out."""
        return True

    def check_options(self, options: SamplingOptions) -> None:
        """UserError for options this model cannot sample with: asked before work that would be lost."""
        for option, only in (("sampler", None), ("grid", None), ("noise", "independent")):
            got = getattr(options, option)
            if got not in (None, only) and option not in self.choices:
                raise UserError(f"model {self.name!r} has no choice of {option}, got {got!r}; leave it out")

    def sampling_constants(self, height: int, width: int) -> dict[str, Any]:
        """Constants for sampling images of this size in another language with the accelerated modules, as JSON."""
        return {}

    def window(self, height: int, width: int) -> tuple[slice, slice]:
        """Where labels vary: rows and columns. Outside every pixel is of class 0."""
        return slice(0, height), slice(0, width)

    def tiled(self, tile: int, overlap: int) -> StochasticSegmenter:
        """This model, over the same weights, with networks that see images larger than `tile` in windows which share
        `overlap` pixels. UserError for a method whose samples cannot be put together from windows."""
        raise UserError(
            f"model {self.name!r} cannot be tiled, because a sample's randomness is of the whole image and windows "
            "would not fit together"
        )

    def _with(self, **parts: Any) -> StochasticSegmenter:
        """A copy that shares everything but these attributes."""
        other = copy.copy(self)
        other._modules = dict(self._modules)  # which copy.copy would share
        for name, part in parts.items():
            setattr(other, name, part)
        return other

    # ------------------------------------------------------------------ what a caller uses

    def forward(
        self,
        image: Tensor,
        raters: Tensor,
        mask: Tensor | None = None,
        keys: Sequence[Key] | None = None,
        rater_count: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The training loss of a batch.

        image: "b c h w" normalized; raters: "b k h w", the label maps of k raters, of which the model draws its own;
        mask: "b k h w", False = void; keys: one an image, naming its randomness (fresh ones if left out);
        rater_count: "b", how many of its k maps an image really has (all, if left out).
        """
        self._check_image(image)
        self._check_raters(image, raters, mask)
        if mask is not None:
            raters = raters.masked_fill(~mask, 0)  # a void label such as 255 is no class
        if keys is None:
            keys = [(int(k),) for k in torch.randint(2**62, (len(image),))]
        k = raters.shape[1]
        if rater_count is None:
            rater_count = torch.full((len(image),), k)
        elif rater_count.shape != (len(image),) or int(rater_count.min()) < 1 or int(rater_count.max()) > k:
            raise UserError(
                f'rater_count "b": expected {len(image)} numbers of 1 to {k} label maps, got {rater_count.tolist()}'
            )
        return self.loss(image.float(), raters.long(), mask, rater_count, keys)

    @torch.no_grad()
    def sample(
        self,
        image: Any,
        n: int,
        *,
        seed: int = 0,
        steps: int | None = None,
        sampler: str | None = None,
        grid: str | None = None,
        noise: str | None = None,
        progress: Progress | None = None,
    ) -> Samples:
        """Draw n plausible label maps an image.

        image: a numpy array "h w" or "h w c" or a PIL image with raw intensities, or a tensor "b c h w" already
        normalized. Sample i of an image depends on (seed, image, i) alone, not on n or on its neighbors; with Latin
        noise, where the n samples share out the probabilities, on n too.
        steps, sampler, grid, noise: for iterative models; None takes the model's defaults.
        """
        if n < 1:
            raise UserError(f"sample: n must be at least 1, got {n}")
        if seed < 0:
            raise UserError(f"sample: seed must not be negative, got {seed}")
        options = SamplingOptions(steps, sampler, grid, noise, progress)
        self.check_options(options)
        batch = self.prepare(image)
        keys = [(seed, image_key(x)) for x in batch]
        was_training = self.training
        self.eval()
        try:
            return self.draw(batch.to(self.device), n, keys, seed, options)
        finally:
            self.train(was_training)

    def prepare(self, image: Any) -> Tensor:
        """Any accepted image as a checked tensor "b c h w"; raw intensities are normalized."""
        if isinstance(image, Tensor):
            image = image.float() if image.is_floating_point() else image  # beyond whose range numbers are infinite
            self._check_image(image)
            return image
        if getattr(image, "mode", None) in PIL_MODES:
            image = image.convert(PIL_MODES[image.mode])
        raw = np.asarray(image)
        if raw.ndim == 2:
            raw = raw[..., None]
        if raw.ndim != 3 or raw.dtype.kind not in "buif":
            raise UserError(
                f'image: expected an array "h w" or "h w c", a PIL image or a tensor "b c h w" of numbers, '
                f"got {type(image).__name__} of shape {raw.shape} and type {raw.dtype}"
            )
        if raw.shape[-1] != self.image_channels:
            raise UserError(
                f'image "h w c": this model was trained on {self.image_channels} channel(s), got {raw.shape[-1]}; '
                + ("convert it to gray scale" if self.image_channels == 1 else "convert it to that number of channels")
            )
        tensor = torch.from_numpy(np.ascontiguousarray(raw.astype(np.float32))).permute(2, 0, 1)[None]
        batch = self.info.normalization(tensor)
        self._check_image(batch)
        return batch

    def _check_image(self, image: Tensor) -> None:
        if image.ndim != 4 or not image.is_floating_point():
            raise UserError(
                f'image "b c h w": expected a float tensor of 4 dimensions, got {tuple(image.shape)} {image.dtype}; '
                "pass raw intensities as a numpy array instead"
            )
        if image.shape[1] != self.image_channels:
            raise UserError(f'image "b c h w": expected c={self.image_channels}, got shape {tuple(image.shape)}')
        if image.numel() == 0:
            raise UserError(f'image "b c h w": empty, shape {tuple(image.shape)}')
        if not bool(torch.isfinite(image).all()):
            bad = int((~torch.isfinite(image)).sum())
            raise UserError(f"image: {bad} value(s) are NaN or infinite; replace them before segmenting")

    def _check_raters(self, image: Tensor, raters: Tensor, mask: Tensor | None) -> None:
        size = (image.shape[0], *image.shape[2:])
        if raters.ndim != 4 or (raters.shape[0], *raters.shape[2:]) != size or raters.shape[1] < 1:
            raise UserError(
                f'raters "b k h w": expected {size[0]} images of {size[1]}×{size[2]} like the image, k >= 1 raters, '
                f"got shape {tuple(raters.shape)}"
            )
        if raters.is_floating_point():
            raise UserError(f"raters: expected integers, got {raters.dtype}; convert with raters.long()")
        if mask is not None and (mask.shape != raters.shape or mask.dtype != torch.bool):
            raise UserError(
                f"mask: expected torch.bool of the raters' shape {tuple(raters.shape)}, False = void, "
                f"got {mask.dtype} of shape {tuple(mask.shape)}"
            )
        known = raters.long() if mask is None else raters.long().masked_fill(~mask, 0)
        low, high = (int(v) for v in torch.aminmax(known))
        if low < 0 or high >= self.num_classes:
            raise UserError(
                f"raters: expected 0..{self.num_classes - 1} for {self.num_classes} classes, got {low}..{high}; "
                "give void pixels by mask (ignore in the data set's info), or create the model with more classes"
            )


def pick_raters(u: Tensor, rater_count: Tensor, draws: int = 1) -> Tensor:
    """Which rater each draw takes, "b draws": uniform for any one draw, and different raters in turn for several.

    u: "b" in [0, 1); rater_count: "b", how many there are.
    """
    count = rater_count[:, None]
    return ((u[:, None] + torch.arange(draws) / count) % 1.0 * count).long()


def pick_pairs(
    keys: Sequence[Key], rater_count: Tensor, draws: int, num_timesteps: int, t_power: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """`draws` pairs of a rater and a step t an image: the image, the rater and t of each, "b·draws" on the CPU.

    Those of an image take different raters in turn and steps spread evenly over 1..T: each pair is distributed as a
    single one, t/T as u^(1/t_power).
    """
    u_rater, u_step = SeededNoise(keys).uniform((len(keys), 2)).unbind(1)
    spread = (u_step[:, None] + torch.arange(draws) / draws) % 1.0
    t = 1 + (spread.double() ** (1 / t_power) * num_timesteps).long()
    rows = torch.arange(len(keys)).repeat_interleave(draws)
    return rows, pick_raters(u_rater, rater_count.cpu(), draws).flatten(), t.flatten()


def one_rating(
    raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Sequence[Key]
) -> tuple[Tensor, Tensor | None]:
    """The map of a random rater of each image and its mask, "b h w"; arguments are those of `loss`."""
    u = SeededNoise(keys).uniform((len(raters), 1))[:, 0]
    rater = pick_raters(u, rater_count.cpu())[:, 0].to(raters.device)
    rows = torch.arange(len(raters), device=raters.device)
    return raters[rows, rater], None if mask is None else mask[rows, rater]


def image_key(image: Tensor) -> int:
    """A number that names the image by its content, so that its noise follows it into any batch."""
    array = np.ascontiguousarray(image.detach().cpu().float().numpy())
    return int.from_bytes(
        hashlib.blake2b(array.tobytes() + repr(array.shape).encode(), digest_size=8).digest(), "little"
    )
