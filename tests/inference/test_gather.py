"""`gather`: predictions of other segmenters become results like those of `predict`."""

import json

import highdicom
import nibabel
import numpy as np
import pytest
import tifffile
from PIL import Image

from stochseg.inference import GatherOptions, gather
from stochseg.types import Samples
from tests.support.nnunet import softmax_field, write_fold
from tests.support.oblique import expected_affine, write_volume
from tests.support.predictions import read_result
from tests.support.scans import ct, write_nifti
from tests.support.volume_files import write_itk

SHAPE = (9, 7, 6)
AFFINE = np.array([[-0.8, 0, 0, 10], [0, 0.9, 0.1, -20], [0, -0.1, 2.5, 30], [0, 0, 0, 1.0]])


@pytest.fixture
def folds(tmp_path):
    """Five folds of two cases, and their images with two channels each."""
    soft = [{case: softmax_field(SHAPE, 10 * fold + i) for i, case in enumerate(("a", "b"))} for fold in range(5)]
    for fold, cases in enumerate(soft):
        write_fold(tmp_path / f"fold_{fold}", cases, AFFINE)
    for case in ("a", "b"):
        for channel in range(2):
            values = np.random.default_rng(channel).normal(size=SHAPE).astype(np.float32)
            (tmp_path / "imagesTs").mkdir(exist_ok=True)
            nibabel.save(nibabel.Nifti1Image(values, AFFINE), tmp_path / f"imagesTs/{case}_{channel:04d}.nii.gz")
    return soft


def write_raters(folder):
    for member in ("ana", "ben"):
        (folder / member).mkdir()
        Image.fromarray(np.eye(8, dtype=np.uint8)).save(folder / member / "a.png")


def read(folder, name):
    return np.asarray(nibabel.load(folder / f"{name}.nii.gz").dataobj)


def test_folds_of_nnunet_agree_with_a_computation_by_hand(folds, tmp_path):
    outcomes = gather([tmp_path / f"fold_{i}" for i in range(5)], tmp_path / "out", tmp_path / "imagesTs")
    assert [outcome.status for outcome in outcomes] == ["done", "done"]
    for case in ("a", "b"):
        folder = tmp_path / "out" / case
        members = np.stack([fold[case] for fold in folds])
        mean = members.astype(np.float16).astype(np.float64).mean(0)
        labels = members.argmax(1)
        assert (read(folder, "samples") == np.moveaxis(labels, 0, -1)).all()
        assert np.allclose(read(folder, "mean"), np.moveaxis(mean, 0, -1), atol=1e-6)
        assert (read(folder, "fused") == mean.argmax(0)).all()
        assert np.allclose(read(folder, "entropy"), -(mean * np.log(np.maximum(mean, 1e-12))).sum(0), atol=1e-4)
        assert np.allclose(nibabel.load(folder / "fused.nii.gz").affine, AFFINE)
        record = read_result(folder)
        voxel = abs(np.linalg.det(AFFINE))
        assert [c["name"] for c in record["classes"]] == ["background", "liver", "tumor"]
        fused = mean.argmax(0)
        for label, stated in enumerate(record["classes"]):
            assert np.allclose(stated["samples"], (labels == label).sum((1, 2, 3)) * voxel, rtol=1e-6)
            overlap = ((labels == label) & (fused == label)).sum((1, 2, 3))
            dice = 2 * overlap / ((labels == label).sum((1, 2, 3)) + (fused == label).sum())
            assert stated["confidence"] == pytest.approx(dice.mean(), abs=1e-5)
        assert record["confidence"] == min(c["confidence"] for c in record["classes"][1:])
        assert [m["name"] for m in record["members"]] == [f"fold_{i}" for i in range(5)]


def test_archives_that_the_reader_turned_are_turned_back(folds, tmp_path):
    cases = folds[0]
    write_fold(tmp_path / "turned", cases, AFFINE, turned=True)
    write_fold(tmp_path / "plain", cases, AFFINE)
    gather([tmp_path / "turned", tmp_path / "plain"], tmp_path / "out")
    expected = cases["a"].astype(np.float16).astype(np.float32)
    assert np.allclose(read(tmp_path / "out/a", "mean"), np.moveaxis(expected, 0, -1), atol=1e-6)


@pytest.mark.parametrize(("reader", "turned"), [("NibabelIOWithReorient", True), ("SimpleITKIO", False), ("", False)])
def test_plans_tell_the_order_of_an_archive_next_to_an_empty_label_map(tmp_path, reader, turned):
    soft = softmax_field(SHAPE, 0, 2)
    soft[1] *= 0.45
    soft[0] = 1 - soft[1]
    for member in ("one", "two"):
        write_fold(tmp_path / member, {"a": soft}, AFFINE, turned=turned)
        (tmp_path / member / "dataset.json").unlink()
        if reader:
            (tmp_path / member / "plans.json").write_text(json.dumps({"image_reader_writer": reader}))
    gather([tmp_path / "one", tmp_path / "two"], tmp_path / "out")
    assert not read(tmp_path / "out/a", "samples").any()
    assert np.allclose(read(tmp_path / "out/a", "mean"), np.moveaxis(soft, 0, -1), atol=1e-3)


def test_an_archive_of_another_model_is_refused(folds, tmp_path):
    np.savez(tmp_path / "fold_0/a.npz", probabilities=np.roll(folds[0]["a"], 1, 0).transpose(0, 3, 2, 1))
    outcomes = gather([tmp_path / "fold_0", tmp_path / "fold_1"], tmp_path / "out")
    assert [outcome.status for outcome in outcomes] == ["failed", "done"]
    assert "agree with the label map" in outcomes[0].problem


def test_members_may_order_their_voxels_differently(tmp_path):
    scan = (ct() > -200).astype(np.uint8)
    write_nifti(tmp_path / "ct.nii.gz", ct())
    write_nifti(tmp_path / "one.nii.gz", scan)
    write_nifti(tmp_path / "two.nii.gz", scan, order=(2, 0, 1), flipped=(0, 2))
    write_itk(tmp_path / "three.nrrd", scan.transpose(2, 1, 0), expected_affine())
    files = [tmp_path / name for name in ("one.nii.gz", "two.nii.gz", "three.nrrd")]
    (outcome,) = gather(files, tmp_path / "out", tmp_path / "ct.nii.gz")
    assert outcome.status == "done", outcome.problem
    samples = read(tmp_path / "out/ct", "samples")
    assert samples.any()
    assert (samples == scan.transpose(2, 1, 0)[..., None]).all()


def test_a_dicom_series_gets_a_segmentation(tmp_path):
    scan = ct(size=(4, 20, 18), center=(2, 9, 9))
    write_volume(tmp_path / "series", scan)
    for i, level in enumerate((-200, -100, 0)):
        write_nifti(tmp_path / f"{i}.nii.gz", (scan > level).astype(np.uint8))
    files = [tmp_path / f"{i}.nii.gz" for i in range(3)]
    (outcome,) = gather(files, tmp_path / "out", tmp_path / "series", GatherOptions(classes=("background", "nodule")))
    assert outcome.status == "done", outcome.problem
    found = highdicom.seg.segread(outcome.folder / "fused.dcm")
    assert found.get_segment_description(1).segment_label == "nodule"
    assert int(found.pixel_array.sum()) == int((scan > -100).sum())


def test_pictures_of_raters_in_a_folder_of_folders(tmp_path):
    maps = np.random.default_rng(0).integers(0, 2, (3, 8, 9)).astype(np.uint8)
    for name, each in zip(("ana", "ben", "chi"), maps, strict=True):
        (tmp_path / "labels" / name).mkdir(parents=True)
        Image.fromarray(each * 255).save(tmp_path / "labels" / name / "x.png")
    (tmp_path / "images").mkdir()
    Image.fromarray(maps[0] * 100).save(tmp_path / "images/x.png")
    (outcome,) = gather(tmp_path / "labels", tmp_path / "out", [tmp_path / "images"])
    assert (tifffile.imread(outcome.folder / "samples.tif") == maps).all()
    assert np.allclose(tifffile.imread(outcome.folder / "mean.tif"), Samples.from_labels(maps).mean[0], atol=1e-6)


def test_a_number_at_the_end_of_a_name_is_no_channel_of_nnunet(tmp_path):
    maps = np.random.default_rng(0).integers(0, 2, (3, 2, 8, 9)).astype(np.uint8)
    for i, members in enumerate(maps):
        for name, each in zip(("images", "labels/ana", "labels/ben"), (members[0] + i, *members), strict=True):
            (tmp_path / name).mkdir(parents=True, exist_ok=True)
            Image.fromarray(each).save(tmp_path / name / f"img_{i:04d}.png")
    outcomes = gather(tmp_path / "labels", tmp_path / "out", tmp_path / "images")
    assert [outcome.problem for outcome in outcomes] == [""] * 3
    for i, outcome in enumerate(outcomes):
        assert outcome.folder.name == f"img_{i:04d}"
        assert read_result(outcome.folder)["inputs"][0]["file"].endswith(f"images/img_{i:04d}.png")
    one = "img_0001.png"
    files = [tmp_path / f"labels/{name}/{one}" for name in ("ana", "ben")]
    (outcome,) = gather(files, tmp_path / "x", tmp_path / "images" / one)
    assert (outcome.status, outcome.folder.name) == ("done", "img_0001")


def test_a_folder_with_two_series_is_not_the_image_of_a_case(tmp_path):
    scan = ct(size=(4, 20, 18), center=(2, 9, 9))
    for series in ("p1/ct", "p1/pet"):
        write_volume(tmp_path / "images" / series, scan)
    for file in (tmp_path / "images/p1").glob("*/*"):
        file.rename(tmp_path / f"images/p1/{file.parent.name}-{file.name}")
    for member in ("ana", "ben"):
        (tmp_path / member).mkdir()
        write_nifti(tmp_path / member / "p1.nii.gz", (scan > 0).astype(np.uint8))
    outcomes = gather([tmp_path / "ana", tmp_path / "ben"], tmp_path / "out", tmp_path / "images")
    assert "expected one DICOM series in a folder named p1, got 2" in outcomes[0].problem


def test_a_folder_per_case(tmp_path):
    maps = np.random.default_rng(0).integers(0, 3, (4, 8, 9)).astype(np.uint8)
    (tmp_path / "mc/x").mkdir(parents=True)
    for i, each in enumerate(maps):
        np.save(tmp_path / f"mc/x/{i}.npy", each)
    (outcome,) = gather(tmp_path / "mc/x", tmp_path / "out", options=GatherOptions(layout="cases"))
    assert outcome.folder == tmp_path / "out/x"
    assert (tifffile.imread(outcome.folder / "samples.tif") == maps).all()


def test_one_soft_map_is_sampled_with_its_margins(tmp_path):
    soft = softmax_field((6, 9, 8), 0, classes=2)[1].astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(soft, AFFINE), tmp_path / "p.nii.gz")
    (outcome,) = gather(tmp_path / "p.nii.gz", tmp_path / "out", options=GatherOptions(n=40))
    samples, mean = read(outcome.folder, "samples"), read(outcome.folder, "mean")
    assert np.allclose(mean[..., 1], soft, atol=1e-6)
    assert np.abs(samples.mean(-1) - soft).max() <= 1 / 40 + 1e-6
    other = gather(tmp_path / "p.nii.gz", tmp_path / "far", options=GatherOptions(n=40, coherence=2.0))[0]
    assert (read(other.folder, "samples") != samples).any()


def test_probabilities_slightly_outside_0_and_1_have_an_entropy(tmp_path):
    np.save(tmp_path / "p.npy", np.stack([np.full((8, 8), 1.004), np.full((8, 8), -0.004)], -1))
    (outcome,) = gather(tmp_path / "p.npy", tmp_path / "out")
    assert (tifffile.imread(outcome.folder / "entropy.tif") == 0).all()


def test_eight_bit_soft_maps_are_probabilities_when_said(tmp_path):
    soft = (np.arange(64).reshape(8, 8) * 4).astype(np.uint8)
    Image.fromarray(soft).save(tmp_path / "p.png")
    (outcome,) = gather(tmp_path / "p.png", tmp_path / "out", options=GatherOptions(kind="probabilities", n=4))
    assert np.allclose(tifffile.imread(outcome.folder / "mean.tif")[1], soft / 255, atol=1e-6)


def test_the_same_call_keeps_results_and_another_is_refused(folds, tmp_path):
    two = [tmp_path / "fold_0", tmp_path / "fold_1"]
    gather(two, tmp_path / "out")
    assert [o.status for o in gather(two, tmp_path / "out")] == ["kept", "kept"]
    other = gather([*two, tmp_path / "fold_2"], tmp_path / "out")
    assert [o.status for o in other] == ["failed", "failed"]
    assert "--overwrite" in other[0].problem
    assert [o.status for o in gather([*two, tmp_path / "fold_2"], tmp_path / "out", overwrite=True)] == ["done"] * 2


def test_results_of_other_names_of_classes_are_not_kept(tmp_path):
    write_raters(tmp_path)

    def status(name):
        for member in ("ana", "ben"):
            (tmp_path / member / "dataset.json").write_text(json.dumps({"labels": {"background": 0, name: 1}}))
        (outcome,) = gather([tmp_path / "ana", tmp_path / "ben"], tmp_path / "out")
        return outcome.status

    assert [status(name) for name in ("liver", "liver", "spleen")] == ["done", "kept", "failed"]


def test_results_between_the_folders_of_members_are_no_members(tmp_path):
    write_raters(tmp_path)
    assert [[o.status for o in gather(tmp_path, tmp_path)] for _ in range(2)] == [["done"], ["kept"]]


@pytest.mark.parametrize("classes", ["nodule", "nodule,nodule"])
def test_classes_without_names_of_their_own_are_refused(tmp_path, run, classes):
    write_raters(tmp_path)
    code, _, messages = run("gather", tmp_path, "--out", tmp_path / "out", "--classes", classes)
    assert code == 2
    assert "such as background,nodule" in " ".join(messages.split())


def test_problems_of_a_case_leave_the_others(folds, tmp_path):
    (tmp_path / "fold_1/a.nii.gz").unlink()
    (tmp_path / "fold_1/a.npz").unlink()
    nibabel.save(nibabel.Nifti1Image(np.zeros(SHAPE, np.uint8), np.eye(4)), tmp_path / "fold_2/b.nii.gz")
    first, second = gather([tmp_path / f"fold_{i}" for i in range(3)], tmp_path / "out", tmp_path / "imagesTs")
    assert first.status == second.status == "failed"
    assert "no prediction in fold_1" in first.problem
    assert "its grid is" in second.problem
    assert not list((tmp_path / "out").glob("*/result.json"))


@pytest.mark.parametrize(
    ("values", "options", "match"),
    [
        ([np.full((4, 4), 3, np.uint8)] * 2, {}, "has label 3, but the labels 1, 2 occur in no prediction"),
        ([np.full((4, 4), 10**9)] * 2, {}, "expected labels from 0 to 65534, got 1000000000 to 1000000000"),
        ([np.full((4, 4), np.inf)] * 2, {}, "expected labels from 0 to 65534, got inf"),
        ([np.full((4, 4), np.nan)] * 2, {}, "got NaN"),
        ([np.zeros((4, 4, 3), np.uint8)] * 2, {}, "got 3 values per pixel"),
        ([np.eye(4, dtype=np.uint8)], {"kind": "probabilities"}, "integers up to 255, got zeros and ones"),
        ([np.full((4, 4), 200, np.int16)] * 2, {"kind": "probabilities"}, "unsigned integers of 8 or 16 bits"),
        ([np.full((4, 4), 3, np.uint8)] * 2, {"classes": ("a", "b")}, "expected labels of 2 classes"),
        ([np.zeros((4, 4))], {}, "is read as labels without --kind probabilities"),
        ([np.full((4, 4), 1.5)] * 2, {}, "apply a sigmoid"),
        ([np.full((3, 4, 4), 1 / 3), np.full((2, 4, 4), 1 / 2)], {}, "expected probabilities of 3 classes"),
        ([np.zeros((4, 4), np.uint8), np.zeros((5, 4), np.uint8)], {}, "expected the size 4×4"),
        ([np.array([["x"]], object)] * 2, {}, "cannot be read"),
    ],
)
def test_wrong_maps_are_refused(tmp_path, run, values, options, match):
    files = []
    for i, each in enumerate(values):
        files.append(tmp_path / f"{i}.npy")
        np.save(files[-1], each, allow_pickle=True)
    Image.fromarray(np.zeros((4, 4), np.uint8)).save(tmp_path / "image.png")
    names = ["--classes", ",".join(options["classes"])] if "classes" in options else []
    names += ["--kind", options["kind"]] if "kind" in options else []
    code, _, messages = run("gather", *files, "--images", tmp_path / "image.png", "--out", tmp_path / "out", *names)
    assert code in (1, 2)
    assert match in " ".join(messages.split())


def test_members_of_different_label_sets_are_refused(folds, tmp_path, run):
    file = tmp_path / "fold_1/dataset.json"
    description = json.loads(file.read_text())
    file.write_text(json.dumps({**description, "labels": {"background": 0, "spleen": 1, "kidney": 2}}))
    code, _, messages = run("gather", tmp_path / "fold_0", tmp_path / "fold_1", "--out", tmp_path / "out")
    assert code == 2
    assert "different label sets" in messages
    assert not (tmp_path / "out").exists()


def test_the_report_shows_gathered_results(folds, tmp_path, run):
    for i in range(3):
        (tmp_path / f"fold_{i}/b.nii.gz").unlink()
        (tmp_path / f"fold_{i}/b.npz").unlink()
    members = [tmp_path / f"fold_{i}" for i in range(3)]
    assert run("gather", *members, "--images", tmp_path / "imagesTs", "--out", tmp_path / "out")[0] == 0
    assert run("report", tmp_path / "out")[0] == 0
    page = (tmp_path / "out/report.html").read_text()
    assert "3 members: fold_0, fold_1, fold_2" in page
    assert "a confidence per structure: liver" in page
