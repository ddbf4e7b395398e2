"""Data sets of nnU-Net in, and ours out and back."""

import json

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

from stochseg.data import Store, plan_import, write_store
from stochseg.data.consensus import staple
from stochseg.data.example import write_example_folder
from stochseg.data.exporters import export_nnunet, open_records
from stochseg.data.folder import init_folder
from stochseg.data.importers.plans import Item, Plan, Provenance, Record
from stochseg.errors import UserError
from stochseg.types import DatasetInfo, Normalization

AFFINE = np.diag([-0.7, 0.8, 2.5, 1.0])


def assert_same(before, after):
    """Two data sets on disk have the same examples and facts."""
    one, two = open_records(before), open_records(after)
    assert one.info == two.info
    assert len(one) == len(two)
    others = {record.id: record for record in two}
    for record in one:
        other = others[record.id]
        assert (record.group, record.split, record.rater_names) == (other.group, other.split, other.rater_names)
        assert (record.spacing is None) == (other.spacing is None)
        assert record.spacing is None or np.allclose(record.spacing, other.spacing)
        a, b = record.example(one.info), other.example(two.info)
        assert torch.equal(a.image, b.image)
        assert torch.equal(a.raters, b.raters)


def round_trip(source, tmp_path):
    folder = export_nnunet(open_records(source), tmp_path / "raw/Dataset123_Mine")
    assert_same(source, write_store(plan_import("nnunet", folder), tmp_path / "back.h5"))
    return folder


def test_pictures_of_several_raters_come_back(tmp_path):
    root = write_example_folder(tmp_path / "mine", count=9, size=16)
    init_folder(root)
    folder = round_trip(root, tmp_path)
    description = json.loads((folder / "dataset.json").read_text())
    assert description["file_ending"] == ".png"
    assert description["labels"]["background"] == 0
    cases = len(list((folder / "labelsTr").iterdir()))
    assert cases == description["numTraining"] == len(list((folder / "imagesTr").iterdir()))
    (fold,) = json.loads((folder / "splits_final.json").read_text())
    assert len(fold["train"]) + len(fold["val"]) == cases


def random_store(tmp_path, info, size, dtype=np.float32, **facts):
    """A store of six cases with one to three raters."""
    rng = np.random.default_rng(0)

    def record(i):
        raters = rng.integers(0, info.num_classes, (1 + i % 3, *size)).astype(np.uint8)
        if info.ignore is not None:
            raters[0, 0] = info.ignore
        image = (rng.normal(size=(*size, info.image_channels)) * 100).astype(dtype)
        names = ("dr. a", "b/c", "d_e")[: len(raters)]
        return Record(f"patient {i}/x.y", f"g{i}", ("train", "val", "test")[i % 3], image, raters, names, **facts)

    records = [record(i) for i in range(6)]
    items = [Item(r.id, r.group, r.split, lambda r=r: r) for r in records]
    return write_store(Plan(info, Provenance(kind="t", source="t"), items, 3), tmp_path / "mine.h5")


def test_volumes_with_channels_void_and_odd_names_come_back(tmp_path):
    info = DatasetInfo(
        num_classes=3,
        image_channels=2,
        spatial_dims=3,
        class_names=("nothing", "background", "ignore"),
        ignore=255,
        normalization=Normalization(mean=(3.0, 4.0), std=(2.0, 1.0)),
    )
    store = random_store(tmp_path, info, (4, 6, 5), spacing=(0.5, 2.0, 0.7))  # thickest along the rows
    folder = round_trip(store, tmp_path)
    labels = json.loads((folder / "dataset.json").read_text())["labels"]
    assert list(labels.values()) == [0, 1, 2, 3]
    assert labels["background"] == 0
    assert labels["ignore"] == 3
    image = nibabel.load(next((folder / "imagesTr").glob("*_0001.nii.gz")))
    assert image.header.get_zooms() == pytest.approx((0.7, 2.0, 0.5))


def test_the_consensus_may_be_that_of_staple(tmp_path):
    info = DatasetInfo(num_classes=3, image_channels=1, ignore=255)
    store = random_store(tmp_path, info, (9, 8))
    folder = export_nnunet(open_records(store), tmp_path / "Dataset001_S", consensus="staple")
    for record in open_records(store):
        if len(record.raters) == 3:
            case = "patient_" + record.id[8] + "_x_y"
            part = "Ts" if record.split == "test" else "Tr"
            found = np.asarray(nibabel.load(folder / f"labels{part}/{case}.nii.gz").dataobj)[..., 0].T
            assert (found == staple(record.raters, 3, 255).labels).all()


def test_float_images_come_back(tmp_path):
    store = random_store(tmp_path, DatasetInfo(num_classes=2, image_channels=3), (7, 5), spacing=(0.5, 0.25))
    assert round_trip(store, tmp_path).joinpath("labelsTs").is_dir()


def write_foreign(root, shape=(6, 5, 4), raters=("",), labels=None):
    """A data set as nnU-Net's users write it, with two channels; returns the label maps "x y z" by rater and case."""
    rng = np.random.default_rng(1)
    maps = {}
    for case in ("liver_001", "liver_002", "liver_003"):
        for channel in range(2):
            (root / "imagesTr").mkdir(parents=True, exist_ok=True)
            values = rng.normal(100 * channel, 10, shape).astype(np.float32)
            nibabel.save(nibabel.Nifti1Image(values, AFFINE), root / f"imagesTr/{case}_{channel:04d}.nii.gz")
        for rater in raters:
            folder = root / f"labelsTr{'_' if rater else ''}{rater}"
            folder.mkdir(exist_ok=True)
            maps[rater, case] = rng.integers(0, 3, shape).astype(np.uint8)
            nibabel.save(nibabel.Nifti1Image(maps[rater, case], AFFINE), folder / f"{case}.nii.gz")
    description = {
        "channel_names": {"0": "CT", "1": "PET"},
        "labels": labels or {"background": 0, "liver": 1, "tumor": 2},
        "numTraining": 3,
        "file_ending": ".nii.gz",
    }
    (root / "dataset.json").write_text(json.dumps(description))
    return maps


def test_a_foreign_data_set_of_several_raters(tmp_path):
    maps = write_foreign(tmp_path / "Dataset001_L", raters=("ana", "ben"))
    plan = plan_import("nnunet", tmp_path / "Dataset001_L")
    assert plan.info.names == ("background", "liver", "tumor")
    assert (plan.info.image_channels, plan.info.spatial_dims, plan.max_raters) == (2, 3, 2)
    assert plan.info.normalization.mean[1] == pytest.approx(100, abs=3)
    assert {item.split for item in plan.items} == {"train", "val", "test"}
    record = plan.items[0].read()
    assert record.rater_names == ("ana", "ben")
    assert record.spacing == pytest.approx((2.5, 0.8, 0.7))
    for i, rater in enumerate(("ana", "ben")):  # rows run to the back: the second axis is reversed
        assert (record.raters[i] == maps[rater, record.id][:, ::-1].transpose(2, 1, 0)).all()


def test_one_data_set_per_rater(tmp_path):
    for rater in ("Dataset001_Ana", "Dataset002_Ben"):
        write_foreign(tmp_path / "raw" / rater)
    record = plan_import("nnunet", tmp_path / "raw").items[0].read()
    assert record.rater_names == ("Dataset001_Ana", "Dataset002_Ben")
    assert record.image.shape[-1] == 2


def test_one_rater_has_no_name(tmp_path):
    write_foreign(tmp_path / "d")
    assert plan_import("nnunet", tmp_path / "d").items[0].read().rater_names == ()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda root: (root / "dataset.json").unlink(), "expected dataset.json"),
        (lambda root: (root / "imagesTr/liver_002_0000.nii.gz").unlink(), "2 channel"),
        (lambda root: [f.unlink() for f in (root / "imagesTr").glob("liver_002*")], "no image"),
        (lambda root: (root / "dataset.json").write_text('{"labels": {"background": 0, "x": 2}}'), "without gaps"),
        (lambda root: (root / "dataset.json").write_text('{"labels": {"background": 0, "x": 1e400}}'), "whole numbers"),
        (lambda root: (root / "dataset.json").write_text('{"labels": {"background": 0, "x": 1.5}}'), "whole numbers"),
        (lambda root: (root / "dataset.json").write_text('{"labels": {"a": 0, "b": 1, "c": []}}'), "whole numbers"),
        (lambda root: (root / "dataset.json").write_text('{"labels": {"background": 0, "x": 1}}'), "channel"),
        (
            lambda root: nibabel.save(
                nibabel.Nifti1Image(np.zeros((6, 5, 4), np.uint8), np.eye(4)), root / "labelsTr/liver_001.nii.gz"
            ),
            "one grid",
        ),
        *(
            (
                lambda root, label=label: nibabel.save(
                    nibabel.Nifti1Image(np.full((6, 5, 4), label, np.int32), AFFINE), root / "labelsTr/liver_001.nii.gz"
                ),
                "numbers from 0 to 65535",
            )
            for label in (-1, 2**16)
        ),
    ],
)
def test_faults_are_named(tmp_path, change, match):
    write_foreign(tmp_path / "d")
    change(tmp_path / "d")
    with pytest.raises(UserError, match=match):
        [item.read() for item in plan_import("nnunet", tmp_path / "d").items]


def test_training_images_without_a_label_map_are_named(tmp_path, run):
    write_foreign(tmp_path / "d")
    (tmp_path / "d/labelsTr/liver_002.nii.gz").unlink()
    (tmp_path / "d/imagesTs").mkdir()
    (tmp_path / "d/imagesTs/liver_004_0000.nii.gz").touch()  # images of a test set have none
    code, out, messages = run("data", "import", "nnunet", tmp_path / "d", tmp_path / "d.h5")
    assert code == 0
    assert "train: 1 examples" in out
    assert "skipped 1 case(s) of imagesTr without a label map: liver_002" in messages
    write_foreign(tmp_path / "d")
    assert plan_import("nnunet", tmp_path / "d").provenance.note == ""


def test_commands_export_and_import(tmp_path, run):
    root = tmp_path / "mine"
    init_folder(write_example_folder(root, count=8, size=16))
    target = tmp_path / "Dataset007_Mine"
    assert run("data", "export", "nnunet", root, target)[0] == 0
    assert run("data", "import", "nnunet", target, tmp_path / "back.h5")[0] == 0
    assert len(Store("train", path=str(tmp_path / "back.h5"))) > 0
    assert run("data", "export", "nnunet", root, target)[0] == 2
    code, _, messages = run("data", "export", "nnunet", root, tmp_path / "mine-2")
    assert code == 2
    assert "Dataset123" in messages
    assert Image.open(next((target / "imagesTr").iterdir())).size == (16, 16)
