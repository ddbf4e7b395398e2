"""Recipes: named training configs. Those of every row of the paper's tables are `paper:DATA/ROW`.

Start from one and override keys: `stochseg train lidc-9m --data lidc.h5 batch_size=32`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stochseg.data import data_at, open_path
from stochseg.data.fingerprint import measure_fingerprint, plan_patch
from stochseg.errors import unknown_name
from stochseg.models import MODELS, StochasticSegmenter, create
from stochseg.models.registry import find_class, is_registered
from stochseg.training.config import TrainConfig, override, read_config
from stochseg.types import DatasetInfo

VOLUME_VOXELS = 16 * 128 * 128
"""Voxels of a training step of `small` on volumes, as many as pixels of 16 images: a bound on memory and time."""

# Training of a model by its own name, unless its authors chose otherwise. The learning rate starts in full: most
# authors had no warm-up, and in ten minutes of a core 100 steps may be two thirds of a training.
_BY_NAME: dict[str, Any] = {
    "data": {"name": "folder", "augment": "auto"},  # of the user: --data
    "steps": 4000,
    "batch_size": 16,
    "lr": 5e-4,
    "final_lr": 1e-5,
    "ema": 0.999,
    "clip": 1.0,
    "validation": {"every": 500, "images": 16, "num_samples": 16},
    "save_every": 250,
}

# Minutes on two cores. The faintness of the halo, on which its probability depends, takes longest to learn: some 60,000
# images. So the image tower has most of the weights, and each image serves only two draws.
_PHANTOM_TINY: dict[str, Any] = {
    **_BY_NAME,
    "data": {
        "name": "phantom",
        "options": {"size": 32, "variant": "binary", "raters": 4},
        "train": {"count": 8192},
        "val": {"count": 64},
        "augment": "flip-rotate",
    },
    "model": {
        "name": "ccdm-fast",
        "options": {
            "tower": [48, 64, 96],
            "light": [32, 48, 64],
            "draws": 2,
            "components": 6,
            "anneal": 150,
            "evaluations": 8,
            "noise": "latin",
        },
    },
    "steps": 1000,
    "batch_size": 64,
    "optimizer": "muon",
    "lr": 3e-3,
    "warmup": 50,
    "precision": "auto",
}


_PHANTOM_3D: dict[str, Any] = {
    **_PHANTOM_TINY,
    "data": {
        "name": "phantom-3d",
        "options": {"size": 32, "slices": 6, "raters": 4},
        "train": {"count": 8192},
        "val": {"count": 64},
        "augment": "flip-rotate-slices",
    },
    "steps": 2500,
    "batch_size": 24,
}


def _ccdm(path: str, augment: str, base: int, multipliers: Sequence[float], **training: Any) -> dict[str, Any]:
    """`ccdm` on a packed store, trained and sampled as in the paper."""
    options = {"base": base, "multipliers": list(multipliers), "grid": "trailing"}
    return {
        "data": {"name": "store", "options": {"path": path}, "augment": augment, "workers": 4},
        "model": {"name": "ccdm", "options": options},
        **MODELS["ccdm"].training_defaults,
        "ema_warmup": 1,
        "save_every": 1000,
        **training,
    }


def _lidc(base: int, multipliers: Sequence[float]) -> dict[str, Any]:
    """`ccdm` on LIDC at 128×128.

    Note: the paper trains until the validation GED converges; the number of steps is ours.
    """
    validation = {"every": 5000, "images": 100, "num_samples": 16, "evaluations": 25}
    return _ccdm("data/lidc.h5", "flip-rotate", base, multipliers, steps=150_000, validation=validation)


def _fast(data: dict[str, Any], model: dict[str, Any], **training: Any) -> dict[str, Any]:
    """`ccdm-fast` with 8 mixture components."""
    head = {"components": 8, "anneal": 250, "noise": "latin", "evaluations": 5}
    return {
        "data": data,
        "model": {"name": "ccdm-fast", "options": {**head, **model}},
        **MODELS["ccdm-fast"].training_defaults,
        "optimizer": "muon",
        "lr": 2e-3,
        "tail": 0.5,
        "warmup": 50,
        "validation": {"every": 500, "images": 100, "num_samples": 16},
        "save_every": 250,
        **training,
    }


def _lidc_fast(model: dict[str, Any], **training: Any) -> dict[str, Any]:
    """`ccdm-fast` on LIDC: S trains in an hour and a half on two CPU cores, M needs many cores or a GPU, L a GPU.

    S and M label the central 64×64, which contains 99.6% of the nodules' pixels; L labels the whole slice.
    """
    data = {"name": "store", "options": {"path": "data/lidc.h5"}, "augment": "flip-rotate"}
    return _fast(data, {"focus": 64, **model}, **training)


# Nodules as volumes. The layers for slices start with the weights of `lidc`, those between slices with nothing.
_LIDC_3D: dict[str, Any] = {
    "data": {
        "name": "store",
        "options": {"path": "data/lidc-nodules.h5", "center": 64},
        "augment": "flip-rotate-slices",
        "patch": [12, 64, 64],
        "patch_foreground": 0,
        "beyond": 6,
    },
    "model": {
        "name": "ccdm-fast",
        "options": {"focus": 64, "components": 8, "anneal": 250, "draws": 3, "evaluations": 2, "noise": "latin"},
    },
    "start_from": "lidc",
    "steps": 3000,
    "batch_size": 8,
    "optimizer": "muon",
    "lr": 1e-3,
    "final_lr": 1e-5,
    "decay": "tail",
    "tail": 0.5,
    "warmup": 100,
    "weight_decay": 1e-4,
    "ema": 0.995,
    "clip": 1.0,
    "precision": "auto",
    "validation": {"every": 500, "images": 32, "num_samples": 16},
    "save_every": 100,
}

_LITE0 = {"encoder": "efficientnet-lite0"}
_LITE0_FAST = {
    **_LITE0,
    "tower": [48, 64, 96, 128, 160],
    "tower_blocks": 1,
    "light": [32, 48, 64],
    # One of the two draws of each image is pure noise, where the network is an ordinary one: samples start from there.
    "draws": 2,
    "pure": 0.5,
    "evaluations": 5,
}
_CAMVID_DIFFUSION = {"objective": "cross-entropy", "t_power": 2, "grid": "entropy", "evaluations": 10}
_CAMVID_UNET = {**_LITE0, "base": 32, "multipliers": [1, 2, 2, 4], "blocks": 1, "attention": [8]}


def _camvid(name: str, options: dict[str, Any], **training: Any) -> dict[str, Any]:
    """A model on CamVid that starts with the ImageNet weights of EfficientNet-Lite0."""
    return {
        "data": {"name": "store", "options": {"path": "data/camvid.h5"}, "augment": "flip-jitter"},
        "model": {"name": name, "options": options},
        "steps": 4000,
        "batch_size": 8,
        "optimizer": "muon",
        "lr": 2e-3,
        "final_lr": 1e-5,
        "decay": "tail",
        "tail": 0.5,
        "warmup": 50,
        "weight_decay": 1e-4,
        "ema": 0.99,
        "clip": 1.0,
        "precision": "auto",
        "validation": {"every": 500, "images": 25, "num_samples": 10},
        **training,
    }


# Optic disc and cup in fundus crops of 150 patients, of whom a fifth is kept back for calibration: strong augmentation,
# and towers on cells of 4×4 pixels, on which a core takes three or four steps of 8 images per second.
_PAPILA: dict[str, Any] = {
    "data": {
        "name": "store",
        "options": {"path": "data/papila.h5"},
        "augment": "flip-jitter-warp",
        "size": [128, 128],
        "tune": 0.2,
    },
    "model": {
        "name": "ccdm-fast",
        "options": {
            "patch": 4,
            "tower": [48, 64, 96, 128],
            "tower_blocks": 1,
            "light": [48, 64, 96],
            "draws": 2,
            "pure": 0.5,
            "evaluations": 5,
            "components": 6,
            "anneal": 150,
            "noise": "latin",
        },
    },
    "steps": 4000,
    "batch_size": 8,
    "optimizer": "muon",
    "lr": 2e-3,
    "final_lr": 1e-5,
    "decay": "tail",
    "tail": 0.5,
    "warmup": 30,
    "weight_decay": 1e-3,
    "ema": 0.99,
    "clip": 1.0,
    "validation": {"every": 1000, "images": 42, "num_samples": 16, "calibration_images": 0},
    "save_every": 100,
    "precision": "auto",
}


def _on_tower(model: str) -> dict[str, Any]:
    """The head of another method on the image tower of `ccdm-fast`, trained as the recipe `small`."""
    small = _fast(_BY_NAME["data"], {}, steps=1500, batch_size=16, validation=_BY_NAME["validation"])
    return {**small, "model": {"name": model, "options": {"image_tower": {}}}}


TOWER_HEADS = ("prob-unet", "ssn", "mose", "flow-ssn", "unet-ce")
"""Models whose recipe tower-NAME has the image tower of `ccdm-fast`."""

RECIPES: dict[str, dict[str, Any]] = {
    "phantom-tiny": _PHANTOM_TINY,
    "phantom-3d": _PHANTOM_3D,
    # For a user's own data: an hour on two CPU cores with images of 128×128, minutes on a GPU.
    "small": _fast(
        _BY_NAME["data"], {}, steps=1500, batch_size=16, validation={"every": 250, "images": 16, "num_samples": 16}
    ),
    **{f"tower-{name}": _on_tower(name) for name in TOWER_HEADS},
    "lidc-9m": _lidc(32, (1, 2, 2, 4, 5)),
    "lidc-41m": _lidc(64, (1, 2, 3.5, 4, 5)),
    "lidc-fast-s": _lidc_fast({}, steps=4500, batch_size=32),
    "lidc-fast-m": _lidc_fast(
        {"tower": [96, 160, 224], "light": [64, 96, 128]}, steps=20_000, batch_size=64, ema=0.9995
    ),
    "lidc-fast-l": _lidc_fast(
        {"focus": None, "tower": [128, 192, 256, 384], "tower_blocks": 3, "light": [96, 128, 192], "light_blocks": 2},
        steps=50_000,
        batch_size=64,
        lr=1e-3,
        ema=0.9999,
    ),
    "lidc-3d": _LIDC_3D,
    "cityscapes-30m": _ccdm(
        "data/cityscapes-128x256.h5",
        "flip-jitter",
        64,
        (1, 1, 2, 2, 4, 4),
        steps=800 * 2975 // 32,  # 800 epochs of 2,975 images
        batch_size=32,  # at 256×512 the paper's batch is 16
        ema=0.999,
        validation={"every": 2000, "images": 50, "num_samples": 10, "evaluations": 25},
    ),
    "cityscapes-fast": {
        **_camvid("ccdm-fast", {**_LITE0_FAST, "encoder": "efficientnet-lite2"}),
        "data": {
            "name": "store",
            "options": {"path": "data/cityscapes-256x512.h5"},
            "augment": "flip-jitter",
            "workers": 4,
        },
        "steps": 40_000,
        "batch_size": 16,
        "ema": 0.999,
    },
    "papila": _PAPILA,
    "camvid-fast": _camvid("ccdm-fast", _LITE0_FAST),
    "camvid-ccdm": _camvid("ccdm", {**_CAMVID_UNET, **_CAMVID_DIFFUSION}),
    "camvid-unet-ce": _camvid("unet-ce", _CAMVID_UNET),
    "camvid-smp": _camvid("smp:fpn/tu-tf_efficientnet_lite0", {"encoder_weights": "package"}),
}

PAPER = "paper:"
"""Start of the names of the paper's trainings."""

# Classes and image channels of the data by the beginning of a recipe's name, where they are not 2 and 1.
SHAPES = {"cityscapes-": (19, 3), "camvid-": (11, 3), "papila": (3, 3)}


def recipe(name: str, overrides: Sequence[str] = (), data: Path | None = None) -> TrainConfig:
    """Find a training config by name.

    Args:
        name: a recipe, a YAML file of the same form (such as RUN/train.yaml), a row of the paper's tables such as
            paper:cityscapes-256x512/ccdm-30m-dino, or any model, which is trained as its authors did, as far as known.
        overrides: changes such as "steps=2000" or "model.options.base=32".
        data: train on this packed store (.h5) or folder instead of the recipe's data.

    Returns:
        The config, for `stochseg.training.train`.

    Raises:
        UserError: for an unknown name, key or value.

    >>> config = recipe("phantom-tiny", ["steps=20", "validation.images=4"])
    >>> config.model.name, config.steps, config.validation.images
    ('ccdm-fast', 20, 4)
    """
    if name.endswith((".yaml", ".yml")):
        values = read_config(Path(name)).model_dump(mode="json")
    elif name in RECIPES:
        values = RECIPES[name]
    elif name.startswith(PAPER):
        values = _paper_training(name.removeprefix(PAPER))
    elif is_registered(name):
        values = {**_BY_NAME, **find_class(name).training_defaults, "model": {"name": name}}
    else:
        raise unknown_name("recipe", name, [*RECIPES, *MODELS])
    if data is not None:
        settings = ("augment", "crop", "size", "resize", "workers", "tune")
        kept = {key: values["data"][key] for key in settings if key in values["data"]}
        values = {**values, "data": {**kept, **data_at(data)}}
        if name == "small" and data.exists():
            values = {**values, **_volume_plan(values["data"], data)}
    return TrainConfig.parse(override(values, overrides), where=f"recipe {name!r}")


def _volume_plan(section: dict[str, Any], data: Path) -> dict[str, Any]:
    """Patches and batch size for volumes, by their fingerprint and a bound on memory; nothing for images."""
    train = open_path(data, "train")
    if train.info.spatial_dims != 3:
        return {}
    patch = plan_patch(measure_fingerprint(train), VOLUME_VOXELS // 2)
    return {"data": {**section, "patch": patch}, "batch_size": max(2, min(16, VOLUME_VOXELS // math.prod(patch)))}


def _paper_training(name: str) -> dict[str, Any]:
    from stochseg.experiments.paper.trainings import TRAININGS  # slow: it builds all of them

    known = {"/".join(key): values for key, values in TRAININGS.items()}
    if name not in known:
        raise unknown_name("training of the paper", name, known)
    return known[name]


def fresh_model(name: str) -> StochasticSegmenter:
    """Create the untrained model of a recipe, or a model by its own name, without opening data."""
    model = recipe(name).model
    shape = next((shape for prefix, shape in SHAPES.items() if name.startswith(prefix)), (2, 1))
    raters = ("rater1", "rater2") if model.options.get("rater_conditioning") else ()
    info = DatasetInfo(num_classes=shape[0], image_channels=shape[1], rater_names=raters)
    return create(model.name, *shape, info=info, **model.options)
