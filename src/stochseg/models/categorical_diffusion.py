"""Categorical diffusion over any denoiser: CCDM Alg. 1 (training) and Alg. 2 (sampling)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from stochseg import core
from stochseg.models.base import StochasticSegmenter
from stochseg.models.diffusion import Diffusion, DiffusionConfig
from stochseg.models.raters import Target, draw_pairs, time_steps
from stochseg.models.sampling import (
    Drawing,
    Drawn,
    Keys,
    Report,
    Rows,
    SamplingOptions,
    broken_rows,
    chunks,
    cut_window,
    impose,
)
from stochseg.networks import Condition, Denoiser, Sizes, Tiled, Tiling
from stochseg.networks.sharing import shared_copy
from stochseg.types import DatasetInfo, Losses


class CategoricalDiffusionConfig(DiffusionConfig):
    """The diffusion of label maps and its training."""

    process: Literal["uniform", "masked"] = Field(
        "uniform", description="noise: labels become random ones, or are masked; a masked model takes known labels"
    )
    objective: Literal["kl", "cross-entropy"] = Field("kl", description="the paper's bound, or cross-entropy on x0")
    t_power: float = Field(1.0, gt=0, description="t/T of training is u^(1/t_power): 1 is even, more prefers noisy t")
    pure: float = Field(0.0, ge=0, le=1, description="share of training draws at t = T, where x_t tells nothing of x0")
    denoise_from: float = Field(
        0.0,
        ge=0,
        le=1,
        description="fraction of the training at which denoising starts; before it, one draw per image at t = T",
    )
    profile: tuple[tuple[int, float], ...] = Field((), description="measured (t, entropy left), for the grid `entropy`")
    share_first: bool = Field(False, description="evaluate the network on pure noise once for all samples of an image")
    first_maps: int | None = Field(
        None,
        ge=1,
        description="with share_first: average the first evaluation over this many fixed maps of pure noise, equal in "
        "all slices; None: one map per image and seed",
    )

    @model_validator(mode="after")
    def _check_schedule(self) -> CategoricalDiffusionConfig:
        if self.process == "masked" and self.schedule != "cosine":
            raise ValueError(f"schedule: process=masked has its own, 1 - t/T, got {self.schedule!r}; omit it")
        return self


def _uniform(config: CategoricalDiffusionConfig, num_classes: int) -> core.CategoricalProcess:
    return core.CategoricalProcess(core.SCHEDULES[config.schedule](config.num_timesteps), num_classes)


def _masked(config: CategoricalDiffusionConfig, num_classes: int) -> core.CategoricalProcess:
    return core.MaskedProcess(core.straight(config.num_timesteps), num_classes)


PROCESSES = {"uniform": _uniform, "masked": _masked}
STARTS = {
    "uniform": "x_T is uniform over the labels.",
    "masked": "x_T is masked everywhere. The label of a masked pixel is the number of classes, its one-hot code is "
    "zero, and the modules are given 0 for t; where x_t has a label, p0 is certain of it.",
}
"""The state from which a sample starts, for programs in another language."""


class CategoricalDiffusion(Diffusion):
    """Base class of diffusion over labels: a subclass provides the denoiser and, if labels do not vary everywhere, the
    window in which they do."""

    config_type: ClassVar[type[CategoricalDiffusionConfig]] = CategoricalDiffusionConfig
    sampling_choices: ClassVar = {**Diffusion.sampling_choices, "sampler": core.SAMPLERS}
    config: CategoricalDiffusionConfig
    denoiser: Denoiser

    def __init__(self, info: DatasetInfo, config: CategoricalDiffusionConfig):
        super().__init__(info, config)
        self.process = PROCESSES[config.process](config, info.num_classes)
        if config.process == "masked":
            # Of this model alone: a uniform one of the same class must refuse these samplers.
            samplers = {**core.SAMPLERS, **core.MASKED_SAMPLERS}
            self.sampling_choices = {**self.sampling_choices, "sampler": samplers}  # type: ignore[misc]
        self.check_options(self.default_sampling())

    def tiled(self, tile: Sizes, overlap: Sizes) -> StochasticSegmenter:
        """Draw noise for the whole image and join the windows at every step, so that samples have no seams."""
        model = shared_copy(self)
        model.denoiser = Tiled(model.denoiser, Tiling.of(tile, overlap, self.info.spatial_dims))
        inner = (name.replace("denoiser.", "denoiser.inner.", 1) for name in self.accelerated_modules)
        model.accelerated_modules = tuple(inner)
        return model

    def _plan(self, options: SamplingOptions) -> tuple[core.Sampler, core.Grid]:
        """The sampler and its time grid, for options without None."""
        assert options.sampler is not None
        sampler = {**core.SAMPLERS, **core.MASKED_SAMPLERS}[options.sampler]
        return sampler, self.time_grid(self.process.schedule, options, self.config.profile)

    def sampling_constants(self, height: int, width: int) -> dict[str, Any]:
        """Constants of the default sampler."""
        sampler, grid = self._plan(self.default_sampling())
        top, left = self.window(height, width)
        return {
            "loop": f"{STARTS[self.config.process]} For each t of the grid, with s the next entry (0 after the last): "
            "the modules give logits of x0 from x_t and t (if there are several components, those of one component "
            "drawn by its probability); log_p0 is their log-softmax over labels; x_s is drawn by the rule. The labels "
            "are the arg-max of the last log_p0; outside the window they are 0. share_first: the first evaluation, "
            "which sees only noise, may be made once for all samples of an image. noise: latin means that the n "
            "samples of an image stratify [0, 1) in every uniform number that they draw, while each sample alone is "
            "distributed as with independent ones.",
            "process": self.config.process,
            "rule": inspect.getdoc(sampler) or inspect.getdoc(inspect.getmodule(sampler)),
            "denoiser": inspect.getdoc(type(self.denoiser)),
            "num_classes": self.num_classes,
            "num_timesteps": self.process.num_timesteps,
            "alpha_bar": self.process.schedule.alpha_bar.tolist(),
            "sampler": self.config.sampler,
            "grid": list(grid),
            "share_first": self.config.share_first,
            "noise": self.config.noise,
            "window": {"top": top.start, "left": left.start, "bottom": top.stop, "right": left.stop},
        }

    # ------------------------------------------------------------------ training

    def loss(self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys) -> Losses:
        """`loss_by_rater` with unknown raters."""
        return self.loss_by_rater(image, raters, mask, rater_count, keys, torch.full(raters.shape[:2], -1))

    def loss_by_rater(
        self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Keys, rater_index: Tensor
    ) -> Losses:
        """CCDM Alg. 1 for `draws` pairs of a rater and a time step per image.

        Note: the paper sums over pixels; here the sum is divided by their number (and the bound multiplied by T), both
        constants, so that the loss is in nats per pixel at any size.
        """
        window = self.window(*image.shape[2:])
        raters, mask = cut_window(raters, window), None if mask is None else cut_window(mask, window)
        rows, target, u, noise = draw_pairs(raters, mask, rater_count, keys, self._draws, rater_index)
        t = time_steps(u, self.process.num_timesteps, self.config.t_power, self._pure)
        x_t = self.process.q_sample(target.labels, t, noise, target.mask)
        condition = self._for_raters(self.denoiser.encode(cut_window(image, window))[rows], target, keys)
        target = Target(target.labels, self.process.to_predict(x_t, target.mask))
        return {"loss": self._terms(target, x_t, t, condition)}

    def _for_raters(self, condition: Condition, target: Target, keys: Keys) -> Condition:
        """The condition of the rows of a batch, with what the network learns of `target.rater`: nothing by default."""
        return condition

    @property
    def _denoises(self) -> bool:
        """Whether this training step has draws at t < T."""
        return self.training_progress >= self.config.denoise_from

    @property
    def _draws(self) -> int:
        return self.config.draws if self._denoises else 1

    @property
    def _pure(self) -> float:
        return self.config.pure if self._denoises else 1.0

    def _terms(self, target: Target, x_t: Tensor, t: Tensor, condition: Condition) -> Tensor:
        """The loss of noised maps "d *space". t: "d" on the CPU."""
        log_p0 = torch.log_softmax(self.denoiser(x_t, self._network_step(t, x_t), condition).float(), 1)
        terms = core.OBJECTIVES[self.config.objective](self.process, log_p0, target.labels, x_t, t, target.mask)
        t_power, pure, last = self.config.t_power, self._pure, self.process.num_timesteps
        if self.config.objective == "kl" and (t_power != 1 or pure > 0):  # the bound weights all t alike
            drawn = (torch.stack([t, t - 1]).double() / last) ** t_power
            probability = last * ((1 - pure) * (drawn[0] - drawn[1]) + pure * (t == last))
            terms = terms / probability.to(terms).view(-1, *[1] * (terms.ndim - 1))
        return terms.mean()

    def _network_step(self, t: Tensor, x_t: Tensor) -> Tensor:
        """The number of the step that the network gets as input at t "d", on the device of x_t."""
        return self.process.network_step(t).to(x_t.device)

    # ------------------------------------------------------------------ sampling

    def drawing(self, image: Tensor, keys: Keys, options: SamplingOptions) -> Drawing:
        """CCDM Alg. 2: encode each image once, denoise its samples in chunks."""
        return self._drawing(image, keys, options, None)

    def drawing_known(self, image: Tensor, keys: Keys, options: SamplingOptions, known: Tensor) -> Drawing:
        """Masked diffusion that starts with the known pixels unmasked."""
        if self.config.process != "masked":
            return super().drawing_known(image, keys, options, known)
        return self._drawing(image, keys, options, known)

    def _drawing(self, image: Tensor, keys: Keys, options: SamplingOptions, known: Tensor | None) -> Drawing:
        sampler, grid = self._plan(options)
        size = image.shape[2:]
        condition = self.denoiser.encode(image)
        first = None
        if self.config.share_first and self.denoiser.holds((self.config.first_maps or 1, *size)):
            first = self._propose_first(condition, keys, size, known)

        def draw(rows: Rows, noise: core.Noise, report: Report) -> Drawn:
            given = None if known is None else known[rows.image]
            x_T = self._compact(impose(self.process.prior((len(rows.image), *size), noise), given))
            denoise = self._denoise(condition, rows.image, noise, first, given)
            out = sampler(denoise, x_T, grid, self.process, noise, lambda i, *_: report(i))
            return Drawn(out.log_p0.exp_(), out.labels, out.evaluations)

        return Drawing(draw, len(grid))

    def _propose_first(
        self, condition: Condition, keys: Keys, size: Sequence[int], known: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The proposal for pure noise, once per image: log_weight "b m" and logits "b m l *space".

        Pure noise says nothing of x0, but the network's proposal depends on it a little. The average over several
        proposals, as a mixture of all their components, depends on it less. Their noise is equal in all slices, so that
        a network that reads equal slices as one proposes for a repeated slice what it proposes for the slice.
        """
        count, b = self.config.first_maps, len(keys)
        if count is None:
            pure = [self.process.prior((b, *size), core.SeededNoise([(*key, 0) for key in keys], self.device))]
        else:
            plane = (*[1] * (len(size) - 2), *size[-2:])
            one = (self.process.prior((1, *plane), core.SeededNoise([(k,)], self.device)) for k in range(count))
            pure = [labels.expand(b, *size) for labels in one]
        step = self._network_step(torch.full((b,), self.process.num_timesteps), pure[0])
        proposals = [self.denoiser.propose(impose(labels, known), step, condition) for labels in pure]
        log_weight, logits = (torch.cat(parts, 1) for parts in zip(*proposals, strict=True))
        return log_weight - math.log(len(pure)), logits

    def _denoise(
        self,
        condition: Condition,
        rows: Tensor,
        noise: core.Noise,
        first: tuple[Tensor, Tensor] | None,
        known: Tensor | None = None,
    ) -> core.Denoise:
        """The network for these rows of the condition, as samplers call it. known: their known labels, -1 elsewhere.

        Where it proposes a mixture, one component is drawn and its p0 returned, which is a draw from the mixture.
        """
        local = condition[rows]
        broken = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)

        def choose(log_p: Tensor) -> Tensor:
            u = noise.uniform((len(log_p), 1)).to(log_p.device)
            return core.draw_categorical(log_p[:, :, None], u)[:, 0]

        def denoise(x_t: Tensor, t: Tensor) -> Tensor:
            nonlocal broken  # once NaN, always NaN: the labels of the next step look sound
            shared = first is not None and int(t[0]) == self.process.num_timesteps
            if shared:
                assert first is not None
                (log_weight, logits), own = first, rows
            else:
                x_t = impose(x_t, known)  # a corrector may have masked them
                log_weight, logits = self.denoiser.propose_chosen(x_t, self._network_step(t, x_t), local, choose)
                own = torch.arange(len(x_t), device=x_t.device)
            broken = broken | broken_rows(log_weight, logits)[own]
            single = log_weight.shape[1] == 1
            if single and not shared:
                chosen = logits[:, 0].float()
            else:
                chosen = logits[own, torch.zeros_like(own) if single else choose(log_weight[own])].float()
            # As `mark_broken`, in place: nobody else has these values, and a copy of those of a volume takes gigabytes.
            chosen.masked_fill_(broken.view(-1, *[1] * (chosen.ndim - 1)), torch.nan)
            return chosen if known is None else self.process.log_p0(chosen, x_t)

        return denoise

    def _compact(self, labels: Tensor) -> Tensor:
        """Labels in an eighth of the memory, where they fit: those of a volume take gigabytes."""
        return labels.to(torch.uint8) if self.process.num_states <= 256 else labels

    def calibrate_sampling(self, images: Sequence[Tensor]) -> None:
        """Measure the entropy profile, so that the grid `entropy` fits the model."""
        self.config = self.config.model_copy(update={"profile": self.entropy_profile(images)})

    @torch.no_grad()
    def entropy_profile(self, images: Sequence[Tensor], *, samples: int = 4, evaluations: int = 50) -> core.Profile:
        """(t, mean entropy of a pixel's p0 in nats) along the exact reverse process, averaged over images
        "1 c *space". With a head of several components p0 is that of the drawn component; the uncertainty between
        components is not counted."""
        left: dict[int, float] = {}
        grid = core.make_grid("even", self.process.schedule, min(evaluations, self.process.num_timesteps))
        fits = [(image, self.fit(*image.shape[2:])) for image in images]
        fitted = [image if fit is None else fit.image(image) for image, fit in fits]
        windows = [cut_window(image.to(self.device), self.window(*image.shape[2:])) for image in fitted]
        was_training = self.training
        self.eval()
        for size in {window.shape[2:] for window in windows}:
            alike = [number for number, window in enumerate(windows) if window.shape[2:] == size]
            for part in chunks(len(alike), size, max(1, self.config.chunk // samples)):
                here = alike[part]

                def record(i: int, t: int, x_t: Tensor, log_p0: Tensor, share: float = len(here) / len(images)) -> None:
                    left[t] = left.get(t, 0.0) - share * (log_p0.exp() * log_p0).nansum(1).mean().item()

                noise = core.SeededNoise([(number, i) for number in here for i in range(samples)], self.device)
                rows = torch.arange(len(here), device=self.device).repeat_interleave(samples)
                condition = self.denoiser.encode(torch.cat([windows[number] for number in here]))
                x_T = self.process.prior((len(rows), *size), noise)
                core.ancestral(self._denoise(condition, rows, noise, None), x_T, grid, self.process, noise, record)
        self.train(was_training)
        return tuple((t, round(value, 6)) for t, value in left.items())
