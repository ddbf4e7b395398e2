"""Mistakes that users make in a folder data set."""

import json
import zipfile

import nibabel
import numpy as np
import pytest
import yaml
from PIL import Image

from stochseg.data import Folder
from stochseg.data.folder import init_folder
from stochseg.data.importers.plans import plan_import
from stochseg.data.store import write_store
from stochseg.errors import UserError


def read_all(root) -> int:
    """Read every example and return their number."""
    opened = [Folder(split, root=str(root)) for split in ("train", "val", "test")]
    return len([data[i] for data in opened for i in range(len(data))])


def write(root, file, array):
    Image.fromarray(np.asarray(array, np.uint8)).save(root / file)


def cut(root, file, kept):
    (root / file).write_bytes((root / file).read_bytes()[:kept])


def splits(root, **content):
    (root / "splits.json").write_text(json.dumps(content))


def info(root, **changes):
    file = root / "dataset.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **changes}))


def no_raters(root):
    for folder in ("anna", "ben"):
        (root / "labels" / folder).rename(root / folder)


def no_map(root):
    (root / "labels/anna/b.png").unlink()


def picture(root, file, mode, size=(8, 8), **options):
    Image.new(mode, size).save(root / file, **options)


def pages(root):
    (root / "images/a.png").unlink()
    page = Image.new("L", (8, 8))
    page.save(root / "images/a.tif", save_all=True, append_images=[page])


def text_as(root, file):
    (root / "images/a.png").unlink()
    (root / file).write_text("hello " * 100)


def move(root, old, new):
    (root / new).parent.mkdir(exist_ok=True)
    (root / old).rename(root / new)


def colors(root):
    array = np.zeros((8, 8, 3), np.uint8)
    array[0, :3], array[1, :1] = (1, 2, 3), (9, 9, 9)
    write(root, "labels/ben/a.png", array)
    info(root, palette=["#000000", "#ff0000"])


def transparent(root):
    picture(root, "labels/ben/a.png", "RGBA")
    info(root, palette=["#000000", "#ff0000"])


def jpeg(root):
    write(root, "labels/ben/a.png", np.random.default_rng(0).integers(0, 2, (8, 8)) * 200)
    Image.open(root / "labels/ben/a.png").save(root / "labels/ben/a.jpg")
    (root / "labels/ben/a.png").unlink()


def elsewhere(root):
    (root / "images/a.png").unlink()
    (root / "labels/anna/a.png").unlink()
    (root / "labels/ben/a.png").unlink()
    for name, affine in (("images", np.diag([-1, -1, 1, 1])), ("labels/ben", np.eye(4))):
        nibabel.Nifti1Image(np.zeros((8, 8, 1), np.uint8), affine).to_filename(root / f"{name}/a.nii")


def fractions(root):
    (root / "labels/ben/a.png").unlink()
    Image.fromarray(np.full((8, 8), 0.5, np.float32)).save(root / "labels/ben/a.tif")


def not_a_number(root):
    (root / "images/a.png").unlink()
    Image.fromarray(np.full((8, 8), np.nan, np.float32)).save(root / "images/a.tif")


MISTAKES = {
    "two images of one ID": (
        lambda r: picture(r, "images/a.jpg", "L"),
        r"images/a\.png and images/a\.jpg .*'a'",
    ),
    "two label maps of one ID": (
        lambda r: picture(r, "labels/ben/a.bmp", "L"),
        r"labels/ben/a\.png and labels/ben/a\.bmp .*'a'",
    ),
    "labels without a rater's folder": (
        lambda r: move(r, "labels/ben/a.png", "labels/a.png"),
        r"labels/a\.png: .*labels/RATER/a\.png",
    ),
    "images in folders, labels not": (
        lambda r: (move(r, "images/a.png", "images/more/a.png"), splits(r, train=["more/a"], val=["c"], test=["d"])),
        r"image 'more/a' has no label map in .*labels/\*/more/a\.\*",
    ),
    "label elsewhere in space": (elsewhere, r"ben/a\.nii: its affine"),
    "several pages": (pages, r"images/a\.tif.* 2 pages"),
    "text as DICOM": (lambda r: text_as(r, "images/a.dcm"), r"images/a\.dcm cannot be read as DICOM"),
    "text as NIfTI": (lambda r: text_as(r, "images/a.nii"), r"images/a\.nii cannot be read as NIfTI"),
    "NaN": (not_a_number, r"images/a\.tif: .*NaN"),
    "unknown colors": (
        colors,
        r"ben/a\.png: 2 unknown color\(s\): #010203 \(3 pixels\), #090909 \(1 pixels\);.*`palette`",
    ),
    "transparent labels": (transparent, r"ben/a\.png: .*transparency"),
    "labels as JPEG": (jpeg, r"ben/a\.jpg: .*JPEG.*PNG"),
    "labels that are fractions": (fractions, r"ben/a\.tif: .*0\.5"),
    "values that are not listed": (
        lambda r: info(r, values={0: 0, 1: 1}),
        r"a\.png: .*\[255\].*`values` of dataset\.yaml \(\[0, 1\]\)",
    ),
    "values of no class": (lambda r: info(r, values={0: 5}), r"values.* \[5\]"),
    "a palette that is not one": (
        lambda r: info(r, palette=["black", "#ff0000"]),
        r"color.*'black'",
    ),
    "one color for two classes": (
        lambda r: info(r, palette=["#FF0000", "#ff0000"]),
        r"palette.* twice",
    ),
    "void below 0": (lambda r: info(r, ignore=-1), r"key 'ignore'.*got -1"),
    "group that is not an expression": (lambda r: info(r, group="("), r"group '\(' is not a regular expression"),
    "group without parentheses": (lambda r: info(r, group="p.*"), r"group 'p\.\*' has 0 "),
    "group that finds nothing": (lambda r: info(r, group="(p.)"), r"image 'a': `group` '\(p\.\)'"),
    "splits name an image twice": (
        lambda r: splits(r, train=["a", "a"], val=["c"], test=["d"]),
        r"image 'a' is twice in 'train'",
    ),
    "splits of numbers": (lambda r: splits(r, train=[1], val=[2], test=[3]), r'expected \{"train": \[names\]'),
    "truncated image": (lambda r: cut(r, "images/a.png", 60), r"images/a\.png cannot be read as an image"),
    "empty image": (lambda r: cut(r, "images/a.png", 0), r"images/a\.png cannot be read as an image"),
    "text as image": (lambda r: (r / "images/a.png").write_text("hello"), r"images/a\.png cannot be read as an image"),
    "missing image": (
        lambda r: (r / "images/a.png").unlink(),
        r"image 'a' .*splits\.json.*images",
    ),
    "truncated labels": (lambda r: cut(r, "labels/ben/a.png", 60), r"labels/ben/a\.png cannot be read"),
    "undeclared label": (
        lambda r: write(r, "labels/ben/a.png", np.full((8, 8), 7)),
        r"ben/a\.png: expected labels 0\.\.1 or 255 \(ignore\), got \[7\];.*num_classes",
    ),
    "void not declared": (lambda r: info(r, ignore=None), r"expected labels 0\.\.1, got \[255\]"),
    "labels of another size": (
        lambda r: write(r, "labels/ben/a.png", np.zeros((8, 9))),
        r"ben/a\.png: .*8×8.*\(8, 9\)",
    ),
    "labels in color": (
        lambda r: write(r, "labels/ben/a.png", np.zeros((8, 8, 3))),
        r"ben/a\.png: .*colors.*`palette`",
    ),
    "color for gray": (
        lambda r: write(r, "images/a.png", np.zeros((8, 8, 3))),
        r"images/a\.png: .*1 channel.*got 3",
    ),
    "no map for an image": (
        no_map,
        r"image 'b' has no label map in .*labels/\*/b\.\*",
    ),
    "no rater folder": (no_raters, r"labels: .*per rater"),
    "splits share an image": (
        lambda r: splits(r, train=["a", "b"], val=["b"], test=["d"]),
        r"image 'b' is in both 'train' and 'val'",
    ),
    "split missing": (lambda r: splits(r, train=["a"]), r"unknown split of .*'val'; known: train"),
    "splits of another form": (lambda r: splits(r, train="a", val="b"), r'expected \{"train": \[names\]'),
    "splits damaged": (lambda r: cut(r, "splits.json", 10), r"splits\.json is not valid JSON"),
    "no splits": (lambda r: (r / "splits.json").unlink(), r"splits\.json is missing"),
    "no description": (
        lambda r: (r / "dataset.yaml").unlink(),
        r"dataset\.yaml is missing",
    ),
    "description damaged": (lambda r: (r / "dataset.yaml").write_text("a: [1"), r"dataset\.yaml is not valid YAML"),
    "description is a list": (lambda r: (r / "dataset.yaml").write_text("- 1"), r"num_classes.*list"),
    "description misspelled": (
        lambda r: info(r, num_class=2),
        r"dataset\.yaml: unknown key 'num_class'; known keys: .*num_classes",
    ),
    "class names that do not fit": (
        lambda r: info(r, class_names=["a", "b", "c"]),
        r"dataset\.yaml: .*class_names has 3 entries, expected 2",
    ),
}


def test_fixture_is_sound(folder_root):
    assert read_all(folder_root) == 4


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake(folder_root, mistake):
    make, pattern = MISTAKES[mistake]
    make(folder_root)
    with pytest.raises(UserError, match=pattern):
        read_all(folder_root)


def test_patient_in_two_splits(folder_root):
    for file in (*folder_root.rglob("b.png"), *folder_root.rglob("c.png")):
        file.rename(file.with_name(f"p1_{file.name}"))
    splits(folder_root, train=["a", "p1_b"], val=["p1_c"], test=["d"])
    read_all(folder_root)
    info(folder_root, group="^(a|d|p1)")
    pattern = r"splits\.json: group 'p1' is in both 'train' and 'val' \(image 'p1_c'\)"
    with pytest.raises(UserError, match=pattern):
        Folder("train", root=str(folder_root))
    with pytest.raises(UserError, match=pattern):
        plan_import("folder", folder_root)


def test_zip_can_be_imported_only(folder_root, tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("../dataset.yaml", b"")
    with pytest.raises(UserError, match=r"a\.zip: .*folder.*dataset\.yaml"):
        Folder("train", root=str(tmp_path / "a.zip"))
    with pytest.raises(UserError, match="outside the archive"):
        plan_import("folder", tmp_path / "a.zip")


@pytest.mark.parametrize("mistake", [m for m, (_, pattern) in MISTAKES.items() if "unknown split" not in pattern])
def test_import_finds_the_same_mistake_and_leaves_nothing(folder_root, tmp_path, mistake):
    make, pattern = MISTAKES[mistake]
    make(folder_root)
    with pytest.raises(UserError, match=pattern):
        write_store(plan_import("folder", folder_root), tmp_path / "out.h5")
    assert [p.name for p in tmp_path.iterdir()] == ["slices"]


def no_images(root):
    (root / "images").rename(root / "pictures")


def mixed_channels(root):
    write(root, "images/c.png", np.zeros((8, 8, 3)))


def photographs(root):
    write(root, "labels/ben/a.png", np.arange(64).reshape(8, 8) * 2)
    write(root, "labels/ben/c.png", np.arange(64).reshape(8, 8) * 2 + 1)


def gray_and_color(root):
    write(root, "labels/ben/a.png", np.zeros((8, 8, 3)))


INIT_MISTAKES = {
    "unlabeled image": (no_map, r"image 'b' has no label map"),
    "no rater folder": (no_raters, r"labels: .*per rater"),
    "no images": (no_images, r"images: .*images/ID\.png"),
    "channels differ": (mixed_channels, r"images/c\.png has 3 channel\(s\), images/a\.png has 1"),
    "photographs as labels": (photographs, r"labels/ben/[ac]\.png: .* label values.* got \d+"),
    "gray and color": (gray_and_color, r"labels/ben/a\.png is in color"),
    "damaged image": (lambda r: cut(r, "images/c.png", 60), r"images/c\.png cannot be read as an image"),
}


@pytest.mark.parametrize("mistake", INIT_MISTAKES)
def test_init_reports_the_mistake_and_writes_nothing(folder_root, mistake):
    make, pattern = INIT_MISTAKES[mistake]
    for name in ("dataset.yaml", "splits.json"):
        (folder_root / name).unlink()
    make(folder_root)
    with pytest.raises(UserError, match=pattern):
        init_folder(folder_root)
    assert not list(folder_root.glob("*.*"))


def test_init_of_a_missing_folder(tmp_path):
    with pytest.raises(UserError, match=r"nowhere: .*labels/RATER"):
        init_folder(tmp_path / "nowhere")
