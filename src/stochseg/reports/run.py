"""The page about a run: scores of its samples against raters, with pictures; for `evaluate`, `report` and `demo`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from stochseg._version import __version__
from stochseg.evaluation import Evaluation, ModeTable
from stochseg.evaluation.references import REFERENCE_NOTE
from stochseg.metrics import RiskCoverage
from stochseg.metrics.table import class_of, format_metric, metric_info, sort_metrics
from stochseg.models.io import read_json
from stochseg.plotting import curves, plot, qualitative
from stochseg.plotting.output import embed_picture, embed_plot
from stochseg.reports.agreement import Agreement
from stochseg.reports.cases import Case, case_sections
from stochseg.reports.page import DISCLAIMER, Picture, Section, Table, plural, write_page
from stochseg.types import DatasetInfo, Spacing

PICTURE_DPI = 120


@dataclass(frozen=True)
class RunFacts:
    """Facts about a run.

    record: what is scored: split, data_path, weights; earlier: metrics.json of its evaluations, the newest first; log:
    records of training.
    """

    title: str
    record: Mapping[str, str] = field(default_factory=dict)
    earlier: Sequence[Mapping[str, Any]] = ()
    log: Sequence[Mapping[str, float]] = ()


def read_evaluations(results: Path) -> list[dict[str, Any]]:
    """Read metrics.json of all evaluations of a run, the newest first, each with the name of its `folder`.

    Older versions wrote a single one, without split or date.
    """
    files = [file for file in results.glob("evaluations/*/metrics.json") if not file.parent.name.startswith(".")]
    found = [{**read_json(file), "folder": f"evaluations/{file.parent.name}"} for file in files]
    found.sort(key=lambda each: (each.get("settings", {}).get("date", ""), each["folder"]), reverse=True)
    single = results / "evaluation" / "metrics.json"
    return [*found, {**read_json(single), "folder": "evaluation"}] if single.is_file() else found


@dataclass(frozen=True)
class Curve:
    """Metrics by network evaluations per sample. images: number of images they were measured on."""

    sampler: str
    points: Mapping[int, Mapping[str, float]]
    images: int


@dataclass(frozen=True, eq=False)
class RunPage:
    """Everything that a page about a run can show; what is missing has no section.

    result: an evaluation with kept examples; info: of the data; lead: first sentences; spacing: millimeters per pixel
    of images that do not state it; extra: sections at the end.
    """

    facts: RunFacts
    result: Evaluation
    info: DatasetInfo
    lead: str = "A good model draws what the raters draw, as often as they do."
    spacing: Spacing | None = None
    agreement: Agreement | None = None
    cases: Sequence[Case] = ()
    curve: Curve | None = None
    extra: Sequence[Section] = ()

    def write(self, file: Path) -> Path:
        """Write the page and return the file."""
        s = {**self.facts.record, **self.result.settings}
        evaluations = plural(round(self.result.metrics["evaluations_per_sample"]), "network evaluation")
        split = f" (split {s['split']}, {s['weights']} weights)" if "split" in s else ""
        samples = plural(s["n"], "sample")
        seeds = f", means of {len(self.result.seeds)} sampling seeds" if self.result.seeds else ""
        facts = f"{s['model']} on {plural(s['images'], 'image')} of {s['data']}{split}, {samples} each, {evaluations}"
        return write_page(
            file,
            self.facts.title,
            f"{facts} per sample{seeds}. {self.lead}",
            self.sections(),
            f"Written by stochseg {__version__}, torch {s['torch']}, seed {s['seed']}, on {s['device']}. {DISCLAIMER}",
        )

    def sections(self) -> list[Section]:
        """Build the sections in their order."""
        found = [self._scores(), *self._references(), *self._class_scores()]
        if self.result.kept:
            found = [self._first_image(), *found, self._grid()]
        cases: list[Section] = []
        if self.agreement is not None:
            contents, *cases = case_sections(self.cases, self.result, self.agreement)
            found += [contents, self.agreement.section(self.result.metrics["ece"])]
        if (kept := self.result.risk_coverage) is not None and len(kept.risk) > 1:
            found.append(_risk_section(kept))
        if self.result.modes is not None:
            found.append(_mode_section(self.result.modes))
        if self.curve is not None:
            found.append(_curve_section(self.curve, self.result))
        found += cases
        if self.facts.log:
            picture = _chart(curves.training_curve(self.facts.log), "Loss and validation score by optimizer step.")
            found.append(Section("Training", pictures=[picture]))
        if self.facts.earlier:
            found.append(_history_section(self.facts.earlier))
        return [*found, *self.extra]

    def _first_image(self) -> Section:
        example, samples = self.result.kept[0]
        figure = plot(example.image, samples, self.info, spacing=example.spacing or self.spacing)
        text = (
            "Every sample is one complete, plausible segmentation of the image. Similar samples form a reading; "
            "its probability is its fraction of the samples, with the 95% interval in parentheses."
        )
        title = f"Samples of {example.id}: outlines, mean, entropy, areas and readings."
        return Section("One image in detail", text, pictures=[_pixels(figure, title)])

    def _grid(self) -> Section:
        figure = qualitative(self.result.kept, self.info)
        text = "One image per row. Samples should look like the raters; mean and entropy are over all samples."
        return Section("Images, raters and samples", text, pictures=[_pixels(figure, "Raters and samples.")])

    def _scores(self) -> Section:
        earlier, head, text = self._newest_like_this(), ["value"], "All scores are of the same samples."
        if earlier is not None:
            s = earlier["settings"]
            head.append(f"{s['date']}: {s['images']} images, n = {s['n']}, {s['weights']}")
            text += f" The others are those of the newest stochseg evaluate of the same split ({earlier['folder']})."
        if self.result.seeds:
            text += " ± is the standard deviation over seeds."
        rows = []
        for key in sort_metrics(self.result.metrics):
            if not class_of(key):
                cells = [self.result.text(key), *([] if earlier is None else [format_metric(key, earlier.get(key))])]
                rows.append([metric_info(key).title, *cells, metric_info(key).better, metric_info(key).meaning])
        return Section("Scores", text, table=Table(["metric", *head, "better", "meaning"], rows))

    def _newest_like_this(self) -> Mapping[str, Any] | None:
        """The newest evaluation of the same split of the same data."""
        same = [self.facts.record.get(key) for key in ("split", "data_path")]
        stated = (each for each in self.facts.earlier if "date" in each.get("settings", {}))
        return next((e for e in stated if [e["settings"][key] for key in ("split", "data_path")] == same), None)

    def _references(self) -> list[Section]:
        head, rows = self.result.reference_rows()
        text = f"Scores of label maps that no model drew, on the same images. {REFERENCE_NOTE}."
        return [Section("References", text, table=Table(head, rows))] if rows else []

    def _class_scores(self) -> list[Section]:
        head, rows = self.result.class_rows()
        text = (
            "IoU and Dice are of the map fused from all samples. GED is of each class alone; its mean is the GED above."
        )
        return [Section("Scores per class", text, table=Table(head, rows))] if rows else []


def _history_section(evaluations: Sequence[Mapping[str, Any]]) -> Section:
    keys = ("date", "split", "weights", "data", "images", "n", "seeds", "sampler", "evaluations")
    rows = []
    for each in evaluations:
        settings = each.get("settings", {})
        n = settings.get("n", settings.get("samples"))
        known = {"seeds": 1, **settings, "n": n}
        scores = (format_metric("ged", each.get(f"ged_{n}")), format_metric("miou", each.get("miou")))
        rows.append([*(str(known.get(key) or "?") for key in keys), *scores, each["folder"]])
    text = "All evaluations that stochseg evaluate saved, the newest first. Compare only those of one split."
    return Section("Earlier evaluations", text, table=Table([*keys, "GED", "mIoU", "folder"], rows))


def _mode_section(modes: ModeTable) -> Section:
    text = (
        "The true probability of every reading of this synthetic data is known. One point per image: the fraction of "
        "its samples with this reading against the true probability. The diagonal is perfect."
    )
    plotted = curves.mode_frequencies(modes.truth, modes.frequency, modes.names)
    return Section("Known truth", text, pictures=[_chart(plotted, "Sampled against true probability.")])


def _risk_section(curve: RiskCoverage) -> Section:
    text = (
        "Risk is 1 − Dice of the fused map with the raters. If images are kept by the confidence of predict, and the "
        "others go to a human, the mean risk of those kept follows the line; the further below the dotted line, the "
        f"better the confidence sorts. Area under the curve: {curve.area:.4f}; of the best order "
        f"{curve.best_area:.4f}, of a random one {curve.random_area:.4f}."
    )
    picture = _chart(curves.risk_against_coverage(curve), "Risk by the fraction of images kept.")
    return Section("Which images to check by hand", text, pictures=[picture])


def _curve_section(curve: Curve, result: Evaluation) -> Section:
    n, own = result.settings["n"], round(result.metrics["evaluations_per_sample"])
    keys, points = (f"ged_{n}", f"hm_iou_{n}"), sorted(curve.points.items())
    rows = [[str(count), *(format_metric(key, point[key]) for key in keys)] for count, point in points]
    text = (
        f"On {plural(curve.images, 'image')}. Time is proportional to the number of network evaluations; where the "
        f"curve is flat, more of them do not help. The rest of this page uses {own}."
    )
    figure = curves.quality_against_evaluations({curve.sampler: curve.points}, n=n)
    return Section(
        "Quality against network evaluations",
        text,
        pictures=[_chart(figure, "Quality by network evaluations per sample.")],
        table=Table(["network evaluations", *(metric_info(key).title for key in keys)], rows),
    )


def _chart(figure: Figure, title: str) -> Picture:
    return Picture(embed_plot(figure), title, wide=True)


def _pixels(figure: Figure, title: str) -> Picture:
    return Picture(embed_picture(figure, PICTURE_DPI), title, wide=True)
