"""Tokens, one-time codes and cookies, without a server."""

import asyncio
import json

import pytest

pytest.importorskip("starlette")

from stochseg.errors import UserError
from stochseg.studio.security import Gate
from stochseg.studio.serving import read_token, serve
from stochseg.studio.settings import Settings

TOKEN = "correct horse battery staple"


async def _app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"inside"})


@pytest.fixture
def gate() -> Gate:
    return Gate(_app, ["studio.example"], TOKEN, 1000)


def ask(gate: Gate, path: str = "/api/v1/jobs", query: str = "", **headers: str) -> tuple[int, dict[str, str], bytes]:
    sent = []

    async def receive():
        return {"type": "http.request", "body": b""}

    async def send(message):
        sent.append(message)

    named = {"host": "studio.example", **{key.replace("_", "-"): value for key, value in headers.items()}}
    pairs = [(key.encode(), value.encode("latin-1")) for key, value in named.items()]
    scope = {"type": "http", "method": "GET", "path": path, "query_string": query.encode(), "headers": pairs}
    asyncio.run(gate({**scope, "scheme": "http"}, receive, send))
    got = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
    return sent[0]["status"], got, b"".join(message.get("body", b"") for message in sent[1:])


def test_token_opens(gate):
    assert ask(gate, authorization=f"Bearer {TOKEN}")[0] == 200
    assert ask(gate, path="/healthz")[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer"},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": f"Bearer {TOKEN[:-1]}"},
        {"authorization": "Bearer \xff\xfe"},
        {"cookie": "stochseg="},
        {"cookie": f"stochseg={TOKEN}"},
        {"cookie": ";;;=\x01"},
    ],
)
def test_without_the_token_nothing_is_seen(gate, headers):
    status, got, body = ask(gate, **headers)
    assert status == 401
    assert got["www-authenticate"] == "Bearer"
    assert b"inside" not in body
    assert TOKEN not in body.decode()
    assert json.loads(body)["error"]["remedy"]


def test_code_opens_once_and_leaves_a_cookie(gate):
    code = gate.one_time_code()
    status, headers, _ = ask(gate, path="/", query=f"code={code}")
    assert (status, headers["location"]) == (303, "/")
    cookie = headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKEN not in cookie
    assert ask(gate, cookie=cookie.partition(";")[0])[0] == 200
    assert ask(gate, path="/", query=f"code={code}")[0] == 401


def test_code_expires_and_opens_the_page_only(gate, monkeypatch):
    code = gate.one_time_code()
    assert ask(gate, query=f"code={code}")[0] == 401
    monkeypatch.setattr("time.monotonic", lambda: 1e12)
    assert ask(gate, path="/", query=f"code={code}")[0] == 401


def test_token_of_a_file(tmp_path):
    (tmp_path / "token").write_text("0123456789abcdef\n")
    assert read_token(tmp_path / "token") == "0123456789abcdef"
    (tmp_path / "short").write_text("1234")
    for name in ("short", "missing"):
        with pytest.raises(UserError, match="--token-file"):
            read_token(tmp_path / name)


def test_other_machines_need_a_token(tmp_path):
    settings = Settings(workspace=tmp_path, models={})
    with pytest.raises(UserError, match="token"):
        serve(settings, "0.0.0.0", 0, browser=False)
    behind_a_proxy = Settings(workspace=tmp_path, models={}, hosts=("studio.example.org",))
    with pytest.raises(UserError, match="studio.example.org .* token"):
        serve(behind_a_proxy, "127.0.0.1", 0, browser=False)


def test_token_is_not_printed(tmp_path):
    assert TOKEN not in f"{Settings(workspace=tmp_path, models={}, token=TOKEN)!r}"
