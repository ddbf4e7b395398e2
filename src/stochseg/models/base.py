"""The interface of every stochastic segmenter: `forward` returns a loss, `sample` returns plausible label maps."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from stochseg.core import NOISES
from stochseg.data.fitting import Fit
from stochseg.errors import CutLabelsWarning, UserError
from stochseg.models import inputs
from stochseg.models.calibration import Calibration
from stochseg.models.config import SegmenterConfig
from stochseg.models.raters import rater_number
from stochseg.models.sampling import (
    Drawing,
    Keys,
    Progress,
    SamplingOptions,
    check_choices,
    check_finite,
    chunks,
    cut_notice,
    cut_window,
    draw_parts,
    draw_samples,
    embed,
    evaluation_mode,
    impose_samples,
    undo_fit,
)
from stochseg.networks import Sizes
from stochseg.types import DatasetInfo, Losses, Samples


class StochasticSegmenter(nn.Module):
    """Base class of all models; everything above the models knows only this class.

    A subclass sets `config_type`, is registered under a name, and implements `loss` and `drawing`.

    Args:
        info: facts about the data: classes, channels, normalization.
        config: options of the model, of its `config_type`.
    """

    name: ClassVar[str] = "unregistered"
    config_type: ClassVar[type[SegmenterConfig]] = SegmenterConfig
    training_defaults: ClassVar[Mapping[str, Any]] = {}
    """Keys of a training config that the method's authors chose, for `recipe(name)`."""
    accelerated_modules: tuple[str, ...] = ()
    """Dotted names of the modules that do the heavy work of sampling: tensors in (or None), each with the batch first,
    and a tensor or a tuple of tensors out. Engines compute these, and `export` writes them."""
    sampling_choices: ClassVar[Mapping[str, Collection[str]]] = {}
    """Names to choose from, by option ("sampler", "grid"); "evaluations", without names, if their number is free."""
    idle_parameters: ClassVar[bool] = False
    """Whether a training step may leave some parameters without a gradient."""
    takes_volumes: ClassVar[bool] = False
    """Whether the model can be built for volumes (`info.spatial_dims` 3)."""
    engine: str = "eager"
    """The engine that computes the accelerated modules: see `stochseg.inference`."""
    calibration: Calibration | None = None
    """Fitted on held-out cases by `stochseg calibrate`; saved and loaded with the model."""
    training_progress: float = 1.0
    """Fraction of the training that is done. The training loop sets it, for a loss that changes on the way."""
    config: SegmenterConfig

    def __init__(self, info: DatasetInfo, config: SegmenterConfig):
        super().__init__()
        self.info = info
        self.config = config

    @property
    def num_classes(self) -> int:
        """Number of labels, the background included."""
        return self.info.num_classes

    @property
    def image_channels(self) -> int:
        """Channels of an image."""
        return self.info.image_channels

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    # ------------------------------------------------------------------ for subclasses to implement

    def loss(self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys) -> Losses:
        """The training loss, at least {"loss": scalar}. Arguments as in `forward`, checked."""
        raise NotImplementedError

    def loss_by_rater(
        self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys, rater_index: Tensor
    ) -> Losses:
        """Like `loss`, for models that know whose maps they are; most do not ask. rater_index: as in `forward`."""
        return self.loss(image, raters, mask, rater_count, keys)

    @property
    def rater_names(self) -> tuple[str, ...]:
        """The raters that the model can imitate, `options.rater` of `drawing`; none by default."""
        return ()

    def drawing(self, image: Tensor, keys: Keys, options: SamplingOptions) -> Drawing:
        """Encode images "b c *space" once and return how to draw samples of them.

        keys: one per image; options: checked and without None, except where the model has no choice.
        """
        raise NotImplementedError

    def drawing_known(self, image: Tensor, keys: Keys, options: SamplingOptions, known: Tensor) -> Drawing:
        """Like `drawing`, given labels "b *space" of some pixels, -1 elsewhere. Raises a UserError if it cannot."""
        raise UserError(
            f"known: model {self.name!r} cannot sample given labels; expected ccdm or ccdm-fast trained with "
            "process=masked; omit known, or train such a model"
        )

    def default_sampling(self) -> SamplingOptions:
        """Options with which the model samples unless the caller chooses others."""
        return SamplingOptions(noise="independent")

    @property
    def max_evaluations(self) -> int | None:
        """The most network evaluations per sample that a caller may choose; None: any number."""
        return None

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Parameters for the optimizer, in groups of `params`, optionally with an `lr_factor` (of the run's learning
        rate) and `betas` of their own. Networks that play against each other are two groups of one loss."""
        return [{"params": [p for p in self.parameters() if p.requires_grad]}]

    def calibrate_sampling(self, images: Sequence[Tensor]) -> None:
        """Measure what the defaults of sampling need, after training, on validation images "1 c *space". Sampling may
        change, weights do not."""

    def load_pretrained(self) -> None:
        """Load the pretrained weights that the config names, if any. `create` and a new training call it; `load` and a
        resumed training do not, because a saved model holds all its weights."""

    def load_matching_weights(self, source: StochasticSegmenter) -> list[str]:
        """Copy the weights of a trained model wherever name and shape agree; returns the names left as they were."""
        own, theirs = self.state_dict(), source.state_dict()
        matching = {name for name in own if name in theirs and own[name].shape == theirs[name].shape}
        if not matching:
            raise UserError(f"no weight of {source.name!r} fits {self.name!r}; start from a model of the same kind")
        for name in matching:
            own[name].copy_(theirs[name])
        return sorted(own.keys() - matching)

    @property
    def independent(self) -> bool:
        """Whether the samples of an image are independent draws, given independent noise."""
        return True

    def sampling_constants(self, height: int, width: int) -> dict[str, Any]:
        """Constants for sampling images of this size in another language with the accelerated modules, as JSON."""
        return {}

    def window(self, *size: int) -> tuple[slice, ...]:
        """The part of the image in which labels vary, one slice per axis. Every pixel outside has class 0."""
        return tuple(slice(0, length) for length in size)

    def tiled(self, tile: Sizes, overlap: Sizes) -> StochasticSegmenter:
        """This model over the same weights, with networks that see images larger than `tile` in windows which overlap
        by `overlap` pixels. Windows of volumes have 16 slices and share 4, unless both are (slices, rows, columns).
        Raises a UserError if samples cannot be assembled from windows."""
        raise UserError(
            f"model {self.name!r} cannot be tiled: the randomness of a sample belongs to the whole image, so windows "
            "would not fit together"
        )

    # ------------------------------------------------------------------ for callers

    def forward(
        self,
        image: Tensor,
        raters: Tensor,
        mask: Tensor | None = None,
        keys: Keys | None = None,
        rater_count: Tensor | None = None,
        rater_index: Tensor | None = None,
    ) -> Losses:
        """The training loss of a batch.

        Args:
            image: "b c *space", normalized.
            raters: "b k *space", the label maps of k raters, from which the model draws.
            mask: "b k *space", False = void.
            keys: name the randomness of each image; random by default.
            rater_count: "b", how many of the k maps an image really has; all by default.
            rater_index: "b k", the place of each map's rater in `info.rater_names`, -1 if unknown, as by default.

        Returns:
            {"loss": scalar} and, for some models, its parts.
        """
        inputs.check_images(image, self.info)
        inputs.check_raters(image, raters, mask, self.num_classes)
        if mask is not None:
            raters = raters.masked_fill(~mask, 0)  # a void label such as 255 is not a class
        if keys is None:
            keys = [(int(k),) for k in torch.randint(2**62, (len(image),))]
        rater_count, rater_index = inputs.check_rater_facts(raters, rater_count, rater_index)
        return self.loss_by_rater(image.float(), raters.long(), mask, rater_count, keys, rater_index)

    def check_options(self, options: SamplingOptions) -> None:
        """Raise a UserError for options that this model cannot sample with: call it before work that would be lost."""
        check_choices(options, {**self.sampling_choices, "noise": NOISES}, self.max_evaluations, self.name)
        if options.rater is not None:
            rater_number(options.rater, self.rater_names, self.name)

    @torch.no_grad()
    def sample(
        self,
        image: Any,
        n: int = 16,
        *,
        seed: int = 0,
        evaluations: int | None = None,
        sampler: str | None = None,
        grid: str | None = None,
        noise: str | None = None,
        keys: Sequence[int] | None = None,
        known: Any = None,
        progress: Progress | None = None,
        allow_unusual_input: bool = False,
        rater: str | int | None = None,
        guidance: float | None = None,
    ) -> Samples:
        """Draw n plausible label maps per image.

        Sample i of an image depends on (seed, image, i) alone, not on n or on the other images; with Latin noise,
        which stratifies the n samples, on n too. A model that was trained on resized images (`info.fit`) resizes the
        image in the same way, and its samples back to the size of the image.

        Args:
            image: raw intensities as a numpy array "h w" or "h w c", a PIL image or the path of an image file; a list
                of these, or an array "b h w" or "b h w c", for several images of one size; or a tensor "b c h w" that
                is already normalized.
            n: samples per image.
            seed: same seed, same samples.
            evaluations: network evaluations per sample, for iterative models.
            sampler: sampling algorithm, for iterative models.
            grid: time steps at which the network is evaluated, for iterative models.
            noise: "independent", or "latin" for stratified samples.
            keys: one number per image that names its noise; default: its content. Slices of a volume should share one.
            known: labels "*space" or "b *space" of pixels that you know, such as scribbles, and -1 elsewhere. Samples
                have them, and the other pixels are drawn given them. For models of masked diffusion.
            progress: called with (evaluations done, evaluations in total).
            allow_unusual_input: sample images whose intensities or size are unlike those of the training images.
            rater: draw as this one of `rater_names`, by name or number, would; default: as any of the raters.
            guidance: from 0, any rater, to 1, the chosen one, as by default; above 1 exaggerates.

        Returns:
            The samples, on the model's device.

        Raises:
            UserError: for an image or an option that the model cannot take, for an image unlike the training images
                (see `stochseg.models.intensities`), and if the output of the network is not finite.

        Warns:
            CutLabelsWarning: if foreground reaches the border of the part of the image that the model labels.

        >>> import numpy as np, stochseg
        >>> model = stochseg.create("unet-ce", 2, 1, base=8, multipliers=[1, 2], draw="pixels")
        >>> model.sample(np.zeros((16, 16), np.uint8), n=4)
        Samples(1 image of 16×16 pixels, 4 label maps each, 2 classes, seed 0, evaluations 1)
        """
        chosen = {"n": n, "evaluations": evaluations, "sampler": sampler, "grid": grid, "noise": noise, "seed": seed}
        options = SamplingOptions.parse({**chosen, "rater": rater, "guidance": guidance}, where="sample")
        batch = self.prepare(image, allow_unusual_input=allow_unusual_input)
        if known is None:
            return self._sample(batch, options, (), progress, keys)[options.n]
        labels = inputs.prepare_known(known, batch, self.num_classes).to(self.device)
        return impose_samples(self._sample(batch, options, (), progress, keys, labels)[options.n], labels)

    @torch.no_grad()
    def sample_counts(
        self, image: Any, counts: Sequence[int], options: SamplingOptions, *, allow_unusual_input: bool = False
    ) -> dict[int, Samples]:
        """Draw `options.n` samples per image, and return the first n of them for each n of `counts`, too.

        Each has the labels and the mean of `sample(image, n)`; the network runs for the largest number only.

        Args:
            image: as in `sample`.
            counts: numbers of samples below `options.n`.
            options: of sampling.
            allow_unusual_input: as in `sample`.

        Raises:
            UserError: as `sample`; and if a part of the samples would differ from as many alone, as with Latin noise.

        >>> import numpy as np, stochseg
        >>> model = stochseg.create("unet-ce", 2, 1, base=8, multipliers=[1, 2], draw="pixels")
        >>> drawn = model.sample_counts(np.zeros((16, 16), np.uint8), [1, 5], SamplingOptions(n=10))
        >>> {n: samples.labels.shape[1] for n, samples in drawn.items()}
        {1: 1, 5: 5, 10: 10}
        """
        wrong = [count for count in counts if not 1 <= count < options.n]
        if wrong:
            raise UserError(f"sample_counts: expected numbers from 1 to below n = {options.n}, got {wrong[0]}")
        if counts and not self.draws_independently(options):
            raise UserError("sample_counts: a part of stratified or weighted samples is no sample; noise=independent")
        return self._sample(self.prepare(image, allow_unusual_input=allow_unusual_input), options, counts, None)

    def sample_parts(
        self,
        image: Tensor,
        options: SamplingOptions,
        progress: Progress | None = None,
        parts: list[slice] | None = None,
    ) -> Iterator[Samples]:
        """Draw the samples of one image or volume part by part, so that memory does not hold them all.

        Args:
            image: as `prepare` returns it, "1 c *space".
            options: of sampling; progress: as in `sample`.
            parts: the samples of each part, first to last; default: as many as fit into memory (`chunks`).

        Yields:
            Some of the samples that `sample` draws, in order, with their mean and their weights among all samples: the
            sum over the parts of mean × total weight is the mean of all.
        """
        self.check_options(options)
        options = options.or_default(self.default_sampling())
        key, fit = (options.seed, inputs.image_key(image[0])), self.fit(*image.shape[2:])
        image = image if fit is None else fit.image(image)
        size, window = image.shape[2:], self.window(*image.shape[2:])
        with evaluation_mode(self):
            with torch.no_grad():
                drawing = self.drawing(cut_window(image.to(self.device), window), [key], options)
            parts = list(chunks(options.n, size, self.config.chunk)) if parts is None else parts
            drawn = draw_parts(drawing, key, parts, options, self.info, device=self.device, progress=progress)
            whole = map(partial(embed, window=window, size=size), map(check_finite, drawn))
            yield from map(partial(undo_fit, fit=fit), whole)

    def draws_independently(self, options: SamplingOptions) -> bool:
        """Whether the samples of an image are independent draws with these options."""
        return self.independent and options.or_default(self.default_sampling()).noise == "independent"

    def _sample(
        self,
        batch: Tensor,
        options: SamplingOptions,
        counts: Sequence[int],
        progress: Progress | None,
        names: Sequence[int] | None = None,
        known: Tensor | None = None,
    ) -> dict[int, Samples]:
        self.check_options(options)
        options = options.or_default(self.default_sampling())
        fit = self.fit(*batch.shape[2:])
        if fit is not None:
            batch, known = fit.image(batch), None if known is None else fit.labels(known, inputs.UNKNOWN)
        keys = [(options.seed, name) for name in (map(inputs.image_key, batch) if names is None else names)]
        if len(keys) != len(batch):
            raise UserError(f"keys: expected {len(batch)} numbers, one per image, got {len(keys)}")
        with evaluation_mode(self):
            drawn = self._draw(batch.to(self.device), keys, options, progress, counts, known)
        drawn = {n: undo_fit(samples, fit) for n, samples in drawn.items()}
        samples = drawn[options.n]
        if samples.window is not None and bool((cut := samples.cut_off).any()):
            warnings.warn(cut_notice(samples.window, cut), CutLabelsWarning, stacklevel=4)  # of the caller
        return drawn

    def fit(self, *size: int) -> Fit | None:
        """How `sample` resizes and pads images of this height and width for the network; None: not at all."""
        if self.info.fit is None or self.info.fit == size:
            return None
        height, width = size
        return Fit((height, width), self.info.fit)

    def prepare(self, image: Any, *, allow_unusual_input: bool = False) -> Tensor:
        """Convert any image that `sample` accepts to a checked tensor "b c h w"; raw intensities are normalized."""
        return inputs.prepare_images(image, self.info, allow_unusual=allow_unusual_input)

    def _draw(
        self,
        image: Tensor,
        keys: Keys,
        options: SamplingOptions,
        progress: Progress | None,
        counts: Sequence[int] = (),
        known: Tensor | None = None,
    ) -> dict[int, Samples]:
        window, device, chunk = self.window(*image.shape[2:]), image.device, self.config.chunk
        inner = cut_window(image, window)
        given = (inner, keys, options)
        drawing = self.drawing(*given) if known is None else self.drawing_known(*given, cut_window(known, window))
        size = inner.shape[2:]
        samples = draw_samples(
            drawing, keys, size, options, self.info, chunk=chunk, device=device, progress=progress, counts=counts
        )
        check_finite(samples[options.n])
        return {n: embed(part, window, image.shape[2:]) for n, part in samples.items()}
