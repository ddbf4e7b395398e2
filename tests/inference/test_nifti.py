"""NIfTI in and out: values, geometry and headers."""

import itertools
import struct

import nibabel
import numpy as np
import pytest
import SimpleITK

from stochseg.data.readers.nifti import Slicing
from stochseg.errors import UserError
from stochseg.inference import Lesion, PredictOptions, predict, predict_lesions, to_nifti
from stochseg.inference.sources import read_stack
from stochseg.inference.stacks import Lattice, read_volume
from tests.support.oblique import expected_affine, write_series
from tests.support.predictions import QUICK, RNG, failure, random_samples, read_result, small_model
from tests.support.scans import random_model


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_a_nifti_volume_keeps_its_geometry(ct_model, tmp_path, axis):
    volume = RNG.integers(-1000, 1000, (7, 6, 5)).astype(np.int16)
    image = nibabel.Nifti1Image(volume, expected_affine())
    image.header.set_sform(expected_affine(), code="scanner")
    image.to_filename(tmp_path / "scan.nii.gz")
    options = PredictOptions(n=3, axis=axis, slices="independent")
    (outcome,) = predict(ct_model, [tmp_path / "scan.nii.gz"], tmp_path / "out", options)
    along = 2 if axis is None else axis
    for name, shape in (
        ("samples", (7, 6, 5, 3)),
        ("fused", (7, 6, 5)),
        ("mean", (7, 6, 5, 3)),
        ("entropy", (7, 6, 5)),
    ):
        file = nibabel.load(outcome.folder / f"{name}.nii.gz")
        assert file.shape == shape
        assert np.allclose(file.affine, expected_affine(), atol=1e-5)
        assert int(file.header["sform_code"]) == 1
    samples = np.asarray(nibabel.load(outcome.folder / "samples.nii.gz").dataobj)
    for i in range(volume.shape[along]):  # its axes run to the left, the feet and the back
        shown, found = np.take(volume, i, along), np.moveaxis(np.take(samples, i, along), -1, 0)
        if axis != 0:
            shown, found = shown.T, found.swapaxes(1, 2)
        assert (found != ct_model.sample(shown, 3).labels[0].numpy()).mean() <= 1e-2
    record = read_result(outcome.folder)
    voxel = abs(np.linalg.det(expected_affine()[:3, :3]))
    assert sum(c["fused"] for c in record["classes"]) == pytest.approx(volume.size * voxel, rel=1e-4)
    assert record["unit"] == "mm3"


def test_simpleitk_reads_the_same_geometry(ct_model, tmp_path):
    nibabel.Nifti1Image(np.zeros((7, 6, 5), np.int16), expected_affine()).to_filename(tmp_path / "scan.nii.gz")
    predict(ct_model, [tmp_path / "scan.nii.gz"], tmp_path / "out", QUICK)
    before, after = (SimpleITK.ReadImage(str(tmp_path / f)) for f in ("scan.nii.gz", "out/scan/fused.nii.gz"))
    for point in ((0, 0, 0), (6, 5, 4), (3, 1, 2)):
        assert np.allclose(before.TransformIndexToPhysicalPoint(point), after.TransformIndexToPhysicalPoint(point))


@pytest.mark.parametrize("shape", [(7, 6), (7, 6, 1), (7, 1, 6), (1, 7, 6), (7, 6, 1, 1)])
def test_a_nifti_image_of_two_dimensions_is_one_slice(ct_model, tmp_path, shape):
    values = RNG.integers(-1000, 1000, shape).astype(np.int16)
    nibabel.Nifti1Image(values, np.diag([-0.7, -0.7, -2.0, 1.0])).to_filename(tmp_path / "a.nii")
    (outcome,) = predict(ct_model, [tmp_path / "a.nii"], tmp_path / "out", QUICK)
    samples = np.asarray(nibabel.load(outcome.folder / "samples.nii.gz").dataobj)
    assert samples.shape == (*(*shape, 1)[:3], 3)
    expected = ct_model.sample(values.squeeze().T, 3).labels[0].numpy()
    assert (samples.squeeze().transpose(2, 1, 0) == expected).all()
    assert read_result(outcome.folder)["unit"] == "mm2"


def test_scale_units_and_channels(tmp_path):
    image = nibabel.Nifti1Image(RNG.integers(0, 99, (4, 5, 2)).astype(np.int16), np.diag([-0.001, -0.002, 0.004, 1]))
    image.header.set_xyzt_units("meter")
    image.header.set_slope_inter(2.0, -1000.0)
    image.to_filename(tmp_path / "a.nii")
    stack = read_volume(tmp_path / "a.nii")
    assert np.allclose(stack.values[1], np.asarray(nibabel.load(tmp_path / "a.nii").dataobj)[:, :, 1].T)
    assert stack.lattice.spacing == pytest.approx((4.0, 2.0, 1.0))
    assert stack.lattice.voxel == pytest.approx(8.0)
    nibabel.Nifti1Image(np.zeros((4, 5, 2, 3), np.float32), np.eye(4)).to_filename(tmp_path / "c.nii")
    assert read_volume(tmp_path / "c.nii").values.shape == (2, 5, 4, 3)
    outcome = predict(small_model(channels=3), [tmp_path / "c.nii"], tmp_path / "out", QUICK)[0]
    assert nibabel.load(outcome.folder / "fused.nii.gz").shape == (4, 5, 2)


@pytest.mark.parametrize("count", [2, 24])
@pytest.mark.parametrize("dims", [2, 3])
def test_a_volume_over_time_is_not_a_volume(tmp_path, dims, count):
    image = nibabel.Nifti1Image(RNG.integers(0, 255, (30, 28, 6, count)).astype(np.uint8), np.eye(4))
    image.to_filename(tmp_path / "a.nii")
    message = failure(random_model(dims), tmp_path / "a.nii", tmp_path)
    assert f"1 channel(s), got {count}" in message
    assert "save one volume per file" in message
    with pytest.raises(UserError, match="save one volume per file"):
        predict_lesions(random_model(dims), tmp_path / "a.nii", [Lesion("a", ((12, 14, 3),))], tmp_path / "out", QUICK)
    assert not (tmp_path / "out").exists()


def test_files_with_bad_headers_fail_and_the_others_are_done(model, tmp_path):
    for name in ("a", "b", "c"):
        nibabel.Nifti1Image(np.zeros((9, 9, 1), np.uint8), np.eye(4)).to_filename(tmp_path / f"{name}.nii")
    unit, place = (bytearray((tmp_path / "c.nii").read_bytes()) for _ in range(2))
    unit[123] = 5  # no unit of length
    place[254:256], place[280:284] = struct.pack("<h", 1), struct.pack("<f", np.nan)  # sform_code, srow_x
    (tmp_path / "a.nii").write_bytes(unit)
    (tmp_path / "b.nii").write_bytes(place)
    a, b, c = predict(model, [tmp_path / f"{name}.nii" for name in "abc"], tmp_path / "out", QUICK)
    assert [outcome.status for outcome in (a, b, c)] == ["failed", "failed", "done"]
    assert "cannot be read as NIfTI" in a.problem
    assert "its affine" in b.problem


def test_microscopic_sizes_are_not_rounded_away(model, tmp_path):
    image = nibabel.Nifti1Image(np.zeros((9, 9, 2), np.uint8), np.diag([0.5, 0.5, 2.0, 1.0]))
    image.header.set_xyzt_units("micron")
    image.to_filename(tmp_path / "a.nii")
    (outcome,) = predict(model, [tmp_path / "a.nii"], tmp_path / "out", QUICK)
    found = read_result(outcome.folder)
    assert sum(one["fused"] for one in found["classes"]) == pytest.approx(162 * 0.5e-9, rel=1e-6)
    assert found["image"]["spacing_mm"] == pytest.approx([2e-3, 0.5e-3, 0.5e-3])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_every_value_is_at_the_place_of_its_slice(axis):
    samples = random_samples()
    lattice = Lattice(np.diag([2.0, 3.0, 4.0, 1.0]), Slicing(axis))
    across, down = (i for i in range(3) if i != axis)
    fused, labels = to_nifti(samples, lattice=lattice), to_nifti(samples, "labels", lattice)
    mean, entropy = to_nifti(samples, "mean", lattice), to_nifti(samples, "entropy", lattice)
    for s, y, x in np.random.default_rng(0).integers(0, (5, 12, 10), (20, 3)):
        index = [0, 0, 0]
        index[axis], index[down], index[across] = s, y, x
        index = tuple(index)
        assert fused.get_fdata()[index] == samples.fused()[s, y, x]
        assert (labels.get_fdata()[index] == samples.labels[s, :, y, x].numpy()).all()
        assert np.allclose(mean.get_fdata()[index], samples.mean[s, :, y, x])
        assert np.allclose(entropy.get_fdata()[index], samples.entropy[s, y, x], atol=1e-6)
    assert labels.shape[3] == 4
    assert mean.shape[3] == 3
    assert labels.get_data_dtype() == np.uint8
    assert np.allclose(fused.affine, lattice.affine)


def test_unknown_part():
    with pytest.raises(UserError, match="unknown part 'variance'; known: entropy, fused, labels, mean"):
        to_nifti(random_samples(), "variance")


def test_a_header_keeps_its_codes_and_loses_its_scaling(tmp_path):
    source = nibabel.Nifti1Image(np.zeros((10, 12, 5), np.int16), expected_affine())
    source.header.set_sform(expected_affine(), code="scanner")
    source.header.set_qform(expected_affine(), code="scanner")
    source.header.set_slope_inter(3.0, 7.0)
    source.header["cal_max"] = 900
    lattice = Lattice(source.affine, header=source.header)
    to_nifti(random_samples(), "labels", lattice).to_filename(tmp_path / "a.nii.gz")
    again = nibabel.load(tmp_path / "a.nii.gz")
    assert int(again.header["sform_code"]) == int(again.header["qform_code"]) == 1
    assert np.allclose(again.header.get_sform(), expected_affine(), atol=1e-5)
    assert np.allclose(again.header.get_qform(), expected_affine(), atol=1e-4)
    assert again.header.get_intent()[0] == "label"
    assert again.header["cal_max"] == 0
    assert (np.asarray(again.dataobj).transpose(2, 3, 1, 0) == random_samples().labels.numpy()).all()
    assert again.get_data_dtype() == np.uint8


def test_nifti_2_stays_nifti_2():
    source = nibabel.Nifti2Image(np.zeros((10, 12, 5), np.int16), expected_affine())
    assert isinstance(
        to_nifti(random_samples(), lattice=Lattice(source.affine, header=source.header)), nibabel.Nifti2Image
    )


# ---------------------------------------------------------------------- orientation


def reordered(volume: np.ndarray, affine: np.ndarray, order, flips) -> nibabel.Nifti1Image:
    """The same scan with its voxels stored in another order."""
    turn = np.column_stack([order, flips]).astype(float)
    turned = nibabel.Nifti1Image(volume, affine).as_reoriented(turn)
    turned.header.set_sform(turned.affine, code="scanner")
    return turned


@pytest.mark.parametrize("spacing", [(0.7, 0.8, 2.5), (1.0, 1.0, 1.0), (3.0, 0.9, 0.8)])
def test_the_result_does_not_depend_on_the_order_of_the_voxels(model, tmp_path, spacing):
    """Each of the 48 orders gives the same samples at the same places in space, in the order of its input."""
    volume = RNG.integers(0, 256, (12, 10, 9)).astype(np.uint8)
    affine = np.diag([-spacing[0], -spacing[1], spacing[2], 1.0])
    affine[:3, 3] = 5, -7, 11
    orders = list(itertools.permutations(range(3)))
    flips = list(itertools.product((1, -1), repeat=3))
    chosen = [(o, f) for o in orders for f in flips][:: 1 if spacing[2] == 2.5 else 7]
    for i, (order, flip) in enumerate(chosen):
        reordered(volume, affine, order, flip).to_filename(tmp_path / f"{i:02d}.nii")
    outcomes = predict(model, sorted(tmp_path.glob("*.nii")), tmp_path / "out", QUICK)
    assert {o.status for o in outcomes} == {"done"}
    sizes, first = set(), None
    for i, outcome in enumerate(outcomes):
        source, file = nibabel.load(tmp_path / f"{i:02d}.nii"), nibabel.load(outcome.folder / "samples.nii.gz")
        assert file.shape[:3] == source.shape
        assert np.allclose(file.affine, source.affine)
        shown = np.asarray(nibabel.as_closest_canonical(file).dataobj)
        first = shown if first is None else first
        assert (shown == first).all()
        sizes.add(tuple(c["fused"] for c in read_result(outcome.folder)["classes"]))
        for point in ((0, 0, 0), (3, 1, 2)):
            before, after = (
                SimpleITK.ReadImage(str(f)) for f in (tmp_path / f"{i:02d}.nii", outcome.folder / "fused.nii.gz")
            )
            assert np.allclose(before.TransformIndexToPhysicalPoint(point), after.TransformIndexToPhysicalPoint(point))
    assert len(sizes) == 1
    assert len(np.unique(first)) > 1


def test_nifti_and_dicom_of_one_scan_give_the_same_slices(tmp_path):
    values = write_series(tmp_path / "series")
    stack = read_stack(sorted((tmp_path / "series").iterdir()))
    volume = np.moveaxis(values, (0, 1, 2), (2, 1, 0)).astype(np.float32)
    for order, flip in (((0, 1, 2), (1, 1, 1)), ((2, 0, 1), (-1, 1, -1))):
        reordered(volume, expected_affine(), order, flip).to_filename(tmp_path / "a.nii")
        cut = read_volume(tmp_path / "a.nii")
        assert (cut.values == stack.values).all()
        assert cut.lattice.spacing == pytest.approx(stack.lattice.spacing)


@pytest.mark.parametrize(("axis", "expected"), [("axial", 2), ("coronal", 1), ("sagittal", 0), (None, 0)])
def test_the_plane_of_slices(tmp_path, axis, expected):
    """By default across the thickest axis, here of a scan in sagittal slices."""
    volume, spacing = RNG.integers(0, 256, (5, 8, 7)).astype(np.uint8), (4.0, 0.5, 0.6)
    affine = np.diag([spacing[0], -spacing[1], -spacing[2], 1.0])
    reordered(volume, affine, (1, 2, 0), (1, -1, -1)).to_filename(tmp_path / "a.nii")
    stack = read_volume(tmp_path / "a.nii", axis)
    assert stack.lattice.spacing[0] == pytest.approx(spacing[expected])
    assert len(stack.values) == volume.shape[expected]


def test_files_without_orientation_are_cut_in_the_order_of_their_array(tmp_path):
    volume = RNG.integers(0, 256, (5, 8, 7)).astype(np.uint8)
    image = nibabel.Nifti1Image(volume, None)
    image.header.set_zooms((3.0, 1.0, 1.0))
    image.to_filename(tmp_path / "a.nii")
    assert (read_volume(tmp_path / "a.nii", 2).values == np.moveaxis(volume, (2, 1, 0), (0, 1, 2))).all()
