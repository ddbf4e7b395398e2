"""The trainings behind the paper's tables, one per data set and row, as its text describes them.

Note: the paper trains on LIDC until the validation GED converges. The number of steps is ours, and rivals on LIDC,
which the paper did not train except for Analog Bits and CIMD, see as many images with the settings of their authors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stochseg.models.registry import find_class

DINO = "timm:vit_small_patch8_224.dino"
LIDC_IMAGES = 150_000 * 64
"""Training images of every method on LIDC, repetitions included."""


@dataclass(frozen=True)
class PaperData:
    """A data set in the form that a table needs.

    Attributes:
        name: Name of the form.
        importer: `stochseg data import` of this kind makes the store.
        store: Default path of the store.
        crop: Central square in pixels to which examples are cut; None: whole images.
        classes: Number of classes.
        channels: Channels of an image.
        size: Height and width of an example after the crop.
        augment: Augmentation of the training split.
        split: The split that is scored.
        batch_size: Of the paper's own models.
    """

    name: str
    importer: str
    store: str
    crop: int | None
    classes: int
    channels: int
    size: tuple[int, int]
    augment: str
    split: str
    batch_size: int


_DATA = (
    PaperData("lidc-v1", "lidc-v1", "data/lidc-v1.h5", None, 2, 1, (128, 128), "flip-rotate", "test", 64),
    PaperData("lidc-v2", "lidc-v2", "data/lidc-v2.h5", 128, 2, 1, (128, 128), "flip-rotate", "test", 64),
    *(
        PaperData(f"cityscapes-{h}x{w}", f"cityscapes-{h}x{w}", f"data/cityscapes-{h}x{w}.h5", None, 19, 3, (h, w),
                  "flip-jitter", "val", batch_size)
        for h, w, batch_size in ((128, 256, 32), (256, 512, 16))
    ),
)  # fmt: skip
DATA: dict[str, PaperData] = {data.name: data for data in _DATA}

CITYSCAPES_IMAGES = 2975
_U_NETS: dict[str, dict[str, Any]] = {
    "9m": {"base": 32, "multipliers": [1, 2, 2, 4, 5]},
    "41m": {"base": 64, "multipliers": [1, 2, 3.5, 4, 5]},
    "5.4m": {"base": 32, "multipliers": [1, 2, 3, 4]},
    "7.5m": {"base": 32, "multipliers": [1, 1, 2, 2, 4, 4]},
    "22m": {"base": 64, "multipliers": [1, 2, 3, 4]},
    "30m": {"base": 64, "multipliers": [1, 1, 2, 2, 4, 4]},
}
_RIVALS = {
    "deeplabv3-r50": "smp:deeplabv3/resnet50",
    "deeplabv3-r101": "smp:deeplabv3/resnet101",
    "upernet-r101": "smp:upernet/resnet101",
    "hrnet-w48": "smp:hrnet/tu-hrnet_w48",
    "upernet-swin-t": "smp:upernet/tu-swin_tiny_patch4_window7_224",
}
_LIDC_RIVALS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("prob-unet", "hprob-unet", "phiseg", "ssn", "cflow", "car", "jprob-unet")},
    **{name: (name, {}) for name in ("pixelseg", "analog-bits")},
    "mose-9m": ("mose", {}),
    "mose-42m": ("mose", {"base": 70}),
    "cimd": ("cimd", {"base": 50}),
}
_ADAM = {"optimizer": "adam", "lr": 1e-4, "final_lr": 1e-6, "decay": "polynomial", "warmup": 0, "clip": None}


def _lidc(model: Mapping[str, Any], data: PaperData, training: Mapping[str, Any]) -> dict[str, Any]:
    batch_size = training["batch_size"]
    return {
        "data": _data(data),
        "model": model,
        **training,
        "steps": LIDC_IMAGES // batch_size,
        "validation": {"every": 5000 * 64 // batch_size, "images": 100, "num_samples": 16, "select": "ged"},
        "save_every": 1000,
    }


def _cityscapes(
    model: Mapping[str, Any], data: PaperData, epochs: int, training: Mapping[str, Any], samples: int
) -> dict[str, Any]:
    return {
        "data": _data(data),
        "model": model,
        **training,
        "steps": epochs * CITYSCAPES_IMAGES // training["batch_size"],
        "validation": {"every": 2000, "images": 100, "num_samples": samples, "select": "miou"},
        "save_every": 1000,
    }


def _data(data: PaperData) -> dict[str, Any]:
    crop = {} if data.crop is None else {"crop": [data.crop, data.crop]}
    return {"name": "store", "options": {"path": data.store}, "augment": data.augment, "workers": 4, **crop}


def _unet(name: str, size: str, dino: bool) -> dict[str, Any]:
    # The released code joins the features to the second block, which the text leaves open.
    features = {"encoder": DINO, "encoder_weights": "download", "feature_block": 2} if dino else {}
    sampling = {"grid": "trailing"} if name == "ccdm" else {}
    return {"name": name, "options": {**_U_NETS[size], **sampling, **features}}


def _lidc_trainings(data: PaperData) -> dict[str, dict[str, Any]]:
    own = {**_ADAM, "batch_size": data.batch_size, "ema": 0.99995, "ema_warmup": 1}
    found = {f"ccdm-{size}": _lidc(_unet("ccdm", size, False), data, own) for size in ("9m", "41m")}
    for row, (name, options) in _LIDC_RIVALS.items():
        settings = {**_ADAM, "batch_size": 64, **find_class(name).training_defaults}
        found[row] = _lidc({"name": name, "options": options}, data, settings)
    # Few evaluations suffice to choose a checkpoint; its scores use all.
    for row in ("ccdm-9m", "ccdm-41m", "analog-bits", "cimd"):
        found[row]["validation"]["evaluations"] = 25
    return found


def _cityscapes_trainings(data: PaperData) -> dict[str, dict[str, Any]]:
    own = {**_ADAM, "batch_size": data.batch_size, "ema": 0.999, "ema_warmup": 1}
    sizes = ("5.4m", "7.5m", "22m", "30m") if data.size == (128, 256) else ("30m",)
    rows = {f"ccdm-{size}": _unet("ccdm", size, False) for size in sizes}
    rows |= {"ccdm-30m-dino": _unet("ccdm", "30m", True)}
    found = {row: _cityscapes(model, data, 800, own, 10) for row, model in rows.items()}
    for values in found.values():
        values["validation"]["evaluations"] = 25
    for row, dino in (("unet-ce", False), ("unet-ce-dino", True)):
        found[row] = _cityscapes(_unet("unet-ce", "30m", dino), data, 800, own, 2)
    for row, name in _RIVALS.items():
        warmup = {"warmup": 1500} if "swin" in name else {}  # "warmup+linear" without a length: that of Swin's authors
        settings = {**find_class(name).training_defaults, "batch_size": 32, "ema": 0.0, **warmup}
        found[row] = _cityscapes({"name": name, "options": {}}, data, 500, settings, 2)
    return found


TRAININGS: dict[tuple[str, str], dict[str, Any]] = {
    (data.name, row): values
    for data in _DATA
    for row, values in (_lidc_trainings if data.classes == 2 else _cityscapes_trainings)(data).items()
}
"""Training configs by data set and row."""
