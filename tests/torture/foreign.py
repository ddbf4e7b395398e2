"""What is fuzzed of the files of other programs: contours, arrays, data sets of nnU-Net and Cityscapes, uploads."""

from __future__ import annotations

import gzip
import io
import json
import tempfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import SimpleITK
from PIL import Image

from stochseg.data.folder import init_folder
from stochseg.data.importers.plans import plan_import
from stochseg.data.readers.formats import read_picture
from stochseg.data.readers.geojson import draw_polygons
from stochseg.data.readers.nifti import Volume
from stochseg.data.readers.rtstruct import draw_structures, is_structure_set
from stochseg.data.readers.scans import natural_plane, orient
from stochseg.errors import UserError
from stochseg.inference.gathering import gather
from stochseg.inference.monai import is_bundle
from stochseg.reports.run import read_evaluations
from stochseg.studio.settings import Limits
from stochseg.studio.store import Store as Workspace
from stochseg.studio.store import read_events
from stochseg.studio.uploads import read_upload
from tests.data.test_rtstruct import write_structures
from tests.support.images import dicom_bytes, nifti_bytes
from tests.support.nnunet import LABELS, softmax_field, write_fold
from tests.support.oblique import expected_affine
from tests.support.volume_files import write_itk, write_nifti
from tests.torture.mutations import Target, mutate_bytes, mutate_text
from tests.torture.saved import GRAY, in_place

RNG = np.random.default_rng(1)
CLASSES = ("background", "lesion", "core")
AFFINE = np.diag([-1.0, -1.0, 2.0, 1.0])


def foreign_files(scratch: Path) -> dict[str, Target]:
    """Write one of each below a folder and return the targets by name."""
    return {
        **_arrays(),
        **_contours(scratch / "contours"),
        **_nnunet(scratch / "nnunet"),
        **_gathered(scratch / "gathered"),
        **_cityscapes(scratch / "cityscapes"),
        **_uploads(scratch / "uploads"),
        **_records(scratch / "records"),
    }


def _target(file: Path, read: Callable[[], object]) -> Target:
    mutate = mutate_text if file.suffix in (".json", ".jsonl") else mutate_bytes
    return Target([file.read_bytes()], partial(in_place, file, read), mutate)


# --- arrays and contours ---------------------------------------------------------------------------------


def _arrays() -> dict[str, Target]:
    def packed(write: Callable[..., None], *arrays: np.ndarray) -> bytes:
        file = io.BytesIO()
        write(file, *arrays)
        return file.getvalue()

    targets = {}
    for suffix, writers in (("npy", (np.save,)), ("npz", (np.savez, np.savez_compressed))):
        seeds = [packed(write, values) for write in writers for values in (GRAY, GRAY[..., None] / 255)]
        targets[suffix] = Target(seeds, lambda content, suffix=suffix: read_picture(content, f"a.{suffix}", "colors"))
    return targets


def _contours(scratch: Path) -> dict[str, Target]:
    ring = [[2.0, 3.0], [9.5, 3.0], [9.0, 20.0], [2.0, 3.0]]
    features = [
        {"type": "Feature", "geometry": {"type": kind, "coordinates": coordinates}, "properties": {key: value}}
        for kind, coordinates, key, value in (
            ("Polygon", [ring], "classification", {"name": "lesion", "color": [1, 2, 3]}),
            ("MultiPolygon", [[ring, ring], [ring]], "classification", {"names": ["core", "x"]}),
            ("Polygon", [ring], "name", "lesion"),
        )
    ]
    collection = {"type": "FeatureCollection", "features": features}
    seeds = [json.dumps(each).encode() for each in (collection, features, features[0])]

    masks = {"lesion": np.zeros((4, 16, 18), bool), "core": np.zeros((4, 16, 18), bool)}
    masks["lesion"][1:3, 3:9, 4:12] = masks["core"][2, 5:7, 6:8] = True
    write_structures(scratch / "a.dcm", masks)
    volume = Volume(np.zeros((18, 16, 4), np.int16), expected_affine())
    scan = orient(volume, natural_plane(volume), "scan")

    def structures(content: bytes) -> None:
        if not is_structure_set(content, "a.dcm"):
            raise UserError("no structure set")
        draw_structures(content, scan, CLASSES, "a.dcm")

    return {
        "geojson": Target(seeds, lambda content: draw_polygons(content, (24, 20), CLASSES, "a.geojson"), mutate_text),
        "geojson-folder": _folder_of_contours(scratch / "set", seeds[0]),
        "rtstruct": Target([(scratch / "a.dcm").read_bytes()], structures),
    }


def _folder_of_contours(root: Path, content: bytes) -> Target:
    """A data set whose label maps are contours, in which `data init` finds the classes."""
    for i in range(3):
        for folder in ("images", "labels/ana"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        Image.fromarray(GRAY).save(root / f"images/p{i}.png")
        (root / f"labels/ana/p{i}.geojson").write_bytes(content)

    def read() -> None:
        try:
            init_folder(root)
            for item in plan_import("folder", root).items:
                item.read()
        finally:
            for name in ("dataset.yaml", "splits.json"):
                (root / name).unlink(missing_ok=True)

    return _target(root / "labels/ana/p0.geojson", read)


# --- nnU-Net and Cityscapes ------------------------------------------------------------------------------


def _nnunet(root: Path) -> dict[str, Target]:
    volume = RNG.integers(-900, 900, (9, 8, 4)).astype(np.int16)
    for case in ("a", "b"):
        write_nifti(root / f"imagesTr/{case}_0000.nii.gz", volume, AFFINE)
        write_nifti(root / f"labelsTr/{case}.nii.gz", (volume > 0).astype(np.uint8) * 2, AFFINE)
    description = {"channel_names": {"0": "CT"}, "labels": LABELS, "numTraining": 2, "file_ending": ".nii.gz"}
    (root / "dataset.json").write_text(json.dumps(description))

    def read() -> None:
        for item in plan_import("nnunet", root).items:
            item.read()

    names = ("dataset.json", "imagesTr/a_0000.nii.gz", "labelsTr/b.nii.gz")
    return {f"nnunet/{name}": _target(root / name, read) for name in names}


def _gathered(root: Path) -> dict[str, Target]:
    """Predictions of two folds of nnU-Net, and the result of gathering them."""
    for i in range(2):
        write_fold(root / f"fold_{i}", {"a": softmax_field((9, 8, 4), i)}, AFFINE)

    def read(out: Path | None = None) -> None:
        with tempfile.TemporaryDirectory(dir=root) as scratch:
            for outcome in gather([root / "fold_0", root / "fold_1"], out or Path(scratch) / "out"):
                if outcome.status == "failed":
                    raise UserError(outcome.problem)

    kept = root / "kept"
    read(kept)
    names = ("dataset.json", "a.nii.gz", "a.npz")
    targets = {f"gather/{name}": _target(root / "fold_1" / name, read) for name in names}
    return {**targets, "gather/result.json": _target(kept / "a/result.json", partial(read, kept))}


def _cityscapes(root: Path) -> dict[str, Target]:
    folder, stem = "train/bonn", "bonn_000000_000019"
    for part in ("leftImg8bit", "gtFine"):
        (root / part / folder).mkdir(parents=True)
    Image.fromarray(np.dstack([GRAY] * 3)).save(root / f"leftImg8bit/{folder}/{stem}_leftImg8bit.png")
    thing = {"label": "cargroup", "polygon": [[1, 2], [8, 2], [7, 11]]}
    drawing = {"imgHeight": 12, "imgWidth": 10, "objects": [thing, {**thing, "label": "road", "deleted": 1}]}
    file = root / f"gtFine/{folder}/{stem}_gtFine_polygons.json"
    file.write_text(json.dumps(drawing))

    def read() -> None:
        for item in plan_import("cityscapes", root).items:
            item.read()

    return {"cityscapes/polygons.json": _target(file, read)}


# --- the studio ------------------------------------------------------------------------------------------


def _uploads(root: Path) -> dict[str, Target]:
    volume = RNG.integers(-900, 900, (9, 8, 4)).astype(np.int16)
    written = root / "written"
    picture, packed = io.BytesIO(), io.BytesIO()
    Image.fromarray(GRAY).save(picture, "PNG")
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for i in range(3):
            archive.writestr(f"scan/IM{i}", dicom_bytes(volume[..., 0], InstanceNumber=i, **_place(i)))
    scan = nifti_bytes(volume, (1, 1, 2))
    seeds = {"png": [picture.getvalue()], "zip": [packed.getvalue()], "nii.gz": [gzip.compress(scan)], "nii": [scan]}
    for suffix in ("nrrd", "mha"):
        write_itk(written / f"a.{suffix}", volume, AFFINE)
        seeds[suffix] = [(written / f"a.{suffix}").read_bytes()]
        SimpleITK.WriteImage(SimpleITK.ReadImage(str(written / f"a.{suffix}")), str(written / f"b.{suffix}"), True)
        seeds[suffix].append((written / f"b.{suffix}").read_bytes())
    return {
        **{f"upload/{suffix}": Target(found, partial(_upload, root, suffix, None)) for suffix, found in seeds.items()},
        "upload/rater.png": Target(seeds["png"], partial(_upload, root, "png", seeds["png"][0])),
    }


def _place(number: int) -> dict[str, object]:
    identity = {"Modality": "CT", "SeriesInstanceUID": "1.2", "StudyInstanceUID": "1.3", "PixelSpacing": [1, 1]}
    place = {"ImagePositionPatient": [0, 0, number], "ImageOrientationPatient": [1, 0, 0, 0, 1, 0]}
    return {**identity, **place, "SOPInstanceUID": f"1.4.{number}"}


def _upload(root: Path, suffix: str, image: bytes | None, content: bytes) -> None:
    """Read an upload; with an `image`, the content is the label map of a rater of it."""
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        folder = Path(scratch)
        (folder / "files").mkdir()
        (folder / f"files/00000.{suffix}").write_bytes(content if image is None else image)
        if image is not None:
            (folder / "raters").mkdir()
            (folder / f"raters/00000.{suffix}").write_bytes(content)
            (folder / "rater_names.json").write_text('["ana.png"]')
        read_upload(folder, "mine", None, Limits())


def _records(root: Path) -> dict[str, Target]:
    """Files that runs, bundles and the workspace of the studio keep."""
    evaluation = root / "evaluations/one/metrics.json"
    evaluation.parent.mkdir(parents=True)
    evaluation.write_text(json.dumps({"ged_16": 0.5, "settings": {"date": "2026-01-01", "split": "val", "n": 16}}))
    (root / "bundle/configs").mkdir(parents=True)
    metadata = root / "bundle/configs/metadata.json"
    metadata.write_text(json.dumps({"version": "1", "required_packages_version": {"stochseg": "1"}}))
    workspace = Workspace(root / "workspace")
    job = workspace.create_job({"input": "0" * 16, "model": "a"})
    workspace.append(job, "progress", {"done": 1, "total": 2})
    workspace.append(job, "state", {"state": "failed", "error": {"message": "x"}})

    def jobs() -> None:
        before = {file: file.read_bytes() for file in job.folder.iterdir()}
        try:
            workspace.load_jobs()
            read_events(job.folder, 0)
        finally:
            job.folder.mkdir(exist_ok=True)
            for file, content in before.items():
                file.write_bytes(content)

    return {
        "metrics.json": _target(evaluation, lambda: read_evaluations(root)),
        "metadata.json": _target(metadata, lambda: is_bundle(root / "bundle")),
        **{f"workspace/{name}": _target(job.folder / name, jobs) for name in ("request.json", "events.jsonl")},
    }
