"""One picture of all that the samples of an image say."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from stochseg.analysis.image_samples import class_names, select_image
from stochseg.analysis.measurement import Measurement
from stochseg.analysis.measures import measure
from stochseg.analysis.readings import Hypothesis, hypotheses
from stochseg.errors import UserError
from stochseg.plotting.figures import show_image, show_labels, show_mean
from stochseg.types import DatasetInfo, Samples

CELL = 2.6  # inches a picture
SHOWN = 5  # readings with a picture of their own
GRAY = "#444444"
ROOM = 0.6  # of the image's side: what is smaller than this is shown close up


class Picture(Figure):
    """A figure that notebooks show also where pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=90, facecolor="white")
        return buffer.getvalue()


def plot(
    image: Any,
    samples: Samples,
    info: DatasetInfo | None = None,
    *,
    spacing: tuple[float, float] | None = None,
    index: int | None = None,
) -> Picture:
    """The image with every sample's outlines, mean, entropy, the readings with their probabilities, the areas.

    image: raw intensities, a numpy array "h w" or "h w c" or a PIL image, or a tensor "c h w" or "1 c h w"
    normalized as for the model; info: names, colors and normalization of the data; spacing: millimeters a pixel
    (row, column); index: the image, if the samples are of several.
    """
    chosen = select_image(samples, index, info)
    index = index or 0
    picture = _picture(image, info, chosen.labels.shape[1:])
    info = info or DatasetInfo(num_classes=samples.num_classes, image_channels=1)
    readings = hypotheses(samples, info=info if info.class_names else None, index=index)
    labels = [c for c in range(1, info.num_classes) if bool((chosen.labels == c).any())]

    shown = readings[:SHOWN]
    h, w = picture.shape[:2]
    tall = float(np.clip(h / w, 0.4, 2.0))
    columns = max(4, len(shown))
    # Wide enough that the height is what limits a picture: all of them then have one size.
    figure = Picture(figsize=(1.28 * CELL * columns, 2 * CELL * tall + 1.5), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.05, h_pad=0.06, wspace=0.02, hspace=0.02)
    top, bottom = figure.subfigures(2, 1, height_ratios=[CELL * tall + 0.55, CELL * tall + 0.95])
    first, second, third, last = top.subplots(1, 4, width_ratios=[1, 1, 1, columns - 3])
    draw_outlines(first, picture, chosen.labels.numpy(), chosen.weights.numpy(), info, labels)
    _title(first, f"outlines of {len(chosen.labels)} samples")
    mean = samples.mean[index].cpu()
    _field(second, (1 - mean[0]).numpy(), 1.0, "viridis", "probability of foreground")
    highest = float(np.log(info.num_classes))
    _field(third, samples.entropy[index].cpu().numpy(), highest, "magma", "entropy (nats)")
    _areas(last, samples, labels, info, spacing, index)
    cells = bottom.subplots(1, columns, squeeze=False)[0]
    for axis in cells:
        axis.set_axis_off()
    for axis, reading in zip(cells, shown, strict=False):
        _reading(axis, picture, reading, info)
    left_out = sum(r.probability for r in readings[SHOWN:])
    note = f"; {len(readings) - SHOWN} more share {left_out:.0%}" if left_out else ""
    count = f"{len(readings)} readings" if len(readings) > 1 else "one reading"
    bottom.suptitle(f"{count} of {len(chosen.labels)} samples{note}", fontsize=11, x=0.01, ha="left")
    return figure


def _picture(image: Any, info: DatasetInfo | None, size: torch.Size) -> np.ndarray:
    """Any accepted image as RGB "h w 3" in [0, 1]."""
    if isinstance(image, Tensor):
        flat = image[0] if image.ndim == 4 and len(image) == 1 else image
        if flat.ndim != 3:
            raise UserError(f'plot: expected an image tensor "c h w", got shape {tuple(image.shape)}; pass image[i]')
        normalization = (info or DatasetInfo(num_classes=2, image_channels=len(flat))).normalization
        rgb = show_image(flat.float(), normalization)
    else:
        raw = np.asarray(image, dtype=np.float32)
        if raw.ndim not in (2, 3):
            raise UserError(f'plot: expected an image "h w" or "h w c", got shape {raw.shape}')
        raw = raw[..., None] if raw.ndim == 2 else raw
        raw = raw[..., :3] if raw.shape[2] >= 3 else raw[..., :1]
        low, high = (0.0, 255.0) if raw.min() >= 0 and 1 < raw.max() <= 255 else (raw.min(), raw.max())
        rgb = np.clip((raw - low) / max(high - low, 1e-6), 0, 1).repeat(3 // raw.shape[2], axis=2)
    if rgb.shape[:2] != tuple(size):
        raise UserError(
            f"plot: the image is {rgb.shape[0]} x {rgb.shape[1]}, the samples are {size[0]} x {size[1]}; "
            "pass the image they were drawn for"
        )
    return rgb


def close_up(marked: np.ndarray, aspect: float = 1.0) -> tuple[slice, slice] | None:
    """Rows and columns around all that is marked in "h w", as high as wide to the eye; None if that is most of the
    image, or nothing. aspect: height of a pixel, its width being 1."""
    if not marked.any():
        return None
    pixel = np.array([aspect, 1.0]) / min(aspect, 1.0)  # its sides, the shorter one being 1
    ends = [np.flatnonzero(marked.any(axis))[[0, -1]] for axis in (1, 0)]
    side = max(24, 1.8 * max((last - first + 1) * unit for (first, last), unit in zip(ends, pixel, strict=True)))
    if side > ROOM * (pixel * marked.shape).min():
        return None
    places = []
    for (first, last), unit, size in zip(ends, pixel, marked.shape, strict=True):
        length = int(side / unit)
        start = int(np.clip((first + last + 1 - length) // 2, 0, size - length))
        places.append(slice(start, start + length))
    return places[0], places[1]


def _title(axis: Axes, text: str) -> None:
    axis.set_title(text, fontsize=9.5, pad=4)


def draw_outline(axis: Axes, region: np.ndarray, color: str, **style: Any) -> None:
    """The outline of a region, closed also where it touches the edge of the picture."""
    if region.any():
        h, w = region.shape
        axis.contour(
            np.arange(-1, w + 1),
            np.arange(-1, h + 1),
            np.pad(region, 1).astype(float),
            levels=[0.5],
            colors=[color],
            **style,
        )


def draw_outlines(
    axis: Axes, picture: np.ndarray, maps: np.ndarray, weights: np.ndarray, info: DatasetInfo, labels: list[int]
) -> None:
    """A picture "h w 3" with the outlines of these classes in every map "n h w"; frequent ones are strong."""
    axis.imshow(picture, interpolation="nearest")
    axis.set_axis_off()
    # Equal samples are drawn once, as strong as they are many: a thousand lines would only be slow.
    unique, place = np.unique(maps.reshape(len(maps), -1), axis=0, return_inverse=True)
    share = np.bincount(place.ravel(), weights=weights)
    faint = min(0.8, max(0.3, 4 / len(unique)))
    for flat, part in zip(unique, share, strict=True):
        for label in reversed(labels):  # a ring shares its inner border with what it surrounds, which is on top
            region = flat.reshape(maps.shape[1:]) == label
            draw_outline(axis, region, info.colors[label], linewidths=1.0, alpha=float(max(faint, part**0.5)))
    axis.set_xlim(-0.5, picture.shape[1] - 0.5)
    axis.set_ylim(picture.shape[0] - 0.5, -0.5)
    if len(labels) > 1:
        names = class_names(info.num_classes, info)
        handles = [Line2D([], [], color=info.colors[c], label=names[c]) for c in labels[:8]]
        axis.legend(handles=handles, fontsize=7, loc="lower left", framealpha=0.7, handlelength=1.2, borderpad=0.3)


def _field(axis: Axes, values: np.ndarray, highest: float, colors: str, title: str) -> None:
    axis.imshow(values, cmap=colors, vmin=0, vmax=highest, interpolation="nearest")
    axis.set_axis_off()
    _title(axis, title)
    beside = axis.inset_axes((1.03, 0, 0.045, 1))
    bar = axis.figure.colorbar(ScalarMappable(Normalize(0, highest), colormaps[colors]), cax=beside)
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)


def _areas(
    axis: Axes,
    samples: Samples,
    labels: list[int],
    info: DatasetInfo,
    spacing: tuple[float, float] | None,
    index: int,
) -> None:
    """A histogram a class, all of the same bins."""
    found = [measure(samples, "area", label=c, spacing=spacing, index=index, info=info) for c in labels]
    names = class_names(info.num_classes, info)
    top = max((float(m.values.max()) for m in found), default=1.0)
    bins = np.linspace(0, top * 1.0001, 25)
    for label, measured in zip(labels, found, strict=True):
        axis.hist(
            measured.values,
            bins,
            weights=measured.weights,
            color=info.colors[label],
            alpha=0.65 if len(labels) > 1 else 0.9,
            label=f"{names[label]} {_spread_text(measured)}",
        )
    unit = found[0].unit if found else "px²"
    axis.set_xlabel(f"area ({unit})", fontsize=8)
    axis.set_ylabel("share of samples", fontsize=8)
    axis.tick_params(labelsize=7.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.25)
    axis.set_axisbelow(True)
    _title(axis, "area: median (90% of samples)")
    if found:
        low, high = axis.get_ylim()
        axis.set_ylim(low, high * (1.08 + 0.12 * len(found)))  # room for the legend above the bars
        axis.legend(fontsize=7.5, frameon=False, loc="upper right")
    else:
        axis.text(0.5, 0.5, "no sample marks anything", ha="center", va="center", transform=axis.transAxes, fontsize=8)


def _spread_text(measured: Measurement) -> str:
    low, high = measured.interval(0.9)
    return f"{measured.quantile(0.5):.4g} ({low:.4g} – {high:.4g})"


def draw_reading(axis: Axes, picture: np.ndarray, labels: np.ndarray, info: DatasetInfo) -> None:
    """A picture "h w 3" with a label map "h w" in the classes' colors."""
    palette = np.array([to_rgb(c) for c in info.colors])
    marked = (labels > 0)[..., None]
    axis.imshow(np.where(marked, 0.65 * picture + 0.35 * palette[labels], picture), interpolation="nearest")
    for label in np.unique(labels[labels > 0])[::-1]:
        draw_outline(axis, labels == label, info.colors[label], linewidths=1.4)
    axis.set_xlim(-0.5, labels.shape[1] - 0.5)
    axis.set_ylim(labels.shape[0] - 0.5, -0.5)


def _reading(axis: Axes, picture: np.ndarray, reading: Hypothesis, info: DatasetInfo) -> None:
    draw_reading(axis, picture, reading.medoid.numpy(), info)
    low, high = reading.interval
    axis.set_title(f"{reading.probability:.0%}", fontsize=13, fontweight="bold", pad=17)
    note = f"{reading.name} ({low:.0%} – {high:.0%})"
    axis.text(0.5, 1.015, note, transform=axis.transAxes, ha="center", va="bottom", fontsize=8, color=GRAY)


# --- Samples in a notebook -------------------------------------------------------------------------------


def samples_html(samples: Samples, *, images: int = 2, columns: int = 6) -> str:
    """A table of what was drawn, and a strip with mean, entropy and the first samples of the first images, close up
    where little is marked."""
    b, n, h, w = samples.labels.shape
    weights = samples.weights
    equal = bool(torch.allclose(weights, weights[:, :1].expand_as(weights)))
    facts = {
        "images": b,
        "samples an image": n,
        "size": f"{h} × {w}",
        "classes": samples.num_classes,
        "weights": "equal" if equal else f"{float(weights.min()):.3g} to {float(weights.max()):.3g}",
        "network evaluations a sample": samples.evaluations,
        "seed": samples.seed,
    }
    rows = "".join(
        f'<tr><th style="text-align:left">{key}</th><td>{html.escape(str(value))}</td></tr>'
        for key, value in facts.items()
    )
    shown = _image_tag(_strip(samples, min(images, b), min(columns, n)), "mean, entropy and samples")
    return f"<table><tbody>{rows}</tbody></table>{shown}"


def hypotheses_html(readings: Sequence[Hypothesis]) -> str:
    """A table of readings, each with a small picture of its most typical sample."""
    maps = torch.stack([r.medoid for r in readings])
    info = DatasetInfo(num_classes=1 + max(1, len(readings[0].areas)), image_channels=1)
    place = close_up((maps > 0).any(0).numpy()) or (slice(None), slice(None))
    titles = ("", "reading", "share", f"{readings[0].confidence:.0%} interval", "samples", "pixels")
    body = []
    for reading, labels in zip(readings, maps, strict=True):
        figure = Picture(figsize=(0.9, 0.9))
        axis = figure.add_axes((0, 0, 1, 1))
        axis.set_axis_off()
        axis.imshow(show_labels(labels[place], info), interpolation="nearest")
        low, high = reading.interval
        sizes = ", ".join(f"{name} {pixels}" for name, pixels in reading.areas.items() if pixels)
        cells = [reading.name, f"{reading.probability:.0%}", f"{low:.0%} – {high:.0%}", len(reading.members), sizes]
        words = "".join(f'<td style="text-align:left">{html.escape(str(cell))}</td>' for cell in cells)
        body.append(f"<tr><td>{_image_tag(figure, reading.name)}</td>{words}</tr>")
    head = "".join(f'<th style="text-align:left">{title}</th>' for title in titles)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _image_tag(figure: Picture, words: str) -> str:
    picture = base64.b64encode(figure._repr_png_()).decode()
    return f'<img alt="{html.escape(words)}" src="data:image/png;base64,{picture}">'


def _strip(samples: Samples, images: int, columns: int) -> Picture:
    info = DatasetInfo(num_classes=samples.num_classes, image_channels=1)
    h, w = samples.labels.shape[-2:]
    tall = float(np.clip(h / w, 0.3, 3.0))
    figure = Picture(figsize=(1.2 * (columns + 2), 1.2 * images * tall + 0.3), layout="constrained")
    axes = figure.subplots(images, columns + 2, squeeze=False)
    titles = ["mean", "entropy", *(f"sample {i}" for i in range(columns))]
    entropy = samples.entropy.cpu().numpy()
    for i, line in enumerate(axes):
        place = close_up((samples.labels[i] > 0).any(0).cpu().numpy()) or (slice(None), slice(None))
        pictures = [show_mean(samples.mean[i][(slice(None), *place)].float(), info), None]
        pictures += [show_labels(samples.labels[i, j][place], info) for j in range(columns)]
        for axis, picture, title in zip(line, pictures, titles, strict=True):
            axis.set_axis_off()
            if picture is not None:
                axis.imshow(picture, interpolation="nearest")
            if i == 0:
                axis.set_title(title, fontsize=8, pad=3)
        line[1].imshow(entropy[i][place], cmap="magma", vmin=0, vmax=np.log(info.num_classes), interpolation="nearest")
    return figure
