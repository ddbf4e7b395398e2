"""Malformed uploads, wrong parameters, other sites and path tricks: a clear 4xx each, and the server goes on."""

import gzip
import http.client
import io
import json
import struct
import zipfile
import zlib

import nibabel
import numpy as np
import pytest

from stochseg.studio import StudioError
from tests.studio.test_flow import gray, png

pytestmark = pytest.mark.xdist_group("studio")
MISSING = "0123456789abcdef"
CHANGES = {"X-Stochseg": "1"}


def huge_png() -> bytes:
    """A small file that says it has 10 gigapixels."""
    head = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 0, 0, 0, 0)
    chunk = b"IHDR" + head
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))


def nifti(values: np.ndarray) -> bytes:
    return gzip.compress(nibabel.Nifti1Image(values, np.eye(4)).to_bytes())


def archive(*entries: tuple[str, bytes], method=zipfile.ZIP_DEFLATED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as file:
        for name, content in entries:
            file.writestr(name, content)
    return target.getvalue()


def lying_archive() -> bytes:
    """An archive whose list says that a file of 30 MB has 10 bytes."""
    content = archive(("a.png", bytes(30_000_000)))
    return content.replace(struct.pack("<I", 30_000_000), struct.pack("<I", 10))


UPLOADS = {
    "nothing": [],
    "empty file": [("files", "a.png", b"")],
    "text": [("files", "a.png", b"hello")],
    "text without a suffix": [("files", "readme", b"hello")],
    "script": [("files", "run.sh", b"#!/bin/sh\nrm -rf /")],
    "half a picture": [("files", "a.png", png(gray())[:60])],
    "bomb of pixels": [("files", "a.png", huge_png())],
    "damaged NIfTI": [("files", "a.nii.gz", nifti(np.zeros((4, 4, 4), np.float32))[:50])],
    "NIfTI that is text": [("files", "a.nii", b"x" * 400)],
    "NIfTI of five axes": [("files", "a.nii.gz", nifti(np.zeros((2, 2, 2, 2, 2), np.float32)))],
    "NIfTI without a finite value": [("files", "a.nii.gz", nifti(np.full((4, 4, 4), np.nan, np.float32)))],
    "too many pixels": [("files", "a.nii.gz", nifti(np.zeros((130, 130, 130), np.uint8)))],
    "NRRD with voxels elsewhere": [
        (
            "files",
            "a.nrrd",
            b"NRRD0004\ntype: uchar\ndimension: 3\nsizes: 2 2 2\nencoding: raw\ndata file: /etc/passwd\n\n",
        )
    ],
    "MHA with voxels elsewhere": [
        (
            "files",
            "a.mha",
            b"ObjectType = Image\nNDims = 3\nDimSize = 2 2 2\nElementType = MET_UCHAR\nElementDataFile = /etc/passwd\n",
        )
    ],
    "damaged archive": [("files", "a.zip", b"PK\x03\x04 broken")],
    "empty archive": [("files", "a.zip", archive())],
    "bomb in an archive": [("files", "a.zip", archive(("a.png", bytes(30_000_000))))],
    "archive that lies": [("files", "a.zip", lying_archive())],
    "archive in an archive": [("files", "a.zip", archive(("b.zip", archive(("a.png", png(gray()))))))],
    "archive of many files": [("files", "a.zip", archive(*((f"{i}.png", b"x") for i in range(50))))],
    "two pictures": [("files", "a.png", png(gray())), ("files", "b.png", png(gray(seed=1)))],
    "too many files": [("files", f"{i}.dcm", b"x") for i in range(60)],
    "PostScript": [("files", "a.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")],
    "raters of another size": [("files", "a.png", png(gray())), ("raters", "r.png", png(gray((3, 3))))],
    "raters that are text": [("files", "a.png", png(gray())), ("raters", "r.png", b"no labels")],
}


@pytest.mark.parametrize("name", UPLOADS)
def test_upload_is_refused(client, name):
    before = len(json.loads(client.request("GET", "/api/v1/inputs")))
    with pytest.raises(StudioError) as refused:
        client.upload_parts(UPLOADS[name])
    assert refused.value.status in (400, 413, 422)
    assert len(refused.value.facts["message"]) > 10
    assert "workspace" not in json.dumps(refused.value.facts)
    assert len(json.loads(client.request("GET", "/api/v1/inputs"))) == before


@pytest.mark.parametrize("spacing", ["wide", "-1", "nan", "1,2,3", "0"])
def test_spacing_is_refused(client, spacing):
    with pytest.raises(StudioError, match="spacing"):
        client.upload_parts([("files", "a.png", png(gray()))], {"spacing": spacing})


@pytest.fixture(scope="module")
def input(server) -> str:
    return server.client.upload_parts([("files", "a.png", png(gray()))])["id"]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"samples": 0}, "samples"),
        ({"samples": 65}, "samples"),
        ({"samples": 10**12}, "samples"),
        ({"samples": "many"}, "samples"),
        ({"samples": 1.5}, "samples"),
        ({"evaluations": 0}, "evaluations"),
        ({"evaluations": 9}, "evaluations"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"noise": "loud"}, "noise"),
        ({"slices": "thick"}, "slices"),
        ({"points": [[1, 1, 1]]}, "points"),
        ({"points": [[1, 1]]}, "points"),
        ({"points": "1,1,1"}, "points"),
        ({"points": [[1, 1, 1], [2, 2, 2]]}, "points"),
        ({"model": "unknown"}, "model"),
        ({"model": "../tiny"}, "model"),
        ({"model": "tiny-3d"}, "input"),
        ({"model": None}, "model"),
        ({"input": "../../etc/passwd"}, "input"),
        ({"input": MISSING}, "input"),
        ({"weights": "/etc/passwd"}, "weights"),
        ({"model_path": "/etc"}, "model_path"),
    ],
)
def test_job_is_refused(client, input, changes, key):
    body = json.dumps({"input": input, "model": "tiny", "samples": 2, **changes}).encode()
    with pytest.raises(StudioError, match=key) as refused:
        client.request("POST", "/api/v1/jobs", body, {"Content-Type": "application/json"})
    assert refused.value.status in (404, 422)


def test_point_outside_the_volume_is_refused(client):
    input = client.example("phantom-ct")
    depth, height, width = input["shape"]
    for point in ([width, 0, 0], [0, height, 0], [0, 0, depth], [-1, 0, 0]):
        with pytest.raises(StudioError, match="points"):
            client.submit(input["id"], "tiny-3d", points=[point])


def send(server, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """A request as it is, with no header of ours."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.putrequest(method, path, skip_host="Host" in names, skip_accept_encoding=True)
        for name, value in {**({"Content-Length": str(len(body))} if body else {}), **names}.items():
            connection.putheader(name, value)
        connection.endheaders(body or None)
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/api/v1/models", {"Host": "evil.example"}, 421),
        ("GET", "/api/v1/models", {"Host": "127.0.0.1.evil.example"}, 421),
        ("GET", "/api/v1/models", {"Host": ""}, 421),
        ("GET", "/api/v1/jobs", {"Origin": "https://evil.example"}, 403),
        ("GET", "/api/v1/jobs", {"Origin": "null"}, 403),
        ("GET", "/api/v1/jobs", {"Sec_Fetch_Site": "cross-site"}, 403),
        ("POST", "/api/v1/jobs", {"Content_Type": "application/json"}, 403),
        ("POST", "/api/v1/inputs", {"Content_Type": "text/plain"}, 403),
        ("POST", "/api/v1/inputs", {"X_Stochseg": "1", "Content_Type": "text/plain"}, 415),
        ("POST", "/api/v1/inputs", {"X_Stochseg": "1", "Content_Type": "multipart/form-data"}, 400),
        ("POST", "/api/v1/jobs", {"X_Stochseg": "1", "Content_Type": "application/json"}, 422),
        ("POST", "/api/v1/inputs", {"X_Stochseg": "1", "Content_Length": "99999999999"}, 413),
        ("DELETE", f"/api/v1/jobs/{MISSING}", {}, 403),
        ("DELETE", f"/api/v1/jobs/{MISSING}", {"X_Stochseg": "1"}, 404),
        ("GET", f"/api/v1/jobs/{MISSING}/events", {}, 404),
        ("GET", f"/api/v1/jobs/{MISSING}/samples/0", {}, 404),
        ("GET", "/api/v1/jobs/..%2F..%2Fetc/result", {}, 404),
        ("GET", "/api/v1/jobs/ABCDEF0123456789/result", {}, 422),
        ("GET", "/static/../settings.py", {}, 404),
        ("GET", "/static/..%2f..%2fsettings.py", {}, 404),
        ("GET", "/static/%2e%2e/%2e%2e/settings.py", {}, 404),
        ("GET", "//etc/passwd", {}, 404),
        ("PUT", "/api/v1/jobs", {"X_Stochseg": "1"}, 405),
        ("POST", "/dicom-web/studies", {"Content_Type": "application/dicom"}, 415),
        ("POST", "/dicom-web/studies", {"Content_Type": "multipart/related; boundary=x"}, 400),
        ("GET", f"/api/v1/runs/{MISSING}/cases", {}, 404),
    ],
)
def test_request_is_refused(server, method, path, headers, status):
    got, answer, body = send(
        server, method, path, b"{}" if headers.get("Content_Type") == "application/json" else b"", **headers
    )
    assert got == status
    assert json.loads(body)["error"]["message"]
    assert answer["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["../request.json", "..%2Frequest.json", "%2Fetc%2Fpasswd", "events.jsonl", "x", "."])
def test_only_listed_files_are_sent(client, input, name):
    job = client.wait(client.submit(input, "tiny", samples=1)["id"])
    with pytest.raises(StudioError) as refused:
        client.request("GET", f"/api/v1/jobs/{job['id']}/files/{name}")
    assert refused.value.status in (404, 405)


def test_page_may_not_load_from_elsewhere(server):
    _, headers, _ = send(server, "GET", "/")
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe-inline" not in policy
    assert headers["cache-control"] == "no-cache"
    assert "server" not in headers


def test_body_of_unknown_length_is_bounded(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    boundary = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'

    def endless():
        yield boundary
        for _ in range(200):
            yield bytes(2**20)

    head = {**CHANGES, "Content-Type": "multipart/form-data; boundary=x"}
    try:
        connection.request("POST", "/api/v1/inputs", endless(), head, encode_chunked=True)
        assert connection.getresponse().status == 413
    except (BrokenPipeError, ConnectionResetError):  # it hung up before all was sent
        pass
    finally:
        connection.close()
    assert server.client.request("GET", "/healthz")
