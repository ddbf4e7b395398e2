"""The page about a run: scores of its samples against raters, with pictures; for `evaluate`, `report` and `demo`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from stochseg._version import __version__
from stochseg.evaluation import Evaluation, ModeTable
from stochseg.metrics.table import format_metric, metric_info, sort_metrics
from stochseg.models.io import read_json
from stochseg.plotting import curves, plot, qualitative
from stochseg.plotting.output import embed_picture, embed_plot
from stochseg.reports.agreement import Agreement
from stochseg.reports.cases import Case, case_sections
from stochseg.reports.page import DISCLAIMER, Picture, Section, Table, plural, write_page
from stochseg.types import DatasetInfo

PICTURE_DPI = 120


@dataclass(frozen=True)
class RunFacts:
    """Facts about a run. earlier: metrics.json of `evaluate`; published: scores in print; log: records of training."""

    title: str
    published: Mapping[str, float] = field(default_factory=dict)
    earlier: Mapping[str, Any] = field(default_factory=dict)
    log: Sequence[Mapping[str, float]] = ()


def read_facts(run: Path, published: Mapping[str, float], log_name: str) -> RunFacts:
    """Read what a run folder holds for its page; the folder of a model without a run holds nothing."""
    earlier = run / "evaluation" / "metrics.json"
    log = read_log(run / log_name)
    return RunFacts(f"Report on {run.name or run}", published, read_json(earlier) if earlier.is_file() else {}, log)


def read_log(file: Path) -> list[dict[str, float]]:
    """Read the records of a training log; none if there is no log. Other lines, such as a half one, are skipped."""
    records = []
    for line in file.read_text(errors="replace").splitlines() if file.is_file() else []:
        with suppress(ValueError, RecursionError):
            record = json.loads(line)
            if isinstance(record, dict) and "step" in record:
                records.append(record)
    return records


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
    spacing: tuple[float, float] | None = None
    agreement: Agreement | None = None
    cases: Sequence[Case] = ()
    curve: Curve | None = None
    extra: Sequence[Section] = ()

    def write(self, file: Path) -> Path:
        """Write the page and return the file."""
        s = self.result.settings
        evaluations = plural(round(self.result.metrics["evaluations_per_sample"]), "network evaluation")
        facts = f"{s['model']} on {plural(s['images'], 'image')} of {s['data']}, {s['n']} samples each, {evaluations}"
        return write_page(
            file,
            self.facts.title,
            f"{facts} per sample. {self.lead}",
            self.sections(),
            f"Written by stochseg {__version__}, torch {s['torch']}, seed {s['seed']}, on {s['device']}. {DISCLAIMER}",
        )

    def sections(self) -> list[Section]:
        """Build the sections in their order."""
        found = [self._first_image(), self._scores(), self._grid()] if self.result.kept else [self._scores()]
        cases: list[Section] = []
        if self.agreement is not None:
            contents, *cases = case_sections(self.cases, self.result, self.agreement)
            found += [contents, self.agreement.section(self.result.metrics["ece"])]
        if self.result.modes is not None:
            found.append(_mode_section(self.result.modes))
        if self.curve is not None:
            found.append(_curve_section(self.curve, self.result))
        found += cases
        if self.facts.log:
            picture = _chart(curves.training_curve(self.facts.log), "Loss and validation GED by optimizer step.")
            found.append(Section("Training", pictures=[picture]))
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
        columns: dict[str, Mapping[str, Any]] = {"value": self.result.metrics}
        if self.facts.earlier:
            settings = self.facts.earlier.get("settings", {})
            n = settings.get("n", settings.get("samples", "?"))
            columns[f"earlier: {settings.get('images', '?')} images, n = {n}"] = self.facts.earlier
        if self.facts.published:
            columns["published"] = self.facts.published
        rows = []
        for key in sort_metrics(self.result.metrics):
            info = metric_info(key)
            cells = [format_metric(key, v[key]) if isinstance(v.get(key), float) else "" for v in columns.values()]
            rows.append([info.title, *cells, info.better, info.meaning])
        text = "All scores are of the same samples."
        if self.facts.earlier:
            text += " The earlier ones were saved in the run by stochseg evaluate."
        return Section("Scores", text, table=Table(["metric", *columns, "better", "meaning"], rows))


def _mode_section(modes: ModeTable) -> Section:
    text = (
        "The true probability of every reading of this synthetic data is known. One point per image: the fraction of "
        "its samples with this reading against the true probability. The diagonal is perfect."
    )
    plotted = curves.mode_frequencies(modes.truth, modes.frequency, modes.names)
    return Section("Known truth", text, pictures=[_chart(plotted, "Sampled against true probability.")])


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
