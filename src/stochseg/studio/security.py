"""Who may talk to the server: hosts, origins, tokens, sizes, and the headers of every answer."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stochseg.studio.errors import Refusal

COOKIE = "stochseg"
HEADER = b"x-stochseg"
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
OPEN_PATHS = frozenset({"/healthz"})
"""Paths that need no token: monitors ask for them, and they say nothing."""
STOW = "/dicom-web/"
"""Paths of other programs, which cannot send our header; a browser cannot send their content type to another site."""
CODE_SECONDS = 600
CSP = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "worker-src 'self' blob:; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
)


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine only."""
    return host in LOOPBACK


class Gate:
    """The outermost layer of the application: refuses requests before anything else sees them.

    Args:
        app: what it protects.
        hosts: names by which the server may be addressed, besides loopback: others come from a site that points its
            own name at this machine.
        token: required of every request; None for none.
        max_bytes: of the body of a request.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str], token: str | None, max_bytes: int):
        self.app, self.hosts, self.max_bytes = app, LOOPBACK.union(host.lower() for host in hosts), max_bytes
        self._token = None if token is None else _digest(token)
        self._codes: dict[bytes, float] = {}
        self._session = secrets.token_urlsafe(32)

    def one_time_code(self) -> str:
        """A code that opens the page once, within ten minutes."""
        code = secrets.token_urlsafe(24)
        self._codes[_digest(code)] = time.monotonic() + CODE_SECONDS
        return code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        send = _with_headers(send)
        try:
            self._check_place(scope, headers)
            if await self._enter(scope, headers, send):
                return
            receive = self._bounded(headers, receive)
            await self.app(scope, receive, send)
        except Refusal as error:
            await _refuse(error, send)

    # --- host and origin ---

    def _check_place(self, scope: Scope, headers: dict[bytes, str]) -> None:
        host = headers.get(b"host", "")
        if _host_name(host) not in self.hosts:
            raise Refusal(
                421, "unknown host", expected="a name of this server", got=host, remedy="start it with --allow-host"
            )
        origin = headers.get(b"origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            raise Refusal(403, "requests of other sites are refused", expected=f"origin {host}", got=origin)
        if headers.get(b"sec-fetch-site", "none") not in ("same-origin", "none") and scope["path"] != "/":
            raise Refusal(403, "requests of other sites are refused", got=headers[b"sec-fetch-site"])
        changes = scope["method"] not in ("GET", "HEAD", "OPTIONS")
        if changes and not scope["path"].startswith(STOW) and HEADER not in headers:
            raise Refusal(403, "a request that changes something needs the header X-Stochseg: 1", got="no header")

    # --- token ---

    async def _enter(self, scope: Scope, headers: dict[bytes, str], send: Send) -> bool:
        """Check the token; answer the request if it brings a one-time code. Returns whether it was answered."""
        if self._token is None or scope["path"] in OPEN_PATHS:
            return False
        if self._has_token(headers):
            return False
        code = parse_qs(scope["query_string"].decode("latin-1")).get("code", [""])[0]
        if scope["path"] == "/" and code and self._use(code):
            cookie = f"{COOKIE}={self._session}; HttpOnly; SameSite=Strict; Path=/"
            cookie += "; Secure" if scope.get("scheme") == "https" else ""
            start = {"type": "http.response.start", "status": 303}
            await send({**start, "headers": [(b"location", b"/"), (b"set-cookie", cookie.encode())]})
            await send({"type": "http.response.body", "body": b""})
            return True
        raise Refusal(
            401,
            "this server needs a token",
            expected="Authorization: Bearer TOKEN, or the link that the server printed at its start",
            got="a code that was used or has expired" if code else "none or a wrong one",
            remedy="restart the server for a new link",
        )

    def _has_token(self, headers: dict[bytes, str]) -> bool:
        assert self._token is not None
        scheme, _, given = headers.get(b"authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(_digest(given.strip()), self._token):
            return True
        try:
            cookie = SimpleCookie(headers.get(b"cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and hmac.compare_digest(_digest(cookie.value), _digest(self._session))

    def _use(self, code: str) -> bool:
        """Whether a code is right; it is void then."""
        until = self._codes.pop(_digest(code), None)
        return until is not None and time.monotonic() < until

    # --- size ---

    def _bounded(self, headers: dict[bytes, str], receive: Receive) -> Receive:
        """Refuse bodies that are too large, also if their length is not stated."""
        stated = headers.get(b"content-length", "0")
        refusal = Refusal(
            413, "the request is too large", expected=f"at most {self.max_bytes:,} bytes", remedy="upload a part of it"
        )
        if not stated.isdecimal() or int(stated) > self.max_bytes:
            raise refusal
        left = self.max_bytes

        async def bounded() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise refusal
            return message

        return bounded


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def _host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def _with_headers(send: Send) -> Send:
    async def add(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message.get("headers", ())}
            extra: list[Any] = [pair for pair in HEADERS if pair[0] not in given]
            if b"cache-control" not in given:
                extra.append((b"cache-control", b"no-store"))
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return add


async def _refuse(error: Refusal, send: Send) -> None:
    body = json.dumps(error.content()).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"www-authenticate", b"Bearer")] if error.status == 401 else []
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
