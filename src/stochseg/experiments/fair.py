"""The protocol `fair` of `stochseg compare`: every method at its best learning rate, scored along one training.

1. A tenth of the training patients is kept back as the split `tune`. Nothing is chosen on what is reported.
2. Three pilots per method, with a third of, once and three times its own learning rate; the best by GED on `tune` wins.
   All other settings are those of the method's authors, as far as known.
3. One training per method at that rate, constant with a short decay at the end. Its averaged weights are scored on the
   validation split after each budget, in minutes of one core: a learning curve from one run.
4. Samples: 16 per image with independent noise, within 10 evaluations at every budget; after the last budget also
   within 50, with the method's own number of evaluations, and with Latin noise.
5. Scores with 95% intervals by bootstrap over patients, and of the difference to the first method on the same patients.

Every stage leaves a file, so that a stopped comparison continues where it was. The JSON files of a method that has all
its scores are enough: its trainings can be removed, or stay on the machine that made them.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from stochseg.data import SegmentationData, spread
from stochseg.errors import UserError
from stochseg.evaluation import Evaluation, evaluate, score_references
from stochseg.evaluation.references import REFERENCE_NOTE, worse_than_blind
from stochseg.experiments.compare import folder_of, method_config, parse_budget
from stochseg.experiments.comparison import markdown_table
from stochseg.experiments.method_sets import fair_methods
from stochseg.files import write_csv, write_text
from stochseg.locks import locked
from stochseg.metrics.table import format_metric
from stochseg.models import StochasticSegmenter, load
from stochseg.models.registry import find_class
from stochseg.models.sampling import SamplingOptions
from stochseg.plotting import learning_curves, write_figure
from stochseg.training import TrainConfig, open_split, train
from stochseg.training.config import snapshot_name
from stochseg.training.log import LOG_FILE, read_log
from stochseg.workers import MAX_DEATHS, Pool, Runner, run_here

RATES = (1 / 3, 1.0, 3.0)
TUNE = 0.1
TAIL = 0.1
N = 16
SCORED = ("ged_16", "ged_unbiased", "hm_iou_16", "ece")
RESAMPLES = 2000


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
    work = [[(name, config, out / folder_of(name))] for name, config in configs.items()]
    with locked(out):
        _check_terms(out / "terms.json", terms.record())
        with closing(runner(partial(_run_methods, terms), work, _lost)) as finished:
            for name, problem in finished:
                console.print(f"{name}: {problem or 'finished'}", highlight=False, markup=False)
        return write_fair(names, configs[names[0]], terms, out)


def _config(method: str, terms: FairTerms) -> TrainConfig:
    config = method_config(method, [*terms.overrides, f"data.tune={TUNE}", f"seed={terms.seed}"], terms.data, {})
    update = {"clock": "cpu", "decay": "tail", "tail": TAIL, "steps": 10**9}
    return config.model_copy(update=update)


def _check_terms(file: Path, record: Mapping[str, Any]) -> None:
    now = json.loads(json.dumps(record))
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        changed = sorted(key for key in now if before.get(key) != now[key])
        if changed:
            raise UserError(f"{file.parent} has results of another {', '.join(changed)}; choose another --out")
    write_text(file, json.dumps(now, indent=2) + "\n")


# ---------------------------------------------------------------------- one method: pilots, training, scores


def _run_methods(
    terms: FairTerms, shared: str, methods: Sequence[tuple[str, TrainConfig, Path]]
) -> Iterator[tuple[str, str]]:
    for name, config, folder in methods:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            run_method(config, folder, terms)
            (folder / "problem.txt").unlink(missing_ok=True)
            yield name, ""
        except Exception as error:
            (folder / "problem.txt").write_text(traceback.format_exc(), encoding="utf-8")
            yield name, " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _lost(method: tuple[str, TrainConfig, Path]) -> tuple[str, str]:
    return method[0], f"its worker died {MAX_DEATHS} times, perhaps for lack of memory"


def run_method(config: TrainConfig, folder: Path, terms: FairTerms) -> None:
    """Take the stages of one method that are left."""
    lr = _best_rate(config, folder, terms)
    last = terms.budgets[-1]
    update = {"minutes": last, "snapshots": terms.budgets[:-1], "lr": lr, "final_lr": min(config.final_lr, lr / 10)}
    config = config.model_copy(update=update)
    for seed in range(terms.seeds):
        _run_seed(config.model_copy(update={"seed": terms.seed + seed}), seed, folder, terms)


def _run_seed(config: TrainConfig, seed: int, folder: Path, terms: FairTerms) -> None:
    """One training and its scores at every budget; trainings are counted from 0."""
    suffix, last = f"-seed-{seed}" if seed else "", terms.budgets[-1]
    kinds = [(budget, "10") for budget in terms.budgets] + [(last, sampling) for sampling in ("50", "own", "latin")]
    files = {folder / f"scores-{budget:g}m-{sampling}{suffix}.json": (budget, sampling) for budget, sampling in kinds}
    missing = {file: kind for file, kind in files.items() if not file.exists()}
    if not missing:
        return
    run = folder / f"run{suffix}"
    train(config, run, resume=True, device="cpu", console=Console(quiet=True))
    for file, (budget, sampling) in missing.items():
        model = load(run / ("last" if budget == last else snapshot_name(budget)))
        about = {"minutes": budget, "sampling": sampling, "seed": config.seed, "lr": config.lr}
        plain = folder / f"scores-{budget:g}m-10{suffix}.json"
        if sampling == "50" and plain.exists() and _options(model, "50") == _options(model, "10"):
            scores = json.loads(plain.read_text(encoding="utf-8"))  # few evaluations are all that the method makes
        else:
            scores = {**_facts(config, run, budget), **_score(model, config, sampling, terms)}
        write_text(file, json.dumps({**scores, **about}) + "\n")


def _best_rate(config: TrainConfig, folder: Path, terms: FairTerms) -> float:
    """The learning rate with the lowest GED on the split `tune` after a pilot."""
    found: dict[float, float] = {}
    for rate in RATES:
        lr, name = config.lr * rate, f"pilot-{rate:.2g}"
        file = folder / f"{name}.json"
        if not file.exists():
            pilot = config.model_copy(
                update={"minutes": terms.budgets[0], "lr": lr, "final_lr": min(config.final_lr, lr / 10)}
            )
            try:
                train(pilot, folder / name, resume=True, device="cpu", console=Console(quiet=True))
                ged = _evaluate(load(folder / name / "last"), open_split(pilot, "tune"), "10", 100).metrics["ged_16"]
            except UserError as error:  # a rate at which the method diverges
                ged, reason = float("inf"), str(error)
                (folder / f"{name}.txt").write_text(reason, encoding="utf-8")
            write_text(file, json.dumps({"lr": lr, "ged_16": ged}) + "\n")
        row = json.loads(file.read_text(encoding="utf-8"))
        found[row["lr"]] = row["ged_16"]
    best = min(found, key=found.__getitem__)
    if found[best] == float("inf"):
        raise UserError("all pilots diverged; lower the lr of the method")
    return best


def _facts(config: TrainConfig, run: Path, budget: float) -> dict[str, int]:
    """Steps, images and (image, rater) pairs that the training has seen within a budget."""
    step = max((r["step"] for r in read_log(run / LOG_FILE) if r["seconds"] <= 60 * budget + 1), default=0)
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
    limit = terms.images_own if sampling == "own" else terms.images
    result = _evaluate(model, data, sampling, limit)
    scores = {key: result.metrics[key] for key in SCORED if key in result.metrics}
    return {
        **scores,
        "evaluations": round(result.metrics["evaluations_per_sample"]),
        "images": {row["id"]: row["ged_16"] for row in result.images},
    }


# ---------------------------------------------------------------------- the table


COLUMNS = {
    "method": "method",
    "minutes": "core minutes",
    "sampling": "sampling",
    "seed": "training seed",
    "ged_16": "GED_16",
    "interval": "95% interval",
    "difference": "difference to the first",
    "difference_interval": "95% interval of the difference",
    "ged_unbiased": "GED, unbiased",
    "hm_iou_16": "HM-IoU_16",
    "ece": "ECE",
    "evaluations": "evaluations",
    "lr": "lr",
    "steps": "steps",
    "images_seen": "images seen",
    "pairs_seen": "pairs seen",
    "note": "note",
}


def write_fair(names: Sequence[str], config: TrainConfig, terms: FairTerms, out: Path) -> list[dict[str, Any]]:
    """Write the table and the curves of the results that exist; returns the rows."""
    data = open_split(config, terms.split)
    patients = {(each := data[i]).id: each.group or each.id for i in spread(len(data), terms.images)}
    references = _references(data, terms, out / "references.json")
    rows, first = list[dict[str, Any]](), dict[tuple[float, str, int], Mapping[str, float]]()
    for name in names:
        files = sorted((out / folder_of(name)).glob("scores-*.json"))
        found = [{"seed": terms.seed, **json.loads(file.read_text(encoding="utf-8"))} for file in files]
        for scores in sorted(found, key=lambda each: (each["seed"], each["minutes"])):
            own = scores.pop("images")
            reference = first.setdefault((scores["minutes"], scores["sampling"], scores["seed"]), own)
            worse = worse_than_blind(scores, references, N)
            note = "worse than blind" if worse else ""
            rows.append({"method": name, **scores, **intervals(own, reference, patients), "note": note})
        if not files:
            rows.append({"method": name, "note": "no result yet"})
    for name, known in references.items():
        rows.append({"method": name, **{key: known[key] for key in SCORED if key in known}, "note": "reference"})
    cells = [{key: _cell(key, row.get(key)) for key in COLUMNS} for row in rows]
    write_csv(out / "fair.csv", cells)
    write_text(out / "fair.md", f"{markdown_table(cells, COLUMNS)}\nReferences: {REFERENCE_NOTE}.\n")
    curves = {name: _curve([row for row in rows if row["method"] == name]) for name in names}
    write_figure(learning_curves(curves, references.get("blind", {}).get("ged_16")), out / "fair.png")
    return rows


def _curve(rows: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """GED by minutes within 10 evaluations, the mean over trainings."""
    scores: dict[float, list[float]] = {}
    for row in rows:
        if row.get("sampling") == "10":
            scores.setdefault(row["minutes"], []).append(row["ged_16"])
    return [(minutes, float(np.mean(scores[minutes]))) for minutes in sorted(scores)]


def _references(data: SegmentationData, terms: FairTerms, file: Path) -> dict[str, dict[str, float]]:
    if not file.exists():
        write_text(file, json.dumps(score_references(data, [N], terms.images), indent=2) + "\n")
    found: dict[str, dict[str, float]] = json.loads(file.read_text(encoding="utf-8"))
    return found


def intervals(
    own: Mapping[str, float], first: Mapping[str, float], patients: Mapping[str, str]
) -> dict[str, float | tuple[float, float]]:
    """95% intervals of the mean over images and of its difference to another method, by bootstrap over patients.

    Args:
        own: score per image.
        first: score per image of the other method; images that both have are compared.
        patients: of each image.

    Returns:
        interval, difference and difference_interval.
    """
    common = [name for name in own if name in first]
    difference = {name: own[name] - first[name] for name in common}
    mean = float(np.mean([*difference.values()]))
    return {
        "interval": _bootstrap(own, patients),
        "difference": mean,
        "difference_interval": _bootstrap(difference, patients),
    }


def _bootstrap(values: Mapping[str, float], patients: Mapping[str, str]) -> tuple[float, float]:
    """The 2.5% and 97.5% points of the mean over images, with patients drawn again with replacement."""
    by_patient: dict[str, list[float]] = {}
    for name, value in values.items():
        by_patient.setdefault(patients[name], []).append(value)
    sums, counts = (np.array([function(each) for each in by_patient.values()]) for function in (np.sum, len))
    drawn = np.random.default_rng(0).integers(len(sums), size=(RESAMPLES, len(sums)))
    means = sums[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def _cell(key: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return " to ".join(f"{end:.3f}" for end in value)
    if key in (*SCORED, "difference"):
        return format_metric("ged" if key == "difference" else key, value)
    return f"{value:g}" if isinstance(value, float) else str(value)
