"""Decoding of picture, TIFF, NIfTI and DICOM files, and the names of folders and zips."""

import gzip
import io
import struct
import sys
import zipfile
import zlib

import nibabel
import numpy as np
import pytest
import tifffile
from PIL import Image

from stochseg.data.readers.trees import Tree
from stochseg.errors import UserError
from tests.support.images import dicom_bytes, nifti_bytes

RNG = np.random.default_rng(0)


def picture(tmp_path, name: str, content: bytes):
    (tmp_path / name).write_bytes(content)
    return Tree(tmp_path).picture(name)


def saved(array, form: str, **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, form, **options)
    return file.getvalue()


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def deep_color_png() -> bytes:
    """A color PNG with 16 bits per channel, which Pillow cannot write."""
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 2, 16, 2, 0, 0, 0))
    rows = zlib.compress(b"".join(b"\0" + bytes(12) for _ in range(2)))
    return b"\x89PNG\r\n\x1a\n" + head + png_chunk(b"IDAT", rows) + png_chunk(b"IEND", b"")


def tiff(array: np.ndarray, **options) -> bytes:
    """A TIFF with channels last, as Pillow cannot write it: colors of 16 bits, five channels."""
    file = io.BytesIO()
    tifffile.imwrite(file, array, **{"photometric": "minisblack", "planarconfig": "contig", **options})
    return file.getvalue()


# ---------------------------------------------------------------------- pictures


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_deflate"])
def test_sixteen_bit_gray_tiff(tmp_path, compression):
    array = RNG.integers(0, 65536, (7, 5), dtype=np.uint16)
    got = picture(tmp_path, "a.tif", saved(array, "TIFF", compression=compression)).values
    assert got.dtype == np.uint16
    np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize("byteorder", ["<", ">"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.float32])
@pytest.mark.parametrize("channels", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"rowsperstrip": 3, "compression": "zlib"},
        {"compression": "lzw", "predictor": True},
        {"tile": (16, 16), "compression": "zlib", "predictor": True},
    ],
    ids=lambda options: "-".join(map(str, options)) or "plain",
)
def test_tiff_of_many_channels_keeps_every_bit(tmp_path, byteorder, dtype, channels, options):
    array = RNG.integers(-99 if np.dtype(dtype).kind != "u" else 0, 256, (7, 5, channels)).astype(dtype)
    array.flat[0] = 2**15 - 1 if dtype == np.int16 else 2 ** (8 * min(2, array.itemsize)) - 1
    got = picture(tmp_path, "a.tif", tiff(array, byteorder=byteorder, **options)).values
    assert got.dtype == dtype
    assert got.dtype.isnative
    np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize("channels", [3, 4])
def test_bigtiff(tmp_path, channels):
    array = RNG.integers(0, 65536, (7, 5, channels), dtype=np.uint16)
    got = picture(tmp_path, "a.tif", tiff(array, bigtiff=True)).values
    np.testing.assert_array_equal(got, array)


def test_channels_of_a_planar_tiff_come_last(tmp_path):
    array = RNG.integers(0, 65536, (5, 7, 6), dtype=np.uint16)
    got = picture(tmp_path, "a.tif", tiff(array, planarconfig="separate")).values
    np.testing.assert_array_equal(got, np.moveaxis(array, 0, -1))


def test_palette_gives_colors_of_images_and_indices_of_label_maps(tmp_path):
    indices = RNG.integers(0, 2, (4, 5), dtype=np.uint8)
    image = Image.fromarray(indices, mode="P")
    image.putpalette([10, 20, 30, 200, 0, 0])
    image.save(tmp_path / "a.png")
    tree = Tree(tmp_path)
    np.testing.assert_array_equal(tree.picture("a.png").values, np.array([[10, 20, 30], [200, 0, 0]])[indices])
    np.testing.assert_array_equal(tree.labels("a.png"), indices)


def test_bilevel_pictures_are_images_of_0_and_255_or_labels_of_0_and_1(tmp_path):
    mask = RNG.integers(0, 2, (4, 9)).astype(bool)
    Image.fromarray(mask).save(tmp_path / "a.png")
    np.testing.assert_array_equal(Tree(tmp_path).picture("a.png").values, mask * 255)
    np.testing.assert_array_equal(Tree(tmp_path).labels("a.png"), mask.astype(np.uint8))


def pages() -> bytes:
    file, page = io.BytesIO(), Image.new("L", (4, 4))
    page.save(file, "TIFF", save_all=True, append_images=[page, page])
    return file.getvalue()


def cut_strip() -> bytes:
    """A TIFF whose only strip starts at the end of the file, as if the directory came first."""
    content = tiff(np.zeros((9, 9, 5), np.uint8))
    with tifffile.TiffFile(io.BytesIO(content)) as file:
        place = file.pages.first.tags["StripOffsets"].valueoffset
    return content[:place] + struct.pack("<I", len(content) - 10) + content[place + 4 :]


def huge_tiff() -> bytes:
    """A TIFF that declares more values than memory should be allocated for."""
    content = tiff(np.zeros((9, 9, 5), np.uint8))
    with tifffile.TiffFile(io.BytesIO(content)) as file:
        tag = file.pages.first.tags["ImageLength"]
    return content[: tag.valueoffset] + struct.pack("<I", 2**30)[: tag.valuebytecount] + content[tag.valueoffset + 4 :]


REFUSED = {
    "pages": ("a.tif", pages, r"a\.tif.* 3 pages"),
    "16-bit color PNG": ("a.png", deep_color_png, r"a\.png.* 16 bits.* TIFF"),
    "BigTIFF": ("a.tif", lambda: b"II+\0" + bytes(60), r"a\.tif cannot be read"),
    "cut TIFF": ("a.tif", lambda: saved(np.zeros((64, 64), np.uint8), "TIFF")[:900], r"a\.tif cannot be read"),
    "cut wide TIFF": ("a.tif", lambda: tiff(np.zeros((9, 9, 5), np.uint8))[:-40], r"a\.tif is cut short"),
    "huge TIFF": ("a.tif", huge_tiff, r"a\.tif .*MAX_FILE_MB"),
    "cut strip": ("a.tif", cut_strip, r"a\.tif is cut short; copy it again"),
    "cut PNG": ("a.png", lambda: saved(RNG.integers(0, 99, (64, 64), np.uint8), "PNG")[:900], r"a\.png cannot be read"),
    "not an image": ("a.png", lambda: b"hello", r"a\.png.*no known format"),
    "volume": (
        "a.nii.gz",
        lambda: gzip.compress(nifti_bytes(np.zeros((4, 5, 6), np.uint8), (1, 1, 1))),
        r"a\.nii\.gz.* \(4, 5, 6\).*`group`",
    ),
    "cut gzip": (
        "a.nii.gz",
        lambda: gzip.compress(nifti_bytes(np.zeros((4, 5), np.uint8), (1, 1)))[:-20],
        r"a\.nii\.gz cannot be read",
    ),
    "cut NIfTI": ("a.nii", lambda: nifti_bytes(np.zeros((9, 9)), (1, 1))[:-60], r"a\.nii cannot be read"),
    "complex NIfTI": ("a.nii", lambda: nifti_bytes(np.zeros((9, 9), np.complex64), (1, 1)), r"a\.nii.* complex64"),
    "DICOM without pixels": ("a.dcm", lambda: dicom_bytes(None), r"a\.dcm has no pixel data .*expected an image"),
    "DICOM frames": (
        "a.dcm",
        lambda: dicom_bytes(np.zeros((3, 4, 4), np.uint8), NumberOfFrames=3),
        r"a\.dcm.* 3 frames",
    ),
    "cut DICOM": ("a.dcm", lambda: dicom_bytes(np.zeros((32, 32), np.uint16))[:-900], r"a\.dcm.* pixels"),
    "no DICOM": ("a.dcm", lambda: b"x" * 400, r"a\.dcm.* DICOM.* mark"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unreadable_file_says_why(tmp_path, case):
    name, content, pattern = REFUSED[case]
    with pytest.raises(UserError, match=pattern):
        picture(tmp_path, name, content())


# ---------------------------------------------------------------------- medical formats


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 1), (5, 1, 7), (1, 5, 7)])
@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
def test_width_of_nifti_slices_is_their_first_axis(tmp_path, shape, kind):
    array = RNG.integers(-1000, 1000, (5, 7)).astype(np.int16)
    zooms = tuple({5: 0.5, 7: 0.75, 1: 3.0}[length] for length in shape)
    got = picture(tmp_path, "a.nii", nifti_bytes(array.reshape(shape), zooms, kind=kind))
    assert got.values.dtype == np.int16
    np.testing.assert_array_equal(got.values, array.T)
    assert got.spacing == pytest.approx((0.75, 0.5))


def test_nifti_units_byte_order_and_packing(tmp_path):
    array = RNG.integers(0, 1000, (5, 7)).astype(">i2")
    content = nifti_bytes(array, (500.0, 750.0), "micron")
    got = picture(tmp_path, "a.nii.gz", gzip.compress(content))
    assert got.values.dtype.isnative
    np.testing.assert_array_equal(got.values, array.T)
    assert got.spacing == pytest.approx((0.75, 0.5))


def test_dicom_gives_hounsfield_units_and_spacing(tmp_path):
    array = RNG.integers(0, 3000, (6, 8)).astype(np.uint16)
    content = dicom_bytes(array, RescaleSlope=1, RescaleIntercept=-1024, PixelSpacing=[0.7, 0.6])
    for name in ("a.dcm", "1.2.840.113"):
        got = picture(tmp_path, name, content)
        assert got.values.dtype == np.int16
        np.testing.assert_array_equal(got.values, array.astype(int) - 1024)
        assert got.spacing == pytest.approx((0.7, 0.6))


def test_dicom_with_a_fractional_slope_and_without_spacing(tmp_path):
    array = RNG.integers(0, 100, (6, 8)).astype(np.uint16)
    got = picture(tmp_path, "a.dcm", dicom_bytes(array, RescaleSlope="0.5", RescaleIntercept="1"))
    assert got.values.dtype == np.float32
    np.testing.assert_allclose(got.values, array * 0.5 + 1)
    assert got.spacing is None


@pytest.mark.parametrize(("module", "name"), [("nibabel", "a.nii"), ("pydicom", "a.dcm")])
def test_missing_package_names_the_extra(tmp_path, monkeypatch, module, name):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"{name}.* {module}.*stochseg\[medical\]"):
        picture(tmp_path, name, bytes(400))


# ---------------------------------------------------------------------- folders and zips


def test_zip_reads_like_a_folder(tmp_path):
    array = RNG.integers(0, 256, (4, 4), dtype=np.uint8)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as out:
        out.writestr("top/a.png", saved(array, "PNG"))
        out.writestr("__MACOSX/top/._a.png", b"junk")
    tree = Tree(tmp_path / "a.zip")
    assert tree.names == ["top/a.png"]
    np.testing.assert_array_equal(tree.picture("top/a.png").values, array)
    assert tree.where("top/a.png") == f"{tmp_path}/a.zip:top/a.png"


@pytest.mark.parametrize("name", ["../evil.png", "a/../../evil.png", "/etc/evil.png", "C:/evil.png", "..\\evil.png"])
def test_zip_with_names_outside_it_is_refused(tmp_path, name):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as out:
        out.writestr("fine.png", b"")
        out.writestr(name, b"")
    with pytest.raises(UserError, match=r"outside the archive"):
        _ = Tree(tmp_path / "a.zip").names


def test_cut_zip_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as out:
        out.writestr("a.png", RNG.bytes(1000))
    (tmp_path / "a.zip").write_bytes((tmp_path / "a.zip").read_bytes()[:500])
    with pytest.raises(UserError, match=r"a\.zip.* zip file"):
        Tree(tmp_path / "a.zip")


def test_zip_with_a_damaged_directory_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as out:
        for name in ("a.png", "b.png"):
            out.writestr(name, RNG.bytes(1000))
    head, _, tail = (tmp_path / "a.zip").read_bytes().rpartition(b"PK\x01\x02")
    (tmp_path / "a.zip").write_bytes(head + b"PK\x00\x00" + tail)
    with pytest.raises(UserError, match=r"a\.zip.* damaged zip file"):
        Tree(tmp_path / "a.zip")


def test_damaged_zip_entry_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as out:
        out.writestr("a.png", RNG.bytes(1000))
    content = bytearray((tmp_path / "a.zip").read_bytes())
    content[300:310] = bytes(10)
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.zip:a\.png.*CRC"):
        Tree(tmp_path / "a.zip").picture("a.png")


def test_a_picture_that_is_too_large_is_not_called_damaged(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    file = io.BytesIO()
    Image.new("L", (20, 20)).save(file, "PNG")
    with pytest.raises(UserError, match=r"a\.png: too many pixels .*cut it") as error:
        picture(tmp_path, "a.png", file.getvalue())
    assert "damaged" not in str(error.value)
