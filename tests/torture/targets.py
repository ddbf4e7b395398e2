"""What is fuzzed: small valid inputs of every reader, config, store, checkpoint and command, and how each is read."""

from __future__ import annotations

import gzip
import io
import pickle
import zipfile
from functools import partial
from pathlib import Path

import h5py
import nibabel
import numpy as np
import pydicom
import SimpleITK
import tifffile
import yaml
from PIL import Image

from stochseg.data.folder.config import FolderConfig
from stochseg.data.folder.init import init_folder
from stochseg.data.importers.lidc_outlines import label_maps, parse_reading
from stochseg.data.importers.plans import Item, Plan, Provenance, Record, plan_import
from stochseg.data.readers.formats import read_picture
from stochseg.data.readers.trees import Tree
from stochseg.data.store import Store, write_store
from stochseg.documents import parse_keys
from stochseg.inference.points import read_lesions
from stochseg.inference.sources import find_sources, read_stack
from stochseg.training.config import override, read_config
from stochseg.types import DatasetInfo
from tests.support.images import dicom_bytes, nifti_bytes
from tests.support.volume_files import write_itk, write_nifti
from tests.torture.commands import commands
from tests.torture.foreign import foreign_files
from tests.torture.mutations import Target, mutate_text
from tests.torture.saved import GRAY, TINY, in_place, saved_files

RNG = np.random.default_rng(0)
COLOR = RNG.integers(0, 256, (12, 10, 3), dtype=np.uint8)


def make_targets(scratch: Path) -> dict[str, Target]:
    """Write the valid inputs below a folder and return all targets by name."""
    return {
        **_pictures(),
        **_volumes(scratch),
        **_folder_of_volumes(scratch / "volumes"),
        **_archives(scratch),
        **_documents(scratch),
        **_stores(scratch),
        **saved_files(scratch),
        **foreign_files(scratch / "foreign"),
        "command": commands(scratch, scratch / "seed.h5"),
    }


def _saved(image: Image.Image, form: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def _tiff(array: np.ndarray, **options: object) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, array, **options)
    return file.getvalue()


def _pictures() -> dict[str, Target]:
    gray, color = Image.fromarray(GRAY), Image.fromarray(COLOR)
    palette, deep = color.quantize(16), GRAY.astype(np.uint16) * 200
    seeds = {
        "png": [
            _saved(gray, "PNG"),
            _saved(color, "PNG"),
            _saved(palette, "PNG"),
            _saved(Image.fromarray(deep), "PNG"),
        ],
        "jpeg": [_saved(gray, "JPEG"), _saved(color, "JPEG", progressive=True)],
        "other-pictures": [_saved(color, form) for form in ("BMP", "WEBP", "GIF", "PPM", "TGA", "JPEG2000", "EPS")],
        "tiff": [
            _saved(gray, "TIFF", compression="tiff_deflate"),
            _saved(palette, "TIFF"),
            _tiff(np.dstack([deep, deep, deep]), photometric="rgb"),
            _tiff(np.dstack([deep] * 5), photometric="minisblack", planarconfig="contig", compression="zlib"),
            _tiff(np.dstack([deep] * 5), photometric="minisblack", planarconfig="contig", compression="lzw"),
            _tiff(deep, bigtiff=True),
        ],
    }
    return {name: Target(contents, partial(_picture, f"a.{name}")) for name, contents in seeds.items()}


def _picture(name: str, content: bytes) -> None:
    for palette in ("colors", "indices"):
        read_picture(content, name, palette)


def _volumes(scratch: Path) -> dict[str, Target]:
    volume = RNG.integers(-900, 900, (9, 8, 3)).astype(np.int16)
    scaled = nibabel.Nifti1Image(volume, np.eye(4))
    scaled.header.set_slope_inter(0.5, -1000)
    plain = [
        nifti_bytes(volume, (1, 1, 2)),
        nifti_bytes(volume, (1, 1, 2), kind=nibabel.Nifti2Image),
        scaled.to_bytes(),
    ]
    slice_ = dicom_bytes(
        volume[..., 0], RescaleSlope="1", RescaleIntercept="-1024", PixelSpacing=["0.7", "0.7"], Modality="CT"
    )
    located = dicom_bytes(
        volume[..., 0],
        Modality="CT",
        SeriesInstanceUID="1.2",
        StudyInstanceUID="1.3",
        PixelSpacing=[1, 1],
        ImagePositionPatient=[0, 0, 0],
        ImageOrientationPatient=[1, 0, 0, 0, 1, 0],
        RescaleSlope="2",
    )
    dicoms = [slice_, located, _with_syntax(slice_, pydicom.uid.DeflatedExplicitVRLittleEndian), _compressed(slice_)]
    thin = nifti_bytes(volume[..., :1], (1, 1, 2))
    plain.append(thin)
    targets = {}
    for name, seeds in (("a.nii", plain), ("a.nii.gz", [gzip.compress(seed) for seed in plain]), ("a.dcm", dicoms)):
        key = name.removeprefix("a.")
        targets[key] = Target(seeds, partial(_picture, name))
        targets[f"{key}-volume"] = Target(seeds, partial(_stack, scratch / name))
    return targets


def _with_syntax(content: bytes, syntax: str) -> bytes:
    data = pydicom.dcmread(io.BytesIO(content))
    data.file_meta.TransferSyntaxUID = syntax
    out = io.BytesIO()
    data.save_as(out, enforce_file_format=True, implicit_vr=False, little_endian=True)
    return out.getvalue()


def _compressed(content: bytes) -> bytes:
    data = pydicom.dcmread(io.BytesIO(content))
    data.compress(pydicom.uid.RLELossless)
    out = io.BytesIO()
    data.save_as(out, enforce_file_format=True)
    return out.getvalue()


def _stack(file: Path, content: bytes) -> None:
    """Read an input of `predict` alone and as part of a folder."""
    folder = file.parent / f"{file.name}-folder"
    folder.mkdir(exist_ok=True)
    (folder / file.name).write_bytes(content)
    for source in find_sources([folder]).sources:
        read_stack(source.files, source.axis)


def _folder_of_volumes(root: Path) -> dict[str, Target]:
    """A data set of volumes; one of its files is damaged, and all are read."""
    volume = RNG.integers(-900, 900, (9, 8, 4)).astype(np.int16)
    suffixes = ("nii", "nii.gz", "nrrd", "mha", "mhd")
    for suffix in suffixes:
        for name, values in (("images", volume), ("labels/ana", (volume > 0).astype(np.uint8))):
            write = write_nifti if suffix.startswith("nii") else write_itk
            write(root / f"{name}/{suffix.replace('.', '')}.{suffix}", values, np.diag([-1.0, -1.0, 2.0, 1.0]))
    init_folder(root)
    packed = SimpleITK.ReadImage(str(root / "images/nrrd.nrrd"))
    targets = {}
    for suffix in suffixes:
        file, others = root / f"images/{suffix.replace('.', '')}.{suffix}", []
        if suffix in ("nrrd", "mha"):
            compressed = root.parent / f"packed.{suffix}"
            SimpleITK.WriteImage(packed, str(compressed), True)
            others = [compressed.read_bytes()]
        targets[f"folder/{suffix}"] = Target(
            [file.read_bytes(), *others], partial(in_place, file, partial(_read_all, "folder", root))
        )
    return targets


def _archives(scratch: Path) -> dict[str, Target]:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("set/images/a.png", _saved(Image.fromarray(GRAY), "PNG"), zipfile.ZIP_DEFLATED)
        archive.writestr("set/dataset.yaml", yaml.safe_dump(FOLDER))
        archive.writestr("set/b.bin", b"b" * 500)
    masks = [RNG.integers(0, 2, (12, 10)).astype(np.uint8) for _ in range(4)]
    rows = {f"s{i}": {"image": GRAY / 255, "masks": masks, "series_uid": f"1.{i}"} for i in range(3)}
    return {
        "zip": Target([packed.getvalue()], partial(_tree, scratch / "a.zip")),
        "pickle": Target([pickle.dumps(rows, p) for p in (0, 2, 4)], partial(_import, "lidc-v1", scratch / "a.pickle")),
    }


def _tree(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    tree = Tree(file)
    for name in tree.names:
        tree.read(name)


def _import(kind: str, file: Path, content: bytes) -> None:
    file.write_bytes(content)
    _read_all(kind, file)


def _read_all(kind: str, source: Path) -> None:
    for item in plan_import(kind, source).items:
        item.read()


FOLDER = {
    "name": "mine",
    "num_classes": 2,
    "class_names": ["a", "b"],
    "palette": ["#000000", "#ffffff"],
    "ignore": 255,
    "values": {0: 0, 128: 1},
    "image_channels": 1,
    "normalization": {"mean": [1.0], "std": [2.0]},
    "group": "^(.+)-",
}
TRAIN = {
    "data": {"name": "phantom", "options": {"size": 32}, "crop": [16, 16]},
    "model": {"name": "ccdm", "options": TINY},
    "steps": 10,
    "batch_size": 2,
    "lr": 1e-4,
}
READING = """<?xml version="1.0"?>
<LidcReadMessage xmlns="http://www.nih.gov"><ResponseHeader><SeriesInstanceUid>1.2</SeriesInstanceUid></ResponseHeader>
<readingSession><unblindedReadNodule><roi><imageZposition>-10.0</imageZposition><imageSOP_UID>1.3</imageSOP_UID>
<inclusion>TRUE</inclusion><edgeMap><xCoord>3</xCoord><yCoord>4</yCoord></edgeMap>
<edgeMap><xCoord>9</xCoord><yCoord>4</yCoord></edgeMap><edgeMap><xCoord>9</xCoord><yCoord>11</yCoord></edgeMap></roi>
</unblindedReadNodule></readingSession></LidcReadMessage>
"""


def _documents(scratch: Path) -> dict[str, Target]:
    def folder_config(content: bytes) -> None:
        text = content.decode(errors="replace")
        FolderConfig.parse(parse_keys(text, "dataset.yaml", "num_classes"), where="dataset.yaml").group_of(
            "p01-" + "a" * 40
        )

    def train_config(content: bytes) -> None:
        (scratch / "train.yaml").write_bytes(content)
        read_config(scratch / "train.yaml").model.resolved_options()

    def settings(content: bytes) -> None:
        override(TRAIN, content.decode(errors="replace").split("\n"))

    def outlines(content: bytes) -> None:
        parsed = parse_reading(content, "a.xml")
        for annotation in parsed[1].annotations if parsed else ():
            label_maps([[annotation.outlines]], (24, 20))

    def points(content: bytes) -> None:
        (scratch / "points.csv").write_bytes(content)
        read_lesions(scratch / "points.csv")

    lines = b"steps=2000\nmodel.options.multipliers=[1, 2]\ndata.options={a: 1}"
    texts = {
        "dataset.yaml": (yaml.safe_dump(FOLDER).encode(), folder_config),
        "train.yaml": (yaml.safe_dump(TRAIN).encode(), train_config),
        "settings": (lines, settings),
        "xml": (READING.encode(), outlines),
        "points.csv": (b'id,x,y,z,input\nleft,2,3,1,a.nii\n"right, low",4.5,-2,1e1,b.nii\n', points),
    }
    return {name: Target([seed], read, mutate_text) for name, (seed, read) in texts.items()}


def _stores(scratch: Path) -> dict[str, Target]:
    stack = np.stack([GRAY] * 20)[..., None]  # of two chunks
    stores = [_write_store(scratch / "seed.h5", GRAY[..., None]), _write_store(scratch / "volumes.h5", stack)]
    with h5py.File(scratch / "lidc.h5", "w") as file:
        for split in ("train", "val", "test"):
            part = file.create_group(split)
            part["images"], part["uids"] = np.stack([GRAY / 255 - 0.5] * 2), ["1", "2"]
            part.create_dataset("labels", data=np.zeros((2, 12, 10, 4), np.uint8), chunks=True, compression="gzip")
    return {
        **{
            name: Target([file.read_bytes()], partial(_store, scratch / f"{name}.h5"))
            for name, file in zip(("store", "store-volumes"), stores, strict=True)
        },
        "lidc-hdf5": Target([(scratch / "lidc.h5").read_bytes()], partial(_import, "lidc-v1", scratch / "b.hdf5")),
    }


def _write_store(file: Path, image: np.ndarray) -> Path:
    items = []
    for i in range(4):
        names = (f"id{i}", f"g{i}", "train" if i % 2 else "val")
        record = Record(*names, image + i, (image[..., 0] > 99).astype(np.uint8)[None], ("ana",), None)
        items.append(Item(*names, partial(lambda record: record, record)))
    info = DatasetInfo(num_classes=2, image_channels=1, spatial_dims=image.ndim - 1)
    return write_store(Plan(info, Provenance(kind="x", source="y"), items, 2), file)


def _store(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    for split in ("train", "val"):
        data = Store(split, path=str(file))
        for i in range(len(data)):
            data[i]
