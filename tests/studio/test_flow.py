"""From a file to readings, over HTTP, with a real server."""

import gzip
import io
import json
import zipfile
from pathlib import Path

import nibabel
import numpy as np
import pytest
import tifffile
from PIL import Image

import stochseg
from stochseg.inference import PredictOptions, predict
from stochseg.studio import StudioError
from tests.support.oblique import write_volume
from tests.support.scans import ct, write_nifti

pytestmark = pytest.mark.xdist_group("studio")


def gray(size=(24, 20), seed=0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size).astype(np.uint8)


def png(values: np.ndarray) -> bytes:
    target = io.BytesIO()
    Image.fromarray(values).save(target, "PNG")
    return target.getvalue()


def volume(content: bytes) -> nibabel.Nifti1Image:
    return nibabel.Nifti1Image.from_bytes(gzip.decompress(content))


@pytest.fixture(scope="module")
def picture(server):
    """A picture with two raters, and a finished job."""
    client = server.client
    raters = [("raters", f"r{i}.png", png((gray(seed=i) > 200).astype(np.uint8))) for i in (1, 2)]
    input = client.upload_parts([("files", "../slice.png", png(gray())), *raters], {"spacing": "0.5,0.7"})
    job = client.submit(input["id"], "tiny", samples=6, seed=3)
    return input, client.wait(job["id"])


def test_models_and_examples_say_what_they_take(client):
    models = {model["name"]: model for model in client.models()}
    assert {"lidc", "lidc-3d", "papila", "tiny", "tiny-3d", "tiny-raters"} == set(models)
    assert models["tiny-3d"]["spatial_dims"] == 3
    assert models["tiny"]["takes_points"]
    assert models["tiny"]["defaults"]["evaluations"] == 2
    for example in client.examples():
        input, model = client.example(example["name"]), models[example["model"]]
        assert example["channels"] == input["channels"] == model["image_channels"]
        assert example["spatial_dims"] == input["spatial_dims"] == model["spatial_dims"]


def test_later_scan_shows_larger_lesions(client):
    areas = []
    for name in ("phantom", "phantom-later"):
        input = client.example(name, 2)
        content = client.request("GET", f"/api/v1/inputs/{input['id']}/raters/0")
        areas.append(np.count_nonzero(np.asarray(Image.open(io.BytesIO(content)))))
    assert areas[1] / areas[0] == pytest.approx(1.3**2, rel=0.05)


def test_samples_are_those_of_predict(server, picture, tiny_models, tmp_path):
    input, job = picture
    client = server.client
    assert input["name"] == "slice.png"
    assert (input["shape"], input["spacing"], input["spatial_dims"]) == ([24, 20], [0.5, 0.7], 2)
    Image.fromarray(gray()).save(tmp_path / "slice.png")
    model = stochseg.load(tiny_models[0])
    (outcome,) = predict(model, tmp_path / "slice.png", tmp_path / "out", PredictOptions(n=6, seed=3))
    expected = tifffile.imread(outcome.folder / "samples.tif")
    for i, labels in enumerate(expected):
        assert (np.asarray(Image.open(io.BytesIO(client.sample(job["id"], i)))) == labels).all()
    shown = Image.open(io.BytesIO(client.request("GET", input["image_url"])))
    assert (np.asarray(shown) == gray()).all()


def test_result_of_a_picture(server, picture):
    input, job = picture
    client = server.client
    result = client.result(job["id"])
    assert sum(sample["weight"] for sample in result["samples"]) == pytest.approx(1)
    assert sum(reading["probability"] for reading in result["hypotheses"]) == pytest.approx(1)
    (area,) = (each for each in result["measures"] if each["key"] == "area-1")
    first = np.asarray(Image.open(io.BytesIO(client.sample(job["id"], 0))))
    assert result["samples"][0]["measures"]["area-1"] == pytest.approx(0.35 * (first == 1).sum())
    assert area["unit"] == "mm²"
    assert area["interval"][0] <= area["median"] <= area["interval"][1]
    assert set(result["scores"]) == {"ged", "hm_iou"}
    assert result["raters"]["names"] == ["r1", "r2"]
    probability = np.asarray(Image.open(io.BytesIO(client.request("GET", f"/api/v1/jobs/{job['id']}/probability/1"))))
    assert probability.dtype == np.uint8
    assert probability.shape == (24, 20)
    assert client.request("GET", f"/api/v1/jobs/{job['id']}/entropy").startswith(b"\x89PNG")
    rater = np.asarray(Image.open(io.BytesIO(client.request("GET", f"/api/v1/inputs/{input['id']}/raters/1"))))
    assert (rater == (gray(seed=2) > 200)).all()


def test_contours_enclose_the_labels(server, picture):
    from matplotlib.path import Path as Outline

    _, job = picture
    client = server.client
    lines = json.loads(client.request("GET", f"/api/v1/jobs/{job['id']}/contours"))["slices"]["0"]
    labels = np.asarray(Image.open(io.BytesIO(client.sample(job["id"], 2))))
    own = [np.array(each["line"]) for each in lines if each["sample"] == 2]
    assert own
    assert all((line[0] == line[-1]).all() for line in own)
    y, x = np.mgrid[: labels.shape[0], : labels.shape[1]]
    inside = sum(Outline(line).contains_points(np.c_[x.ravel(), y.ravel()]).astype(int) for line in own)
    assert ((inside % 2 == 1).reshape(labels.shape) == (labels == 1)).all()


def test_every_file_can_be_downloaded(server, picture):
    _, job = picture
    files = {
        each["name"]: server.client.file(job["id"], each["name"]) for each in server.client.result(job["id"])["files"]
    }
    assert files["report.html"].startswith(b"<!doctype html>")
    assert files["fused.png"].startswith(b"\x89PNG")
    assert {"samples.tif", "mean.tif", "entropy.tif", "result.json"} <= set(files)


def test_events_are_replayed_from_any_number(server, picture):
    _, job = picture
    events = list(server.client.events(job["id"]))
    assert [event.id for event in events] == list(range(1, len(events) + 1))
    assert [event.data["index"] for event in events if event.kind == "sample"] == list(range(6))
    states = [event.data["state"] for event in events if event.kind == "state"]
    assert states == ["queued", "running", "done"]
    assert events[-2].kind == "result"
    assert list(server.client.events(job["id"], after=4)) == events[4:]
    head = {"Last-Event-ID": str(len(events) - 1)}
    text = server.client.request("GET", f"/api/v1/jobs/{job['id']}/events", headers=head).decode()
    assert text.count("event: ") == 1


def test_point_in_a_volume_whatever_its_order_in_the_file(client, tmp_path):
    scan = ct()
    for order, flipped in (((0, 1, 2), ()), ((2, 0, 1), (1,))):
        file = write_nifti(tmp_path / "scan.nii.gz", scan, order, flipped)
        input = client.upload(file)
        assert (input["spatial_dims"], input["units"]) == (3, "HU")
        image = volume(client.request("GET", input["image_url"]))
        shown = np.asarray(image.dataobj).transpose(2, 1, 0)
        z, y, x = np.argwhere(shown > 0).mean(0).round()
        job = client.wait(client.submit(input["id"], "tiny-3d", samples=3, points=[[x, y, z]])["id"])
        result = client.result(job["id"])
        d, h, w = result["offset"]
        assert d <= z < d + result["shape"][0]
        assert h + 8 == y
        assert w + 8 == x
        maps = volume(client.request("GET", f"/api/v1/jobs/{job['id']}/samples"))
        assert maps.shape == (*reversed(result["shape"]), 3)
        assert np.allclose(maps.affine[:3, 3], (image.affine @ [w, h, d, 1])[:3], atol=1e-3)
        names = [each["name"] for each in result["files"]]
        assert names.index("lesions.nii.gz") < names.index("lesions-1-samples.nii.gz")
        titles = [each["title"] for each in result["files"]]
        assert len(set(titles)) == len(titles)


def test_dicom_series_gives_a_segmentation(client, tmp_path):
    pydicom = pytest.importorskip("pydicom")
    series = write_volume(tmp_path / "series", ct(size=(5, 16, 16), center=(2, 8, 8)))
    files = sorted(path for path in Path(series).rglob("*") if path.is_file())
    input = client.upload(*files)
    assert input["is_dicom"]
    job = client.wait(client.submit(input["id"], "tiny", samples=2, allow_unusual_input=True)["id"])
    seg = pydicom.dcmread(io.BytesIO(client.file(job["id"], "fused.dcm")))
    assert seg.Modality == "SEG"
    source = pydicom.dcmread(files[0], stop_before_pixels=True)
    assert seg.StudyInstanceUID == source.StudyInstanceUID


def test_archives_and_other_volumes_are_read(client, tmp_path):
    sitk = pytest.importorskip("SimpleITK")
    image = sitk.GetImageFromArray(ct())
    image.SetSpacing((0.7, 0.7, 2.5))
    sitk.WriteImage(image, tmp_path / "scan.nrrd")
    input = client.upload(tmp_path / "scan.nrrd")
    assert input["shape"] == [12, 30, 28]
    assert input["spacing"] == pytest.approx([2.5, 0.7, 0.7])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("../../folder/slice.png", png(gray()))
        archive.writestr("__MACOSX/._slice.png", b"junk")
    assert client.upload_parts([("files", "a.zip", packed.getvalue())])["shape"] == [24, 20]


def test_volume_sliced_by_a_model_of_images(client, tmp_path):
    input = client.upload(write_nifti(tmp_path / "scan.nii", ct(size=(5, 16, 16), center=(2, 8, 8))))
    job = client.wait(client.submit(input["id"], "tiny", samples=2, allow_unusual_input=True)["id"])
    result = client.result(job["id"])
    assert (result["shape"], result["coupling"]) == ([5, 16, 16], "shared")
    assert {each["key"] for each in result["measures"]} >= {"volume-1", "longest-diameter-1"}


def test_jobs_that_wait_together_get_the_samples_they_get_alone(client):
    inputs = [client.upload_parts([("files", "a.png", png(gray(seed=seed)))])["id"] for seed in range(4)]
    together = [client.submit(input, "tiny", samples=5) for input in inputs]
    for job in together:
        client.wait(job["id"])
    alone = [client.wait(client.submit(input, "tiny", samples=5)["id"]) for input in inputs]
    for first, second in zip(together, alone, strict=True):
        for i in range(5):
            assert client.sample(first["id"], i) == client.sample(second["id"], i)


def test_cancelled_jobs_stop_and_the_next_one_runs(client):
    input = client.upload_parts([("files", "a.png", png(gray((160, 160))))])
    slow = client.submit(input["id"], "tiny", samples=64, evaluations=8)
    waiting = client.submit(input["id"], "tiny", samples=1)
    assert client.cancel(slow["id"])["state"] == "cancelled"
    assert client.wait(waiting["id"], 60)["state"] == "done"
    with pytest.raises(StudioError, match="cancelled"):
        client.wait(slow["id"])
    kinds = [event.kind for event in client.events(slow["id"])]
    assert "result" not in kinds
    client.delete(slow["id"])
    with pytest.raises(StudioError, match="no job"):
        client.job(slow["id"])


def test_failed_job_says_why(client):
    input = client.upload_parts([("files", "a.png", png(gray((4, 4))))])
    job = client.submit(input["id"], "lidc", samples=1)
    with pytest.raises(StudioError, match="expected|at least|pixels"):
        client.wait(job["id"])
    with pytest.raises(StudioError) as refused:
        client.result(job["id"])
    assert refused.value.status == 409


def test_curl_can_send_a_file_and_its_parameters_at_once(client):
    job = client.upload_parts([("file", "a.png", png(gray()))], {"model": "tiny", "samples": "2"}, "jobs")
    assert client.wait(job["id"])["parameters"]["samples"] == 2


def test_growth_of_two_jobs(client, picture):
    _, job = picture
    found = json.loads(
        client.request(
            "POST",
            "/api/v1/growth",
            json.dumps({"before": job["id"], "after": job["id"], "measure": "area-1"}).encode(),
            {"Content-Type": "application/json"},
        )
    )
    assert len(found["change"]["values"]) == 36
    assert "P(growth" in found["statement"]


def test_health_metrics_and_reference(server, picture):
    client = server.client
    assert json.loads(client.request("GET", "/healthz")) == {"status": "ok"}
    lines = client.request("GET", "/metrics").decode().splitlines()
    assert any(line.startswith('stochseg_jobs_total{event="done"}') for line in lines)
    page = client.request("GET", "/docs").decode()
    assert "/api/v1/jobs/{name}/events" in page
    assert "<script" not in page
    assert client.request("GET", "/").startswith(b"<!doctype html>")
