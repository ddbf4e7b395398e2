"""Image files in, samples out."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from matplotlib.colors import to_rgb
from PIL import Image
from torch import Tensor

from stochseg.data.readers import Tree
from stochseg.errors import UserError
from stochseg.files import replaced_folder
from stochseg.plotting.figures import overview, write_figure
from stochseg.types import DatasetInfo, Samples


def read_image(file: Path) -> np.ndarray:
    """Raw intensities "h w" or "h w c" of an image file, read exactly as training reads it."""
    if not file.exists():
        raise UserError(f"no such image: {file}")
    if file.is_dir():
        raise UserError(f"{file} is a folder; give image files, e.g. {file}/*.png")
    return Tree(file.parent).picture(file.name).values


def _ours(folder: Path) -> bool:
    """Whether a folder holds samples of an image and nothing else."""
    names = {file.name for file in folder.iterdir()}
    own = {"samples.npz", "fused.png", "overview.png"}
    return own <= names and all(re.fullmatch(r"sample-\d+\.png", name) for name in names - own)


def write_samples(folder: Path, image: Tensor, samples: Samples, info: DatasetInfo) -> Path:
    """All of one image's samples: sample-000.png … (palette PNGs whose indices are the labels; 16 bits without colors
    for more than 256 classes), fused.png,
    overview.png, and samples.npz with labels, mean, weights and seed."""
    with replaced_folder(folder, ours=_ours, kind="a folder of samples") as scratch:
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
    if info.num_classes > 256:
        Image.fromarray(labels.numpy().astype(np.uint16)).save(file)
        return
    picture = Image.fromarray(labels.numpy().astype(np.uint8), mode="P")
    picture.putpalette([round(255 * v) for color in info.colors for v in to_rgb(color)])
    picture.save(file)
