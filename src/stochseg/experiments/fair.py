"""The protocol `fair` of `stochseg compare`: every method at its best learning rate, scored along one training.

1. A tenth of the training patients is kept back as the split `tune`. Nothing is chosen on what is reported.
2. Three pilots per method, at 1, 3 and 1/3 times its own learning rate; the best by GED on `tune` wins.
   All other settings are those of the method's authors, as far as known.
3. One training per method: the best pilot continues at its rate, which is constant with a short decay at the end. Its
   averaged weights are scored on the validation split after each budget, in minutes of one core: a learning curve.
4. Samples: 16 per image with independent noise, within 10 evaluations at every budget; after the last budget also
   within 50, with the method's own number of evaluations, and with Latin noise.
5. Scores with 95% intervals by bootstrap over patients, also of the differences to the first method and to label maps
   that were drawn without looking at the image.

All methods take a stage before the next begins. Every stage leaves a file, so that a stopped comparison continues where
it was. The JSON files of a method are enough to keep its results: its trainings can be removed, or stay on the machine
that made them.
"""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from stochseg.data import SegmentationData, spread
from stochseg.errors import NotFinite, UserError
from stochseg.evaluation import Evaluation, evaluate
from stochseg.experiments.compare import folder_of, method_config, parse_budget
from stochseg.experiments.fair_table import PROBLEM, SCORED, N, read_results, write_fair
from stochseg.experiments.method_sets import fair_methods
from stochseg.files import write_text
from stochseg.locks import locked
from stochseg.models import StochasticSegmenter, load
from stochseg.models.registry import find_class
from stochseg.models.sampling import SamplingOptions
from stochseg.training import TrainConfig, open_split, train
from stochseg.training.config import snapshot_name
from stochseg.training.log import LOG_FILE, read_log
from stochseg.workers import MAX_DEATHS, Pool, Runner, run_here

RATES = (1.0, 3.0, 1 / 3)
USUAL_RATE = 3e-4
TUNE = 0.1
TUNE_IMAGES = 100
TAIL, NO_TAIL = 0.1, 1e-9
SAVE_EVERY = 100


@dataclass(frozen=True)
class FairTerms:
    """Conditions of a fair comparison.

    data: a packed store or a folder; budgets: minutes of one core, rising, the first also that of a pilot; split: to
    score; images: maximum number of images; images_own: the same where a method makes its own number of evaluations,
    which may be a thousand; overrides: settings for all methods; seed: of pilots and the first training; seeds:
    trainings per method at the rate of its pilots, with consecutive seeds.
    """

    data: Path | None
    budgets: tuple[float, ...] = (10, 20, 40, 60)
    split: str = "val"
    images: int = 500
    images_own: int = 100
    overrides: tuple[str, ...] = ()
    seed: int = 0
    seeds: int = 1

    def record(self) -> dict[str, Any]:
        """The terms as JSON; results of other terms are not comparable, except that trainings may be added."""
        kept = {key: value for key, value in vars(self).items() if key != "seeds"}
        return {**kept, "data": None if self.data is None else str(self.data)}


def parse_budgets(text: str | None) -> tuple[float, ...]:
    """Minutes of one core from a list of times; None: those of the protocol.

    >>> parse_budgets("30s,10m,1h")
    (0.5, 10.0, 60.0)
    """
    if text is None:
        return FairTerms.budgets
    found = [parse_budget(part)["minutes"] for part in text.split(",")]
    if None in found or sorted(set(found)) != found:
        raise UserError(f"budget {text!r}: expected rising times such as 10m,20m,40m,60m")
    return tuple(found)


def compare_fair(
    methods: Sequence[str],
    terms: FairTerms,
    out: Path,
    *,
    console: Console | None = None,
    pool: Pool | None = None,
) -> list[dict[str, Any]]:
    """Run the protocol, or what is left of it, and write fair.csv, fair.md and fair.png.

    Args:
        methods: recipes, config files or models, with settings of their own; the first is the one that the others are
            compared with. "all": see `fair_methods`.
        terms: of the comparison.
        out: the folder; stages that it holds are kept.
        console: for messages; default: stderr.
        pool: workers, each with one method at a time; default: this process.

    Returns:
        One row per method, budget and way of sampling, then one per reference.

    Raises:
        UserError: before any training, for methods or data that cannot be used, or if `out` has other terms.
    """
    console = console or Console(stderr=True)
    names = fair_methods(methods)
    configs = {name: _config(name, terms) for name in names}
    for name, config in configs.items():
        for split in ("train", "tune", terms.split):
            if len(open_split(config, split)) == 0:
                raise UserError(f"{name}: the split {split!r} of its data is empty")
    runner: Runner[str] = partial(run_here, str) if pool is None else partial(pool.run, str)
    todo, failed = {name: stages(terms, config.lr) for name, config in configs.items()}, set[str]()

    def pending() -> Iterator[list[Work]]:
        """Take a stage of all methods before the next stage, so that a stopped comparison compares all of them."""
        for number, alike in enumerate(zip(*todo.values(), strict=True)):
            for (name, config), stage in zip(configs.items(), alike, strict=True):
                folder = out / folder_of(name)
                if name not in failed and not stage.is_done(folder):
                    yield [(name, config, folder, number)]

    with locked(out):
        _check_terms(out / "terms.json", terms.record())
        data = open_split(configs[names[0]], terms.split)
        counts = terms.images, terms.images_own
        table = partial(write_fair, names, data, out, image_counts=counts, pilots=len(RATES))
        with closing(runner(partial(_take_stage, terms), pending(), _lost)) as taken:
            for (name, _, folder, number), problem in taken:
                state = problem.partition("\n")[0] or "finished"
                console.print(f"{name}, {todo[name][number].name}: {state}", highlight=False, markup=False)
                if problem:
                    failed.add(name)
                    write_text(folder / PROBLEM, problem + "\n")
                table()
        return table()


def _config(method: str, terms: FairTerms) -> TrainConfig:
    config = method_config(method, [*terms.overrides, f"data.tune={TUNE}", f"seed={terms.seed}"], terms.data, {})
    update = {"clock": "cpu", "decay": "tail", "steps": 10**9, "save_every": min(config.save_every, SAVE_EVERY)}
    return config.model_copy(update=update)


def _check_terms(file: Path, record: Mapping[str, Any]) -> None:
    now = json.loads(json.dumps(record))
    if file.exists():
        before = read_results(file)
        changed = sorted(key for key in now if before.get(key) != now[key])
        if changed:
            raise UserError(f"{file.parent} has results of another {', '.join(changed)}; choose another --out")
    write_text(file, json.dumps(now, indent=2) + "\n")


# ---------------------------------------------------------------------- one method, stage by stage


@dataclass(frozen=True)
class Stage:
    """A part of the protocol. `take` does what is left of it, given the config, folder and terms of a method; `is_done`
    says, given the folder, whether its results are there."""

    name: str
    take: Callable[[TrainConfig, Path, FairTerms], None]
    is_done: Callable[[Path], bool]


def stages(terms: FairTerms, lr: float) -> list[Stage]:
    """All stages of a method with this learning rate, in order: its own rate first, then the one closer to a usual rate
    of Adam, so that a comparison that is stopped early has tried the more promising ones."""
    found = []
    for rate in sorted(RATES, key=lambda rate: (rate != 1, abs(math.log(lr * rate / USUAL_RATE)))):
        file = f"pilot-{rate:.2g}.json"
        found.append(Stage(f"pilot at {rate:.2g} × lr", partial(_pilot, rate, file), partial(_exists, file)))
    last = terms.budgets[-1]
    kinds = [*((budget, "10") for budget in terms.budgets), *((last, sampling) for sampling in ("latin", "50", "own"))]
    for seed in range(terms.seeds):
        for budget, sampling in kinds:
            what = f"{budget:g} minutes" if sampling == "10" else f"sampling {sampling}"
            name = f"{what}, training {seed + 1}" if seed else what
            take = partial(_reach, seed, budget, sampling)
            found.append(Stage(name, take, partial(_is_scored, _scores_name(seed, budget, sampling))))
    return found


Work = tuple[str, TrainConfig, Path, int]
"""A method: its name, config and folder, and the number of the stage to take."""


def _take_stage(terms: FairTerms, shared: str, work: Sequence[Work]) -> Iterator[tuple[Work, str]]:
    """Take a stage, and the earlier ones if they are not done. Yields the work with its error, or "" if it
    succeeded."""
    for each in work:
        _, config, folder, number = each
        try:
            with locked(folder, patience=math.inf):  # another worker may take a stage of this method
                for stage in stages(terms, config.lr)[: number + 1]:
                    if not stage.is_done(folder):
                        stage.take(config, folder, terms)
                (folder / PROBLEM).unlink(missing_ok=True)
            yield each, ""
        except Exception as error:
            trace = traceback.format_exc()
            yield each, f"{' '.join(f'{type(error).__name__}: {error}'.split())[:300]}\n\n{trace}"


def _lost(work: Work) -> tuple[Work, str]:
    return work, f"its worker died {MAX_DEATHS} times, perhaps for lack of memory"


def _exists(file: str, folder: Path) -> bool:
    return (folder / file).exists()


def _is_scored(file: str, folder: Path) -> bool:
    """Whether a file has the scores of the best pilot, which may be another one since they were written."""
    best = best_pilot(folder)
    return best is not None and _exists(file, folder) and read_results(folder / file)["lr"] == best[1]


def _pilot(rate: float, file: str, config: TrainConfig, folder: Path, terms: FairTerms) -> None:
    """Train up to the first budget with `rate` times the learning rate, and score the best pilot so far."""
    first, run = terms.budgets[0], folder / Path(file).stem
    pilot = _training(config, config.lr * rate, 0, first, terms)
    try:
        train(pilot, run, resume=True, device="cpu", console=Console(quiet=True))
        model = _weights(run, first, terms)
        ged = _evaluate(model, open_split(pilot, "tune"), "10", TUNE_IMAGES).metrics["ged_16"]
    except NotFinite:  # a rate at which the method diverges
        ged = math.inf
    write_text(folder / file, json.dumps({"lr": pilot.lr, "ged_16": ged}) + "\n")
    if best_pilot(folder) is not None and not _is_scored(_scores_name(0, first, "10"), folder):
        _reach(0, first, "10", config, folder, terms)


def best_pilot(folder: Path) -> tuple[str, float] | None:
    """Name and learning rate of the pilot with the lowest GED on the split `tune`; None if all diverged so far."""
    rows = {file.stem: read_results(file) for file in sorted(folder.glob("pilot-*.json"))}
    best = min(rows, key=lambda name: rows[name]["ged_16"], default=None)
    return None if best is None or rows[best]["ged_16"] == math.inf else (best, rows[best]["lr"])


def _training(config: TrainConfig, lr: float, seed: int, budget: float, terms: FairTerms) -> TrainConfig:
    """The training up to a budget. It can be continued to the next, since only the last budget has a decay."""
    update = {
        "lr": lr,
        "final_lr": min(config.final_lr, lr / 10),
        "seed": terms.seed + seed,
        "minutes": budget,
        "snapshots": terms.budgets[:-1],
        "tail": TAIL if budget == terms.budgets[-1] else NO_TAIL,
    }
    return config.model_copy(update=update)


def _weights(run: Path, budget: float, terms: FairTerms) -> StochasticSegmenter:
    return load(run / ("last" if budget == terms.budgets[-1] else snapshot_name(budget)))


def _scores_name(seed: int, budget: float, sampling: str) -> str:
    return f"scores-{budget:g}m-{sampling}{f'-seed-{seed}' if seed else ''}.json"


def _reach(seed: int, budget: float, sampling: str, config: TrainConfig, folder: Path, terms: FairTerms) -> None:
    """Train up to a budget at the best rate, unless that is done, and score a way of sampling.

    The first training is the best pilot, continued.
    """
    best = best_pilot(folder)
    if best is None:
        raise UserError("all pilots diverged; lower the lr of the method")
    name, lr = best
    training, run = _training(config, lr, seed, budget, terms), folder / (f"run-seed-{seed}" if seed else name)
    train(training, run, resume=True, device="cpu", console=Console(quiet=True))
    model, plain = _weights(run, budget, terms), folder / _scores_name(seed, budget, "10")
    if sampling == "50" and _options(model, "50") == _options(model, "10"):  # few evaluations are all that it makes
        scores = read_results(plain)
    else:
        scores = {**_facts(training, run, budget), **_score(model, training, sampling, terms)}
    about = {"minutes": budget, "sampling": sampling, "seed": training.seed, "lr": lr}
    write_text(folder / _scores_name(seed, budget, sampling), json.dumps({**scores, **about}) + "\n")


def _facts(config: TrainConfig, run: Path, budget: float) -> dict[str, int]:
    """Steps, images and (image, rater) pairs that the training has seen within a budget."""
    records = read_log(run / LOG_FILE)  # with the last step before each budget: a training stops there
    step = next((record["step"] for record in records if record["seconds"] >= 60 * budget), records[-1]["step"])
    pairs = find_class(config.model.name).config_type.parse(config.model.options).raters_per_image
    if pairs is None:
        data = open_split(config, "train")
        counts = [len(data[i].raters) for i in spread(len(data), 16)]
        pairs = round(sum(counts) / len(counts))
    return {"steps": step, "images_seen": step * config.batch_size, "pairs_seen": step * config.batch_size * pairs}


def _options(model: StochasticSegmenter, sampling: str) -> SamplingOptions:
    """Independent noise and at most the named number of evaluations; "own": the method's; "latin": 10, stratified."""
    own, most = model.default_sampling().evaluations, {"10": 10, "latin": 10, "50": 50}.get(sampling)
    fewer = most if most is not None and own is not None and own > most else None
    return SamplingOptions(n=N, evaluations=fewer, noise="latin" if sampling == "latin" else "independent")


def _evaluate(model: StochasticSegmenter, data: SegmentationData, sampling: str, limit: int) -> Evaluation:
    return evaluate(model, data, options=_options(model, sampling), limit=limit, keep=0)


def _score(model: StochasticSegmenter, config: TrainConfig, sampling: str, terms: FairTerms) -> dict[str, Any]:
    """Scores over all images and, for intervals, of each."""
    data = open_split(config, terms.split)
    if model.default_sampling().grid == "entropy":
        tune = open_split(config, "tune")
        model.calibrate_sampling([tune[i].image[None] for i in spread(len(tune), 16)])
    result = _evaluate(model, data, sampling, terms.images_own if sampling == "own" else terms.images)
    return {
        **{key: result.metrics[key] for key in SCORED if key in result.metrics},
        "evaluations": round(result.metrics["evaluations_per_sample"]),
        "images": {row["id"]: row["ged_16"] for row in result.images},
    }
