"""The page about predictions: what `stochseg predict` wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from stochseg._version import __version__
from stochseg.analysis.questions import Answer, Question
from stochseg.data import spread
from stochseg.errors import UserError
from stochseg.inference.result_folder import RESULT
from stochseg.reports.page import DISCLAIMER, Section, Table, mean_and_interval, number, plural, write_page
from stochseg.reports.saved_prediction import read_image
from stochseg.reports.saved_result import Result, find_results, read_result
from stochseg.reports.statements import Statements
from stochseg.types import Spacing


def is_predictions(path: Path) -> bool:
    """Whether this folder, or a folder directly below it, holds a result of `stochseg predict`.

    Args:
        path: the folder.

    Returns:
        False for a folder that does not exist, too.
    """
    return bool(find_results(path))


def report_predictions(
    path: Path,
    out: Path,
    *,
    limit: int = 100,
    spacing: Spacing | None = None,
    questions: Sequence[Question] = (),
    progress: Callable[[int, int], None] | None = None,
) -> list[str]:
    """Write a page about a folder of predictions, or about one of them.

    Args:
        path: the folder that `stochseg predict` wrote, or the folder of one result.
        out: the page.
        limit: maximum number of inputs on the page, evenly spaced.
        spacing: millimeters per pixel (row, column) of inputs that do not state them.
        questions: questions to answer for every input.
        progress: called with (inputs done, inputs in total).

    Returns:
        The answers, one line per input and question.

    Raises:
        UserError: if there is no result, if one is damaged, or if no input can answer a question.
    """
    folders = find_results(path)
    if not folders:
        raise UserError(
            f"{path}: expected a folder written by `stochseg predict`, with {RESULT} in it or below it; found none"
        )
    results = [read_result(folder) for folder in folders]  # report damaged ones before the work starts
    chosen = spread(len(folders), limit)
    for question in questions:
        _check_question(question, [results[i] for i in chosen], spacing)
    rows, answers, sections = [], [], []
    for done, i in enumerate(chosen, start=1):
        image = read_image(folders[i], results[i], spacing, questions)
        sections.append(image.section(text=_facts(results[i]), anchor=f"image-{done}"))
        rows.append(_overview_row(image, results[i]))  # the image itself is released: samples may be large
        answers += [f"{image.name}: {text}" for text in image.answer_texts]
        if progress is not None:
            progress(done, len(chosen))
    shown = f" The page shows {len(chosen)} of them, evenly spaced." if len(chosen) < len(folders) else ""
    models = sorted({r.model.origin or r.model.name for r in results})
    counts = sorted({r.num_samples for r in results})
    write_page(
        out,
        f"Predictions of {', '.join(models)}",
        f"{plural(len(folders), 'input')}, {' or '.join(map(str, counts))} samples each.{shown} A sample is one "
        "complete, plausible segmentation; together, the samples show what is certain and what is not.",
        [_overview(rows, questions, any(results[i].per_slice for i in chosen)), *sections],
        f"Written by stochseg {__version__} from {path}. {DISCLAIMER}",
    )
    return answers


def _check_question(question: Question, results: Sequence[Result], spacing: Spacing | None) -> None:
    """Raise a UserError if no input can answer a question. One of another kind has no answer, the others have."""
    problems = [
        question.problem(volume=result.image.slices > 1, in_mm=(result.image.spacing_mm or spacing) is not None)
        for result in results
    ]
    if all(problems):
        raise UserError(f"question {str(question)!r}: {results[0].source}: {problems[0]}")


def _facts(result: Result) -> str:
    image = result.image
    slices = f"{image.slices} slices of " if image.slices > 1 else ""
    voxels = ""
    if image.spacing_mm is not None:
        voxels = f", voxels of {' × '.join(number(v) for v in image.spacing_mm)} mm (slice, row, column)"
    size = f"{slices}{image.height} × {image.width} pixels{voxels}"
    return " ".join(f"{result.source}: {size}. {image.orientation} {_confidence(result)}".split())


def _confidence(result: Result) -> str:
    """The confidence of each structure, as a sentence; "" for older results."""
    stated = [f"{c.name} {c.confidence:.0%}" for c in result.classes[1:] if c.confidence is not None]
    return f"Expected Dice of the fused map, a confidence per structure: {', '.join(stated)}." if stated else ""


def _overview_row(image: Statements, result: Result) -> list[str]:
    first = image.readings[0]
    return [
        image.name,
        str(len(image.readings)),
        f"{first.name} {Answer(first.probability, first.interval)}",
        f"{image.size.probability('>', 0):.0%}",
        mean_and_interval(image.size),
        "" if result.confidence is None else f"{result.confidence:.0%}",
        *("no answer" if answer is None else str(answer) for answer in image.answers),
    ]


def _overview(rows: list[list[str]], questions: Sequence[Question], volumes: bool) -> Section:
    head = ["input", "readings", "most probable reading", "anything marked", "size of all foreground, mean (90%)"]
    head.append("confidence")
    of_volumes = " Readings of a volume whose slices were sampled independently refer to one slice." if volumes else ""
    return Section(
        "Inputs",
        "Readings: number of distinct answers among the samples. Anything marked: fraction of the samples that mark "
        "any pixel. Confidence: expected Dice of the fused map if the truth is like a sample, of the least certain "
        "structure. Parentheses after a probability: its 95% interval for this number of samples." + of_volumes,
        table=Table([*head, *(f"P({q})" for q in questions)], rows, [f"image-{i + 1}" for i in range(len(rows))]),
    )
