"""HTML views of samples and readings for notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from stochseg.analysis.readings import Hypothesis
from stochseg.plotting.grids import bare_axes, show_entropy
from stochseg.plotting.output import NotebookFigure, data_uri
from stochseg.plotting.pictures import close_up, labels_to_rgb, mean_to_rgb
from stochseg.plotting.slices import disputed_slice, slice_of_samples
from stochseg.types import DatasetInfo, Samples

EVERYTHING = (slice(None), slice(None))
MAX_IMAGES, MAX_SAMPLES = 2, 6  # shown


def samples_html(samples: Samples) -> str:
    """Table of facts about samples, and a strip with mean, entropy and the first samples of the first images."""
    b, n, *size = samples.labels.shape
    weights = samples.weights
    equal = bool(torch.allclose(weights, weights[:, :1].expand_as(weights)))
    facts = {
        "images": b,
        "samples per image": n,
        "size": " × ".join(map(str, size)),
        "classes": f"{samples.num_classes}: {', '.join(samples.class_names)}",
        "weights": "equal" if equal else f"{float(weights.min()):.3g} to {float(weights.max()):.3g}",
        "network evaluations per sample": samples.evaluations,
        "seed": samples.seed,
    }
    if len(size) == 3:
        index = disputed_slice(samples.labels[0].cpu())
        facts["shown"] = f"slice {index + 1} of {size[0]}, on which the samples of the first volume disagree most"
        samples = slice_of_samples(samples, index)
    rows = "".join(f"<tr>{_head([key])}<td>{html.escape(str(value))}</td></tr>" for key, value in facts.items())
    strip = _image_tag(_strip(samples, min(MAX_IMAGES, b), min(MAX_SAMPLES, n)), "mean, entropy and samples")
    return f"<table><tbody>{rows}</tbody></table>{strip}"


def hypotheses_html(readings: Sequence[Hypothesis]) -> str:
    """Table of readings, each with a small picture of its most typical sample, or of its slice in dispute."""
    maps = torch.stack([r.medoid for r in readings])
    unit = "pixels" if maps.ndim == 3 else "voxels"
    maps = maps if maps.ndim == 3 else maps[:, disputed_slice(maps)]
    info = getattr(readings, "info", None) or DatasetInfo(
        num_classes=1 + max(1, len(readings[0].areas)), image_channels=1
    )
    window = close_up((maps > 0).any(0).numpy()) or EVERYTHING
    body = []
    for reading, labels in zip(readings, maps, strict=True):
        figure = NotebookFigure(figsize=(0.9, 0.9))
        axis = figure.add_axes((0, 0, 1, 1))
        axis.set_axis_off()
        axis.imshow(labels_to_rgb(labels[window], info), interpolation="nearest")
        low, high = reading.interval
        sizes = ", ".join(f"{name} {pixels}" for name, pixels in reading.areas.items() if pixels)
        cells = [reading.name, f"{reading.probability:.0%}", f"{low:.0%} – {high:.0%}", len(reading.members), sizes]
        words = "".join(f'<td style="text-align:left">{html.escape(str(cell))}</td>' for cell in cells)
        body.append(f"<tr><td>{_image_tag(figure, reading.name)}</td>{words}</tr>")
    head = _head(["", "reading", "probability", f"{readings[0].confidence:.0%} interval", "samples", unit])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _head(titles: Iterable[str]) -> str:
    return "".join(f'<th style="text-align:left">{title}</th>' for title in titles)


def _image_tag(figure: NotebookFigure, alt: str) -> str:
    return f'<img alt="{html.escape(alt)}" src="{data_uri(figure._repr_png_(), "png")}">'


def _strip(samples: Samples, rows: int, columns: int) -> NotebookFigure:
    info = samples.info or DatasetInfo(num_classes=samples.num_classes, image_channels=1)
    h, w = samples.labels.shape[-2:]
    tall = float(np.clip(h / w, 0.3, 3.0))
    figure = NotebookFigure(figsize=(1.2 * (columns + 2), 1.2 * rows * tall + 0.3), layout="constrained")
    axes = bare_axes(figure, rows, columns + 2)
    for axis, title in zip(axes[0], ["mean", "entropy", *(f"sample {i}" for i in range(columns))], strict=True):
        axis.set_title(title, fontsize=9, pad=3)
    for i, line in enumerate(axes):
        y, x = close_up((samples.labels[i] > 0).any(0).cpu().numpy()) or EVERYTHING
        line[0].imshow(mean_to_rgb(samples.mean[i][:, y, x], info), interpolation="nearest")
        show_entropy(line[1], samples.entropy[i][y, x], info)
        for axis, labels in zip(line[2:], samples.labels[i], strict=False):
            axis.imshow(labels_to_rgb(labels[y, x], info), interpolation="nearest")
    return figure
