"""Points and boxes: tables, and their place in a stack of slices."""

import nibabel
import numpy as np
import pytest

from stochseg.errors import UserError
from stochseg.inference import Lesion, read_lesions
from stochseg.inference.points import Place, describe_place, locate, parse_lesions
from stochseg.inference.series import read_series
from stochseg.inference.sources import read_stack
from stochseg.inference.stacks import Stack
from tests.support.oblique import ACROSS, CORNER, DOWN, SPACING, STEP, write_series
from tests.support.scans import ct, to_original, write_nifti

ORDERS = [((0, 1, 2), ()), ((2, 0, 1), (0, 2)), ((1, 2, 0), (1,)), ((0, 1, 2), (0, 1, 2))]


@pytest.mark.parametrize(("order", "flipped"), ORDERS)
def test_a_point_of_a_nifti_file_is_a_voxel_of_its_array(tmp_path, order, flipped):
    scan = ct()
    stack = read_stack([write_nifti(tmp_path / "a.nii", scan, order, flipped)])
    array = nibabel.load(tmp_path / "a.nii").get_fdata()
    for index in ((3, 5, 7), (0, 0, 0), tuple(n - 1 for n in array.shape)):
        place = locate(Lesion("a", (index,)), stack, mm=False)
        assert stack.values[place.center] == array[index]
        old = (to_original(array.shape, order, flipped) @ [*index, 1])[:3].astype(int)
        assert place.center == tuple(old[::-1]), "the same voxel whatever the order of the array"
        ras = (stack.lattice.affine @ [*index, 1])[:3]
        assert locate(Lesion("a", (tuple(ras),)), stack, mm=True) == place
        about = describe_place(place, stack)
        assert (about["voxel"], about["space"]) == (list(index), "RAS")
        assert np.allclose(about["mm"], ras, atol=1e-3)


def test_a_point_of_a_dicom_series_is_a_column_a_row_and_a_sorted_slice(tmp_path):
    raw = write_series(tmp_path / "ct")
    stack = read_series(sorted((tmp_path / "ct").iterdir()))
    place = locate(Lesion("a", ((7, 2, 3),)), stack, mm=False)
    assert place.center == (3, 2, 7)
    assert stack.values[place.center] == raw[3, 2, 7]
    lps = CORNER + 7 * SPACING[1] * ACROSS + 2 * SPACING[0] * DOWN + 3 * STEP * np.cross(ACROSS, DOWN)
    assert locate(Lesion("a", (tuple(lps),)), stack, mm=True) == place
    about = describe_place(place, stack)
    assert (about["voxel"], about["space"]) == ([7, 2, 3], "LPS")
    assert np.allclose(about["mm"], lps, atol=1e-3)


def test_boxes_include_both_corners_in_any_order(tmp_path):
    stack = read_stack([write_nifti(tmp_path / "a.nii", ct(), (2, 0, 1), (0,))])  # z backwards, x, y
    place = locate(Lesion("a", ((9, 3, 12), (6, 8, 10))), stack, mm=False)
    assert place == Place((4, 11, 6), (4, 3, 6))
    assert place.slices == (2, 6), "12 slices, from the last: 9..6 are 2..5"
    assert locate(Lesion("a", ((9.4, 3.2, 11.6),)), stack, mm=False).center == (2, 12, 3), "the nearest voxel"


def test_points_that_are_nowhere(tmp_path):
    stack = read_stack([write_nifti(tmp_path / "a.nii", ct())])
    for point in ((28, 0, 0), (-1, 0, 0), (0, 0, 12), (0, 0, 1e300)):
        with pytest.raises(
            UserError, match=r"outside the scan, whose voxels are x 0 to 27, y 0 to 29, z 0 to 11.*--mm"
        ):
            locate(Lesion("a", (point,)), stack, mm=False)
    with pytest.raises(UserError, match=r"RAS, as in NIfTI\) is voxel .* outside the scan"):
        locate(Lesion("a", ((500, 0, 0),)), stack, mm=True)
    with pytest.raises(UserError, match="picture"):
        locate(Lesion("a", ((1, 1, 0),)), Stack(np.zeros((1, 9, 9))), mm=False)
    nibabel.Nifti1Image(np.zeros((4, 5, 6), np.int16), None).to_filename(tmp_path / "plain.nii")
    plain = read_stack([tmp_path / "plain.nii"])
    assert locate(Lesion("a", ((1, 1, 1),)), plain, mm=False).center
    with pytest.raises(UserError, match=r"states no orientation.*without --mm"):
        locate(Lesion("a", ((1, 1, 1),)), plain, mm=True)


def test_options():
    first, second = parse_lesions(["1,2.5,-3"], ["0,0,0,4,5,6"])
    assert (first.id, first.corners, second.id) == ("1", ((1.0, 2.5, -3.0),), "2")
    assert second.corners == ((0, 0, 0), (4, 5, 6))
    assert second.is_box
    for text in ("1,2", "1,2,3,4", "1,2,nan", "1,2,inf", "a,2,3", ""):
        with pytest.raises(UserError, match=r"--at: expected 3 finite numbers x,y,z, got"):
            parse_lesions([text], [])
    with pytest.raises(UserError, match="--box: expected 6 finite numbers x0,y0,z0,x1,y1,z1"):
        parse_lesions([], ["1,2,3"])


def test_tables(tmp_path):
    file = tmp_path / "lesions.csv"
    file.write_bytes(b"\xef\xbb\xbf Z, id ,x,Y,input,remark\r\n3,left upper,1,2,ct/,seen\r\n6.5,b,4,5,,\r\n")
    first, second = read_lesions(file)
    assert (first.id, first.corners, first.input) == ("left upper", ((1, 2, 3),), "ct/")
    assert (second.corners, second.input) == (((4, 5, 6.5),), "")
    assert str(second) == f"{file}, line 3 ('b')"
    file.write_text("id,x,y,z\na,1,2,3\n,,,\n")  # as spreadsheets write empty rows
    assert [lesion.id for lesion in read_lesions(file)] == ["a"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1: expected a header"),
        ("id;x;y;z\na;1;2;3\n", "line 1: expected a header"),
        ("id,x,y\na,1,2\n", "line 1: expected a header"),
        ("id,x,y,z,x\na,1,2,3,4\n", "line 1: expected a header"),
        ("1,2,3,4\n", "line 1: expected a header"),
        ("id,x,y,z\n", "one row per lesion"),
        ("id,x,y,z\na,1,2,3\nb,1,2\n", "line 3: expected one value per column"),
        ("id,x,y,z\na,1,5,2,3\n", "line 2: expected one value per column"),
        ("id,x,y,z\na,1,,3\n", "line 2: y: expected a number, got ''"),
        ("id,x,y,z\na,1,2,nan\n", r"line 2 \('a'\): expected three finite numbers"),
        ("id,x,y,z\na,1,2,3\nA,1,2,3\n", r"line 3 \('A'\): the id is already that of .*line 2"),
        ("id,x,y,z\n../a,1,2,3\n", "line 2.*names a folder"),
        ("id,x,y,z\n..,1,2,3\n", "line 2.*names a folder"),
        ("id,x,y,z\n,1,2,3\n", "line 2.*names a folder"),
    ],
)
def test_faulty_tables_are_refused_with_their_line(tmp_path, content, message):
    (tmp_path / "lesions.csv").write_text(content)
    with pytest.raises(UserError, match=message):
        read_lesions(tmp_path / "lesions.csv")


def test_tables_that_are_none(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_lesions(tmp_path / "nowhere.csv")
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00id")
    with pytest.raises(UserError, match="not text in UTF-8"):
        read_lesions(tmp_path / "a.csv")
