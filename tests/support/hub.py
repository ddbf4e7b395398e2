"""A stand-in for the Hugging Face Hub on this machine: as much of its API as its own client needs here."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


@dataclass
class Hub:
    """Repositories by name, each a dictionary of files; all requests."""

    address: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    uploads: dict[str, bytes] = field(default_factory=dict)

    def commit(self, name: str) -> str:
        files = self.repositories[name]
        return hashlib.sha1(b"".join(key.encode() + files[key] for key in sorted(files))).hexdigest()


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """Run the stand-in until the end of the block."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *args: _Handler(hub, *args))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, hub: Hub, *args: object):
        self.hub = hub
        super().__init__(*args)  # type: ignore[arg-type]

    def log_message(self, *_: object) -> None:
        pass

    def _send(self, status: int, content: bytes | dict | list = b"", **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _unknown(self, code: str) -> None:
        self._send(404, {"error": code}, X_Error_Code=code)

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        parts = path.strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        if api:
            parts = parts[2:]
        name, action, rest = "/".join(parts[:2]), parts[2:3], parts[3:]
        if name not in self.hub.repositories:
            return self._unknown("RepoNotFound")
        files, commit = self.hub.repositories[name], self.hub.commit(name)
        if rest and rest[0] not in ("main", "v1", commit):
            return self._unknown("RevisionNotFound")
        if action == ["resolve"]:
            file = "/".join(rest[1:])
            if file not in files:
                return self._unknown("EntryNotFound")
            tag = hashlib.sha256(files[file]).hexdigest()
            return self._send(200, files[file], ETag=f'"{tag}"', X_Repo_Commit=commit)
        if action == ["tree"]:
            return self._send(200, [_entry(key, value) for key, value in files.items()])
        info = {"id": name, "sha": commit, "siblings": [{"rfilename": key} for key in files], "tags": []}
        return self._send(200, {**info, "private": False, "downloads": 0, "likes": 0})

    do_HEAD = do_GET

    def do_POST(self) -> None:
        path, body = unquote(urlsplit(self.path).path), self._body()
        self.hub.requests.append((self.command, path))
        if "Bearer secret" not in self.headers.get("Authorization", ""):
            return self._send(401, {"error": "log in"})
        if path == "/api/validate-yaml":
            return self._send(200, {"errors": [], "warnings": []})
        if path == "/api/repos/create":
            values = json.loads(body)
            name = f"{values['organization']}/{values['name']}" if values.get("organization") else values["name"]
            self.hub.repositories.setdefault(name, {})
            return self._send(200, {"url": f"{self.hub.address}/{name}", "id": name})
        if path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**each, "actions": {"upload": {"href": f"{self.hub.address}/lfs/{each['oid']}"}}}
                for each in json.loads(body)["objects"]
            ]
            return self._send(200, {"transfer": "basic", "objects": objects})
        name = "/".join(path.split("/")[3:5])
        if "/preupload/" in path:
            modes = [
                {"path": each["path"], "uploadMode": "lfs" if each["path"].endswith(".safetensors") else "regular"}
                for each in json.loads(body)["files"]
            ]
            return self._send(200, {"files": [{**each, "shouldIgnore": False} for each in modes]})
        if "/commit/" in path:
            for line in body.splitlines():
                entry = json.loads(line)
                value = entry["value"]
                if entry["key"] == "file":
                    self.hub.repositories[name][value["path"]] = base64.b64decode(value["content"])
                elif entry["key"] == "lfsFile":
                    self.hub.repositories[name][value["path"]] = self.hub.uploads[value["oid"]]
            commit = self.hub.commit(name)
            return self._send(
                200, {"commitUrl": f"{self.hub.address}/{name}/commit/{commit}", "commitOid": commit, "hookOutput": ""}
            )
        return self._unknown("EntryNotFound")

    def do_PUT(self) -> None:
        self.hub.uploads[self.path.rpartition("/")[2]] = self._body()
        self._send(200, b"")


def _entry(path: str, content: bytes) -> dict[str, object]:
    digest = hashlib.sha1(content).hexdigest()
    return {"type": "file", "path": path, "size": len(content), "oid": digest}
