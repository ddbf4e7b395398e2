"""Folder data sets: reading, import, and the first description that `init_folder` writes."""

import gzip
import io
import json
import os
import pickle
import shutil
import zipfile

import nibabel
import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from stochseg.data import Folder, open_dataset
from stochseg.data.folder import FolderConfig, find_strays, init_folder, read_splits
from stochseg.data.folder.init import guess_classes, split_by_group
from stochseg.data.importers.plans import plan_import
from stochseg.data.store import Store, write_store
from stochseg.errors import UserError
from stochseg.types import Batch
from tests.support.images import dicom_bytes, nifti_bytes


def values(file) -> torch.Tensor:
    return torch.from_numpy(np.array(Image.open(file)).astype(np.int64))


def test_examples_equal_the_files(folder_root):
    example = Folder("train", root=str(folder_root))[0]
    assert example.id == "a"
    torch.testing.assert_close(example.image[0], (values(folder_root / "images/a.png") - 127.5) / 127.5)
    raters = [values(folder_root / f"labels/{rater}/a.png") for rater in ("anna", "ben")]
    assert torch.equal(example.raters, torch.stack(raters))


def test_rater_may_skip_an_image(folder_root):
    data = Folder("train", root=str(folder_root))
    assert [len(data[i].raters) for i in range(2)] == [2, 1]
    batch = Batch.collate([data[0], data[1]], data.info.ignore)
    assert batch.rater_count.tolist() == [2, 1]
    for image, raters in enumerate(batch.rater_count.tolist()):
        assert not batch.mask[image, :raters, 0, :3].any()
        assert batch.mask[image, :raters, 1:].all()


def test_labels_of_palette_files_are_their_indices(folder_root):
    file = folder_root / "labels/anna/a.png"
    picture = Image.fromarray(np.array(Image.open(file)), mode="P")
    picture.putpalette([value // 2 for value in range(256) for _ in "rgb"])
    before = Folder("train", root=str(folder_root))[0].raters
    picture.save(file)
    assert Image.open(file).mode == "P"
    assert torch.equal(Folder("train", root=str(folder_root))[0].raters, before)


def color(root):
    info = yaml.safe_load((root / "dataset.yaml").read_text())
    (root / "dataset.yaml").write_text(yaml.safe_dump({**info, "image_channels": 3}))


def test_images_of_palette_files_are_their_colors(folder_root):
    color(folder_root)
    indices = np.random.default_rng(0).integers(0, 2, (8, 8), dtype=np.uint8)
    picture = Image.fromarray(indices, mode="P")
    picture.putpalette([17, 18, 19, 200, 0, 0])
    picture.save(folder_root / "images/a.png")
    example = Folder("train", root=str(folder_root))[0]
    expected = np.array([[17, 18, 19], [200, 0, 0]], np.float32)[indices].transpose(2, 0, 1)
    torch.testing.assert_close(example.image, (torch.from_numpy(expected) - 127.5) / 127.5)


def test_color_and_sixteen_bit_images(folder_root):
    deep = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    Image.fromarray(deep).save(folder_root / "images/a.png")
    image = Folder("train", root=str(folder_root))[0].image
    torch.testing.assert_close(image[0], (torch.from_numpy(deep.astype(np.float32)) - 127.5) / 127.5)
    color(folder_root)
    rgb = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(rgb).save(folder_root / "images/a.png")
    image = Folder("train", root=str(folder_root))[0].image
    torch.testing.assert_close(image, (torch.from_numpy(rgb).permute(2, 0, 1).float() - 127.5) / 127.5)


def test_other_split_names_are_allowed(folder_root):
    (folder_root / "splits.json").write_text(json.dumps({"fold-1": ["a", "b"], "fold-2": ["c"]}))
    assert len(open_dataset("folder", "fold-1", root=str(folder_root))) == 2


def describe(root, **changes):
    file = root / "dataset.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **changes}))


def replace(root, name: str, content: bytes):
    """Replace a file by one of another extension; `name` is its path below the root."""
    path = root / name
    for old in path.parent.glob(f"{path.name.split('.')[0]}.*"):
        old.unlink()
    path.write_bytes(content)


def nifti(array: np.ndarray) -> bytes:
    """A slice "h w" as programs write it, compressed: x, the width, is the first axis."""
    return gzip.compress(nifti_bytes(array.T, (0.6, 0.7)))


@pytest.mark.parametrize("form", ["nii.gz", "dcm"])
def test_medical_images_state_their_spacing(folder_root, form):
    units = np.random.default_rng(1).integers(-1000, 1000, (8, 8)).astype(np.int16)
    stored = (units.astype(int) + 1024).astype(np.uint16)
    tags = {"RescaleSlope": 1, "RescaleIntercept": -1024, "PixelSpacing": [0.7, 0.6]}
    content = nifti(units) if form == "nii.gz" else dicom_bytes(stored, **tags)
    replace(folder_root, f"images/a.{form}", content)
    before = values(folder_root / "labels/anna/a.png")
    replace(folder_root, "labels/anna/a.nii.gz", nifti(before.numpy().astype(np.float64)))
    example = Folder("train", root=str(folder_root))[0]
    torch.testing.assert_close(example.image[0], (torch.from_numpy(units.astype(np.float32)) - 127.5) / 127.5)
    assert example.spacing == pytest.approx((0.7, 0.6))
    assert torch.equal(example.raters[0], before)
    assert example.rater_names == ("anna", "ben")


def test_jpeg_and_tiff_images(folder_root):
    deep = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    file = io.BytesIO()
    Image.fromarray(deep).save(file, "TIFF", compression="tiff_lzw")
    replace(folder_root, "images/a.tiff", file.getvalue())
    file = io.BytesIO()
    Image.new("L", (8, 8), 77).save(file, "JPEG")
    replace(folder_root, "images/b.JPG", file.getvalue())
    data = Folder("train", root=str(folder_root))
    torch.testing.assert_close(data[0].image[0] * 127.5 + 127.5, torch.from_numpy(deep.astype(np.float32)))
    torch.testing.assert_close(data[1].image, torch.full((1, 8, 8), (77 - 127.5) / 127.5))


def test_colors_are_mapped_through_the_palette(folder_root):
    """`values` gives a color outside the palette a class, or makes it void."""
    before = Folder("train", root=str(folder_root))[0].raters
    table = np.array([[0, 0, 0], [255, 128, 0], *[[0, 0, 0]] * 253, [10, 20, 30]], np.uint8)
    Image.fromarray(table[before[0].numpy()]).save(folder_root / "labels/anna/a.png")
    opaque = np.dstack([table[before[1].numpy()], np.full((8, 8), 255, np.uint8)])
    Image.fromarray(opaque).save(folder_root / "labels/ben/a.png")
    describe(folder_root, palette=["#000000", "#FF8000"], values={"#0a141e": 255})
    assert torch.equal(Folder("train", root=str(folder_root))[0].raters, before)


def test_values_are_mapped(folder_root):
    for file in (folder_root / "labels").rglob("*.png"):
        Image.fromarray(np.array([0, 128, 255], np.uint8)[np.arange(64).reshape(8, 8) % 3]).save(file)
    describe(folder_root, num_classes=3, ignore=None, values={0: 2, 128: 0, 255: 1})
    labels = Folder("val", root=str(folder_root))[0].raters
    assert labels[0].flatten()[:4].tolist() == [2, 0, 1, 2]


def test_old_keys_are_read(folder_root):
    describe(folder_root, licence="CC0", normalisation={"mean": [10.0], "std": [5.0]})
    data = Folder("val", root=str(folder_root))
    assert data.info.normalization.mean == (10.0,)
    assert plan_import("folder", folder_root).provenance.license == "CC0"


def test_group_is_found_in_the_name(folder_root):
    for old, new in {"a": "p1_s1", "b": "p1_s2", "c": "p2_s1", "d": "p3_s1"}.items():
        for file in folder_root.rglob(f"{old}.png"):
            file.rename(file.with_name(f"{new}.png"))
    (folder_root / "splits.json").write_text(json.dumps({"train": ["p1_s1", "p1_s2"], "val": ["p2_s1"], "test": []}))
    describe(folder_root, group="^(p[0-9]+)_")
    data = Folder("train", root=str(folder_root))
    assert [data[i].group for i in range(2)] == ["p1", "p1"]
    assert len(Folder("test", root=str(folder_root))) == 0
    assert read_splits(folder_root)["val"] == ["p2_s1"]


def packed(root):
    with zipfile.ZipFile(root.parent / "slices.zip", "w") as archive:
        for file in root.rglob("*.*"):
            archive.write(file, file.relative_to(root.parent).as_posix())
    return root.parent / "slices.zip"


@pytest.mark.parametrize("form", ["folder", "zip"])
def test_import_equals_the_folder(folder_root, tmp_path, form):
    describe(folder_root, license="CC0", citation="nobody")
    units = np.random.default_rng(1).integers(-1000, 1000, (8, 8)).astype(np.int16)
    replace(folder_root, "images/a.nii.gz", nifti(units))
    source = packed(folder_root) if form == "zip" else folder_root
    out = write_store(plan_import("folder", source), tmp_path / "slices.h5")
    for split in ("train", "val", "test"):
        direct, stored = Folder(split, root=str(folder_root)), Store(split, path=str(out))
        assert len(direct) == len(stored)
        assert direct.info == stored.info
        for i in range(len(direct)):
            a, b = direct[i], stored[i]
            assert (a.id, a.group, a.spacing, a.rater_names) == (b.id, b.group, b.spacing, b.rater_names)
            assert torch.equal(a.image, b.image)
            assert torch.equal(a.raters, b.raters)
    assert (stored.provenance.license, stored.provenance.citation) == ("CC0", "nobody")


def test_folder_can_be_pickled(folder_root):
    data = Folder("train", root=str(folder_root))
    assert torch.equal(pickle.loads(pickle.dumps(data))[1].raters, data[1].raters)


# ---------------------------------------------------------------------- init


@pytest.fixture
def plain(folder_root):
    """The folder without dataset.yaml and splits.json."""
    for name in ("dataset.yaml", "splits.json"):
        (folder_root / name).unlink()
    return folder_root


def relabel(root, table):
    for i, file in enumerate(sorted((root / "labels").rglob("*.png"))):
        Image.fromarray(np.array(table, np.uint8)[(np.arange(64).reshape(8, 8) + i) % len(table)]).save(file)


def test_init_writes_a_readable_description(plain):
    config = init_folder(plain)
    assert (config.num_classes, config.ignore, config.values, config.image_channels) == (2, 255, {}, 1)
    assert (config.normalization.mean, config.normalization.std) == ((127.5,), (127.5,))
    assert config == FolderConfig.parse(yaml.safe_load((plain / "dataset.yaml").read_text()))
    splits = read_splits(plain)
    assert sorted(id for ids in splits.values() for id in ids) == ["a", "b", "c", "d"]
    for split in ("train", "val", "test"):
        data = Folder(split, root=str(plain))
        assert len(data) >= 1
        assert data[0].raters.max() <= 255
    assert sum(line.startswith("#") for line in (plain / "dataset.yaml").read_text().splitlines()) > 10


def test_init_takes_all_that_is_known_of_the_data(plain):
    relabel(plain, [0, 1, 2])
    known = {
        "class_names": ["background", "disc", "cup"],
        "codes": ["", "", "SCT:27925004:Nodule"],
        "measures": ["vertical cup/disc ratio"],
        "orientation": "upright",
    }
    info = init_folder(plain, known).info
    assert {key: getattr(info, key) for key in known} == {
        key: tuple(value) if isinstance(value, list) else value for key, value in known.items()
    }


@pytest.mark.parametrize("name", ["vertical cup/disk ratio", "cup/disc", "vertical cup/cup ratio"])
def test_init_refuses_ratios_of_unknown_classes(plain, name):
    relabel(plain, [0, 1, 2])
    with pytest.raises(UserError, match=f"background, disc, cup, got '{name}'"):
        init_folder(plain, {"class_names": ["background", "disc", "cup"], "measures": [name]})
    assert not (plain / "dataset.yaml").exists()


def test_init_measures_other_intensities(plain):
    rng = np.random.default_rng(2)
    pictures = []
    for name in "abcd":
        pictures.append(rng.integers(0, 200, (8, 8, 3), dtype=np.uint8) + np.array([0, 20, 50], np.uint8))
        Image.fromarray(pictures[-1]).save(plain / f"images/{name}.png")
    config = init_folder(plain)
    assert config.image_channels == 3
    pixels = np.concatenate([p.reshape(-1, 3) for p in pictures])
    assert config.normalization.mean == pytest.approx(pixels.mean(0), rel=1e-5)
    assert config.normalization.std == pytest.approx(pixels.std(0), rel=1e-5)


def test_init_maps_masks_of_0_and_255(plain):
    relabel(plain, [0, 255])
    config = init_folder(plain)
    assert (config.num_classes, config.ignore, config.values) == (2, None, {0: 0, 255: 1})
    assert set(Folder("train", root=str(plain))[0].raters.unique().tolist()) == {0, 1}


def test_init_uses_colors_as_the_palette(plain):
    for file in (plain / "labels").rglob("*.png"):
        Image.fromarray(np.array([[255, 0, 0], [0, 0, 0]], np.uint8)[np.arange(64).reshape(8, 8) % 2]).save(file)
    config = init_folder(plain)
    assert config.palette == ("#000000", "#ff0000")
    assert Folder("train", root=str(plain))[0].raters[0, 0, :2].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({0}, (2, None, {})),
        ({0, 1, 2}, (3, None, {})),
        ({1}, (2, None, {})),
        ({0, 1, 2, 255}, (3, 255, {})),
        ({255}, (2, None, {0: 0, 255: 1})),
        ({0, 128, 255}, (3, None, {0: 0, 128: 1, 255: 2})),
        ({0, 100}, (2, None, {0: 0, 100: 1})),
        ({-1, 0, 1}, (2, 255, {0: 0, 1: 1, -1: 255})),
    ],
)
def test_guess_classes(found, expected):
    assert guess_classes(found) == expected


def test_init_never_overwrites_and_splits_by_group(plain):
    init_folder(plain)
    with pytest.raises(UserError, match=r"dataset\.yaml and splits\.json exist"):
        init_folder(plain)
    describe(plain, group="^([ab]|.)", class_names=["nothing", "thing"])
    kept = (plain / "dataset.yaml").read_text()
    (plain / "splits.json").unlink()
    assert init_folder(plain).class_names == ("nothing", "thing")
    assert (plain / "dataset.yaml").read_text() == kept
    shutil.copy(plain / "splits.json", plain / "kept.json")
    (plain / "dataset.yaml").unlink()
    init_folder(plain)
    assert (plain / "splits.json").read_text() == (plain / "kept.json").read_text()


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        ({"class_names": ["background", "cup", "cup"]}, "class_names lists a name twice.*cup"),
        ({"palette": ["#000000", "#ff0000", "#FF0000"]}, "palette lists a color twice"),
    ],
)
def test_names_and_colors_that_stand_for_two_classes_are_refused(keys, match):
    with pytest.raises(UserError, match=match):
        FolderConfig.parse({"num_classes": 3, "image_channels": 1, **keys}, where="dataset.yaml")


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 400])
def test_splits_keep_patients_together_and_none_empty(count):
    config = FolderConfig(num_classes=2, image_channels=1, group="^(.+)-")
    ids = [f"patient{i}-{slice_}" for i in range(count) for slice_ in range(2)]
    splits = split_by_group(ids, config)
    assert splits == split_by_group(reversed(ids), config)
    assert sorted(id for part in splits.values() for id in part) == sorted(ids)
    groups = [{config.group_of(id) for id in part} for part in splits.values()]
    assert sum(len(g) for g in groups) == count == len(set.union(*groups))
    assert [bool(g) for g in groups] == [True, count > 1, count > 2]
    if count == 400:
        assert [len(g) / count for g in groups] == pytest.approx([0.7, 0.15, 0.15], abs=0.05)


def test_unused_files_are_reported(folder_root):
    """Otherwise misnamed label maps, and images added later, would be ignored silently."""
    assert find_strays(folder_root) == []
    rater = sorted((folder_root / "labels").iterdir())[0]
    file = sorted(rater.iterdir())[0]
    file.rename(file.with_name(f"wrong_{file.name}"))
    splits = json.loads((folder_root / "splits.json").read_text())
    left = splits["val"].pop()
    (folder_root / "splits.json").write_text(json.dumps(splits))
    lost, unused = find_strays(folder_root)
    assert f"1 label map(s) of rater {rater.name!r}" in lost
    assert repr(left) in unused
    (folder_root / "splits.json").write_text("{}")
    with pytest.raises(UserError, match="splits.json: expected"):
        find_strays(folder_root)


def test_links_to_folders_are_followed(folder_root, tmp_path):
    (folder_root / "images").rename(tmp_path / "elsewhere")
    (folder_root / "images").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/loop").symlink_to(tmp_path / "elsewhere")
    assert len(Folder("train", root=str(folder_root))) > 0


def test_fingerprint_depends_on_the_files(folder_root):
    before = plan_import("folder", folder_root).fingerprint()
    assert plan_import("folder", folder_root).fingerprint() == before
    file = next((folder_root / "labels").rglob("*.png"))
    os.utime(file, ns=(0, 0))
    assert plan_import("folder", folder_root).fingerprint() != before


def test_nifti_slices_are_turned_by_their_affine(folder_root):
    """Whatever the order of the voxels in image and label map, as long as both are in the same place."""
    shown, label = np.random.default_rng(1).integers(0, 99, (2, 6, 9)).astype(np.int16)
    label %= 2
    (folder_root / "labels/ben/a.png").unlink()

    def write(name, pixels, flips):
        image = nibabel.Nifti1Image(pixels.T[..., None], np.diag([-0.5, -0.7, 2.0, 1.0]))
        turned = image.as_reoriented(np.array([(2, flips[0]), (0, flips[1]), (1, flips[2])], float))
        replace(folder_root, name, turned.to_bytes())

    for flips in ((1, 1, 1), (-1, 1, -1)):
        write("images/a.nii", shown, flips)
        write("labels/anna/a.nii", label, (1, -1, 1))
        example = Folder("train", root=str(folder_root))[0]
        torch.testing.assert_close(example.image[0], (torch.from_numpy(shown).float() - 127.5) / 127.5)
        assert (example.raters[0].numpy() == label).all()
        assert example.spacing == pytest.approx((0.7, 0.5))
    replace(folder_root, "labels/anna/a.nii", nibabel.Nifti1Image(label.T[..., None], np.eye(4)).to_bytes())
    with pytest.raises(UserError, match=r"labels/anna/a\.nii: its affine .* save it with the affine of the image"):
        Folder("train", root=str(folder_root))[0]
