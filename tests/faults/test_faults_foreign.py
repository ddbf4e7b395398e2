"""Damaged and hostile files of other programs: contours, descriptions of data sets, the workspace of the studio."""

import json

import numpy as np
import pydicom
import pytest
from PIL import Image

from stochseg.data import plan_import
from stochseg.data.readers.geojson import draw_polygons
from stochseg.data.readers.polygons import fill_rings
from stochseg.data.readers.rtstruct import is_structure_set, read_structures
from stochseg.errors import UserError
from stochseg.studio.store import EVENTS, REQUEST, Store, read_events
from tests.data.test_rtstruct import write_structures


def polygons(*rings) -> bytes:
    features = [{"geometry": {"type": "Polygon", "coordinates": [ring]}, "properties": {}} for ring in rings]
    return json.dumps(features).encode()


@pytest.mark.parametrize("number", [10**400, 1e308, -1e20, float("nan"), "x", None, [1]])
def test_impossible_coordinates_of_polygons(number):
    with pytest.raises(UserError, match="annotation 0 is no polygon"):
        draw_polygons(polygons([[0, 0], [number, 5], [3, 9]]), (24, 20), ("a", "b"), "x.geojson")


def test_a_small_file_of_polygons_that_takes_for_ever(monkeypatch):
    comb = [[i % 2000, 2000 * (i % 2)] for i in range(25_000)]
    with pytest.raises(UserError, match="too complex for an image of 2000×2000"):
        draw_polygons(polygons(comb), (2000, 2000), ("a", "b"), "x.geojson")
    monkeypatch.setattr("stochseg.data.readers.polygons.MAX_STEPS", 10**5)
    box = [[0, 0], [200, 0], [200, 200], [0, 200]]
    draw_polygons(polygons(box), (200, 200), ("a", "b"), "x.geojson")
    with pytest.raises(UserError, match="too complex"):
        draw_polygons(polygons(box, box, box), (200, 200), ("a", "b"), "x.geojson")


def test_polygons_beyond_the_image_and_without_area():
    box = np.array([[-50.0, 2.0], [4.0, 2.0], [4.0, 90.0], [-50.0, 90.0]])
    assert fill_rings([box], (6, 8)).sum() == 16
    assert not fill_rings([box + 100], (6, 8)).any()
    assert not fill_rings([np.full((3, 2), 2.2)], (6, 8)).any()
    assert not fill_rings([], (6, 8)).any()


def test_contours_that_are_nowhere(tmp_path):
    file = tmp_path / "a.dcm"
    write_structures(file, {"lesion": np.pad(np.ones((1, 2, 2), bool), ((0, 0), (3, 3), (3, 3)))})
    content = pydicom.dcmread(file)
    content.ROIContourSequence[0].ContourSequence[0].ContourData = ["1", "1e300", "2"]
    content.save_as(file)
    with pytest.raises(UserError, match="cannot be read as DICOM RT structure set"):
        read_structures(file.read_bytes(), "a.dcm")
    damaged = file.read_bytes().replace(b"\x08\x00\x60\x00CS", b"\x08\x00\x60\x00CQ")
    assert not is_structure_set(damaged, "a.dcm")


@pytest.mark.parametrize(
    "changes", [{"channel_names": 7}, {"labels": {"background": 0, "ignore": []}}, {"labels": {}}, {"stochseg": 7}]
)
def test_a_damaged_description_of_nnunet(tmp_path, changes):
    for folder, name in (("imagesTr", "a_0000"), ("labelsTr", "a")):
        (tmp_path / folder).mkdir()
        Image.fromarray(np.eye(8, dtype=np.uint8)).save(tmp_path / f"{folder}/{name}.png")
    sound = {"channel_names": {"0": "gray"}, "labels": {"background": 0, "x": 1}, "file_ending": ".png"}
    for content in ({**sound, **changes}, [sound], 7):
        (tmp_path / "dataset.json").write_text(json.dumps(content))
        with pytest.raises(UserError, match=r"dataset\.json|labels of nnU-Net|labels 0, 1"):
            plan_import("nnunet", tmp_path)
    (tmp_path / "dataset.json").write_text(json.dumps({**sound, "file_ending": None, "labels": sound["labels"]}))
    with pytest.raises(UserError, match=r"labelsTr/CASE\.nii\.gz"):
        plan_import("nnunet", tmp_path)


@pytest.mark.parametrize("line", ["{", "7", "[]", '{"id": 1}', '{"id": 2, "type": "state", "data": {"state": "x"}}'])
def test_a_damaged_job_of_the_studio_keeps_no_other_from_loading(tmp_path, line):
    store = Store(tmp_path)
    first, second = (store.create_job({"input": "a"}) for _ in range(2))
    with (first.folder / EVENTS).open("a") as log:
        log.write(line + "\n")
    store.append(first, "state", {"state": "done"})
    assert [event["data"]["state"] for event in read_events(first.folder, 0)] == ["queued", "done"]
    (second.folder / REQUEST).write_text('{"input": "a"}')
    assert [(job.id, job.state) for job in store.load_jobs()] == [(first.id, "done")]
