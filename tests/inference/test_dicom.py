"""DICOM series as inputs: geometry, and series that are not volumes."""

import sys

import highdicom
import nibabel
import numpy as np
import pydicom
import pytest
import SimpleITK
import tifffile

from stochseg.errors import UserError
from stochseg.inference import PredictOptions, predict
from stochseg.inference.series import read_series
from tests.support.oblique import expected_affine, write_series
from tests.support.predictions import QUICK, RNG, failure, read_result


def test_a_dicom_series_keeps_its_geometry(ct_model, tmp_path):
    raw = write_series(tmp_path / "ct")
    options = PredictOptions(n=3, slices="independent")
    (outcome,) = predict(ct_model, [tmp_path / "ct"], tmp_path / "out", options)
    assert outcome.folder.name == "ct"
    samples = nibabel.load(outcome.folder / "samples.nii.gz")
    assert np.allclose(samples.affine, expected_affine(), atol=1e-5)
    for i, slice_ in enumerate(raw):
        expected = ct_model.sample(slice_.astype(np.float32), 3).labels[0].numpy()
        assert (np.asarray(samples.dataobj)[:, :, i].transpose(2, 1, 0) != expected).mean() <= 1e-2
    fused = np.asarray(nibabel.load(outcome.folder / "fused.nii.gz").dataobj)
    seg = highdicom.seg.segread(outcome.folder / "fused.dcm")
    volume = seg.get_volume(combine_segments=True, skip_overlap_checks=True)
    for index in RNG.integers(0, (10, 12, 5), (20, 3)):
        ras = (samples.affine @ [*index, 1])[:3]
        place = volume.map_reference_to_indices((ras * [-1, -1, 1])[None])[0].round().astype(int)
        assert volume.array[tuple(place)] == fused[tuple(index)]
    assert read_result(outcome.folder)["image"]["spacing_mm"] == pytest.approx([2.5, 0.7, 1.3])
    assert len(read_result(outcome.folder)["inputs"]) == 5


def test_simpleitk_reads_the_series_and_its_results_alike(ct_model, tmp_path):
    raw = write_series(tmp_path / "ct")
    predict(ct_model, [tmp_path / "ct"], tmp_path / "out", QUICK)
    reader = SimpleITK.ImageSeriesReader()
    reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(tmp_path / "ct")))
    before = reader.Execute()
    assert (SimpleITK.GetArrayFromImage(before) == raw).all()
    after = SimpleITK.ReadImage(str(tmp_path / "out/ct/fused.nii.gz"))
    assert np.allclose(before.GetOrigin(), after.GetOrigin(), atol=1e-4)
    assert np.allclose(before.GetDirection(), after.GetDirection(), atol=1e-5)
    assert np.allclose(before.GetSpacing(), after.GetSpacing(), atol=1e-5)


def test_a_missing_slice_is_refused(ct_model, tmp_path):
    write_series(tmp_path / "ct", leave_out=[2])
    message = failure(ct_model, tmp_path / "ct", tmp_path)
    assert "lie 5 mm apart, most slices of the series 2.5 mm: a slice is missing" in message
    slices = sorted((tmp_path / "ct").iterdir())
    outcomes = predict(ct_model, slices, tmp_path / "each", QUICK)
    assert [o.status for o in outcomes] == ["done"] * 4, "single files are images"
    assert nibabel.load(outcomes[0].folder / "fused.nii.gz").shape == (10, 12, 1)
    assert (outcomes[0].folder / "fused.dcm").exists()


def test_series_that_are_not_volumes_are_refused(ct_model, tmp_path):
    write_series(tmp_path / "twice", ImagePositionPatient=[0, 0, 0])
    assert "lie at the same place" in failure(ct_model, tmp_path / "twice", tmp_path)
    write_series(tmp_path / "lost", ImagePositionPatient=None)
    assert "has no position in space" in failure(ct_model, tmp_path / "lost", tmp_path)
    write_series(tmp_path / "turned")
    file = sorted((tmp_path / "turned").iterdir())[1]
    header = pydicom.dcmread(file)
    header.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
    pydicom.dcmwrite(file, header)
    assert "turned or spaced differently" in failure(ct_model, tmp_path / "turned", tmp_path)
    write_series(tmp_path / "bent", ImageOrientationPatient=[1, 0, 0, 1, 0, 0])
    assert "make no sense" in failure(ct_model, tmp_path / "bent", tmp_path)
    write_series(tmp_path / "nameless", StudyInstanceUID=None)
    assert "has no StudyInstanceUID" in failure(ct_model, tmp_path / "nameless", tmp_path)


def test_a_tilted_gantry_makes_a_sheared_volume(tmp_path):
    raw = write_series(tmp_path / "ct", count=3)
    for file in (tmp_path / "ct").iterdir():
        header = pydicom.dcmread(file)
        header.ImagePositionPatient = [0, 0.5 * (header.InstanceNumber - 1), 2.0 * (header.InstanceNumber - 1)]
        header.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        pydicom.dcmwrite(file, header)
    stack = read_series(sorted((tmp_path / "ct").iterdir()))
    assert (stack.values == raw).all()
    assert np.allclose(stack.lattice.affine[:3, 2], [0, -0.5, 2.0])


def test_a_folder_of_several_series_and_other_objects(ct_model, tmp_path):
    write_series(tmp_path / "study/a", count=2)
    write_series(tmp_path / "b", count=3, SeriesNumber=9)
    for file in (tmp_path / "b").iterdir():
        file.rename(tmp_path / f"study/a/B{file.name}")
    write_series(tmp_path / "study/c", count=2)
    write_series(tmp_path / "study/seg", count=1, Modality="SEG")
    broken = [tmp_path / "study/broken.dcm", tmp_path / "study/header.dcm"]
    broken[0].write_bytes(b"no DICOM")
    broken[1].write_bytes(bytes(128) + b"DICM" + bytes(64))  # no class: nobody knows that it is no image
    outcomes = predict(ct_model, [tmp_path / "study"], tmp_path / "out", QUICK)
    assert "1 DICOM file(s) without an image" in outcomes[0].notices[0]
    names = {o.folder.name for o in outcomes if o.status == "done"}
    assert names == {"study-a-series-4", "study-a-series-9", "study-c"}
    assert [o.source for o in outcomes if o.status == "failed"] == [str(file) for file in broken]


def test_a_slice_cut_short_is_reported_and_not_skipped(ct_model, tmp_path):
    """Skipping the last slice of a series would leave no gap."""
    write_series(tmp_path / "ct")
    last = tmp_path / "ct/IM003"  # the slice at the far end
    last.write_bytes(last.read_bytes()[:500])
    outcomes = {o.status: o for o in predict(ct_model, [tmp_path / "ct"], tmp_path / "out", QUICK)}
    assert outcomes["failed"].source == str(last)
    assert "or is cut short" in outcomes["failed"].problem
    assert read_result(outcomes["done"].folder)["image"]["slices"] == 4


def test_an_image_without_a_position_is_a_picture_with_a_resolution(ct_model, tmp_path):
    lost = dict.fromkeys(("ImagePositionPatient", "ImageOrientationPatient", "FrameOfReferenceUID"))
    xray = {"SOPClassUID": pydicom.uid.DigitalXRayImageStorageForPresentation, "Modality": "DX"}
    write_series(tmp_path / "xray", count=1, **xray, **lost)
    (outcome,) = predict(ct_model, [tmp_path / "xray"], tmp_path / "out", QUICK)
    assert (outcome.status, outcome.notices) == ("done", ())
    with tifffile.TiffFile(outcome.folder / "samples.tif") as file:
        assert file.pages[0].resolution == pytest.approx((25.4 / 1.3, 25.4 / 0.7), rel=1e-4)
    seg = highdicom.seg.segread(outcome.folder / "fused.dcm")
    assert seg.Rows == 12


def test_headers_that_no_seg_can_refer_to_are_noticed_before_sampling(ct_model, tmp_path):
    write_series(tmp_path / "ct", FrameOfReferenceUID=None)
    (outcome,) = predict(ct_model, [tmp_path / "ct"], tmp_path / "out", QUICK)
    assert "without fused.dcm: a DICOM object cannot refer to these images" in outcome.notices[0]
    assert "Frame Of Reference" in outcome.notices[0]
    assert "fused.nii.gz" in read_result(outcome.folder)["files"]
    assert not (outcome.folder / "fused.dcm").exists()


def test_slices_of_two_frames_of_reference_have_no_seg(ct_model, tmp_path):
    write_series(tmp_path / "ct")
    file = sorted((tmp_path / "ct").iterdir())[2]
    header = pydicom.dcmread(file)
    header.FrameOfReferenceUID = pydicom.uid.generate_uid()
    pydicom.dcmwrite(file, header)
    (outcome,) = predict(ct_model, [tmp_path / "ct"], tmp_path / "out", QUICK)
    assert outcome.status == "done"
    assert "without fused.dcm: its slices have different values of FrameOfReferenceUID" in outcome.notices[0]
    assert "fused.nii.gz" in read_result(outcome.folder)["files"]


def test_a_thickness_that_is_not_a_number_is_ignored(ct_model, tmp_path):
    write_series(tmp_path / "ct", count=1)
    (file,) = (tmp_path / "ct").iterdir()
    tag = b"\x18\x00\x50\x00DS\x04\x00"
    content = file.read_bytes()
    assert tag + b"2.0 " in content
    file.write_bytes(content.replace(tag + b"2.0 ", tag + b"2,0 "))
    (outcome,) = predict(ct_model, [file], tmp_path / "out", QUICK)
    assert outcome.status == "done"
    assert read_result(outcome.folder)["image"]["spacing_mm"][0] == pytest.approx(1.0)


def test_a_missing_package_is_named(ct_model, tmp_path, monkeypatch):
    write_series(tmp_path / "ct", count=2)
    nibabel.Nifti1Image(np.zeros((4, 4, 2), np.int16), np.eye(4)).to_filename(tmp_path / "a.nii")
    monkeypatch.setitem(sys.modules, "nibabel", None)
    message = failure(ct_model, tmp_path / "a.nii", tmp_path)
    assert "needs nibabel; install it with: pip install 'stochseg[medical]'" in message
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(UserError, match="needs pydicom"):
        predict(ct_model, [tmp_path / "ct"], tmp_path / "out", QUICK)
