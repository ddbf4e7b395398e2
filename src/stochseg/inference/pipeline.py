"""`predict`: a model over files, folders and volumes, with one result folder per input."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import torch

from stochseg.errors import UserError
from stochseg.files import sha256, sweep
from stochseg.inference.chunks import chunks_of
from stochseg.inference.jobs import Job, batches, describe, read_job, sample_batch
from stochseg.inference.plan import Plan, PredictOptions
from stochseg.inference.result_folder import is_complete, write_result
from stochseg.inference.sources import Source, find_sources
from stochseg.inference.stored import StoredModel, StoredPlan
from stochseg.inference.writers import Prediction
from stochseg.locks import Claim, locked
from stochseg.models import StochasticSegmenter
from stochseg.parts import ALL, Part
from stochseg.workers import MAX_DEATHS, Pool, Runner, run_here

log = logging.getLogger(__name__)
T = TypeVar("T")
LOST = f"its worker died {MAX_DEATHS} times, perhaps for lack of memory; try it with fewer --workers"
"""Problem of an input that ended its workers."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one input."""

    source: str
    """The input; empty for a note."""
    status: Literal["done", "kept", "failed", "note"]
    """done; kept: a complete result existed; failed: see `problem`; note: `notices` about a whole folder."""
    folder: Path | None = None
    """The result, unless it failed."""
    problem: str = ""
    notices: tuple[str, ...] = ()


Report = Callable[[Outcome], None]
Progress = Callable[[float, int], None]
"""Called with (inputs done, fractions included; inputs in total)."""


def predict(
    model: StochasticSegmenter,
    inputs: str | Path | Iterable[str | Path],
    out: str | Path,
    options: PredictOptions | None = None,
    *,
    overwrite: bool = False,
    origin: str = "",
    report: Report | None = None,
    progress: Progress | None = None,
    part: Part = ALL,
    pool: Pool | None = None,
) -> list[Outcome]:
    """Segment every input into a folder of its own.

    A model of volumes samples a volume as one. A model of images samples its slices: sample i of the volume consists of
    sample i of each slice, drawn with the same noise unless `options.slices` is "independent". An input that fails is
    reported, and the others are processed.

    Args:
        model: The model.
        inputs: One or several files, folders and globs of PNG, JPEG, TIFF, NIfTI and DICOM; see `sources.find_sources`.
        out: Folder of the results, one folder per input.
        options: How to predict; the model's defaults if None.
        overwrite: Replace results that exist. Without it a complete result of the same files, model and options is
            kept, and a result of others is an error of that input.
        origin: The path or name of the model, for the record.
        report: Called with the outcome of each input, once it is known.
        progress: Called with (inputs done, fractions included; inputs in total).
        part: Of the inputs. Several processes may write their parts to the same folder at the same time.
        pool: Workers that load the model from `origin`; the results are the same as without. See `open_pool`.

    Returns:
        One outcome per input, and one per notice about a folder.

    Raises:
        UserError: The options do not fit the model, several inputs would be written to the same folder, `out` cannot
            be written, or another process is writing there.

    >>> import tempfile, numpy as np, stochseg
    >>> from PIL import Image
    >>> model = stochseg.create("unet-ce", num_classes=2, image_channels=1, base=4, multipliers=[1])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.fromarray(np.zeros((8, 8), np.uint8)).save(f"{folder}/a.png")
    ...     (outcome,) = predict(model, [f"{folder}/a.png"], f"{folder}/out", PredictOptions(n=2))
    ...     print(outcome.status, sorted(file.name for file in outcome.folder.iterdir()))
    done ['entropy.tif', 'fused.png', 'mean.tif', 'overlay.png', 'result.json', 'samples.tif']
    """
    out = Path(out)
    plan, runner = plan_on(pool, model, options or PredictOptions(), origin)
    found = find_sources([inputs] if isinstance(inputs, (str, Path)) else inputs, plan.options.axis)
    chunks = part.select(chunks_of(found.sources, plan.options.n))
    reporter = Reporter(len(found.problems) + sum(map(len, chunks)), report, progress)
    for notice in found.notices:
        reporter.add(Outcome("", "note", notices=(notice,)))
    for where, problem in found.problems:
        reporter.add(Outcome(where, "failed", problem=problem))
    if not chunks:
        return reporter.outcomes
    with open_results(out, part) as claim:
        work = _Work(out, overwrite, claim)
        act = work if pool is not None else partial(work, advance=reporter.advance)
        with closing(runner(act, chunks, work.lost)) as outcomes:
            for outcome in outcomes:
                reporter.add(outcome)
    return reporter.outcomes


def plan_on(
    pool: Pool | None, model: StochasticSegmenter, options: PredictOptions, origin: str
) -> tuple[Plan, Runner[Plan]]:
    """Plan a prediction in this process or on workers, which load the model from `origin`."""
    if pool is None:
        plan = Plan(model, options, origin)
        return plan, partial(run_here, lambda: plan)
    stored = StoredPlan(StoredModel.of(model, origin, pool.device), options, origin)
    # The engine may need the device of the workers.
    return Plan(model, options.model_copy(update={"engine": "eager"}), origin), partial(pool.run, stored)


@contextmanager
def open_results(out: Path, part: Part) -> Iterator[Claim]:
    """Lock the folder of the results for a part of the inputs."""
    with locked(out, part.lock, rivals=part.rivals) as lock:
        try:
            yield lock.claim
        finally:
            sweep(out)  # a worker that died in the middle of a result has left it there


@dataclass(frozen=True)
class _Work:
    """What is done with a chunk of inputs, in this process or in a worker."""

    out: Path
    overwrite: bool
    claim: Claim

    def __call__(
        self, plan: Plan, sources: Sequence[Source], advance: Callable[[float], None] = lambda inputs: None
    ) -> Iterator[Outcome]:
        """Read, sample and write inputs; yield their outcomes."""
        others: list[Outcome] = []
        for batch in batches(self._read(sources, plan, others), plan):
            yield from others
            others.clear()
            _, problem = attempt(partial(sample_batch, batch, plan, advance))
            for job in batch:
                folder, failure = self.out / job.source.name, problem
                if problem and len(batch) > 1:  # the fault may be that of another input
                    _, failure = attempt(partial(sample_batch, [job], plan, advance))
                self.claim.check()
                failure = failure or attempt(partial(_write, job, plan, folder))[1]
                yield make_outcome(job.source, failure, folder, job.notices)
        yield from others

    def _read(self, sources: Sequence[Source], plan: Plan, others: list[Outcome]) -> Iterator[Job]:
        """Read the inputs that still need processing, and add the outcomes of the others."""
        for source in sources:
            folder = self.out / source.name
            job, problem = attempt(partial(_read_unless_complete, source, folder, plan, self.overwrite))
            if job is not None:
                yield job
            elif problem:
                others.append(make_outcome(source, problem, folder))
            else:
                others.append(Outcome(str(source.files[0]), "kept", folder))

    def lost(self, source: Source) -> Outcome:
        """The outcome of an input that ended its workers."""
        return make_outcome(source, LOST, self.out / source.name)


class Reporter:
    """Collects outcomes and passes them on to the caller's functions."""

    def __init__(self, total: int, report: Report | None, progress: Progress | None):
        self.total, self.report, self.progress = total, report, progress
        self.outcomes: list[Outcome] = []
        self.inputs = 0

    def add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.inputs += outcome.status != "note"
        if self.report is not None:
            self.report(outcome)
        self.advance(0.0)

    def advance(self, inputs: float) -> None:
        """Report that `inputs` of the current batch are done."""
        if self.progress is not None:
            self.progress(self.inputs + inputs, self.total)


def attempt(act: Callable[[], T]) -> tuple[T | None, str]:
    """Run a function; return its value, or None and what went wrong, for the user."""
    try:
        return act(), ""
    except UserError as error:
        log.debug("an input failed:", exc_info=error)
        return None, str(error)
    except OSError as error:
        log.debug("an input failed:", exc_info=error)
        return None, f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except (MemoryError, RuntimeError) as error:
        short = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in str(error)
        if not short:
            raise
        return None, "does not fit into memory; use fewer --samples or a smaller --tile"


def shown_path(source: Source) -> str:
    """Return the path of an input as messages name it."""
    return str(source.files[0] if len(source.files) == 1 else source.files[0].parent)


def make_outcome(source: Source, problem: str, folder: Path, notices: tuple[str, ...] = ()) -> Outcome:
    """Build the outcome of an input: failed if there is a problem, else done."""
    where = shown_path(source)
    if problem:  # on one line, and without the name, which is printed before it
        problem = " ".join(problem.split()).removeprefix(f"{where}: ").removeprefix(f"{where} ")
        return Outcome(where, "failed", problem=problem, notices=notices)
    return Outcome(where, "done", folder, notices=notices)


def _read_unless_complete(source: Source, folder: Path, plan: Plan, overwrite: bool) -> Job | None:
    files = hash_files(source)
    if not overwrite and is_complete(folder, files, plan):
        return None
    return read_job(source, files, plan)


def hash_files(source: Source) -> list[dict[str, str]]:
    """Return the files of an input with their checksums; raise a `UserError` if one is empty."""
    for file in source.files:
        if file.stat().st_size == 0:
            raise UserError(f"{file}: the file is empty, 0 bytes; copy or export it again")
    return [{"file": str(file), "sha256": sha256(file)} for file in source.files]


def _write(job: Job, plan: Plan, folder: Path) -> None:
    assert job.result is not None
    options, model = plan.options, plan.model
    prediction = Prediction(
        job.result, job.stack, model.info, model.name, options.overview, options.also, plan.calibration
    )
    write_result(folder, prediction, describe(job, plan, job.result))
    job.result = None  # frees its memory for the next inputs
