"""Models on disk: a folder with `model.safetensors`, `config.json`, a calibration if there is one, and their checksums.

No pickle, no code.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from stochseg.devices import pick_device
from stochseg.documents import parse_json
from stochseg.errors import UserError
from stochseg.files import MANIFEST, find_folder, former, is_junk, replaced_folder, verify_manifest, write_manifest
from stochseg.models.base import StochasticSegmenter
from stochseg.models.budget import TensorBudget
from stochseg.models.calibration import CALIBRATION, Calibration, read_calibration
from stochseg.models.registry import build, find_class, is_registered
from stochseg.networks import ImageEncoder, rename_old_tensors
from stochseg.types import DatasetInfo

log = logging.getLogger(__name__)
FORMAT = "stochseg-model"
VERSION = 1
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
PROGRESS = "state/progress.json"
"""Progress of a run, in its checkpoints."""
SPARE = 10**8
"""Bytes of tensors that are not stored."""
SHIPPED = Path(__file__).parent / "shipped"
"""Bundled models, one folder each."""


def save(model: StochasticSegmenter, path: str | Path, *, half: bool = False) -> Path:
    """Write a model as a folder, all or nothing. A model that is already there is replaced.

    Args:
        model: the model to write.
        path: the folder; any other content at this place is left alone.
        half: store weights as float16, half the size; loading makes them float32 again.

    Returns:
        The folder, which `load` reads.

    Raises:
        UserError: if no model is registered under its name, as for networks of other libraries (`stochseg.wrap`).

    >>> import stochseg, tempfile
    >>> model = stochseg.create("unet-ce", base=8, multipliers=[1, 2])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     stochseg.load(stochseg.save(model, f"{folder}/model")).name
    'unet-ce'
    """
    path = Path(path)
    if not is_registered(model.name):
        raise UserError(
            f"save: model {model.name!r} is not registered, so that `load` could not build it; networks of other "
            "libraries are saved by these, other models need `stochseg.register`"
        )
    with replaced_folder(path, ours=is_checkpoint, kind="a saved model") as folder:
        write_model(model, folder, half=half)
        write_manifest(folder)
    return path


def write_model(model: StochasticSegmenter, folder: Path, *, half: bool = False) -> None:
    """Write the files of a model into an existing folder."""
    weights = model.state_dict()
    if half:
        weights = {k: v.half() if v.is_floating_point() else v for k, v in weights.items()}
    write_tensors(weights, folder / WEIGHTS)
    write_description(model, folder)
    if model.calibration is not None:
        write_calibration(model.calibration, folder)


def write_calibration(calibration: Calibration, folder: Path) -> None:
    """Write the calibration of a model into its folder."""
    text = json.dumps(calibration.model_dump(mode="json"), indent=2, allow_nan=False)
    (folder / CALIBRATION).write_text(text + "\n", encoding="utf-8")


def store_calibration(path: str | Path, calibration: Calibration) -> Path:
    """Store a calibration with a saved model or with the checkpoint of a run that `load` reads, all or nothing.

    Args:
        path: the folder of the model or of the run, whose lock the caller holds.
        calibration: of this model.

    Returns:
        The folder of the weights.

    Raises:
        UserError: if there is no model, it is bundled, or its files are damaged.
    """
    folder = find_model(Path(path))
    check_writable_model(folder)
    verify_manifest(folder)
    with replaced_folder(folder, ours=is_checkpoint, kind="a saved model") as scratch:
        for file in (each for each in folder.rglob("*") if each.is_file()):
            if file.name in (CALIBRATION, MANIFEST) and file.parent == folder:
                continue
            target = scratch / file.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        write_calibration(calibration, scratch)
        write_manifest(scratch)
    return folder


def check_writable_model(folder: Path) -> None:
    """Raise a UserError for the folder of a bundled model, which is part of the installed package."""
    if folder.parent == SHIPPED:
        raise UserError(
            f"the bundled model {folder.name!r} is part of the package and cannot be changed; pass --out FOLDER to "
            "save a copy of it with its calibration"
        )


def write_tensors(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write tensors to a safetensors file.

    Raises:
        OSError: if the disk is full or the like, as for any other file.
    """
    try:
        save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, file)
    except SafetensorError as error:
        found = re.search(r"os error (\d+)", str(error))
        number = int(found[1]) if found else errno.EIO
        raise OSError(number, os.strerror(number), str(file)) from None


def write_description(model: StochasticSegmenter, folder: Path) -> None:
    """Write the model without its weights: name, config and facts about its data."""
    description = {
        "format": FORMAT,
        "version": VERSION,
        "model": model.name,
        "config": model.config.model_dump(mode="json"),
        "info": model.info.model_dump(mode="json"),
    }
    (folder / CONFIG).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder holds a model or a checkpoint of a run.

    Raises:
        UserError: if it holds other files, too, which would be lost with it.
    """
    try:
        if read_json(folder / CONFIG).get("format") != FORMAT:
            return False
    except UserError:
        return False
    names = {file.name for file in folder.iterdir() if not is_junk(file.name)}
    if others := sorted(names - {WEIGHTS, CONFIG, CALIBRATION, MANIFEST, "state"}):
        raise UserError(
            f"{folder} contains {', '.join(others)}, which would be lost when the model in it is replaced; move it to "
            "another place"
        )
    return True


def load(path: str | Path, *, device: str | torch.device = "cpu") -> StochasticSegmenter:
    """Load a saved model, the best checkpoint of a run (or the last if there is none yet), or a bundled model.

    Args:
        path: a folder written by `save` or by training, or the name of a bundled model, such as "lidc", or
            "hf:OWNER/NAME[@REVISION]" for a model of the Hugging Face Hub, which `stochseg.push` uploads (extra `hub`).
        device: where to put the model.

    Returns:
        The model, in evaluation mode.

    Raises:
        UserError: if there is no model, or its files are damaged or belong to different models.

    >>> import stochseg
    >>> stochseg.load("lidc").name
    'ccdm-fast'
    """
    from stochseg.models.hub import local_copy  # which saves and loads

    _check_path(path)
    target = device if isinstance(device, torch.device) else pick_device(device)
    source = local_copy(path)
    while True:
        folder = find_model(source)
        place = None
        try:
            place = folder.stat()
            model = _read_model(folder).to(target).eval()
            log.debug("loaded %s from %s to %s", model.name, folder, target)
            return model
        except (UserError, FileNotFoundError) as error:
            # Unless a training has replaced the files while they were read.
            if place is not None and folder.exists() and os.path.samestat(place, folder.stat()):
                raise UserError(f"{error}{_instead(folder)}") from None


def _read_model(folder: Path) -> StochasticSegmenter:
    calibrated = (folder / CALIBRATION).exists()
    verify_manifest(folder, only=(CONFIG, WEIGHTS, CALIBRATION) if calibrated else (CONFIG, WEIGHTS))
    file = folder / CONFIG
    description = read_json(file)
    kind, version = description.get("format"), description.get("version")
    if kind != FORMAT:
        raise UserError(f"{file}: expected format {FORMAT!r}, got {kind!r}; not a stochseg model")
    if version != VERSION:
        raise UserError(f"{file}: format version {version!r}, this stochseg reads {VERSION}; upgrade stochseg")
    info = DatasetInfo.parse(description.get("info", {}), where=f"{file}: info")
    name, config = description.get("model"), description.get("config", {})
    before = values_before(name, config)
    options = {**before, **config} if before else config
    model = build(name, info, options, where=f" (in {file})", budget=_budget(folder))
    load_weights(model, folder / WEIGHTS)
    model.calibration = read_calibration(folder / CALIBRATION, model.num_classes)
    for module in model.modules():
        if isinstance(module, ImageEncoder):
            module.cache = None  # a folder that the file names: loading a model touches no other files
    return model


def _check_path(path: object) -> None:
    if not isinstance(path, (str, os.PathLike)):
        known = ", ".join(list_bundled())
        raise UserError(f"load: expected a path or the name of a bundled model ({known}), got {path!r}")


def _instead(folder: Path) -> str:
    last = folder.with_name("last")
    return f". The last checkpoint of the run is {last}" if folder.name == "best" and last.is_dir() else ""


def values_before(name: object, config: object) -> dict[str, Any]:
    """Values in a saved config, of a model of this name, of the keys that older configs do not contain."""
    if not is_registered(name) or not isinstance(config, dict):  # `build` explains
        return {}
    return {key: config.get(key, value) for key, value in find_class(name).config_type.values_before.items()}


def _budget(folder: Path) -> TensorBudget:
    """Allow a network of the size of its weights, which may be stored in half precision, and tables of its own."""
    stored = (folder / WEIGHTS).stat().st_size
    return TensorBudget(4 * stored + SPARE, f"{WEIGHTS} has {stored / 10**6:,.0f} MB: they belong to different models")


def list_bundled() -> tuple[str, ...]:
    """Names of the bundled models.

    Returns:
        The names that `load` accepts, sorted.
    """
    return tuple(sorted(folder.name for folder in SHIPPED.glob("*") if (folder / WEIGHTS).is_file()))


def is_model(path: Path) -> bool:
    """Whether a folder holds a model or a run, or a part of one."""
    return any((path / name).exists() for name in (CONFIG, WEIGHTS, "train.yaml", "best", "last"))


def find_model(path: Path) -> Path:
    """The folder that holds the weights: `path` itself, or a run's `best`, or its `last` if there is no `best`.

    Raises:
        UserError: if there is none, or only a part of one.
    """
    # last-1 alone is left if a process was killed between the moves of two checkpoints.
    for folder in (*map(find_folder, (path, path / "best", path / "last")), former(path / "last", 1)):
        missing = [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]
        if not missing:
            return _trained(folder)
        if len(missing) == 1 or (folder != path and folder.exists()):
            raise UserError(
                f"no model at {folder}: {' and '.join(missing)} missing, the folder is incomplete; restore it from a "
                f"copy{_instead(folder)}"
            )
    if str(path) in list_bundled() and not is_model(path):  # such as a folder of data
        return SHIPPED / path
    if not path.exists():
        raise UserError(
            f"no model at {path}: no such folder; pass a run folder, a folder written by stochseg.save, or the name of "
            f"a bundled model ({', '.join(list_bundled()) or 'none in this install'})"
        )
    raise UserError(f"no model at {path}: expected {WEIGHTS} and {CONFIG} there, or in its best/ or last/")


def _trained(folder: Path) -> Path:
    """Return the folder, unless it is the checkpoint that a run writes before its first step."""
    progress = folder / PROGRESS
    if progress.is_file() and read_json(progress).get("step") == 0:
        raise UserError(f"no model at {folder}: the run has not been trained yet; resume it with --resume")
    return folder


def load_weights(model: StochasticSegmenter, file: Path, without: Collection[str] = ()) -> None:
    """Load exactly the tensors of the model, except those named in `without`, from a safetensors file."""
    weights = rename_old_tensors(model, read_tensors(file))
    expected = {key: value for key, value in model.state_dict().items() if key not in without}
    missing, extra = sorted(expected.keys() - weights.keys()), sorted(weights.keys() - expected.keys())
    if missing or extra:
        raise UserError(
            f"{file} does not belong to this {model.name!r} model: {len(missing)} tensors missing"
            f"{_first(missing)}, {len(extra)} unknown{_first(extra)}; keep config.json and model.safetensors together"
        )
    for key, value in weights.items():
        if value.shape != expected[key].shape:
            raise UserError(
                f"{file}: tensor {key!r} has shape {tuple(value.shape)}, expected {tuple(expected[key].shape)}; "
                "config.json and model.safetensors belong to different models"
            )
    model.load_state_dict(weights, strict=not without)


def read_tensors(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except FileNotFoundError:
        raise UserError(f"{file} is missing; the checkpoint is incomplete") from None
    except SafetensorError as error:
        raise UserError(f"{file} cannot be read ({error}): damaged or incomplete; copy or train it again") from None


def read_json(file: Path) -> dict[str, Any]:
    try:
        content = parse_json(file.read_bytes(), str(file))
    except FileNotFoundError:
        raise UserError(f"{file} is missing; the checkpoint is incomplete") from None
    if not isinstance(content, dict):
        raise UserError(f"{file}: expected a JSON object, got {type(content).__name__}")
    return content


def _first(keys: list[str]) -> str:
    return f" (first: {keys[0]!r})" if keys else ""
