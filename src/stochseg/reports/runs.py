"""A page about a trained model: how its samples compare with the raters."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from stochseg._version import __version__
from stochseg.analysis.questions import Question
from stochseg.data import SegmentationData, spread
from stochseg.errors import UserError
from stochseg.evaluation.evaluator import Evaluation, evaluate, evaluations_curve, for_model, metric_rows
from stochseg.metrics import CalibrationBins, diversity, foreground_bins, without_void
from stochseg.models import StochasticSegmenter
from stochseg.models.io import read_json
from stochseg.models.sampling import SamplingOptions
from stochseg.plotting import curves
from stochseg.plotting.output import embed_plot
from stochseg.plotting.pictures import image_to_rgb
from stochseg.reports.image import ImageReport
from stochseg.reports.page import Picture, Section, Table, write_page
from stochseg.types import Batch, DatasetInfo, Example, Samples

CURVE = (2, 5, 10, 25)
CASES = 2  # of the best, the median and the worst each


@dataclass(frozen=True)
class RunFacts:
    """What is known of a run beside its model. earlier: metrics.json of `evaluate`; log: the training's records."""

    title: str
    published: Mapping[str, float] = field(default_factory=dict)
    earlier: Mapping[str, Any] = field(default_factory=dict)
    log: Sequence[Mapping[str, float]] = ()


def read_facts(run: Path, published: Mapping[str, float], log_name: str) -> RunFacts:
    """What a run folder holds for a report; an empty one, or a shipped model, holds nothing."""
    earlier, log = run / "evaluation" / "metrics.json", run / log_name
    try:
        records = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    except ValueError as error:
        raise UserError(f"{log} is not valid JSON lines ({error}); it is damaged: mend or remove it") from None
    return RunFacts(run.name or str(run), published, read_json(earlier) if earlier.is_file() else {}, records)


# --- what is collected while the model is evaluated ------------------------------------------------------


@dataclass
class Collector:
    """One image after the other: reliability, and how much samples and raters disagree."""

    num_classes: int
    bins: CalibrationBins | None = None
    index: list[int] = field(default_factory=list)
    disagreement: list[float] = field(default_factory=list)
    """Mean distance 1 − IoU of two different raters; nan of one rater."""
    difference: list[float] = field(default_factory=list)
    """The same of two different samples."""
    entropy: list[tuple[float, float]] = field(default_factory=list)
    """Summed over the image: of the raters' shares, and of the mean probabilities."""

    def __call__(self, index: int, batch: Batch, out: Samples) -> None:
        part = foreground_bins(out.mean, batch.raters, mask=batch.mask)
        self.bins = part if self.bins is None else self.bins + part
        self.index.append(index)
        samples, raters = without_void(out.labels, batch.raters, batch.mask)
        # Of weighted samples one may carry it all; then no two of them differ.
        alone = float(out.weights.double().square().sum() / out.weights.double().sum() ** 2) > 1 - 1e-9
        apart = 0.0 if alone else diversity(samples, self.num_classes, weights=out.weights, unbiased=True).item()
        self.difference.append(apart)
        several = raters.shape[1] > 1
        self.disagreement.append(diversity(raters, self.num_classes, unbiased=True).item() if several else float("nan"))
        shares = torch.nn.functional.one_hot(raters[0], self.num_classes).double().mean(0)
        known = torch.ones_like(samples[0, 0]) if batch.mask is None else batch.mask[0].all(0)
        ours = (out.entropy[0] * known).sum().item()
        self.entropy.append((-torch.xlogy(shares, shares).sum().item(), ours))


@dataclass(frozen=True)
class Chosen:
    """Some examples of a data set."""

    data: SegmentationData
    index: Sequence[int]

    @property
    def info(self) -> DatasetInfo:
        return self.data.info

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, i: int) -> Example:
        return self.data[self.index[i]]


# --- the page --------------------------------------------------------------------------------------------


def report_run(
    model: StochasticSegmenter,
    data: SegmentationData,
    out: Path,
    facts: RunFacts,
    *,
    options: SamplingOptions = SamplingOptions(n=32),
    limit: int | None = 200,
    curve: Sequence[int] | None = None,
    curve_images: int = 20,
    spacing: tuple[float, float] | None = None,
    questions: Sequence[Question] = (),
    progress: Callable[[str, int, int], None] | None = None,
) -> Evaluation:
    """Evaluate the model and write a page about it.

    Every number and plot is of one set of samples, but for the curve, which needs draws of its own. curve: numbers of
    network evaluations per sample, on `curve_images` of the images; None: usual ones, if the model has a choice; empty:
    none. spacing: millimeters a pixel of data that does not state it.
    """
    points = _points(model, curve, options)
    tell = progress or (lambda *_: None)
    if questions and len(data) > 0:
        _check_questions(data, spacing, questions)
    seen = Collector(model.num_classes)
    result = evaluate(
        model,
        data,
        options=options,
        limit=limit,
        keep=0,
        each=seen,
        progress=lambda done, total: tell("sampling", done, total),
    )
    sections = [_numbers(result, facts)]
    cases = _cases(result)
    images = []
    for done, (kind, i) in enumerate(cases, start=1):
        images.append((kind, i, _draw(model, data, seen.index[i], options, spacing, questions)))
        tell("cases", done, len(cases))
    sections.append(_calibration(result, seen))
    sections.append(_disagreement(result, seen))
    if result.modes is not None:
        plot = curves.mode_frequencies(result.modes.truth, result.modes.frequency, result.modes.names)
        text = (
            "This data is made so that the probability of every reading is known. Each point is one image: the true "
            "probability of a reading against its share of the samples. On the diagonal is perfect."
        )
        sections.append(Section("Known truth", text, pictures=[_wide(plot, "Sampled against true frequency.")]))
    if points:
        sections.append(_curve(model, data, seen, result, points, curve_images, options, tell))
    for number_, (kind, i, image) in enumerate(images, start=1):
        sections.append(image.section(f"{kind}: {image.name}", _scores(result, seen, i), f"case-{number_}"))
    sections.insert(1, _contents(images, result, seen))
    if facts.log:
        plot = curves.training_curve(facts.log)
        sections.append(Section("Training", "", pictures=[_wide(plot, "Loss and validation score by step.")]))
    s = result.settings
    write_page(
        out,
        f"{facts.title}: samples against raters",
        f"{s['model']} on {s['images']} of {len(data)} images of {s['data']}, {s['n']} samples each, "
        f"{result.calls} a sample. A good model draws what the raters draw, as often as they do.",
        sections,
        f"Written by stochseg {__version__}, torch {s['torch']}, seed {s['seed']}, on {s['device']}. Research "
        "software: not a medical device.",
    )
    return result


def _points(model: StochasticSegmenter, curve: Sequence[int] | None, options: SamplingOptions) -> list[int]:
    """Numbers of evaluations of the curve; those that were asked for must be possible."""
    has_choice = "evaluations" in model.sampling_choices
    if curve:
        for count in curve:
            model.check_options(options.model_copy(update={"evaluations": count}))
    most = model.max_evaluations or max(CURVE)
    usual = [count for count in CURVE if count <= most] if has_choice else []
    return sorted(set(usual if curve is None else curve))


def _wide(plot: Any, name: str, caption: str = "") -> Picture:
    return Picture(embed_plot(plot), name, caption, wide=True)


MEANING = {
    "ged": "distance between samples and raters as distributions; 0 is perfect",
    "hm_iou": "overlap of samples and raters, best matched; 1 is perfect",
    "diversity": "how much two samples differ",
    "diversity_unbiased": "the same between two different samples; comparable with the raters below",
    "ged_unbiased": "GED as it would be with endless samples",
    "miou": "overlap of the most probable map with each rater",
    "ece": "how far probabilities of pixels are from the truth, on average; 0 is perfect",
    "ece_foreground": "the same of labels that mark something and are likely, without the plain background",
    "brier": "squared error of the probabilities, from 0 to 2",
    "mode_tv": "how far frequencies of readings are from the known ones, image by image; 0 is perfect",
}


def _numbers(result: Evaluation, facts: RunFacts) -> Section:
    settings = facts.earlier.get("settings", {})
    columns: dict[str, Mapping[str, Any]] = {}
    if facts.earlier:
        columns[f"earlier: {settings.get('images', '?')} images, n = {settings.get('samples', '?')}"] = facts.earlier
    if facts.published:
        columns["in print"] = facts.published
    rows = []
    for key, name, value in metric_rows(result):
        stem = key.rpartition("_")[0] if key.rpartition("_")[2].isdigit() else key
        others = [f"{c[key]:.4f}" if isinstance(c.get(key), float) else "" for c in columns.values()]
        rows.append([name, value, *others, MEANING.get(stem, "")])
    text = "All numbers of this page are of the same samples."
    if facts.earlier:
        text += " Beside them is what `stochseg evaluate` saved in the run before."
    return Section("Numbers", text, table=Table(["metric", "here", *columns, "meaning"], rows))


def _calibration(result: Evaluation, seen: Collector) -> Section:
    text = (
        "Of all pixels to which the model gives a probability of, say, 30%, raters should mark 30%. Points on the "
        "diagonal: the probabilities can be taken at their word. Below it, the model is too sure; above, too careful. "
        "The bars count pixels (each as often as raters looked at it), on a logarithmic scale: points with few pixels "
        f"scatter. Calibration error of the top label (ECE): {result.metrics['ece']:.4f}."
    )
    plot = curves.reliability_diagram(seen.bins)
    return Section(
        "Calibration",
        text,
        pictures=[Picture(embed_plot(plot), "Share of raters by the model's probability.")],
    )


def correlations(x: np.ndarray, y: np.ndarray) -> str:
    """Pearson's and Spearman's correlation in words; of constant values there is none."""
    if len(x) < 3 or np.ptp(x) < 1e-12 or np.ptp(y) < 1e-12:
        return "no correlation can be told"
    return f"correlation {stats.pearsonr(x, y)[0]:.2f} (of ranks {stats.spearmanr(x, y)[0]:.2f})"


def _disagreement(result: Evaluation, seen: Collector) -> Section:
    raters = np.array(seen.disagreement)
    several = ~np.isnan(raters)
    if not several.any():
        return Section("Disagreement", "There is one rater an image, so there is no disagreement to compare with.")
    ours = np.array(seen.difference)[several]
    theirs, entropy = raters[several], np.array(seen.entropy)[several]
    plots = [
        Picture(
            embed_plot(curves.scatter(theirs, ours, "two raters: 1 − IoU", "two samples: 1 − IoU")),
            "Disagreement of shapes:",
            f"{correlations(theirs, ours)}; mean of raters {theirs.mean():.3f}, of samples {ours.mean():.3f}.",
        ),
        Picture(
            embed_plot(
                curves.scatter(entropy[:, 0], entropy[:, 1], "entropy of the raters (nats)", "entropy of samples")
            ),
            "Entropy, summed over the image:",
            f"{correlations(entropy[:, 0], entropy[:, 1])}. Few raters cannot show all doubt: expect more of samples.",
        ),
    ]
    text = (
        "Each point is one image. Does the model doubt where people disagree? Points that rise together say yes; "
        "points on the diagonal say that it doubts as much as they do."
    )
    return Section("Disagreement of model and raters", text, pictures=plots)


def _curve(
    model: StochasticSegmenter,
    data: SegmentationData,
    seen: Collector,
    result: Evaluation,
    points: Sequence[int],
    images: int,
    options: SamplingOptions,
    tell: Callable[[str, int, int], None],
) -> Section:
    """Quality against steps. The point of the model's own steps costs nothing: those samples are there."""
    place = spread(len(seen.index), images)
    part = Chosen(data, [seen.index[i] for i in place])
    own = round(result.metrics["evaluations_per_sample"])
    samples = options.n
    keys = (f"ged_{samples}", f"hm_iou_{samples}")
    curve = {own: {key: float(np.mean([result.images[i][key] for i in place])) for key in keys}}
    for done, count in enumerate(points, start=1):
        if count != own:
            curve |= evaluations_curve(model, part, [count], options=options)
        tell("steps", done, len(points))
    name = options.sampler or model.default_sampling().sampler or model.name
    rows = [[str(count), *(f"{curve[count][key]:.4f}" for key in keys)] for count in sorted(curve)]
    text = (
        f"On {len(part)} of the images. More network evaluations cost proportionally more time; beyond the point where "
        f"the curve is flat they buy nothing. This page is of {own}."
    )
    return Section(
        "Quality against steps",
        text,
        pictures=[
            _wide(
                curves.quality_against_evaluations({name: curve}, n=samples), "Quality by network evaluations a sample."
            )
        ],
        table=Table(["network evaluations", f"GED, n = {samples}", f"HM-IoU, n = {samples}"], rows),
    )


# --- cases -----------------------------------------------------------------------------------------------


def _cases(result: Evaluation) -> list[tuple[str, int]]:
    """(kind, row) of the best, median and worst images by GED, no image twice."""
    key = f"ged_{result.settings['samples']}"
    order = np.argsort([row[key] for row in result.images], kind="stable").tolist()
    count = min(CASES, max(1, len(order) // 3))
    middle = (len(order) - count) // 2
    kinds = {"Best": order[:count], "Median": order[middle : middle + count], "Worst": order[-count:]}
    found: dict[int, str] = {}
    for kind in ("Worst", "Best", "Median"):  # of a single image, the cautious word
        for i in kinds[kind]:
            found.setdefault(i, kind)
    return [(kind, i) for kind in kinds for i in kinds[kind] if found[i] == kind]


def _draw(
    model: StochasticSegmenter,
    data: SegmentationData,
    index: int,
    options: SamplingOptions,
    spacing: tuple[float, float] | None,
    questions: Sequence[Question],
) -> ImageReport:
    """The samples of one image again: they depend on the seed, the image and their number, so they are the same."""
    example = data[index].rated(data.info.ignore)
    image = for_model(example.image, data.info, model.info)[None]
    drawn = model.sample(image, **options.model_dump()).to("cpu")
    batch = Batch.collate([example], data.info.ignore)
    labels, raters = without_void(drawn.labels, batch.raters, batch.mask)
    drawn = replace(drawn, labels=labels)
    return ImageReport(
        example.id,
        image_to_rgb(example.image, data.info.normalization),
        drawn,
        data.info,
        example.spacing or spacing,
        raters=raters[0],
        rater_names=example.rater_names,
        questions=questions,
    )


def _check_questions(
    data: SegmentationData, spacing: tuple[float, float] | None, questions: Sequence[Question]
) -> None:
    """UserError, before the work, for questions that cannot be answered: asked of the raters of the first image."""
    example = data[0]
    batch = Batch.collate([example], data.info.ignore)
    k = batch.raters.shape[1]
    mean = torch.nn.functional.one_hot(batch.raters[0], data.info.num_classes).float().mean(0).movedim(-1, 0)[None]
    raters = Samples(batch.raters, mean, torch.full((1, k), 1 / k), 0)
    picture = image_to_rgb(example.image, data.info.normalization)
    _ = ImageReport(example.id, picture, raters, data.info, example.spacing or spacing, questions=questions).answers


def _contents(images: Sequence[tuple[str, int, ImageReport]], result: Evaluation, seen: Collector) -> Section:
    n = result.settings["n"]
    rows = []
    for kind, i, image in images:
        row = result.images[i]
        ours, theirs = seen.difference[i], seen.disagreement[i]
        numbers = (row[f"ged_{n}"], row[f"hm_iou_{n}"], ours, theirs)
        rows.append([f"{kind}: {image.name}", *("" if np.isnan(value) else f"{value:.3f}" for value in numbers)])
    head = ["image", f"GED, n = {n}", f"HM-IoU, n = {n}", "samples differ", "raters differ"]
    return Section(
        "Best, median and worst images",
        f"By the GED of all {len(result.images)}; each is shown below.",
        table=Table(head, rows, [f"case-{i + 1}" for i in range(len(rows))]),
    )


def _scores(result: Evaluation, seen: Collector, i: int) -> str:
    row, n = result.images[i], result.settings["n"]
    theirs = seen.disagreement[i]
    raters = "" if np.isnan(theirs) else f"; two raters differ by {theirs:.3f}"
    return (
        f"GED {row[f'ged_{n}']:.3f} of {n} samples. Two samples differ by {seen.difference[i]:.3f} (1 − IoU){raters}."
    )
