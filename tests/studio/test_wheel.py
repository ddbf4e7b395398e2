"""The built wheel holds the whole page, serves it without the repository, and stays small."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("hatchling", reason="building the wheel needs hatchling; pip install hatchling")

ROOT = Path(__file__).resolve().parents[2]
STATIC = "stochseg/studio/static/"
MOST = 12_000_000
"""Bytes of the wheel without weights."""
VISIT = """
import asyncio, re, sys
from pathlib import Path
import stochseg
from stochseg.studio.api import create_app
from stochseg.studio.settings import Settings

site = Path(sys.argv[1])
assert site in Path(stochseg.__file__).parents, stochseg.__file__
assert (site / "stochseg/models/shipped/lidc/model.safetensors").is_file()
app = create_app(Settings(workspace=Path(sys.argv[2]), models={"lidc": "lidc"}))


def get(url):
    asked, sent = [], []
    head = {"type": "http", "method": "GET", "path": url, "headers": [], "query_string": b"", "root_path": ""}

    async def receive():
        if not asked:
            asked.append(True)
            return {"type": "http.request"}
        await asyncio.Event().wait()  # the client stays

    async def send(message):
        sent.append(message)

    asyncio.run(app(head, receive, send))
    assert sent[0]["status"] == 200, url
    return b"".join(part.get("body", b"") for part in sent).decode()


waiting, seen = {"/"}, set()
while waiting:
    url = waiting.pop()
    seen.add(url)
    text = get(url)
    if url.endswith((".js", "/")) and "/vendor/" not in url:
        found = re.findall(r'(?:src|href)="(/static/[^"]+)"|from "\\./([^"]+)"|src: "(/static/[^"]+)"', text)
        waiting |= {a or c or f"/static/js/{b}" for a, b, c in found} - seen
print(*sorted(seen))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("stochseg-*.whl"))


def test_wheel_is_small_without_weights(wheel):
    with zipfile.ZipFile(wheel) as file:
        weights = sum(each.compress_size for each in file.infolist() if each.filename.endswith(".safetensors"))
    assert weights > 0
    assert wheel.stat().st_size - weights < MOST


def test_wheel_serves_the_whole_page_without_the_repository(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "site")
    path = os.pathsep.join([str(tmp_path / "site"), *(part for part in sys.path if part and part != str(ROOT / "src"))])
    done = subprocess.run(
        [sys.executable, "-c", VISIT, str(tmp_path / "site"), str(tmp_path / "workspace")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    files = {f"/static/{file.relative_to(ROOT / 'src' / STATIC)}" for file in (ROOT / "src" / STATIC).rglob("*.js")}
    assert files <= set(done.stdout.split())
