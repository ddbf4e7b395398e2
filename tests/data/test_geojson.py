"""Polygons of GeoJSON and label maps, both ways."""

import json

import numpy as np
import pytest
from matplotlib.path import Path as Outline
from PIL import Image

from stochseg.data.folder import Folder, init_folder
from stochseg.data.readers.geojson import draw_polygons, trace_rings
from stochseg.data.readers.polygons import fill_rings
from stochseg.errors import UserError
from stochseg.inference import GatherOptions, gather
from stochseg.inference.writers.geojson import class_feature
from stochseg.types import DatasetInfo

NAMES = ("background", "tumor", "stroma")


def random_map(seed, classes=3, size=(23, 17)):
    rng = np.random.default_rng(seed)
    return (rng.random(size) * classes * rng.integers(0, 2, size)).astype(np.uint8)


@pytest.mark.parametrize("seed", range(4))
def test_outlines_give_the_label_map_back(seed):
    labels = random_map(seed)
    for label in (1, 2):
        assert (fill_rings(trace_rings(labels == label), labels.shape) == (labels == label)).all()
    info = DatasetInfo(num_classes=3, image_channels=1, class_names=NAMES)
    features = [class_feature(labels, label, info) for label in (1, 2)]
    content = json.dumps({"type": "FeatureCollection", "features": features}).encode()
    assert (draw_polygons(content, labels.shape, NAMES, "x") == labels).all()


def test_filling_agrees_with_matplotlib():
    rng = np.random.default_rng(0)
    ring = rng.uniform(-3, 28, (9, 2))
    y, x = np.mgrid[:20, :25] + 0.5
    turns = np.zeros((20, 25), int)
    for i in range(1, 8):  # a fan of triangles: every point is inside as many as the polygon winds, modulo 2
        triangle = Outline(ring[[0, i, i + 1]])
        turns += triangle.contains_points(np.stack([x.ravel(), y.ravel()], 1)).reshape(20, 25)
    assert (fill_rings([ring], (20, 25)) == (turns % 2 == 1)).all()


def feature(name, ring, kind="Polygon"):
    properties = {"objectType": "annotation", "classification": {"name": name}} if name else {}
    return {"type": "Feature", "geometry": {"type": kind, "coordinates": [ring]}, "properties": properties}


SQUARE = [[2, 1], [6, 1], [6, 4], [2, 4], [2, 1]]


def test_a_folder_of_annotations_is_a_rater(tmp_path):
    for i in range(3):
        for part in ("images", "labels/ana", "labels/qupath"):
            (tmp_path / part).mkdir(parents=True, exist_ok=True)
        mask = np.zeros((8, 9), np.uint8)
        mask[1:4, 2:6] = 1
        Image.fromarray(mask * 90).save(tmp_path / f"images/p{i}.png")
        Image.fromarray(mask).save(tmp_path / f"labels/ana/p{i}.png")
        (tmp_path / f"labels/qupath/p{i}.geojson").write_text(json.dumps([feature("Tumor", SQUARE)]))
    init_folder(tmp_path, {"num_classes": 2, "class_names": ["background", "tumor"]})
    example = Folder("train", root=str(tmp_path))[0]
    assert example.rater_names == ("ana", "qupath")
    assert (example.raters[0] == example.raters[1]).all()


def test_names_of_classes_may_contain_anything(tmp_path):
    name = "tumor\nignore: 1\x7f"
    for i in range(3):
        (tmp_path / "images").mkdir(exist_ok=True)
        (tmp_path / "labels/ana").mkdir(parents=True, exist_ok=True)
        Image.fromarray(random_map(i, 200)).save(tmp_path / f"images/p{i}.png")
        (tmp_path / f"labels/ana/p{i}.geojson").write_text(json.dumps([feature(name, SQUARE)]))
    config = init_folder(tmp_path)
    assert (config.class_names, config.ignore) == (("background", name), None)
    assert Folder("train", root=str(tmp_path)).info.class_names == config.class_names


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ([feature("liver", SQUARE)], "class 'liver'"),
        ([feature("tumor", [[0, 0], [1, 1]])], "no polygon"),
        ([feature("tumor", SQUARE, "LineString")], "no polygon"),
        ("x", "list of GeoJSON"),
    ],
)
def test_faults_are_named(content, match):
    with pytest.raises(UserError, match=match):
        draw_polygons(json.dumps(content).encode(), (8, 8), NAMES, "a.geojson")


def test_results_of_pictures_have_outlines_on_request(tmp_path):
    labels = random_map(1)
    for name in "ab":
        Image.fromarray(labels).save(tmp_path / f"{name}.png")
    files = [tmp_path / "a.png", tmp_path / "b.png"]
    (outcome,) = gather(files, tmp_path / "out", options=GatherOptions(classes=NAMES, also=("geojson",)))
    content = (outcome.folder / "fused.geojson").read_bytes()
    assert (draw_polygons(content, labels.shape, NAMES, "x") == labels).all()
