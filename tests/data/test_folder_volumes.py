"""Folders of volumes: one order whatever the file, label maps of the same grid, resampling."""

from __future__ import annotations

import gzip
import zipfile
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from stochseg.data import Folder, Store, Subset, plan_import, write_store
from stochseg.data.folder import FolderConfig, init_folder, read_splits
from stochseg.data.importers.plans import Record
from stochseg.data.readers.itk import read_volume
from stochseg.data.volumes import volume_depths
from stochseg.errors import UserError
from tests.support.oblique import expected_affine, write_series
from tests.support.volume_files import write_itk, write_nifti

RNG = np.random.default_rng(0)
LABELS = np.zeros((10, 12, 5), np.uint8)
LABELS[3:7, 4:9, 1:4] = 1
LABELS[5:7, 4:6, 2:3] = 2
"""Of the oblique series, "x y z"."""


def records(root: Path) -> dict[str, Record]:
    return {item.id: item.read() for item in plan_import("folder", root).items}


def describe(root: Path, **changes) -> None:
    """Change dataset.yaml."""
    keys = yaml.safe_load((root / "dataset.yaml").read_text())
    (root / "dataset.yaml").write_text(yaml.safe_dump({**keys, **changes}))


def upright(spacing=(1.0, 1.0, 1.0)) -> np.ndarray:
    """The affine of an array that runs to the left, the back and the head, as axial slices of CT."""
    return np.diag([-spacing[0], -spacing[1], spacing[2], 1.0])


def simple(root: Path, shapes: dict[str, tuple[int, ...]], **options) -> Path:
    """Volumes "x y z" with one rater each."""
    for id, shape in shapes.items():
        image = RNG.integers(-1000, 400, shape).astype(np.int16)
        labels = (RNG.random(shape) < 0.3).astype(np.uint8)
        write_nifti(root / f"images/{id}.nii.gz", image, upright(**options))
        write_nifti(root / f"labels/ana/{id}.nii.gz", labels, upright(**options))
    return root


@pytest.fixture
def forms(tmp_path) -> tuple[Path, np.ndarray]:
    """One oblique scan as DICOM series, NIfTI of several orders, NRRD and MetaImage, and its voxels "s h w"."""
    root, affine = tmp_path / "mine", expected_affine()
    values = write_series(root / "images/A").astype(np.int16)
    volume = values.transpose(2, 1, 0)
    write_nifti(root / "images/B.nii.gz", volume, affine)
    write_nifti(root / "images/C.nii", volume, affine, order=(2, 0, 1), flipped=(0, 2))
    write_nifti(root / "images/D.nii.gz", volume.astype(np.float64), affine, order=(1, 2, 0), flipped=(1,))
    for id, suffix in zip("EFG", ("nrrd", "mha", "mhd"), strict=True):
        write_itk(root / f"images/{id}.{suffix}", volume, affine)
    for i, id in enumerate("ABCDEFG"):
        write_nifti(root / f"labels/ana/{id}.nii.gz", LABELS, affine, order=np.roll((0, 1, 2), i), flipped=(i % 3,))
        write_itk(root / f"labels/ben/{id}.nrrd", 2 * (LABELS == 2).astype(np.uint8), affine)
    return root, values


def test_all_forms_of_a_scan_are_one_example(forms):
    root, values = forms
    config = init_folder(root)
    assert (config.spatial_dims, config.plane, config.num_classes) == (3, "coronal", 3)
    found = records(root)
    assert sorted(found) == list("ABCDEFG")
    for record in found.values():
        np.testing.assert_array_equal(record.image[..., 0], values, record.id)
        np.testing.assert_array_equal(record.raters[0], LABELS.transpose(2, 1, 0), record.id)
        np.testing.assert_array_equal(record.raters[1], 2 * (LABELS.transpose(2, 1, 0) == 2), record.id)
        assert record.spacing == pytest.approx((2.5, 0.7, 1.3), rel=1e-5)
        assert record.rater_names == ("ana", "ben")


def test_folder_store_and_zip_are_equal(tmp_path):
    root = simple(tmp_path / "mine", {f"p{i}": (6, 7, 3 + i) for i in range(4)}, spacing=(0.7, 0.7, 2.5))
    init_folder(root)
    with zipfile.ZipFile(tmp_path / "mine.zip", "w") as archive:
        for file in root.rglob("*.*"):
            archive.write(file, file.relative_to(root))
    for source in (root, tmp_path / "mine.zip"):
        out = write_store(plan_import("folder", source), tmp_path / f"{source.name}.h5")
        for split in read_splits(root):
            stored, read = Store(split, path=str(out)), Folder(split, root=str(root))
            assert stored.info == read.info
            for i in range(len(read)):
                assert stored[i].spacing == read[i].spacing == pytest.approx((2.5, 0.7, 0.7))
                assert stored.space(i) == tuple(read[i].image.shape[1:])
                assert torch.equal(stored[i].image, read[i].image)
                assert torch.equal(stored[i].raters, read[i].raters)


def test_slices_run_to_the_head_rows_to_the_back_and_columns_to_the_left(tmp_path):
    """Also of a file whose array runs to the right, the front and the head."""
    root = tmp_path / "mine"
    image = np.zeros((4, 5, 6), np.uint8)
    image[3, 4, 5] = 9  # the rightmost, most frontal and highest voxel
    for folder in ("images", "labels/ana"):
        write_nifti(root / folder / "p.nii.gz", image // 9 if "labels" in folder else image, np.eye(4))
    init_folder(root)
    values = records(root)["p"].image[..., 0]
    assert values.shape == (6, 5, 4)
    assert values[5, 0, 0] == 9


def test_the_plane_is_that_of_most_volumes_or_as_stated(tmp_path):
    root = simple(tmp_path / "mine", {"a": (4, 6, 7), "b": (5, 6, 7)}, spacing=(3.0, 0.7, 0.7))
    simple(root, {"c": (5, 6, 7)}, spacing=(1.0, 1.0, 1.0))
    assert init_folder(root).plane == "sagittal"
    shapes = {id: record.image.shape[:3] for id, record in records(root).items()}
    assert shapes == {"a": (4, 7, 6), "b": (5, 7, 6), "c": (5, 7, 6)}
    describe(root, plane="axial")
    assert records(root)["a"].image.shape[:3] == (7, 6, 4)
    assert records(root)["a"].spacing == pytest.approx((0.7, 0.7, 3.0))


def test_channels_are_kept(tmp_path):
    image = RNG.random((4, 5, 6, 2)).astype(np.float32)
    write_nifti(tmp_path / "images/p.nii.gz", image, upright())
    write_nifti(tmp_path / "labels/ana/p.nii.gz", (image[..., 0] > 0.5).astype(np.uint8), upright())
    config = init_folder(tmp_path)
    assert config.image_channels == 2
    assert len(config.normalization.mean) == 2
    np.testing.assert_array_equal(records(tmp_path)["p"].image, image.transpose(2, 1, 0, 3))


# ---------------------------------------------------------------------- images or volumes


def test_slices_next_to_volumes_are_volumes_of_one_slice(tmp_path):
    root = simple(tmp_path / "mine", {"a": (6, 7, 1), "b": (6, 7, 4)})
    write_series(root / "images/c", count=1)
    write_nifti(root / "labels/ana/c.nii.gz", LABELS[..., :1], expected_affine())
    assert init_folder(root).spatial_dims == 3
    describe(root, plane="axial")
    found = records(root)
    assert found["a"].image.shape == (1, 7, 6, 1)
    assert found["c"].raters.size == 10 * 12
    assert found["c"].spacing == pytest.approx((0.7, 2.0, 1.3), rel=1e-4), "turned from coronal; 2 mm thick"


def test_slices_alone_are_images(tmp_path):
    root = simple(tmp_path / "mine", {"a": (6, 7, 1), "b": (6, 7, 1)})
    assert init_folder(root).spatial_dims == 2
    assert "spatial_dims" not in (root / "dataset.yaml").read_text()
    assert records(root)["a"].image.shape == (7, 6, 1)


def test_one_may_say_that_slices_are_volumes(tmp_path):
    root = simple(tmp_path / "mine", {"a": (6, 7, 1), "b": (6, 7, 1)})
    assert init_folder(root, {"spatial_dims": 3}).spatial_dims == 3
    assert records(root)["a"].image.shape == (1, 7, 6, 1)


def test_a_mixture_is_refused(tmp_path):
    root = simple(tmp_path / "mine", {"a": (6, 7, 3)})
    for folder in ("images", "labels/ana"):
        Image.fromarray(np.zeros((6, 7), np.uint8)).save(root / folder / "b.png")
    with pytest.raises(UserError, match=r"a\.nii\.gz is a volume.*b\.png is a 2-D"):
        init_folder(root)
    assert not (root / "dataset.yaml").exists()


def test_a_picture_in_a_folder_of_volumes_is_named(tmp_path):
    root = simple(tmp_path / "mine", {"a": (6, 7, 3), "b": (6, 7, 3)})
    init_folder(root)
    (root / "images/a.nii.gz").unlink()
    Image.fromarray(np.zeros((6, 7), np.uint8)).save(root / "images/a.png")
    with pytest.raises(UserError, match=r"a\.png is a picture.*\.nii\.gz"):
        records(root)
    write_nifti(root / "images/a.nii.gz", np.zeros((6, 7, 3), np.uint8)[..., 0][..., None], upright())
    (root / "images/a.png").unlink()
    with pytest.raises(UserError, match=r"a\.nii\.gz.*3×7×6.*1×7×6"):
        records(root)


def test_a_volume_in_a_folder_of_images_points_to_the_key(tmp_path):
    root = simple(tmp_path / "mine", {"a": (6, 7, 1), "b": (6, 7, 1)})
    init_folder(root)
    simple(root, {"a": (6, 7, 2)})
    with pytest.raises(UserError, match=r"a\.nii\.gz.*spatial_dims: 3"):
        records(root)


# ---------------------------------------------------------------------- other grids


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda labels, affine: (labels[..., :-1], affine), r"4×12×10 voxels.*5×12×10 voxels"),
        (lambda labels, affine: (labels, affine @ np.diag([1, 1, 1.1, 1])), r"2\.75×.*2\.5×"),
        (lambda labels, affine: (labels, affine + np.eye(4, k=3) * 0.3), r"first at"),
        (lambda labels, affine: (np.flip(labels, 0), affine @ np.diag([-1, 1, 1, 1])), r"first at"),
    ],
    ids=["size", "spacing", "moved by 0.3 mm", "mirrored"],
)
def test_label_maps_of_another_grid_name_both(tmp_path, change, message):
    root, affine = tmp_path / "mine", expected_affine()
    write_series(root / "images/p")
    labels, other = change(LABELS, affine)
    write_nifti(root / "labels/ana/p.nii.gz", LABELS, affine)
    write_nifti(root / "labels/ben/p.nii.gz", labels, other)
    init_folder(root)
    with pytest.raises(UserError, match=rf"ben/p\.nii\.gz.*{message}") as error:
        records(root)
    assert "images/p" in str(error.value)


def test_rounded_headers_are_the_same_grid(tmp_path):
    root, affine = tmp_path / "mine", expected_affine()
    write_series(root / "images/p")
    write_nifti(root / "labels/ana/p.nii.gz", LABELS, np.round(affine, 4))
    init_folder(root)
    assert records(root)["p"].raters.sum() == LABELS.sum()


def test_a_gap_in_a_series_is_named(tmp_path):
    root = tmp_path / "mine"
    write_series(root / "images/p", leave_out=(2,))
    write_nifti(root / "labels/ana/p.nii.gz", LABELS, expected_affine())
    with pytest.raises(UserError, match="images/p: .*mm apart.*a slice is missing"):
        init_folder(root)


def test_two_series_in_a_folder_are_named(tmp_path):
    root = tmp_path / "mine"
    write_series(root / "images/p")
    write_series(root / "other", count=6)
    (root / "other/IM005").rename(root / "images/p/IM005")
    write_nifti(root / "labels/ana/p.nii.gz", LABELS, expected_affine())
    with pytest.raises(UserError, match="another DICOM series"):
        init_folder(root)


def test_voxels_from_another_folder_are_refused(tmp_path):
    root = tmp_path / "mine"
    write_itk(root / "images/p.mhd", LABELS, upright())
    write_itk(root / "labels/ana/p.mha", LABELS, upright())
    init_folder(root)
    header = root / "images/p.mhd"
    header.write_text(header.read_text().replace("p.raw", "../../secret.raw"))
    with pytest.raises(UserError, match=r"p\.mhd takes its voxels from '../../secret.raw'"):
        records(root)


def test_a_damaged_volume_is_named(tmp_path):
    root = tmp_path / "mine"
    write_itk(root / "images/p.nrrd", LABELS, upright())
    write_itk(root / "labels/ana/p.mha", LABELS, upright())
    init_folder(root)
    for file in (root / "images/p.nrrd", root / "labels/ana/p.mha"):
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
        with pytest.raises(UserError, match=rf"{file.name} cannot be read"):
            records(root)
        file.write_bytes(content)


@pytest.mark.parametrize("line", ["space", "Name", "x|"])
def test_a_header_that_overflows_the_memory_of_its_library(tmp_path, line):
    form, sign = ("mha", " = ") if line == "Name" else ("nrrd", ": ")
    file = tmp_path / f"a.{form}"
    write_itk(file, LABELS, upright())
    start, rest = file.read_bytes().split(b"\n", 1)
    file.write_bytes(b"\n".join([start, f"{line}{sign}{'i' * 300}".encode(), rest]))
    with pytest.raises(UserError, match=r"header has more than 255"):
        read_volume(file, "a")
    file.write_bytes(b"\n".join([start, b"# i\n" * 20_000, rest]))
    with pytest.raises(UserError, match=r"header has more than 65,536"):
        read_volume(file, "a")


def changed(file: Path, old: bytes, new: bytes) -> Path:
    write_itk(file, LABELS, upright())
    content = file.read_bytes()
    assert old in content
    file.write_bytes(content.replace(old, new, 1))
    return file


@pytest.mark.parametrize(
    ("form", "old", "new", "says"),
    [
        ("mha", b"NDims = 3", b"NDims = 33333333333", "expected 2 or 3 axes, got '33333333333'"),
        ("nrrd", b"dimension: 3", b"dimension: -3", "expected 2 or 3 axes, got '-3'"),
        ("nrrd", b"# ", b"# \x19\x00\x01", "characters that are no text"),
    ],
)
def test_a_header_that_ends_the_program_in_its_library(tmp_path, form, old, new, says):
    with pytest.raises(UserError, match=says):
        read_volume(changed(tmp_path / f"a.{form}", old, new), "a")


def test_damaged_compressed_voxels(tmp_path):
    import SimpleITK

    file = tmp_path / "a.mha"
    SimpleITK.WriteImage(
        SimpleITK.GetImageFromArray(np.arange(5760, dtype=np.int16).reshape(4, 36, 40)), str(file), True
    )
    assert read_volume(file, "a").values.shape == (40, 36, 4)
    content = file.read_bytes()
    start = content.index(b"LOCAL\n") + 6
    file.write_bytes(content[: start + 40] + b"\xff" * 40 + content[start + 80 :])
    with pytest.raises(UserError, match="compressed voxels are damaged"):
        read_volume(file, "a")
    file.write_bytes(content[:-200])
    with pytest.raises(UserError, match="expected 11,520 bytes of voxels"):
        read_volume(file, "a")


def test_a_flat_orientation_is_named(tmp_path):
    root = simple(tmp_path / "mine", {"a": (8, 8, 4)})
    init_folder(root)
    file = next((root / "images").iterdir())
    header = nibabel.load(file).header
    header["sform_code"], header["qform_code"] = 1, 0
    header["srow_x"], header["srow_y"] = (1, 1, 0, 0), (0, 1e-20, 0, 0)
    file.write_bytes(gzip.compress(header.binaryblock + gzip.decompress(file.read_bytes())[348:]))
    with pytest.raises(UserError, match=r"orientation .* is flat"):
        records(root)


@pytest.mark.parametrize(("form", "line"), [("nrrd", "# "), ("nrrd", "note:="), ("mha", "0010|0010 = ")])
def test_long_texts_in_a_header(tmp_path, form, line):
    file = tmp_path / f"a.{form}"
    write_itk(file, LABELS, upright())
    start, rest = file.read_bytes().split(b"\n", 1)
    file.write_bytes(b"\n".join([start, line.encode() + b"i" * 2000, rest]))
    assert read_volume(file, "a").values.shape == LABELS.shape


def test_volumes_beyond_the_limit_of_memory_are_refused(tmp_path, monkeypatch):
    root = simple(tmp_path / "mine", {"a": (60, 60, 60)})
    write_itk(root / "images/b.mha", np.zeros((60, 60, 60), np.int16), upright())
    write_itk(root / "labels/ana/b.mha", np.zeros((60, 60, 60), np.uint8), upright())
    init_folder(root)
    monkeypatch.setenv("STOCHSEG_MAX_FILE_MB", "0.2")
    for item in plan_import("folder", root).items:
        with pytest.raises(UserError, match="STOCHSEG_MAX_FILE_MB"):
            item.read()


# ---------------------------------------------------------------------- resampling


def test_resampling_keeps_places_and_never_mixes_labels(tmp_path):
    """A slope stays a slope at the new positions; label values are those of the file, and regions keep their size."""
    root, shape, spacing = tmp_path / "mine", (40, 30, 12), (0.7, 0.7, 2.5)
    places = np.meshgrid(*(((np.arange(n) + 0.5) * mm) for n, mm in zip(shape, spacing, strict=True)), indexing="ij")
    image = (3 * places[0] + 5 * places[1] + 7 * places[2]).astype(np.float32)
    labels = np.zeros(shape, np.uint8)
    labels[8:24, 6:20, 2:9] = 7
    labels[10:14, 8:14, 4:7] = 200
    write_nifti(root / "images/p.nii.gz", image, upright(spacing))
    write_nifti(root / "labels/ana/p.nii.gz", labels, upright(spacing))
    init_folder(root, {"spacing": [2.0, 1.0, 0.5]})
    record = records(root)["p"]
    size = (15, 21, 56)
    assert record.image.shape == (*size, 1)
    assert record.spacing == pytest.approx((12 * 2.5 / 15, 30 * 0.7 / 21, 40 * 0.7 / 56))
    new = np.meshgrid(*((np.arange(n) + 0.5) * mm for n, mm in zip(size, record.spacing, strict=True)), indexing="ij")
    inner = (slice(2, -2),) * 3
    expected = 3 * new[2] + 5 * new[1] + 7 * new[0]
    np.testing.assert_allclose(record.image[..., 0][inner], expected[inner], atol=0.1)
    assert set(np.unique(record.raters)) == {0, 1, 2}
    for label, stored in ((1, 7), (2, 200)):
        before, after = (labels == stored).sum() * np.prod(spacing), (record.raters == label).sum()
        assert after * np.prod(record.spacing) == pytest.approx(before, rel=0.12)
        for axis in range(3):
            stored_center = np.mean(places[2 - axis][labels == stored])
            assert np.mean(new[axis][record.raters[0] == label]) == pytest.approx(stored_center, abs=1.0)


def test_slices_of_a_tilted_gantry_are_as_far_apart_as_their_planes(tmp_path):
    affine = upright((0.7, 1.3, 2.5))
    affine[1, 2] = 1.5
    write_nifti(tmp_path / "images/a.nii.gz", np.zeros((5, 6, 4), np.int16), affine)
    write_nifti(tmp_path / "labels/ana/a.nii.gz", np.ones((5, 6, 4), np.uint8), affine)
    init_folder(tmp_path)
    assert records(tmp_path)["a"].spacing == pytest.approx((2.5, 1.3, 0.7))


def test_coarser_images_are_averages(tmp_path):
    """Without aliasing: stripes of one voxel become gray, not stripes."""
    root = tmp_path / "mine"
    image = np.zeros((32, 32, 16), np.int16)
    image[..., ::2] += 100
    image[::2] += 100
    write_nifti(root / "images/p.nii.gz", image, upright())
    write_nifti(root / "labels/ana/p.nii.gz", (image > 100).astype(np.uint8), upright())
    init_folder(root, {"spacing": [4.0, 4.0, 4.0]})
    record = records(root)["p"]
    assert record.image.shape == (4, 8, 8, 1)
    assert record.image.dtype == np.int16
    assert np.abs(record.image.astype(float)[1:-1, 1:-1, 1:-1] - 100).max() < 10


@pytest.mark.parametrize("keys", [{"spacing": [1.0, 1.0]}, {"plane": "oblique"}, {"spatial_dims": 4}])
def test_impossible_keys_are_refused(tmp_path, keys):
    root = simple(tmp_path / "mine", {"a": (6, 7, 3)})
    with pytest.raises(UserError, match=next(iter(keys))):
        init_folder(root, keys)


def test_images_cannot_be_resampled():
    with pytest.raises(UserError, match="spatial_dims: 3"):
        FolderConfig.parse({"num_classes": 2, "image_channels": 1, "spacing": [1, 1, 1]}, where="dataset.yaml")


def test_sizes_are_read_once(tmp_path, monkeypatch):
    root = simple(tmp_path / "mine", {"a": (6, 5, 3), "b": (7, 5, 4), "c": (6, 6, 2)})
    init_folder(root)
    data = Folder("train", root=str(root))
    opened = []
    original = Folder.__getitem__
    monkeypatch.setattr(Folder, "__getitem__", lambda self, i: opened.append(i) or original(self, i))
    sizes = [data.space(i) for i in range(len(data))]
    assert sizes == [tuple(data[i].raters.shape[1:]) for i in range(len(data))]
    assert volume_depths(data) == [size[0] for size in sizes]
    assert volume_depths(Subset(data, [0])) == [sizes[0][0]]
    assert opened == [*range(len(data))] * 2, "once for the sizes, once by this test"
