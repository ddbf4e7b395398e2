"""The training loop: one process or `torchrun`, readable from top to bottom."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from torch.utils.data import DataLoader

from stochseg.data import has_single_annotations, spread
from stochseg.errors import NotFinite, UserError
from stochseg.files import sync
from stochseg.locks import PATIENCE, Lock, locked
from stochseg.metrics import miou
from stochseg.models import StochasticSegmenter
from stochseg.models.intensities import with_intensities
from stochseg.models.io import load, save, values_before
from stochseg.models.registry import build
from stochseg.models.sampling import SamplingOptions
from stochseg.plotting import qualitative
from stochseg.training.average import MovingAverage
from stochseg.training.checkpoint import BEST, LAST, Progress, load_checkpoint, save_checkpoint
from stochseg.training.config import CONFIG_FILE, TrainConfig, read_config, snapshot_name, write_config
from stochseg.training.display import display
from stochseg.training.distributed import Processes, join, leave, restarts
from stochseg.training.interrupts import delayed_interrupts
from stochseg.training.log import LOG_FILE, Log, last_step
from stochseg.training.muon import Muon
from stochseg.training.precision import Precision
from stochseg.training.run_folder import (
    check_run,
    check_writable,
    disk_errors,
    load_newest,
    problem_of_best,
    remove_traces,
    replace_damaged,
    saved_options,
    set_aside,
)
from stochseg.training.splits import open_split, training_patches, training_view, with_augmentation
from stochseg.training.stream import Draw, ForwardErrors, TrainingStream
from stochseg.training.validation import score_images, validation_images
from stochseg.types import Losses

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": partial(torch.optim.SGD, momentum=0.9),
    "muon": Muon,
}

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


class TrainingDiverged(NotFinite):
    """The loss or the gradient is not finite."""


def train(
    config: TrainConfig,
    out: str | Path,
    *,
    resume: bool = False,
    device: str = "auto",
    console: Console | None = None,
) -> Path:
    """Train a model.

    The run folder gets the checkpoints best/ (lowest validation GED, or highest mIoU: `validation.select`) and last/,
    train.yaml, log.jsonl, TensorBoard logs and pictures of samples. The result depends on the config alone: a run that
    was interrupted and resumed ends with the weights of an uninterrupted one, bit for bit on the same machine and
    number of threads. Ctrl-C and SIGTERM finish the current step and write a checkpoint.

    Args:
        config: the run; see `recipe` and `TrainConfig`.
        out: the run folder. It is created.
        resume: continue from the last checkpoint in `out`. An empty `out` starts a new run; a run that has lost its
            checkpoints is an error.
        device: "auto", "cpu", "cuda", "cuda:1", "mps". Under `torchrun`, all processes share the batches of one run;
            those that `--max-restarts` starts anew resume it.
        console: receives progress and validation scores; standard error by default.

    Returns:
        The run folder, which `stochseg.load` accepts.

    Raises:
        UserError: if `out` already contains a run and `resume` is False, if the resumed run was trained with another
            config or has no usable checkpoint, if another process trains it, if data, model or device cannot be used,
            or if the disk is full.
        TrainingDiverged: if the loss or the gradient is not finite.

    >>> import tempfile, stochseg
    >>> from rich.console import Console
    >>> config = TrainConfig.parse(
    ...     {
    ...         "data": {"name": "phantom", "options": {"size": 8}, "train": {"count": 4}, "val": {"count": 2}},
    ...         "model": {"name": "unet-ce", "options": {"base": 4, "multipliers": [1]}},
    ...         "steps": 2,
    ...         "batch_size": 2,
    ...     }
    ... )
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = train(config, folder + "/run", device="cpu", console=Console(quiet=True))
    ...     stochseg.load(run).name
    'unet-ce'
    """
    out = Path(out)
    processes = join(device)
    if not processes.is_main:
        console = Console(quiet=True, force_terminal=False)
    with ExitStack() as held:
        held.callback(leave)
        held.enter_context(disk_errors(out))
        patience = PATIENCE if restarts() else 0  # the lock may be that of a machine that died
        lock = processes.in_main(lambda: held.enter_context(locked(out, patience=patience)))
        resume = resume or restarts() > 0
        processes.in_main(lambda: check_run(config, out, resume))
        config = with_augmentation(config, out, resume)
        resumed = processes.decide(lambda: resume and (out / LAST).exists())
        run = _Run(config, out, processes, console or Console(stderr=True), lock, resumed=resumed)
        if resumed:
            run.restore()
        processes.wait()  # others may still be reading
        processes.in_main(lambda: check_writable(out))
        try:
            if processes.is_main:  # after data and model were opened: a run that cannot start leaves nothing behind
                write_config(config, out / CONFIG_FILE)
            if not resumed:
                run.save()  # a run without a checkpoint has lost it, and a disk without room is found at once
            run.fit()
        except BaseException:
            if processes.is_main and not resumed and run.progress.step == 0:
                remove_traces(out)  # a corrected command starts at once
            raise
        run.calibrate_sampling()
        processes.wait()  # the main process may still be writing; leaving early would end the group
    return out


class _Run:
    """Data, model, moving average, optimizer and progress of a run."""

    def __init__(
        self,
        config: TrainConfig,
        out: Path,
        processes: Processes,
        console: Console,
        lock: Lock | None,
        *,
        resumed: bool,
    ):
        self.config, self.out, self.processes, self.console, self.lock = config, out, processes, console, lock
        stored = open_split(config, "train")
        train_data = training_patches(training_view(stored, config), config)
        self.val_data = training_view(open_split(config, "val"), config)
        self.val_images = validation_images(self.val_data, config.validation.images)
        self.stream = TrainingStream(
            train_data,
            batch_size=config.batch_size,
            seed=config.seed,
            augment=config.data.augment,
            rank=processes.rank,
            world=processes.world,
        )
        torch.manual_seed(config.seed)
        options = config.model.options
        if resumed:
            options = {**values_before(config.model.name, saved_options(out)), **options}
        # Intensities of the images as users pass them; padding is void in training only.
        info = with_intensities(stored, config.data.patch).model_copy(update={"fit": config.data.fit})
        self.model = build(config.model.name, info, options)
        if not resumed:  # a checkpoint holds all weights; the files of pretrained ones may be gone
            self.model.load_pretrained()
            if config.start_from is not None:
                self._start_from(load(config.start_from))
        self.model.to(processes.device)
        self.parallel = processes.parallel(self.model, idle_parameters=self.model.idle_parameters)
        self.average = MovingAverage(self.model, config.ema, config.ema_warmup)
        groups = [{"lr_factor": 1.0, **group} for group in self.model.parameter_groups()]
        self.optimizer = OPTIMIZERS[config.optimizer](groups, lr=config.lr, weight_decay=config.weight_decay)
        select = config.validation.select
        if select == "auto":
            select = "miou" if has_single_annotations(self.val_data) else "ged"
        self.progress = Progress(best_metric=select)
        self.saved = 0
        self.amp = Precision(config.precision, processes.device)
        self.model.check_options(SamplingOptions(evaluations=config.validation.evaluations))

    def _start_from(self, source: StochasticSegmenter) -> None:
        fresh, total = self.model.load_matching_weights(source), len(self.model.state_dict())
        text = f"loaded {total - len(fresh)} of {total} tensors of {self.config.start_from}"
        left = ", ".join(fresh[:4]) + (f" and {len(fresh) - 4} others" if len(fresh) > 4 else "")
        self._report(text + (f"; not loaded: {left}" if fresh else ""))

    def _report(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def restore(self) -> None:
        """Load the newest sound checkpoint."""
        parts = self.model, self.average, self.optimizer
        folder, self.progress, damaged = self.processes.decide(lambda: load_newest(self.out, *parts))
        if not self.processes.is_main:  # the main process has it
            load_checkpoint(folder, *parts)
        self.saved = self.progress.step
        self.processes.wait()  # others may still be reading
        if damaged:
            self.processes.in_main(lambda: self._warn(replace_damaged(self.out, damaged)))
        self._check_best()
        if self.progress.loss_scale:
            self.amp.scaler.load_state_dict(self.progress.loss_scale)
        before, now = read_config(self.out / CONFIG_FILE).validation, self.config.validation
        changed = any(getattr(before, key) != getattr(now, key) for key in ("images", "num_samples", "evaluations"))
        if now.select not in ("auto", self.progress.best_metric):  # auto: the metric that the run has
            self.progress.best_metric, changed = now.select, True
        if changed:
            self.progress.best = None  # scores of different validations are not comparable
            self.save()  # train.yaml is about to be replaced, so the next resume could not see the difference
        complete = "training is complete" if self.progress.step >= self.config.steps else "the training time is over"
        state = complete if self._over() else "resuming"
        reached = last_step(self.out)
        repeated = f"; the log reaches step {reached}, so steps are repeated" if reached > self.progress.step else ""
        self._report(f"{state} at step {self.progress.step} of {self.config.steps}{repeated}")

    def _check_best(self) -> None:
        """Let the next validation choose the best model again if it is missing or damaged."""
        exists, problem = self.processes.decide(lambda: ((self.out / BEST).exists(), problem_of_best(self.out)))
        if not problem or (not exists and self.progress.best is None):
            return
        if self.processes.is_main:
            kept = f"; it is kept as {set_aside(self.out / BEST)}" if exists else ""
            self._warn(f"warning: {problem}{kept}. The next validation writes a new one")
        self.progress.best = None
        self.progress.validated = min(self.progress.validated, self.progress.step - 1)

    def _warn(self, text: str) -> None:
        if self.console.quiet:
            warnings.warn(text, stacklevel=2)
        else:
            self._report(text)

    # ------------------------------------------------------------------ the loop

    def fit(self) -> None:
        """Take the steps that are left."""
        config, start = self.config, self.progress.step
        loader = DataLoader(
            ForwardErrors(self.stream),
            batch_size=None,
            sampler=range(start, start if self._over() else config.steps),
            num_workers=config.data.workers,
        )
        clock = CLOCKS[config.clock]
        began = clock() - self.progress.seconds
        self.parallel.train()
        shown = display(self.console, config, self.progress)
        with Log(self.out, self.processes.is_main, self.progress) as log, shown as show:
            try:
                self._validate_if_due(log)  # if the run was stopped during a validation
                for draw in loader:
                    if isinstance(draw, UserError):
                        raise draw
                    with delayed_interrupts():  # a checkpoint must never hold half an optimizer step
                        lr = config.lr * config.lr_factor(self.progress.step, self.progress.seconds)
                        losses, norm = self._step(draw, lr)
                        self.progress.step += 1
                        before, self.progress.seconds = self.progress.seconds, clock() - began
                        if config.minutes is not None:  # the mean, so that all processes take the same steps
                            self.progress.seconds = self._mean(self.progress.seconds)
                        step, over = self.progress.step, self._over()
                        if step % config.log_every == 0 or over:
                            record = {f"train/{part}": self._mean(value.item()) for part, value in losses.items()}
                            log.scalars(self.progress, {**record, "train/lr": lr, "train/gradient_norm": norm})
                    self._save_snapshots(before)
                    show(losses["loss"].item())
                    self._validate_if_due(log)
                    if step % config.save_every == 0 or over:
                        self.save()
                    if over:
                        break
            except KeyboardInterrupt:
                if self.progress.step > start:
                    self.save()
                self._report(f"\na resumed run continues from step {self.progress.step} of {config.steps}")
                raise

    def _save_snapshots(self, before: float) -> None:
        """Save the averaged weights for each snapshot that the last step, begun at `before` seconds, has reached."""
        for minutes in self.config.snapshots:
            if before < 60 * minutes <= self.progress.seconds and self.processes.is_main:
                self._check_lock()
                save(self.average.model, self.out / snapshot_name(minutes))

    def _mean(self, value: float) -> float:
        return self.processes.total(value) / self.processes.world

    def _over(self) -> bool:
        return self.config.is_over(self.progress.step, self.progress.seconds)

    def _step(self, draw: Draw, lr: float) -> tuple[Losses, float]:
        """Take one optimizer step and return the losses of this process and the norm of the gradient."""
        device, batch = self.processes.device, draw.batch
        # For networks with dropout; everything else draws from the noise of its keys.
        place = (self.config.seed, self.progress.step, self.processes.rank)
        torch.manual_seed(int(np.random.SeedSequence(place).generate_state(1)[0]))
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["lr_factor"]
        self.model.training_progress = self.config.progress(self.progress.step, self.progress.seconds)
        mask = None if batch.mask is None else batch.mask.to(device)
        with self.amp.autocast():
            about = {"keys": draw.keys, "rater_count": batch.rater_count, "rater_index": batch.rater_index}
            losses: Losses = self.parallel(batch.image.to(device), batch.raters.to(device), mask, **about)
        value = self._mean(losses["loss"].item())
        if not math.isfinite(value):
            self._diverged("loss", value)
        self.optimizer.zero_grad(set_to_none=True)
        self.amp.backward(losses["loss"])
        self.amp.scaler.unscale_(self.optimizer)
        limit = self.config.clip if self.config.clip is not None else math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit).item()
        if not math.isfinite(norm) and not self.amp.scaler.is_enabled():  # a scaler skips the step instead
            self._diverged("gradient", norm)
        self.amp.step(self.optimizer)
        self.average.update(self.model)
        return losses, norm

    def _diverged(self, what: str, value: float) -> None:
        raise TrainingDiverged(
            f"the {what} became {value} at step {self.progress.step + 1} (finite expected); the last good checkpoint "
            f"is {self.out / LAST}, at step {self.saved}. Try a lower lr (now {self.config.lr:g}), clip=1.0, "
            "warmup=500 or precision=float32, and check the images"
        )

    # ------------------------------------------------------------------ validation and checkpoints

    def _validate_if_due(self, log: Log) -> None:
        step, every = self.progress.step, self.config.validation.every
        if step > self.progress.validated and (step % every == 0 or self._over()):
            self._validate(log)
            self.progress.validated = step

    def _validate(self, log: Log) -> None:
        """Score the averaged weights on the validation images, and save the best model by GED or mIoU."""
        self._check_lock()
        config, model = self.config.validation, self.average.model
        own = self.val_images[self.processes.rank :: self.processes.world]
        score, confusion, rows = score_images(model, self.val_data, own, config)
        score, step = self.processes.total(score) / len(self.val_images), self.progress.step
        text, found = f"step {step}: validation GED_{config.num_samples} {score:.4f}", {"val/ged": score}
        if self.progress.best_metric == "miou":
            found["val/miou"] = miou(self.processes.total_tensor(confusion)).item()
            text, score = f"{text}, mIoU {found['val/miou']:.4f}", found["val/miou"]
        log.scalars(self.progress, found)
        self._report(text)
        if self.processes.is_main:
            log.picture(step, qualitative(rows, model.info))
        if self.progress.improved(score):
            if self.processes.is_main:
                save(model, self.out / BEST)
            # After saving: a run that is stopped while it saves must save again when it is resumed.
            self.progress.best, self.progress.best_step = score, step

    def calibrate_sampling(self) -> None:
        """Let the best model measure on validation images what its sampling needs, and save it with the result."""
        if self.processes.is_main and self.config.validation.calibration_images:
            model = load(self.out / BEST, device=self.processes.device)
            before = model.config
            chosen = spread(len(self.val_data), self.config.validation.calibration_images)
            model.calibrate_sampling([self.val_data[i].image[None] for i in chosen])
            if model.config != before:
                self._check_lock()
                save(model, self.out / BEST)

    def _check_lock(self) -> None:
        if self.lock is not None:
            self.lock.check()

    def save(self) -> None:
        """Write the last checkpoint."""
        self.progress.loss_scale = self.amp.scaler.state_dict()
        self._check_lock()
        if self.lock is not None:  # the main process
            if (self.out / LOG_FILE).exists():
                sync(self.out / LOG_FILE)  # a log must not be behind its checkpoint after a loss of power
            keep = self.config.keep_checkpoints
            save_checkpoint(self.out / LAST, self.model, self.average, self.optimizer, self.progress, keep=keep)
        self.saved = self.progress.step
