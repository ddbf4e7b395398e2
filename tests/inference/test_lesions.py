"""Lesions of scans: the same result for every form of a scan, depth by need, borders, and what is written."""

import json

import highdicom
import nibabel
import numpy as np
import pytest

from stochseg.errors import UserError
from stochseg.inference import Lesion, PredictOptions, predict, predict_lesions
from stochseg.inference.sources import read_stack
from stochseg.models import load
from tests.support.oblique import expected_affine, write_volume
from tests.support.predictions import read_result
from tests.support.scans import bright, ct, nodule, random_model, to_original, write_nifti

QUICK = PredictOptions(n=2)
ORDERS = [((2, 0, 1), (0, 2)), ((1, 2, 0), (1,))]
POINT = (12, 14, 5)  # x, y, z of the nodule of `ct`


def segment(model, scan, lesions, out, **options):
    """The result folder of one scan."""
    (outcome,) = predict_lesions(model, scan, lesions, out, QUICK, **options)
    assert outcome.status == "done", outcome.problem
    return outcome.folder


def in_scan(folder, name, order=(0, 1, 2), flipped=()) -> np.ndarray:
    """A map of a result as "s h w", whatever the order of its array."""
    array = np.flip(np.asarray(nibabel.load(folder / f"{name}.nii.gz").dataobj), flipped)
    return array.transpose(np.argsort(order)).transpose(2, 1, 0)


@pytest.mark.parametrize("dims", [2, 3])
def test_every_form_of_a_scan_gives_the_same_volume(tmp_path, dims):
    scan, model = ct(), random_model(dims)
    series = write_volume(tmp_path / "ct", scan)
    reference = segment(model, series, [Lesion("a", (POINT,))], tmp_path / "dicom")
    expected = in_scan(reference, "foreground")
    assert len(np.unique(expected)) > 100, "depends on the image"
    fused = in_scan(reference, "fused")
    volumes = read_result(reference)["lesions"][0]["classes"]
    mm = (expected_affine() @ [*POINT, 1])[:3]
    by_mm = segment(model, series, [Lesion("a", (tuple(mm * [-1, -1, 1]),))], tmp_path / "lps", mm=True)
    assert (in_scan(by_mm, "foreground") == expected).all()
    for i, (order, flipped) in enumerate(ORDERS):
        file = write_nifti(tmp_path / f"{i}.nii.gz", scan, order, flipped)
        shape = np.array(scan.shape[::-1])[list(order)]
        index = np.linalg.inv(to_original(shape, order, flipped)) @ [*POINT, 1]
        by_voxel = segment(model, file, [Lesion("a", (tuple(index[:3]),))], tmp_path / f"voxel{i}")
        in_mm = segment(model, file, [Lesion("a", (tuple(mm),))], tmp_path / f"mm{i}", mm=True)
        for folder in (by_voxel, in_mm):
            assert (in_scan(folder, "foreground", order, flipped) == expected).all()
            assert (in_scan(folder, "fused", order, flipped) == fused).all()
            for mine, theirs in zip(read_result(folder)["lesions"][0]["classes"], volumes, strict=True):
                assert mine["samples"] == pytest.approx(theirs["samples"], rel=1e-5)
        assert np.allclose(nibabel.load(by_voxel / "fused.nii.gz").affine, nibabel.load(file).affine)


def test_the_bundled_model_takes_a_ct_as_it_comes(tmp_path):
    """Its crop in Hounsfield units is the 8-bit slice that it was trained on; nothing else of the scan matters."""
    rng = np.random.default_rng(3)
    picture = rng.integers(0, 256, (128, 128)).astype(np.uint8)
    picture[0, :2] = 0, 255
    scan = rng.integers(-1000, 3000, (3, 150, 140)).astype(np.int16)
    scan[1, 10:138, 5:133] = picture.astype(np.int16) * 4 - 1000
    model = load("lidc")
    file = write_nifti(tmp_path / "ct.nii.gz", scan)
    folder = segment(model, file, [Lesion("a", ((5 + 64, 10 + 64, 1),))], tmp_path / "out")
    expected = model.sample(picture, 2)
    part = nibabel.load(folder / "lesions/a/samples.nii.gz")
    assert (np.asarray(part.dataobj)[:, :, 0].transpose(2, 1, 0) == expected.labels[0].numpy()).all()
    assert np.allclose(
        part.affine, expected_affine() @ np.array([[1, 0, 0, 5], [0, 1, 0, 10], [0, 0, 1, 1], [0, 0, 0, 1]])
    )
    assert np.allclose(in_scan(folder, "foreground")[1, 10:138, 5:133], expected.mean[0, 1].numpy(), atol=1e-6)
    lesion = read_result(folder)["lesions"][0]
    assert lesion["unit"] == "mm2"
    assert {each["name"]: each["unit"] for each in lesion["measures"]}["area of nodule"] == "mm²"
    (outcome,) = predict(model, [file], tmp_path / "whole", QUICK)
    assert outcome.status == "failed"
    assert "--at x,y,z" in outcome.problem
    assert not (tmp_path / "whole").exists()


def test_the_segmentation_lies_where_the_nodule_is(tmp_path):
    """`lidc` on the slices of a box in an oblique, anisotropic series; its center is not that of the scan."""
    size, center, radius = (7, 140, 150), (3, 60, 80), (2.5, 9.0, 7.0)
    scan, truth = ct(size, center, radius), nodule(size, center, radius)
    series = write_volume(tmp_path / "ct", scan)
    box = Lesion("upper lobe", ((70, 50, 1), (90, 70, 5)))
    folder = segment(load("lidc"), series, [box], tmp_path / "out")
    fused = in_scan(folder, "fused") > 0
    overlap = (fused & truth).sum() / (fused | truth).sum()
    assert overlap > 0.8
    seg = highdicom.seg.segread(folder / "lesions.dcm")
    (description,) = (seg.get_segment_description(number) for number in seg.segment_numbers)
    assert (description.segment_label, description.tracking_id) == ("upper lobe", "upper lobe")
    assert description.segmented_property_type.meaning == "nodule"
    volume = seg.get_volume(combine_segments=True)
    found = np.argwhere(volume.array > 0)
    ras = volume.map_indices_to_reference(found) * [-1, -1, 1]
    voxels = np.linalg.solve(expected_affine(), np.column_stack([ras, np.ones(len(ras))]).T)[:3].T.round().astype(int)
    assert {tuple(v) for v in voxels[:, ::-1]} == {tuple(v) for v in np.argwhere(fused)}
    lesion = read_result(folder)["lesions"][0]
    voxel = 2.5 * 0.7 * 1.3
    assert lesion["classes"][1]["fused"] == pytest.approx(fused.sum() * voxel, rel=1e-6)
    assert lesion["part"]["first_voxel"] == [16, 0, 1]
    assert lesion["part"]["last_voxel"] == [143, 123, 5]
    slice_by_slice, padded = lesion["notices"]
    assert "same noise" in slice_by_slice
    assert "beyond the border of the scan" in padded
    assert read_result(folder / "lesions/upper lobe")["coupling"] == "shared"


def test_a_tilted_gantry_does_not_make_a_lesion_larger(tmp_path):
    scan, affine = ct(), np.diag([-0.7, -1.3, 2.5, 1.0])
    affine[1, 2] = 1.5  # every slice is displaced
    file = write_nifti(tmp_path / "ct.nii.gz", scan, affine=affine)
    folder = segment(bright(3), file, [Lesion("a", (POINT,))], tmp_path / "out")
    lesion, voxels = read_result(folder)["lesions"][0], in_scan(folder, "fused").sum()
    assert read_result(folder)["image"]["spacing_mm"] == pytest.approx([2.5, 1.3, 0.7])
    assert lesion["classes"][1]["fused"] == pytest.approx(voxels * 0.7 * 1.3 * 2.5)
    measured = {each["name"]: each["mean"] for each in lesion["measures"]}
    assert measured["volume of nodule"] == pytest.approx(voxels * 0.7 * 1.3 * 2.5, abs=1e-3)


# --- depth ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("radius", "depths"), [(0.8, [4, 1]), (2.2, [4, 8, 5]), (9.2, [4, 8, 16, 32, 19])])
def test_slices_are_added_until_the_lesion_fits_and_others_left_out(tmp_path, radius, depths):
    """The last part has the slices of the lesion alone, as volumes of training data do."""
    size, center = (40, 30, 28), (20, 14, 12)
    file = write_nifti(tmp_path / "ct.nii", ct(size, center, (radius, 4, 5)))
    model = bright(3)
    folder = segment(model, file, [Lesion("a", ((12, 14, 20),))], tmp_path / "out")
    assert [shape[2] for shape in model.seen] == depths
    assert (in_scan(folder, "fused") == nodule(size, center, (radius, 4, 5))).all()
    lesion = read_result(folder)["lesions"][0]
    assert (lesion["cut_off"], lesion["notices"]) == ([], [])


def test_a_lesion_that_is_too_long_is_cut_with_a_warning(tmp_path):
    size, radius = (60, 30, 28), (28.0, 4.0, 5.0)
    file = write_nifti(tmp_path / "ct.nii", ct(size, (30, 14, 12), radius))
    model = bright(3, slices=2)
    folder = segment(model, file, [Lesion("a", ((12, 14, 30),))], tmp_path / "out")
    lesion = read_result(folder)["lesions"][0]
    assert lesion["cut_off"] == ["first slice", "last slice"]
    assert "WARNING" in lesion["notices"][0]
    assert "16 slices" in lesion["notices"][0]
    boxed = segment(model, file, [Lesion("a", ((7, 10, 0), (17, 18, 59)))], tmp_path / "boxed")
    assert (in_scan(boxed, "fused") == nodule(size, (30, 14, 12), radius)).all()
    assert read_result(boxed)["lesions"][0]["cut_off"] == []


def test_the_ends_of_a_scan_do_not_cut_a_lesion(tmp_path):
    """Its first slices are those of the lesion; more do not exist, and none are made up."""
    size, center, radius = (9, 30, 28), (0, 14, 12), (3.2, 4.0, 5.0)
    file = write_nifti(tmp_path / "ct.nii", ct(size, center, radius))
    model = bright(3)
    folder = segment(model, file, [Lesion("a", ((12, 14, 0),))], tmp_path / "out")
    assert [shape[2] for shape in model.seen] == [2, 4, 7, 4]
    assert (in_scan(folder, "fused") == nodule(size, center, radius)).all()
    assert read_result(folder)["lesions"][0]["cut_off"] == []


def test_slices_are_added_at_the_end_that_the_lesion_reaches(tmp_path):
    size, center, radius = (40, 30, 28), (25, 14, 12), (6.2, 4.0, 5.0)
    file = write_nifti(tmp_path / "ct.nii", ct(size, center, radius))
    model = bright(3)
    folder = segment(model, file, [Lesion("a", ((12, 14, 20),))], tmp_path / "out")
    assert [shape[2] for shape in model.seen] == [4, 6, 9, 13, 19, 13]
    part = read_result(folder)["lesions"][0]["part"]
    assert (part["first_voxel"][2], part["last_voxel"][2]) == (19, 31)
    assert (in_scan(folder, "fused") == nodule(size, center, radius)).all()


def test_other_objects_are_left_out_and_add_no_slices(tmp_path):
    """A vessel through all slices, 8 pixels from a nodule: models of volumes may mark it in slices without a nodule."""
    size, center, radius = (20, 30, 28), (8, 14, 12), (2.2, 4.0, 3.0)
    scan = ct(size, center, radius)
    scan[:, 14, 20] = 40
    file = write_nifti(tmp_path / "ct.nii", scan)
    model = bright(3, slices=8)
    folder = segment(model, file, [Lesion("a", ((12, 14, 8),))], tmp_path / "out")
    assert [shape[2] for shape in model.seen] == [8, 5]
    assert (in_scan(folder, "fused") == nodule(size, center, radius)).all()
    assert (in_scan(folder, "foreground") == nodule(size, center, radius)).all()
    lesion = read_result(folder)["lesions"][0]
    assert lesion["cut_off"] == []
    (notice,) = lesion["notices"]
    assert "2 of 2 samples" in notice
    vessel = segment(model, file, [Lesion("a", ((19, 14, 8),))], tmp_path / "vessel")
    assert in_scan(vessel, "fused")[0, 14, 20] == 1


def test_a_box_limits_the_slices(tmp_path):
    size, center, radius = (12, 30, 28), (5, 14, 12), (4.0, 4.0, 5.0)
    file = write_nifti(tmp_path / "ct.nii", ct(size, center, radius))
    folder = segment(bright(3), file, [Lesion("a", ((8, 10, 4), (16, 18, 6)))], tmp_path / "out")
    expected = nodule(size, center, radius)
    expected[:4] = expected[7:] = False
    assert (in_scan(folder, "fused") == expected).all()


# --- borders, resampling --------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [2, 3])
def test_near_the_border_of_a_scan_only_its_voxels_are_labeled(tmp_path, dims):
    size, center, radius = (12, 30, 28), (5, 1, 26), (2.2, 4.0, 5.0)
    file = write_nifti(tmp_path / "ct.nii", ct(size, center, radius))
    model = bright(dims)
    folder = segment(model, file, [Lesion("a", ((26, 1, 5),))], tmp_path / "out")
    truth = nodule(size, center, radius)
    truth[[i for i in range(12) if dims == 2 and i != 5]] = False
    assert model.seen[0][-2:] == (20, 20)
    assert (in_scan(folder, "fused") == truth).all()
    lesion = read_result(folder)["lesions"][0]
    assert "beyond the border of the scan" in lesion["notices"][0]
    assert lesion["part"]["first_voxel"][:2] == [16, 0]
    assert lesion["part"]["last_voxel"][:2] == [27, 10]


def test_a_scan_of_another_spacing_is_resampled_and_back(tmp_path):
    """A ball of 12 mm in voxels of 2.5 × 0.7 × 1.3 mm, seen by the model in cubes of 1 mm."""
    spacing, center = (2.5, 0.7, 1.3), (8, 30, 20)
    radius = tuple(6.0 / mm for mm in spacing)
    size = (17, 64, 44)
    file = write_nifti(tmp_path / "ct.nii", ct(size, center, radius))
    model = bright(3, crop=(24, 24), slices=24, spacing=(1.0, 1.0, 1.0))
    folder = segment(model, file, [Lesion("a", ((20, 30, 8),))], tmp_path / "out")
    assert model.seen == [(1, 1, 24, 24, 24), (1, 1, 13, 24, 24)]
    found, truth = in_scan(folder, "fused") > 0, nodule(size, center, radius)
    assert (found & truth).sum() / (found | truth).sum() > 0.85
    lesion = read_result(folder)["lesions"][0]
    assert lesion["classes"][1]["fused"] == pytest.approx(4 / 3 * np.pi * 6**3, rel=0.1)
    measures = {each["name"]: each for each in lesion["measures"]}
    volume, diameter = (measures[f"{name} of nodule"] for name in ("volume", "longest diameter"))
    assert volume["samples"] == pytest.approx(lesion["classes"][1]["samples"], rel=1e-4)
    assert (volume["unit"], diameter["unit"]) == ("mm³", "mm")
    assert diameter["interval_90"] == pytest.approx([12, 12], abs=3)  # from corner to corner of voxels


def test_a_lesion_at_the_border_of_the_crop_is_cut_with_a_warning(tmp_path):
    file = write_nifti(tmp_path / "ct.nii", ct(radius=(2.2, 12.0, 5.0)))
    folder = segment(bright(3, crop=(16, 16), slices=8), file, [Lesion("a", (POINT,))], tmp_path / "out")
    lesion = read_result(folder)["lesions"][0]
    assert lesion["cut_off"] == ["top", "bottom"]
    assert "WARNING" in lesion["notices"][0]


@pytest.mark.parametrize("dims", [2, 3])
def test_a_model_that_labels_the_center_of_its_crop(tmp_path, dims):
    file = write_nifti(tmp_path / "ct.nii", ct())
    box = Lesion("a", ((4, 10, 4), (14, 18, 6)))
    folder = segment(random_model(dims, focus=8), file, [box], tmp_path / "out")
    marked = np.argwhere(in_scan(folder, "foreground") > 0)
    assert (marked.min(0) == [4, 10, 5]).all()  # 8×8 around row 14 and column 9
    assert (marked.max(0) == [6, 17, 12]).all()
    assert read_result(folder / "lesions/a")["window"] == [[4, 12], [4, 12]]
    lesion = read_result(folder)["lesions"][0]
    assert lesion["part"]["start"] == [4, 6, 1]
    assert {*lesion["cut_off"]} <= {"top", "bottom", "left", "right"}
    *_, cut_off, too_large = lesion["notices"]
    assert "WARNING" in cut_off
    assert all("8×8 pixels that the model labels" in notice for notice in (cut_off, too_large))


# --- several lesions, several scans ---------------------------------------------------------------------


def test_lesions_of_a_scan_are_segments_even_if_they_overlap(tmp_path):
    size = (12, 30, 60)
    scan = ct(size, (5, 14, 12), (2.2, 4.0, 5.0))
    scan[nodule(size, (6, 15, 45), (2.2, 4.0, 5.0))] = 40
    series = write_volume(tmp_path / "ct", scan)
    model = bright(3, slices=8)
    lesions = [Lesion("left", ((45, 15, 6),)), Lesion("again", ((13, 13, 5),)), Lesion("right", (POINT,))]
    folder = segment(model, series, lesions, tmp_path / "out")
    seg = highdicom.seg.segread(folder / "lesions.dcm")
    assert [seg.get_segment_description(i).segment_label for i in (1, 2, 3)] == ["left", "again", "right"]
    counts = [int((seg.get_volume(segment_numbers=[i]).array > 0).sum()) for i in (1, 2, 3)]
    own = nodule(size, (5, 14, 12), (2.2, 4.0, 5.0)).sum()
    assert counts == [own, own, own]
    numbers = in_scan(folder, "lesions")
    assert (np.bincount(numbers.ravel(), minlength=4)[1:] == [own, own, 0]).all(), "the first of equals"
    apart = segment(model, series, lesions[:2], tmp_path / "apart")
    seg = highdicom.seg.segread(apart / "lesions.dcm")
    assert [int((seg.get_volume(segment_numbers=[i]).array > 0).sum()) for i in (1, 2)] == [own, own]
    ids = [lesion["id"] for lesion in read_result(folder)["lesions"]]
    assert ids == sorted((path.name for path in (folder / "lesions").iterdir()), key=ids.index)


def test_a_scan_without_a_finding_has_an_empty_segment(tmp_path):
    scan = ct()
    scan[:] = -800
    folder = segment(bright(3), write_volume(tmp_path / "ct", scan), [Lesion("a", (POINT,))], tmp_path / "out")
    assert not (highdicom.seg.segread(folder / "lesions.dcm").pixel_array > 0).any()


def test_each_lesion_belongs_to_one_scan(tmp_path):
    for name in ("a", "b"):
        write_nifti(tmp_path / f"{name}.nii", ct())
    model, inputs = bright(3), [tmp_path / "a.nii", tmp_path / "b.nii"]
    for unknown in ("", "c"):
        with pytest.raises(UserError, match=r"one of 'a', 'b', got.*column `input`"):
            predict_lesions(model, inputs, [Lesion("1", (POINT,), unknown)], tmp_path / "out", QUICK)
    lesions = [Lesion("1", (POINT,), "a"), Lesion("1", (POINT,), str(tmp_path / "b.nii")), Lesion("2", (POINT,), "b")]
    outcomes = predict_lesions(model, inputs, lesions, tmp_path / "out", QUICK)
    assert [o.status for o in outcomes] == ["done", "done"]
    assert [len(read_result(o.folder)["lesions"]) for o in outcomes] == [1, 2]
    with pytest.raises(UserError, match="already"):
        predict_lesions(model, inputs, [lesions[0], Lesion("1", (POINT,), str(inputs[0]))], tmp_path / "out", QUICK)


def test_a_scan_that_fails_among_several_is_reported(tmp_path):
    write_nifti(tmp_path / "a.nii", ct())
    (tmp_path / "b.nii").write_bytes(b"broken")
    lesions = [Lesion("1", ((99, 0, 0),), "a"), Lesion("1", (POINT,), "b"), Lesion("1", (POINT,), "c")]
    write_nifti(tmp_path / "c.nii", ct())
    inputs = [tmp_path / f"{name}.nii" for name in "abc"]
    outcomes = predict_lesions(bright(3), inputs, lesions, tmp_path / "out", QUICK)
    assert [o.status for o in outcomes] == ["failed", "failed", "done"]
    assert [path.name for path in (tmp_path / "out").iterdir() if not path.name.startswith(".")] == ["c"]


def test_results_are_kept_unless_lesions_change(tmp_path):
    file, model = write_nifti(tmp_path / "ct.nii", ct()), bright(3)
    arguments = (model, file, [Lesion("a", (POINT,))], tmp_path / "out", QUICK)
    assert [o.status for o in predict_lesions(*arguments)] == ["done"]
    assert [o.status for o in predict_lesions(*arguments)] == ["kept"]
    before = json.dumps(read_result(tmp_path / "out/ct"))
    with pytest.raises(UserError, match="another choice of lesions"):
        predict_lesions(model, file, [Lesion("b", (POINT,))], tmp_path / "out", QUICK)
    assert json.dumps(read_result(tmp_path / "out/ct")) == before, "nothing is lost"
    (tmp_path / "out/ct/lesions/a/mean.nii.gz").unlink()
    assert [o.status for o in predict_lesions(*arguments)] == ["done"], "incomplete"
    replaced = predict_lesions(model, file, [Lesion("b", (POINT,))], tmp_path / "out", QUICK, overwrite=True)
    assert [o.status for o in replaced] == ["done"]
    assert [path.name for path in (tmp_path / "out/ct/lesions").iterdir()] == ["b"]


def test_a_part_is_a_volume_of_its_own(tmp_path):
    """Its files have the size of the crop, and lie in the scan by their affine."""
    file = write_nifti(tmp_path / "ct.nii", ct(), (2, 0, 1), (0, 2))
    stack = read_stack([file])
    folder = segment(
        random_model(3), file, [Lesion("a", (tuple((expected_affine() @ [*POINT, 1])[:3]),))], tmp_path / "out", mm=True
    )
    part, whole = nibabel.load(folder / "lesions/a/fused.nii.gz"), nibabel.load(folder / "fused.nii.gz")
    start = np.linalg.solve(whole.affine, part.affine[:, 3])[:3].round().astype(int)
    index = tuple(slice(a, a + n) for a, n in zip(start, part.shape, strict=True))
    assert (np.asarray(whole.dataobj)[index] == np.asarray(part.dataobj)).all()
    assert np.asarray(part.dataobj).sum() == np.asarray(whole.dataobj).sum() > 0
    assert int(part.header["sform_code"]) == 1
    s, h, w = read_result(folder / "lesions/a")["lesion"]["part"]["start"]
    assert stack.lattice.slicing.cut(np.asarray(part.dataobj)).shape[1:] == (16, 16)
    assert (h, w) == (14 - 8, 12 - 8)
    assert s <= 5


def test_samples_that_are_watched_are_those_of_the_result(tmp_path):
    """The scan has more slices than the model takes at first, and its object reaches beyond them."""
    scan = ct(size=(20, 24, 24), center=(9, 12, 12), radius=(4.0, 4.0, 4.0))
    file, lesion = write_nifti(tmp_path / "scan.nii", scan), Lesion("1", ((12, 12, 9),))
    seen = {}

    def watch(first, labels, weights, start):
        for i in range(labels.shape[1]):
            seen[first + i] = (start, labels[:, i])

    folders = []
    for name, watcher in (("alone", None), ("watched", watch)):
        (outcome,) = predict_lesions(bright(3), file, [lesion], tmp_path / name, PredictOptions(n=5), watch=watcher)
        folders.append(outcome.folder / "lesions" / "1")
    plain, watched = (nibabel.load(folder / "samples.nii.gz").get_fdata() for folder in folders)
    assert (plain == watched).all()
    assert plain.any()
    record = json.loads((folders[1] / "result.json").read_text())
    assert record["image"]["slices"] > 4
    assert sorted(seen) == list(range(5))
    for start, labels in seen.values():
        assert list(start) == record["lesion"]["part"]["start"]
        assert labels.shape == (record["image"]["slices"], 20, 20)
        assert labels.sum() == (watched[..., 0] != 0).sum()
