"""What all categorical diffusion models share: CCDM Alg. 1 (training) and Alg. 2 (sampling) over any denoiser."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from stochseg.config import Config
from stochseg.core import (
    NOISES,
    OBJECTIVES,
    SAMPLERS,
    SCHEDULES,
    CategoricalProcess,
    Denoise,
    Grid,
    Noise,
    Profile,
    Sampler,
    SeededNoise,
    ancestral,
    draw_categorical,
    make_grid,
)
from stochseg.errors import unknown_name
from stochseg.models.base import Key, SamplingOptions, StochasticSegmenter, pick_pairs
from stochseg.models.sampling import check_noise, chunks
from stochseg.networks import Condition, Denoiser, Tiled
from stochseg.types import DatasetInfo, Samples


class DiffusionConfig(Config):
    """The diffusion, how it is trained, and how to sample by default."""

    schedule: Literal["cosine", "linear"] = "cosine"
    num_timesteps: int = Field(250, ge=1, description="T")
    objective: Literal["kl", "cross-entropy"] = Field("kl", description="the paper's bound, or cross-entropy on x0")
    draws: int = Field(1, ge=1, description="(rater, t) pairs a training image, all served by one encoding")
    t_power: float = Field(1.0, gt=0, description="t/T of training is u^(1/t_power): 1 is even, more prefers noisy t")
    sampler: str = "ancestral"
    grid: str = "even"
    profile: tuple[tuple[int, float], ...] = Field(
        (), description="(t, entropy left at t), measured on validation data for the grid `entropy`"
    )
    steps: int | None = Field(
        None, ge=1, description="entries of the time grid, so network calls a sample; None is all T"
    )
    noise: str = Field("independent", description="how the samples of an image share randomness")
    share_first: bool = Field(False, description="one first network call, which sees pure noise, for all samples")
    chunk: int = Field(64, ge=1, description="samples of 128×128 pixels denoised at once, scaled for other sizes")
    renamed_keys: ClassVar = {"num_steps": "num_timesteps"}


class CategoricalDiffusion(StochasticSegmenter):
    """A subclass gives the denoiser and, if labels do not vary everywhere, the window in which they do."""

    Config: ClassVar[type[DiffusionConfig]] = DiffusionConfig
    choices = ("sampler", "grid", "noise")
    denoiser: Denoiser

    def __init__(self, info: DatasetInfo, config: DiffusionConfig):
        super().__init__(info, config)
        self.process = CategoricalProcess(SCHEDULES[config.schedule](config.num_timesteps), info.num_classes)
        self.check_options(SamplingOptions())

    def tiled(self, tile: int, overlap: int) -> StochasticSegmenter:
        """Noise is drawn for the whole image and the windows are joined at every step, so samples have no seams."""
        accelerated_modules = tuple(
            name.replace("denoiser.", "denoiser.inner.", 1) for name in self.accelerated_modules
        )
        return self._with(denoiser=Tiled(self.denoiser, tile, overlap), accelerated_modules=accelerated_modules)

    def check_options(self, options: SamplingOptions) -> None:
        self._plan(options)

    def _plan(self, options: SamplingOptions) -> tuple[Sampler, Grid]:
        """The sampler and its time grid."""
        name = options.sampler or self.config.sampler
        if name not in SAMPLERS:
            raise unknown_name("sampler", name, SAMPLERS)
        check_noise(options, self.config.noise)
        steps = self.config.steps if options.steps is None else options.steps
        grid = options.grid or self.config.grid
        return SAMPLERS[name], make_grid(grid, self.process.schedule, steps, self.config.profile)

    def sampling_constants(self, height: int, width: int) -> dict[str, Any]:
        """The default sampler's."""
        sampler, grid = self._plan(SamplingOptions())
        top, left = self.window(height, width)
        return {
            "loop": "x_T is uniform over the labels. For each t of the grid, with s the entry after it (0 after the "
            "last): the modules give logits of x0 from x_t and t, where there are several components those of one that "
            "is drawn by its probability; log_p0 is their log-softmax over labels; x_s is drawn by the rule. The "
            "labels are the arg-max of the last log_p0; outside the window they are 0. share_first: the first call, "
            "which sees noise alone, may be made once for all samples of an image. noise: latin means that the n "
            "samples of an image share out [0, 1) evenly in every uniform number that they draw, each sample alone "
            "being as with independent ones.",
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

    def loss(
        self, image: Tensor, raters: Tensor, mask: Tensor | None, rater_count: Tensor, keys: Sequence[Key]
    ) -> dict[str, Tensor]:
        """CCDM Alg. 1 for `draws` pairs of a rater and a step an image.

        Note: the paper sums over pixels; here the sum is divided by their number (and the bound multiplied by T),
        constants both, so that the loss is in nats a pixel at any size.
        """
        config = self.config
        top, left = self.window(*image.shape[-2:])
        raters, mask = raters[..., top, left], None if mask is None else mask[..., top, left]
        pairs = pick_pairs(keys, rater_count, config.draws, self.process.num_timesteps, config.t_power)
        rows, rater, t = (part.to(image.device) for part in pairs)
        x0 = raters[rows, rater]
        valid = None if mask is None else mask[rows, rater]
        noise = SeededNoise([(*key, j) for key in keys for j in range(config.draws)], image.device)
        x_t = self.process.q_sample(x0, t, noise, valid)
        return {"loss": self._terms(x0, x_t, t, valid, self.denoiser.encode(image[..., top, left])[rows])}

    def _terms(self, x0: Tensor, x_t: Tensor, t: Tensor, valid: Tensor | None, condition: Condition) -> Tensor:
        log_p0 = torch.log_softmax(self.denoiser(x_t, t, condition).float(), 1)
        terms = OBJECTIVES[self.config.objective](self.process, log_p0, x0, x_t, t, valid)
        if self.config.objective == "kl" and self.config.t_power != 1:  # the bound weighs all t alike
            share = (torch.stack([t, t - 1]).cpu().double() / self.process.num_timesteps) ** self.config.t_power
            terms = terms / (self.process.num_timesteps * (share[0] - share[1])).to(terms)[:, None, None]
        return terms.mean()

    # ------------------------------------------------------------------ sampling

    def settle(self, images: Sequence[Tensor]) -> None:
        """Measure the entropy profile, so that the grid `entropy` is the model's own."""
        self.config = self.config.model_copy(update={"profile": self.entropy_profile(images)})

    @torch.no_grad()
    def entropy_profile(self, images: Sequence[Tensor], *, samples: int = 4, calls: int = 50) -> Profile:
        """(t, mean entropy of a pixel's p0 in nats) along the exact reverse process, averaged over images "1 c h w". Of
        a head with several components p0 is that of the component drawn: what is open between them is not counted."""
        left: dict[int, float] = {}
        grid = make_grid("even", self.process.schedule, min(calls, self.process.num_timesteps))
        windows = [image.to(self.device)[(..., *self.window(*image.shape[-2:]))] for image in images]
        was_training = self.training
        self.eval()
        for size in {window.shape[-2:] for window in windows}:
            alike = [number for number, window in enumerate(windows) if window.shape[-2:] == size]
            for part in chunks(len(alike), size, max(1, self.config.chunk // samples)):
                here = alike[part]

                def look(i: int, t: int, x_t: Tensor, log_p0: Tensor, share: float = len(here) / len(images)) -> None:
                    left[t] = left.get(t, 0.0) - share * (log_p0.exp() * log_p0).nansum(1).mean().item()

                noise = SeededNoise([(number, i) for number in here for i in range(samples)], self.device)
                rows = torch.arange(len(here), device=self.device).repeat_interleave(samples)
                condition = self.denoiser.encode(torch.cat([windows[number] for number in here]))
                x_T = self.process.prior((len(rows), *size), noise)
                ancestral(self._denoise(condition, rows, noise, None), x_T, grid, self.process, noise, look)
        self.train(was_training)
        return tuple((t, round(value, 6)) for t, value in left.items())

    def draw(self, image: Tensor, n: int, keys: Sequence[Key], seed: int, options: SamplingOptions) -> Samples:
        """CCDM Alg. 2, n times an image: encode once, denoise in chunks."""
        sampler, grid = self._plan(options)
        make_noise = NOISES[options.noise or self.config.noise]
        b, _, height, width = image.shape
        top, left = self.window(height, width)
        inner = image[..., top, left]
        h, w = inner.shape[-2:]
        condition = self.denoiser.encode(inner)
        rows = torch.arange(b, device=image.device).repeat_interleave(n)
        labels = torch.zeros(b * n, height, width, dtype=torch.int64, device=image.device)
        mean = torch.zeros(b, self.num_classes, h, w, device=image.device)
        parts = list(chunks(b * n, (h, w), self.config.chunk))
        calls = len(parts) * len(grid)
        first = self._first_call(condition, grid, keys, (h, w)) if self.config.share_first else None

        for number, part in enumerate(parts):
            noise = make_noise(keys, n, range(part.start, part.stop), image.device)

            def report(i: int, *_: object, done: int = number * len(grid)) -> None:
                if options.progress is not None:
                    options.progress(done + i + 1, calls)

            x_T = self.process.prior((part.stop - part.start, h, w), noise)
            denoise = self._denoise(condition, rows[part], noise, first)
            out = sampler(denoise, x_T, grid, self.process, noise, report)
            labels[part, top, left] = out.labels
            mean.index_add_(0, rows[part], out.log_p0.exp() / n)
        if (h, w) != (height, width):
            edges = (left.start, width - left.stop, top.start, height - top.stop)
            mean = torch.stack([F.pad(p, edges, value=float(k == 0)) for k, p in enumerate(mean.unbind(1))], 1)
        weights = torch.full((b, n), 1 / n, device=image.device)
        return Samples(labels.view(b, n, height, width), mean, weights, seed, out.evaluations)

    def _first_call(
        self, condition: Condition, grid: Grid, keys: Sequence[Key], size: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """What the network says of pure noise, once an image."""
        x_T = self.process.prior((len(keys), *size), SeededNoise([(*key, 0) for key in keys], self.device))
        return self.denoiser.propose(x_T, torch.full((len(x_T),), grid[0], device=x_T.device), condition)

    def _denoise(
        self, condition: Condition, rows: Tensor, noise: Noise, first: tuple[Tensor, Tensor] | None
    ) -> Denoise:
        """The network for these rows of the condition, as samplers call it: where it proposes a mixture, a component
        is drawn and the sampler goes on with that component's p0, which is a draw from the mixture."""
        local = condition[rows]

        def denoise(x_t: Tensor, t: Tensor) -> Tensor:
            if first is not None and int(t[0]) == self.process.num_timesteps:
                log_share, logits = (part[rows] for part in first)
            else:
                log_share, logits = self.denoiser.propose(x_t, t.to(x_t.device), local)
            component = torch.zeros(len(x_t), dtype=torch.int64, device=x_t.device)
            if log_share.shape[1] > 1:
                u = noise.uniform((len(x_t), 1, 1)).to(x_t.device)
                component = draw_categorical(log_share[:, :, None, None], u)[:, 0, 0]
            return logits[torch.arange(len(x_t), device=x_t.device), component].float()

        return denoise
