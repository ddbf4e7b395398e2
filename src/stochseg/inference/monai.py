"""Models for MONAI: an inferer, and bundles that `python -m monai.bundle run` executes.

MONAI has images as "c x y z", in the order of the file; this package has slices, rows and columns. After MONAI's
`Orientation(axcodes="LPS")`, x runs to the left, y to the back and z to the head: our columns, rows and slices.
`StochasticInferer` only transposes.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from stochseg._version import __version__
from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.files import replaced_folder
from stochseg.models import StochasticSegmenter, save
from stochseg.types import Samples

MODEL = "models/model"
"""The saved model in a bundle."""
METADATA = "configs/metadata.json"
VOLUMES = (".nii", ".nii.gz", ".mha", ".mhd", ".nrrd")
OUTPUTS = ("mean", "fused", "entropy")


class StochasticInferer:
    """An inferer of MONAI: called with images and a model of this package, it returns the mean of samples.

    It can be passed to MONAI's evaluators in place of a `SlidingWindowInferer`; windows of large images are the model's
    own (`model.tiled`).

    Args:
        num_samples: samples per image.
        seed: same seed, same samples.
        output: "mean" probabilities "b l *space", "fused" labels "b 1 *space", "entropy" "b 1 *space", or "samples"
            "b n *space".
        normalized: whether images are already normalized as in the training of the model; if not, they are raw.

    >>> import stochseg
    >>> model = stochseg.create("unet-ce", 3, 1, base=4, multipliers=[1])
    >>> StochasticInferer(4, normalized=True)(torch.zeros(1, 1, 8, 12, 5), model).shape
    torch.Size([1, 3, 8, 12, 5])
    """

    def __init__(
        self,
        num_samples: int = 16,
        seed: int = 0,
        output: Literal["mean", "fused", "entropy", "samples"] = "mean",
        normalized: bool = False,
    ):
        self.num_samples, self.seed, self.output, self.normalized = num_samples, seed, output, normalized
        if output not in (*OUTPUTS, "samples"):
            raise UserError(f"output: expected mean, fused, entropy or samples, got {output!r}")

    def __call__(self, inputs: Tensor, network: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Sample images "b c x y" or volumes "b c x y z"; a model of images takes a volume slice by slice."""
        return self.outputs(inputs, network)[self.output]

    def outputs(self, inputs: Tensor, network: Any) -> dict[str, Tensor]:
        """All outputs by name."""
        if not isinstance(network, StochasticSegmenter):
            raise UserError(f"expected a model of stochseg as network, got {type(network).__name__}; see stochseg.wrap")
        parts = [self._sample(image, network) for image in torch.as_tensor(inputs)]
        return {name: torch.stack([part[name] for part in parts]) for name in parts[0]}

    def _sample(self, image: Tensor, model: StochasticSegmenter) -> dict[str, Tensor]:
        """The outputs of one image "c x y" or "c x y z"."""
        image = image.as_subclass(Tensor).float()
        ours = image.permute(0, *reversed(range(1, image.ndim)))  # "c h w" or "c d h w"
        if not self.normalized:
            ours = model.info.normalization(ours)
        slices = ours.ndim == 4 and model.info.spatial_dims == 2
        batch = ours.transpose(0, 1) if slices else ours[None]
        keys = [0] * len(batch) if slices else None  # one reading of all slices
        samples = model.sample(batch, self.num_samples, seed=self.seed, keys=keys)
        return {name: _to_monai(values, slices) for name, values in _arrays(samples).items()}


def _arrays(samples: Samples) -> dict[str, Tensor]:
    return {
        "mean": samples.mean,
        "fused": samples.fused()[:, None],
        "entropy": samples.entropy[:, None],
        "samples": samples.labels,
    }


def _to_monai(values: Tensor, slices: bool) -> Tensor:
    """Turn "1 k *space", or slices "s k h w" of a volume, into "k x y" or "k x y z"."""
    values = values.transpose(0, 1) if slices else values[0]
    return values.permute(0, *reversed(range(1, values.ndim))).contiguous()


# --- bundles -------------------------------------------------------------------------------------------


def export_bundle(model: StochasticSegmenter, folder: str | Path) -> Path:
    """Write a model as a bundle of MONAI, all or nothing; a bundle of a model that exists there is replaced.

    `python -m monai.bundle run --config_file BUNDLE/configs/inference.json --bundle_root BUNDLE --input FILE
    --output_dir OUT` segments a file with it and writes mean probabilities, fused map and entropy with MONAI.

    Args:
        model: The model; its weights are stored as safetensors, not as a pickle.
        folder: The bundle to write.

    Returns:
        The folder.

    Raises:
        UserError: The folder contains something else, or the model cannot be saved.
    """
    folder = Path(folder)
    with replaced_folder(folder, ours=is_bundle, kind="a bundle of a stochseg model") as scratch:
        save(model, scratch / MODEL)
        (scratch / "configs").mkdir()
        for name, content in {"metadata": _metadata(model), "inference": _inference(model)}.items():
            (scratch / f"configs/{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        (scratch / "docs").mkdir()
        (scratch / "docs/README.md").write_text(_README.format(name=model.name, data=model.info.name), encoding="utf-8")
    return folder


def is_bundle(folder: Path) -> bool:
    """Whether a folder is a bundle that `export_bundle` wrote."""
    try:
        return "stochseg" in json.loads((folder / METADATA).read_text(encoding="utf-8"))["required_packages_version"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _metadata(model: StochasticSegmenter) -> dict[str, Any]:
    info = model.info
    space = {"spatial_shape": ["*"] * info.spatial_dims, "dtype": "float32", "is_patch_data": False}
    image = {"type": "image", "format": "magnitude", "num_channels": info.image_channels, **space}
    mean = {"type": "image", "format": "probabilities", "num_channels": info.num_classes, **space}
    channels = {str(i): name for i, name in enumerate(info.names)}
    monai = importlib.metadata.version("monai") if _installed("monai") else "1.6.1"
    return {
        "version": "0.1.0",
        "monai_version": monai,
        "pytorch_version": torch.__version__.partition("+")[0],
        "numpy_version": np.__version__,
        "required_packages_version": {"stochseg": __version__},
        "task": "stochastic segmentation",
        "description": f"{model.name} trained on {info.name}: mean probabilities, fused map and entropy of samples",
        "network_data_format": {
            "inputs": {"image": {**image, "value_range": [], "channel_def": {"0": "image"}}},
            "outputs": {"pred": {**mean, "value_range": [0, 1], "channel_def": channels}},
        },
    }


def _installed(package: str) -> bool:
    try:
        return bool(importlib.metadata.version(package))
    except importlib.metadata.PackageNotFoundError:
        return False


def _inference(model: StochasticSegmenter) -> dict[str, Any]:
    saver = {"_target_": "SaveImage", "output_dir": "@output_dir", "separate_folder": False, "print_log": False}
    return {
        "imports": ["$import torch", "$from stochseg.inference.monai import run_file"],
        "bundle_root": ".",
        "input": "",
        "output_dir": "$@bundle_root + '/eval'",
        "num_samples": 16,
        "seed": 0,
        "device": "$torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')",
        "network_def": {
            "_target_": "stochseg.load",
            "path": f"$@bundle_root + '/{MODEL}'",
            "device": "@device",
        },
        "loader": {"_target_": "LoadImage", "image_only": True, "ensure_channel_first": True},
        "orientation": {"_target_": "Orientation", "axcodes": "LPS", "labels": None},
        "inferer": {
            "_target_": "stochseg.inference.monai.StochasticInferer",
            "num_samples": "@num_samples",
            "seed": "@seed",
        },
        "savers": {name: {**saver, "output_postfix": name} for name in OUTPUTS},
        "run": [
            "$run_file(@input, @network_def, @inferer, @loader, @orientation, @savers)",
        ],
    }


def run_file(
    file: str,
    model: StochasticSegmenter,
    inferer: StochasticInferer,
    loader: Callable[[str], Any],
    orientation: Any,
    savers: Mapping[str, Callable[[Any], Any]],
) -> dict[str, Any]:
    """Segment a file with transforms of MONAI: what the config of a bundle runs.

    Args:
        file: The image or volume.
        model: The model.
        inferer: How to sample.
        loader: `LoadImage`, with channels first.
        orientation: `Orientation` to LPS, for volumes; results are turned back.
        savers: One `SaveImage` per output.

    Returns:
        The outputs by name, in the order of the file.
    """
    MetaTensor = require("monai.data", "monai", "bundles of MONAI").MetaTensor
    if not file or not Path(file).is_file():
        raise UserError(f"input: expected an image file, got {file!r}; pass --input FILE")
    volume = file.lower().endswith(VOLUMES)
    image = loader(file)
    image = orientation(image) if volume else image
    found = inferer.outputs(image[None], model)
    results = {}
    for name, save_one in savers.items():
        result = MetaTensor(found[name][0].cpu(), meta=image.meta, applied_operations=image.applied_operations)
        results[name] = orientation.inverse(result) if volume else result
        save_one(results[name])
    return results


_README = """# {name}, trained on {data}

A stochastic segmenter of stochseg as a bundle of MONAI. It needs `pip install 'stochseg[monai]'`.

    python -m monai.bundle run --config_file configs/inference.json --bundle_root . --input FILE --output_dir OUT

writes the mean probabilities, the fused map and the entropy of 16 samples (--num_samples N, --seed N).
"""
