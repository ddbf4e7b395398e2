"""The training loop: one process or `torchrun`, readable from top to bottom."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from stochseg.data import Resized, SegmentationData, open_dataset, spread
from stochseg.errors import UserError
from stochseg.files import recover_folder
from stochseg.metrics import ged, without_void
from stochseg.models import StochasticSegmenter
from stochseg.models.io import load, save
from stochseg.models.registry import build
from stochseg.models.sampling import SamplingOptions
from stochseg.plotting import qualitative
from stochseg.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from stochseg.training.config import TrainConfig, read_config, write_config
from stochseg.training.distributed import Processes, join, leave
from stochseg.training.log import Log
from stochseg.training.muon import Muon
from stochseg.training.precision import Precision
from stochseg.training.stream import Draw, ForwardErrors, TrainingStream
from stochseg.types import Batch

CONFIG_FILE = "train.yaml"
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": partial(torch.optim.SGD, momentum=0.9),
    "muon": Muon,
}
# What a resumed run may change: nothing that decides what was learned so far.
FREE_KEYS = {"steps", "minutes", "validation", "save_every", "log_every", "published"}


class TrainingDiverged(UserError):
    """The loss is no longer a number."""


def train(
    config: TrainConfig,
    out: str | Path,
    *,
    resume: bool = False,
    device: str = "auto",
    console: Console | None = None,
) -> Path:
    """Train as `config` says into the run folder `out`; with `resume`, go on from its last checkpoint."""
    out = Path(out)
    console = console or Console(stderr=True)
    processes = join(device)
    try:
        if resume:
            recover_folder(out / "last")
        _check_run(config, out, resume)
        begun = resume and (out / "last").exists()
        run = _Run(config, out, processes, console, begun=begun)
        if begun:
            run.restore()
        _begin_run(config, out, processes)
        run.fit()
        run.settle()
        processes.wait()  # the main process may still be writing; leaving early would end the group under it
    finally:
        leave()
    return out


def open_split(config: TrainConfig, split: str) -> SegmentationData:
    """A split of the run's data with the options the run gives it."""
    further = config.data.train if split == "train" else config.data.val
    data = open_dataset(config.data.name, split, **{**config.data.options, **further})
    return data if config.data.size is None else Resized(data, config.data.size)


def _check_run(config: TrainConfig, out: Path, resume: bool) -> None:
    file = out / CONFIG_FILE
    if file.exists() and not resume:
        raise UserError(f"{out} already holds a run; go on with it with --resume, or give another --out")
    # What failed before anything was kept, of memory perhaps, is not gone on with but begun again.
    if resume and file.exists() and any((out / name).exists() for name in ("best", "last")):
        # The number of loader processes changes nothing of what they load.
        old, new = (c.model_dump(mode="json", exclude={"data": {"workers"}}) for c in (read_config(file), config))
        changed = sorted(k for k in new if k not in FREE_KEYS and new[k] != old[k])
        if changed:
            raise UserError(
                f"{out} was trained with another {', '.join(changed)}; a resumed run may change only "
                f"{', '.join(sorted(FREE_KEYS))}. Give another --out for a new run"
            )


def _begin_run(config: TrainConfig, out: Path, processes: Processes) -> None:
    """Write the config once data and model have opened: a run that could not begin leaves nothing behind."""
    processes.wait()
    if processes.is_main:
        out.mkdir(parents=True, exist_ok=True)
        write_config(config, out / CONFIG_FILE)


def moving_average(model: torch.nn.Module, decay: float) -> AveragedModel:
    """Exponential moving average of the parameters, with a warm-up: the decay of update n is at most
    (1 + n) / (10 + n), so that the first, random weights are forgotten quickly."""

    def update(averaged: list[Tensor], current: list[Tensor], updates: Any) -> None:
        n = int(updates)
        torch._foreach_lerp_(averaged, current, 1 - min(decay, (1 + n) / (10 + n)))

    return AveragedModel(model, multi_avg_fn=update)


class _Run:
    """What one run holds: data, model, average, optimizer, where it stands."""

    def __init__(self, config: TrainConfig, out: Path, processes: Processes, console: Console, *, begun: bool):
        self.config, self.out, self.processes, self.console = config, out, processes, console
        train_data = open_split(config, "train")
        self.val_data = open_split(config, "val")
        self.val_images = self._validation_images()
        self.stream = TrainingStream(
            train_data,
            batch_size=config.batch_size,
            seed=config.seed,
            augment=config.data.augment,
            rank=processes.rank,
            world=processes.world,
        )
        torch.manual_seed(config.seed)
        self.model = build(config.model.name, train_data.info, config.model.options)
        if not begun:  # a run that goes on has its weights, whatever became of those it started from
            self.model.load_pretrained()
            if config.start_from is not None:
                self._start_from(load(config.start_from))
        self.model.to(processes.device)
        self.parallel = DistributedDataParallel(self.model) if processes.world > 1 else self.model
        self.ema = moving_average(self.model, config.ema)
        groups = [{"lr_factor": 1.0, **group} for group in self.model.parameter_groups()]
        self.optimizer = OPTIMIZERS[config.optimizer](groups, lr=config.lr, weight_decay=config.weight_decay)
        self.progress = Progress()
        self.amp = Precision(config.precision, processes.device)
        self.model.check_options(SamplingOptions(evaluations=config.validation.steps))

    def _validation_images(self) -> list[int]:
        """Those to validate on: evenly spread, without such as no rater labelled."""
        if len(self.val_data) == 0:
            raise UserError("the validation split is empty")

        def labelled(i: int) -> bool:
            ignore = self.val_data.info.ignore
            return ignore is None or len(self.val_data[i].rated(ignore).raters) > 0

        chosen = [i for i in spread(len(self.val_data), self.config.validation.images) if labelled(i)]
        chosen = chosen or next(([i] for i in range(len(self.val_data)) if labelled(i)), [])
        if not chosen:
            raise UserError("validation: none of its images has a labelled pixel, all are void; give others")
        return chosen

    def _start_from(self, source: StochasticSegmenter) -> None:
        fresh = self.model.load_matching_weights(source)
        if self.processes.is_main:
            total = len(self.model.state_dict())
            text = f"weights of {self.config.start_from}: {total - len(fresh)} of {total} tensors taken"
            self.console.print(text + (f", new: {', '.join(fresh)}" if fresh else ""), highlight=False)

    def restore(self) -> None:
        self.progress = load_checkpoint(self.out / "last", self.model, self.ema, self.optimizer)
        self.amp.restore(self.progress.loss_scale)
        before, now = read_config(self.out / CONFIG_FILE).validation, self.config.validation
        if any(getattr(before, key) != getattr(now, key) for key in ("images", "samples", "steps")):
            self.progress.best = None  # scores of another validation do not compare
            self.processes.wait()  # others may still be reading the checkpoint
            self._save()  # or the next to go on, to whom both validations are the new one, would not know

    # ------------------------------------------------------------------ the loop

    def fit(self) -> None:
        config, start = self.config, self.progress.step
        loader = DataLoader(
            ForwardErrors(self.stream),
            batch_size=None,
            sampler=range(start, start if self._over() else config.steps),
            num_workers=config.data.workers,
        )
        began = time.perf_counter() - self.progress.seconds
        self.parallel.train()
        with Log(self.out, self.processes.is_main, self.progress) as log, self._bar() as advance:
            try:
                self._validate_if_due(log)  # a run that was stopped in the middle of it
                for draw in loader:
                    if isinstance(draw, UserError):
                        raise draw
                    with _uninterrupted():
                        lr = config.lr * config.lr_factor(self.progress.step, self.progress.seconds)
                        loss, norm = self._step(draw, lr)
                        self.progress.step += 1
                        self.progress.seconds = self._clock(began)
                        step = self.progress.step
                        over = self._over()
                        if step % config.log_every == 0 or over:
                            record = {"train/loss": loss, "train/lr": lr, "train/gradient_norm": norm}
                            log.scalars(self.progress, record)
                    advance(step, loss)
                    self._validate_if_due(log)
                    if step % config.save_every == 0 or over:
                        self._save()
                    if over:
                        break
            except KeyboardInterrupt:
                if self.progress.step > start:
                    self._save()
                raise

    def _clock(self, began: float) -> float:
        """Seconds of training. Where they decide on the learning rate and the end it is the processes' mean, so that
        all take the same steps."""
        seconds = time.perf_counter() - began
        if self.config.minutes is None:
            return seconds
        return self.processes.total(seconds)[0] / self.processes.world

    def _over(self) -> bool:
        return self.config.is_over(self.progress.step, self.progress.seconds)

    def _step(self, draw: Draw, lr: float) -> tuple[float, float]:
        """One optimizer step; returns the loss over all processes and the gradient's norm."""
        device, batch = self.processes.device, draw.batch
        # For networks with dropout; all else draws from the noise of its keys.
        place = (self.config.seed, self.progress.step, self.processes.rank)
        torch.manual_seed(int(np.random.SeedSequence(place).generate_state(1)[0]))
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["lr_factor"]
        mask = None if batch.mask is None else batch.mask.to(device)
        with self.amp.autocast():
            loss = self.parallel(
                batch.image.to(device), batch.raters.to(device), mask, keys=draw.keys, rater_count=batch.rater_count
            )["loss"]
        value = self.processes.total(loss.item())[0] / self.processes.world
        if not math.isfinite(value):
            self._diverged("loss", value)
        self.optimizer.zero_grad(set_to_none=True)
        self.amp.backward(loss)
        self.amp.unscale(self.optimizer)
        limit = self.config.clip if self.config.clip is not None else math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit).item()
        if not math.isfinite(norm) and not self.amp.rescues_overflow:
            self._diverged("gradient", norm)
        self.amp.step(self.optimizer)
        self.ema.update_parameters(self.model)
        return value, norm

    def _diverged(self, what: str, value: float) -> None:
        last = self.out / "last"
        kept = f"the last good checkpoint is {last}" if last.exists() else "no checkpoint had been written yet"
        raise TrainingDiverged(
            f"the {what} became {value} at step {self.progress.step + 1} (finite expected); {kept}. "
            f"Try a lower lr (now {self.config.lr:g}), clip=1.0, warmup=500 or precision=float32, and check the images"
        )

    # ------------------------------------------------------------------ validation and checkpoints

    def _validate_if_due(self, log: Log) -> None:
        step, every = self.progress.step, self.config.validation.every
        if step > self.progress.validated and (step % every == 0 or self._over()):
            self._validate(log)
            self.progress.validated = step

    def _validate(self, log: Log) -> None:
        """GED on a fixed, evenly spread subset with the averaged weights; keeps the best."""
        config, model = self.config.validation, self.ema.module
        score, rows = 0.0, []
        for i in self.val_images[self.processes.rank :: self.processes.world]:
            example = self.val_data[i].rated(model.info.ignore)
            samples = model.sample(example.image[None], config.samples, evaluations=config.steps).to("cpu")
            batch = Batch.collate([example], model.info.ignore)
            maps = without_void(samples.labels, batch.raters, batch.mask)
            score += ged(*maps, model.num_classes, weights=samples.weights).item()
            if len(rows) < 4:
                rows.append((example, samples))
        score = self.processes.total(score)[0] / len(self.val_images)
        step = self.progress.step
        log.scalars(self.progress, {"val/ged": score})
        if self.processes.is_main:
            log.picture(step, qualitative(rows, model.info))
            self.console.print(f"step {step}: validation GED_{config.samples} {score:.4f}", highlight=False)
        if self.progress.best is None or score < self.progress.best:
            if self.processes.is_main:
                save(model, self.out / "best")
            # Only now: a run that is stopped while it saves must find the score better once more.
            self.progress.best, self.progress.best_step = score, step

    def settle(self) -> None:
        """Let the best model measure what its sampling needs, on validation images, and keep that with it."""
        if self.processes.is_main and self.config.validation.settle:
            model = load(self.out / "best", device=self.processes.device)
            before = model.config
            chosen = spread(len(self.val_data), self.config.validation.settle)
            model.calibrate_sampling([self.val_data[i].image[None] for i in chosen])
            if model.config != before:
                save(model, self.out / "best")

    def _save(self) -> None:
        self.progress.loss_scale = self.amp.state()
        if self.processes.is_main:
            save_checkpoint(self.out / "last", self.model, self.ema, self.optimizer, self.progress)

    # ------------------------------------------------------------------ what a person sees

    @contextmanager
    def _bar(self) -> Iterator[Callable[[int, float], None]]:
        if not (self.processes.is_main and self.console.is_terminal):
            yield lambda step, loss: None
            return
        columns = (
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]}  {task.fields[speed]} steps/s  left"),
            TimeRemainingColumn(),
        )
        with Bar(*columns, console=self.console) as bar:
            first, began = self.progress.step, time.perf_counter()
            task = bar.add_task("training", total=self.config.steps, completed=first, loss="–", speed="–")

            def advance(step: int, loss: float) -> None:
                speed = (step - first) / (time.perf_counter() - began)
                bar.update(task, completed=step, loss=f"{loss:.4g}", speed=f"{speed:.2f}")

            yield advance


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits for the end of the block, so that a checkpoint never holds half an optimizer step."""
    if threading.current_thread() is not threading.main_thread():  # which receives no signals
        yield
        return
    caught: list[int] = []
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(kind, lambda number, _: caught.append(number)) for kind in kinds]
    try:
        yield
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)
    if caught:
        signal.raise_signal(caught[0])
