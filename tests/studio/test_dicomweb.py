"""STOW-RS: a series that is sent becomes an input."""

import json
from pathlib import Path

import pytest

from tests.support.oblique import write_volume
from tests.support.scans import ct
from tests.support.studio import wait_for

pytest.importorskip("pydicom")
pytestmark = pytest.mark.xdist_group("studio")


def store(client, *contents: bytes) -> tuple[dict, ...]:
    """Send instances as other programs do: without our header."""
    parts = b"".join(b"--mark\r\nContent-Type: application/dicom\r\n\r\n" + content + b"\r\n" for content in contents)
    kind = {"Content-Type": 'multipart/related; type="application/dicom"; boundary=mark', "X-Stochseg": ""}
    return json.loads(client.request("POST", "/dicom-web/studies", parts + b"--mark--\r\n", kind))


def test_series_that_is_sent_slice_by_slice_is_one_input(client, tmp_path):
    series = write_volume(tmp_path / "series", ct(size=(5, 16, 16), center=(2, 8, 8)))
    contents = [file.read_bytes() for file in sorted(Path(series).iterdir())]
    before = {input["id"] for input in json.loads(client.request("GET", "/api/v1/inputs"))}
    for content in contents[:2]:
        assert len(store(client, content)["00081199"]["Value"]) == 1
    answer = store(client, *contents[2:], contents[0], b"no DICOM")
    assert len(answer["00081199"]["Value"]) == 4
    assert len(answer["00081198"]["Value"]) == 1

    def arrived():
        return [each for each in json.loads(client.request("GET", "/api/v1/inputs")) if each["id"] not in before]

    (input,) = wait_for(arrived)
    assert input["is_dicom"]
    assert input["shape"] == [5, 16, 16]
