"""Image files in, samples out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.colors import to_rgb
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from stochseg.errors import UserError
from stochseg.evaluation.figures import overview, write_figure
from stochseg.models.base import PIL_MODES
from stochseg.models.io import replaced_folder
from stochseg.types import DatasetInfo, Samples


def read_image(file: Path) -> np.ndarray:
    """Raw intensities "h w" or "h w c"; a palette image becomes colour, a 1-bit image grey."""
    try:
        with Image.open(file) as image:
            return np.asarray(image.convert(PIL_MODES.get(image.mode, image.mode)))
    except FileNotFoundError:
        raise UserError(f"no such image: {file}") from None
    except IsADirectoryError:
        raise UserError(f"{file} is a folder; give image files, e.g. {file}/*.png") from None
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise UserError(f"{file} cannot be read as an image: {error}") from None


def write_samples(folder: Path, image: Tensor, samples: Samples, info: DatasetInfo) -> Path:
    """All of one image's samples: sample-000.png … (palette PNGs whose indices are the labels), fused.png,
    overview.png, and samples.npz with labels, mean, weights and seed."""
    with replaced_folder(folder, sign="samples.npz") as scratch:
        for i, labels in enumerate(samples.labels[0]):
            write_labels(scratch / f"sample-{i:03d}.png", labels, info)
        write_labels(scratch / "fused.png", samples.fused()[0], info)
        np.savez_compressed(
            scratch / "samples.npz",
            labels=samples.labels[0].numpy().astype(np.uint8 if info.num_classes <= 256 else np.int32),
            mean=samples.mean[0].numpy(),
            entropy=samples.entropy[0].numpy(),
            weights=samples.weights[0].numpy(),
            seed=samples.seed,
        )
        write_figure(overview(image[0], samples, info), scratch / "overview.png")
    return folder


def write_labels(file: Path, labels: Tensor, info: DatasetInfo) -> None:
    picture = Image.fromarray(labels.numpy().astype(np.uint8), mode="P")
    picture.putpalette([round(255 * v) for colour in info.colours for v in to_rgb(colour)])
    picture.save(file)
