"""Data sets of nnU-Net: imagesTr, labelsTr, dataset.json; several raters as labelsTr_RATER or as one data set each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stochseg.data.folder.config import FolderConfig
from stochseg.data.folder.groups import find_group
from stochseg.data.folder.init import split_by_group
from stochseg.data.importers.plans import Item, Plan, Provenance, Record, register_importer
from stochseg.data.label_maps import check_labels, stack_labels
from stochseg.data.nnunet import DATASET, OURS, CaseFacts, ExportFacts, label_names
from stochseg.data.protocol import spread
from stochseg.data.readers import nifti
from stochseg.data.readers.nifti import Plane
from stochseg.data.readers.pictures import SUFFIXES as PICTURES
from stochseg.data.readers.pictures import Pixels
from stochseg.data.readers.scans import Scan, natural_plane, orient, read_volume
from stochseg.data.readers.trees import Tree
from stochseg.documents import parse_json
from stochseg.errors import UserError
from stochseg.types import DatasetInfo, Normalization, Spacing

MEASURED = 20
"""Cases whose intensities are measured for the normalization."""
SHOWN = 5
"""Cases that a note names."""


@dataclass(frozen=True)
class Files:
    """The files of a case: one per channel, and label maps by rater; names in the tree."""

    channels: tuple[str, ...]
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Reader:
    """How the files of a data set are read. plane: of the slices of volumes; void: label of void pixels in files."""

    tree: Tree
    info: DatasetInfo
    plane: Plane
    void: int | None

    def record(self, files: Files, facts: CaseFacts) -> Record:
        """Read a case. facts: its name, split and so on; their spacing holds if the files do not state it."""
        raters = [files.labels[rater] for rater in files.labels]
        spacing = facts.spacing
        if self.info.spatial_dims == 3:
            image, maps, spacing = self._volumes(files.channels, raters)
        else:
            image = np.concatenate([self._picture(name) for name in files.channels], -1)
            size, where = image.shape[:2], [self.tree.where(name) for name in raters]
            maps = stack_labels([self.tree.labels(name) for name in raters], where, size)
        first = self.tree.where(files.channels[0])
        if image.shape[-1] != self.info.image_channels:
            raise UserError(f"{first}: expected {self.info.image_channels} channel(s), got {image.shape[-1]}")
        if not np.isfinite(image).all():
            raise UserError(f"{first}: the image has NaN or infinite values; replace them first")
        labels = self._classes(maps, self.tree.where(raters[0]))
        return Record(facts.id, facts.group, facts.split, image, labels, facts.rater_names, spacing)

    def _picture(self, name: str) -> Pixels:
        values = self.tree.picture(name).values
        return values if values.ndim == 3 else values[..., None]

    def _volumes(self, channels: Sequence[str], raters: Sequence[str]) -> tuple[Pixels, Pixels, Spacing]:
        """Image "d h w c" and label maps "k d h w", turned by their affines."""
        scans = {
            name: orient(read_volume(self.tree, [name]), self.plane, self.tree.where(name))
            for name in (*channels, *raters)
        }
        first = scans[channels[0]]
        for name, scan in scans.items():
            if not scan.matches(first):
                raise UserError(
                    f"{self.tree.where(name)}: its grid is {scan.describe()}; that of {channels[0]} is "
                    f"{first.describe()}; all files of a case need one grid"
                )
        image = np.concatenate([_with_channels(scans[name]) for name in channels], -1)
        return image, np.stack([scans[name].values for name in raters]), first.spacing

    def _scan(self, name: str) -> Scan:
        return orient(read_volume(self.tree, [name]), self.plane, self.tree.where(name))

    def _classes(self, maps: Pixels, where: str) -> Pixels:
        """Label maps with the void label of the info; raise a UserError for labels that are no classes."""
        if not ((maps == np.rint(maps)) & (maps >= 0) & (maps < 2**16)).all():
            raise UserError(f"{where}: expected whole numbers from 0 to {2**16 - 1} as labels")
        labels = maps.astype(np.uint16)
        if self.void is not None and self.info.ignore is not None:
            labels = np.where(labels == self.void, np.uint16(self.info.ignore), labels)
        check_labels(labels, self.info, where, f"correct the file or the labels in {DATASET}")
        return labels.astype(np.uint8 if labels.max(initial=0) < 256 else np.uint16)


def _with_channels(scan: Scan) -> Pixels:
    return scan.values if scan.values.ndim == 4 else scan.values[..., None]


@register_importer("nnunet")
def nnunet(source: Path) -> Plan:
    """Plan the import of a data set of nnU-Net, or of a folder of several with the same cases, one per rater."""
    if not source.is_dir():
        raise UserError(f"{source}: expected a folder with {DATASET}, imagesTr and labelsTr; unpack it")
    tree = Tree(source)
    roots = [name.removesuffix(DATASET) for name in tree.names if re.fullmatch(rf"([^/]+/)?{DATASET}", name)]
    if not roots:
        raise UserError(f"{source}: expected {DATASET} of nnU-Net, or folders with one each; found none")
    roots = [""] if "" in roots else roots
    descriptions = [parse_json(tree.read(root + DATASET), tree.where(root + DATASET)) for root in roots]
    found = (label_names(each, tree.where(root + DATASET)) for root, each in zip(roots, descriptions, strict=True))
    if len({*found}) > 1:
        raise UserError(f"{source}: the data sets {', '.join(roots)} have different labels, expected the same")
    description = descriptions[0]
    facts = None
    if OURS in description:
        facts = ExportFacts.parse(description[OURS], where=f"{tree.where(roots[0] + DATASET)}: {OURS}")
    cases, unlabeled = _find_cases(tree, roots, description, facts)
    names, void = label_names(description, tree.where(roots[0] + DATASET))
    reader = _reader(tree, description, cases, names, void, facts)
    items = _items(reader, cases, facts)
    few = ", ".join(unlabeled[:SHOWN]) + (" …" if len(unlabeled) > SHOWN else "")
    stated = description.get("licence") or description.get("license") or "not stated"
    provenance = Provenance(
        kind="nnunet",
        source=source.resolve().name,
        license=facts.license if facts else str(stated),
        citation=facts.citation if facts else str(description.get("reference") or ""),
        note=f"skipped {len(unlabeled)} case(s) of imagesTr without a label map: {few}" if unlabeled else "",
    )
    return Plan(reader.info, provenance, items, max_raters=max(len(files.labels) for files in cases.values()))


def _find_cases(
    tree: Tree, roots: Sequence[str], description: Mapping[str, Any], facts: ExportFacts | None
) -> tuple[dict[str, Files], list[str]]:
    """The files of all cases with an image and a label map, and the cases of imagesTr without a label map."""
    suffix = str(description.get("file_ending") or ".nii.gz")
    channels: dict[str, dict[int, str]] = {}
    labels: dict[str, dict[str, str]] = {}
    training: set[str] = set()
    for root in roots:
        for name in tree.names:
            inside = name.removeprefix(root)
            if not name.startswith(root) or not name.endswith(suffix) or inside.count("/") != 1:
                continue
            folder, file = inside.removesuffix(suffix).split("/")
            if found := re.fullmatch(r"(.+)_(\d{4})", file) if folder in ("imagesTr", "imagesTs") else None:
                channels.setdefault(found[1], {}).setdefault(int(found[2]), name)
                training |= {found[1]} if folder == "imagesTr" else set()
            elif found := re.fullmatch(r"labels(?:Tr|Ts)(?:_(.+))?", folder):
                rater = found[1] or (root.rstrip("/") if len(roots) > 1 else "")
                labels.setdefault(file, {})[rater] = name
    cases = {}
    for case in sorted(labels):
        if case not in channels:
            raise UserError(f"{tree.path}: {case} has a label map but no image imagesTr/{case}_0000{suffix}")
        maps = labels[case]
        if facts is not None and case in facts.cases and (raters := facts.cases[case].raters):
            missing = [rater for rater in raters if rater.partition("_")[2] not in maps]
            if missing:
                raise UserError(f"{tree.path}: {case} has no label map in {', '.join(missing)}")
            maps = {rater: maps[rater.partition("_")[2]] for rater in raters}  # without their majority
        elif len(maps) > 1 or "" not in maps:
            maps = {rater or "labelsTr": name for rater, name in maps.items()}
        cases[case] = Files(tuple(channels[case][i] for i in sorted(channels[case])), maps)
    if not cases:
        raise UserError(f"{tree.path}: expected labelsTr/CASE{suffix} and imagesTr/CASE_0000{suffix}, found none")
    return cases, sorted(training - cases.keys())


def _reader(
    tree: Tree,
    description: Mapping[str, Any],
    cases: Mapping[str, Files],
    names: tuple[str, ...],
    void: int | None,
    facts: ExportFacts | None,
) -> Reader:
    if facts is not None:
        return Reader(tree, facts.info, facts.plane, void)
    first = next(iter(cases.values()))
    dims, plane = _shape(tree, first.channels[0])
    channels = description.get("channel_names") or description.get("modality") or {}
    if not isinstance(channels, (dict, list)):
        raise UserError(f"{tree.path}: expected channel_names such as {{'0': 'CT'}} in {DATASET}, got {channels!r}")
    info = DatasetInfo(
        name=str(description.get("name") or tree.path.resolve().name),
        num_classes=len(names),
        image_channels=max(1, len(channels)),
        spatial_dims=dims,
        class_names=names,
        ignore=void,
    )
    reader = Reader(tree, info, plane, void)
    return Reader(tree, info.model_copy(update={"normalization": _normalization(reader, cases)}), plane, void)


def _shape(tree: Tree, name: str) -> tuple[Any, Plane]:
    """Dimensions of the images, and the plane of their slices."""
    if name.lower().endswith(PICTURES):
        return 2, "axial"
    if name.lower().endswith(nifti.SUFFIXES) and 1 in nifti.stated_shape(tree.path / name, tree.where(name))[:3]:
        return 2, "axial"
    return 3, natural_plane(read_volume(tree, [name]))


def _normalization(reader: Reader, cases: Mapping[str, Files]) -> Normalization:
    """Mean and deviation of the foreground of some cases, as nnU-Net does for CT; of all pixels if there is none."""
    chosen = list(cases.values())
    sums = []
    for files in (chosen[i] for i in spread(len(chosen), MEASURED)):
        record = reader.record(files, CaseFacts(id="", group="", split=""))
        marked = ((record.raters != 0) & (record.raters != reader.info.ignore)).any(0)
        pixels = record.image[marked if marked.any() else ...].reshape(-1, record.image.shape[-1]).astype(np.float64)
        sums.append([np.full(pixels.shape[-1], len(pixels)), pixels.sum(0), (pixels**2).sum(0)])
    count, total, squares = np.sum(sums, 0)
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    return Normalization(mean=tuple(mean.tolist()), std=tuple(np.where(std > 0, std, 1.0).tolist()))


def _items(reader: Reader, cases: Mapping[str, Files], facts: ExportFacts | None) -> list[Item]:
    known = _split(reader.info, cases) if facts is None else facts.cases
    unknown = sorted(cases.keys() - known.keys())
    if unknown:
        raise UserError(f"{reader.tree.path}: {unknown[0]} is no case of {DATASET}; remove its key {OURS}")
    return [
        Item(each.id, each.group, each.split, partial(reader.record, cases[case], each))
        for case, each in known.items()
        if case in cases
    ]


def _split(info: DatasetInfo, cases: Mapping[str, Files]) -> dict[str, CaseFacts]:
    """Divide cases of a foreign data set by patient, as `stochseg data init` does."""
    config = FolderConfig.model_validate({**info.model_dump(), "group": find_group(cases)})
    split_of = {case: split for split, members in split_by_group(cases, config).items() for case in members}
    named = {case: () if "" in files.labels else tuple(files.labels) for case, files in cases.items()}
    return {
        case: CaseFacts(id=case, group=config.group_of(case), split=split_of[case], rater_names=named[case])
        for case in cases
    }
