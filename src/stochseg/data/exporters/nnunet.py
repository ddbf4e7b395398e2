"""Data sets in the layout that nnU-Net trains on."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from stochseg.data.consensus import majority, staple
from stochseg.data.exporters.records import Progress, Records
from stochseg.data.importers.plans import Record
from stochseg.data.nnunet import DATASET, IGNORE, OURS, CaseFacts, ExportFacts
from stochseg.data.readers.pictures import Pixels
from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.files import replaced_folder
from stochseg.types import DatasetInfo, Spacing

NAME = re.compile(r"Dataset\d{3}_\w+")
"""Names of nnU-Net's data sets."""
SPLITS = "splits_final.json"
"""Copied to nnUNet_preprocessed/DATASET, it makes nnU-Net's fold 0 our training and validation cases."""


def export_nnunet(
    records: Records, out: Path, progress: Progress = lambda done, total: None, consensus: str = "majority"
) -> Path:
    """Write a data set for nnU-Net, all or nothing.

    Training and validation cases become imagesTr and labelsTr, test cases imagesTs and labelsTs. With several raters,
    labelsTr is their consensus, and labelsTr_RATER are their own maps. Everything that
    nnU-Net has no place for is kept in dataset.json, so that `data import nnunet` restores the data set.

    Args:
        records: The data set.
        out: The folder, such as nnUNet_raw/Dataset123_Nodules; it must not exist.
        progress: Called with the examples done so far and their total.
        consensus: "majority" (the lowest label of a tie) or "staple", which weighs raters by their reliability.

    Returns:
        The folder.

    Raises:
        UserError: The name is not one of nnU-Net's, the folder exists, or an example cannot be read or written.
    """
    if not NAME.fullmatch(out.name):
        raise UserError(f"{out}: nnU-Net expects a name such as Dataset123_Nodules, got {out.name!r}")
    if consensus not in ("majority", "staple"):
        raise UserError(f"consensus: expected majority or staple, got {consensus!r}")
    cases: dict[str, CaseFacts] = {}
    suffix = ""
    with replaced_folder(out, ours=lambda folder: False, kind="new") as folder:
        for done, record in enumerate(records, start=1):
            suffix = suffix or _suffix(record)
            case = _identifier(record.id, cases)
            cases[case] = _write_case(folder, case, record, records.info, suffix, consensus)
            progress(done, len(records))
        _write_descriptions(folder, records, cases, suffix)
    return out


def _identifier(id: str, taken: dict[str, CaseFacts]) -> str:
    """A name of letters that nnU-Net takes, which is not taken yet."""
    plain = re.sub(r"[^A-Za-z0-9-]+", "_", id).strip("_") or "case"
    numbers = (plain if i == 1 else f"{plain}-{i}" for i in range(1, len(taken) + 2))
    return next(name for name in numbers if name not in taken)


def _suffix(record: Record) -> str:
    """PNG holds pictures of 8-bit gray and color and of 16-bit gray without loss; everything else is NIfTI."""
    kinds = {(np.dtype(np.uint8), 1), (np.dtype(np.uint8), 3), (np.dtype(np.uint16), 1)}
    picture = record.image.ndim == 3 and (record.image.dtype, record.image.shape[-1]) in kinds
    return ".png" if picture else ".nii.gz"


def _write_case(folder: Path, case: str, record: Record, info: DatasetInfo, suffix: str, consensus: str) -> CaseFacts:
    if suffix == ".png" and _suffix(record) != suffix:
        raise UserError(f"{record.id}: expected 8-bit gray or color or 16-bit gray like the images before it")
    part = "Ts" if record.split == "test" else "Tr"
    names = record.rater_names or tuple(f"rater{i + 1}" for i in range(len(record.raters)))
    folders = [f"labels{part}_{re.sub(r'[^A-Za-z0-9.-]+', '-', name)}" for name in names]
    if len(set(folders)) < len(folders):
        raise UserError(f"{record.id}: raters {', '.join(names)} have names that differ in special characters only")
    maps = _with_nnunet_void(record.raters, info)
    single = len(maps) == 1
    _write(folder / f"labels{part}", case, maps[0] if single else _joint(maps, info, consensus), record.spacing, suffix)
    for name, each in () if single else zip(folders, maps, strict=True):
        _write(folder / name, case, each, record.spacing, suffix)
    image = record.image
    channels = [image] if suffix == ".png" and image.shape[-1] == 3 else list(np.moveaxis(image, -1, 0))
    for number, channel in enumerate(channels):
        _write(folder / f"images{part}", f"{case}_{number:04d}", channel, record.spacing, suffix)
    stated = () if single else tuple(folders)
    return CaseFacts(
        id=record.id,
        group=record.group,
        split=record.split,
        raters=stated,
        rater_names=record.rater_names,
        spacing=record.spacing,
    )


def _with_nnunet_void(maps: Pixels, info: DatasetInfo) -> Pixels:
    """Replace the label of void pixels by the one after the classes, as nnU-Net wants it."""
    return maps if info.ignore is None else np.where(maps == info.ignore, info.num_classes, maps).astype(maps.dtype)


def _joint(maps: Pixels, info: DatasetInfo, consensus: str) -> Pixels:
    """The consensus "*space" of maps "k *space" with nnU-Net's label of void pixels."""
    void = None if info.ignore is None else info.num_classes
    if consensus == "majority":
        return majority(maps, info.num_classes, void)
    labels = staple(maps, info.num_classes, void).labels.astype(maps.dtype)
    return labels if void is None else np.where((maps == void).all(0), maps[0], labels)


def _write(folder: Path, name: str, values: Pixels, spacing: Spacing | None, suffix: str) -> None:
    """Write an array "h w", "h w 3" or "d h w"."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}{suffix}"
    if suffix == ".png":
        Image.fromarray(values).save(file)
        return
    nibabel = require("nibabel", "medical", "writing NIfTI")
    volume = values if values.ndim == 3 else values[None]
    slices, rows, columns = (1.0,) * (3 - len(spacing or ())) + tuple(spacing or ())
    # Columns run to the left, rows to the back, slices to the head, as everywhere in this package.
    image = nibabel.Nifti1Image(volume.transpose(2, 1, 0), np.diag([-columns, -rows, slices, 1.0]))
    image.header.set_xyzt_units("mm")
    image.to_filename(file)


def _write_descriptions(folder: Path, records: Records, cases: dict[str, CaseFacts], suffix: str) -> None:
    info, provenance = records.info, records.provenance
    labels = {name: i for i, name in enumerate(_unique(info.names))}
    if info.ignore is not None:
        labels[IGNORE] = info.num_classes
    ours = ExportFacts(info=info, cases=cases, license=provenance.license, citation=provenance.citation)
    trained = {case: facts for case, facts in cases.items() if facts.split != "test"}
    one_file = suffix == ".png"  # with all channels
    description = {
        "channel_names": {str(i): f"channel {i}" for i in range(info.image_channels)},
        "labels": labels,
        "numTraining": len(trained),
        "file_ending": suffix,
        **({"overwrite_image_reader_writer": "NaturalImage2DIO"} if one_file else {}),
        "name": info.name,
        "licence": provenance.license,
        "reference": provenance.citation,
        OURS: ours.model_dump(mode="json"),
    }
    (folder / DATASET).write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
    fold = {split: [case for case, facts in trained.items() if facts.split == split] for split in ("train", "val")}
    (folder / SPLITS).write_text(json.dumps([fold], indent=1) + "\n", encoding="utf-8")


def _unique(names: Sequence[str]) -> list[str]:
    """Names of classes, with numbers where two are the same, and the first called background as nnU-Net wants it."""
    count = Counter(names)
    numbered = [name if count[name] == 1 and name != IGNORE else f"{name} {i}" for i, name in enumerate(names)]
    return ["background", *(name if name != "background" else f"{name} {i}" for i, name in enumerate(numbered[1:], 1))]
