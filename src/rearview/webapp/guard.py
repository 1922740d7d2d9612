"""The outermost application of the studio: every request passes it first, whatever its kind.

A web page that is open in the same browser may send requests to any port of this machine, and a name of its own may
point to 127.0.0.1 (DNS rebinding). Therefore:

- the Host header must be one of the addresses of this server, with the port;
- an Origin header must be the origin of this server, compared with constants; "null" is refused; a POST needs one;
- a request that a foreign site has caused is refused, except for opening the page itself;
- the launch address has a token, which is exchanged for a cookie that scripts cannot read and other sites cannot send;
- there are no WebSockets;
- bodies have a size and must arrive in time.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from rearview.webapp.limits import Limits

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Headers of every answer. Pages add their own content security policy.
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
POLICY = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
# Pages that are shown in a frame or saved. A frame and a download cannot send an Authorization header.
SAVED = "/api/pages/"


@dataclass(frozen=True)
class Access:
    """Who may use the server: the addresses by which it is reached, the token of the launch address, the cookie."""

    hosts: frozenset[str]
    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    session: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def cookie(self) -> str:
        """The name of the cookie. Cookies do not depend on the port, so two studios need two names."""
        return f"rearview-studio-{self.port}"

    @property
    def origins(self) -> frozenset[str]:
        """The origins of the page."""
        return frozenset(f"http://{host}" for host in self.hosts)

    def knows(self, cookies: str, authorization: str) -> bool:
        """Whether a request has the cookie, or the session in its Authorization header (in a frame of a notebook)."""
        try:
            found = SimpleCookie(cookies).get(self.cookie)
        except CookieError:
            found = None
        given = authorization.removeprefix("Bearer ") if found is None else found.value
        return hmac.compare_digest(given.encode(), self.session.encode())

    def frames(self, query: str) -> bool:
        """Whether the query of an address has the session: a page that the frame of a notebook opens or saves."""
        given = parse_qs(query).get("session", [""])[0]
        return hmac.compare_digest(given.encode(), self.session.encode())

    def launches(self, query: str) -> bool:
        """Whether the query of an address has the token."""
        given = parse_qs(query).get("token", [""])[0]
        return hmac.compare_digest(given.encode(), self.token.encode())


class Guard:
    """Passes on the requests of the page and refuses all others."""

    def __init__(self, app: App, access: Access, limits: Limits):
        self._app, self._access, self._limits = app, access, limits
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            # A WebSocket that is not accepted is closed with status 403.
            await receive()
            return await send({"type": "websocket.close", "code": 1008})
        headers = _headers(scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            return await _answer(send, *refusal)
        if self._open >= self._limits.connections:
            return await _answer(send, 503, "Too many requests are being answered. Try again in a moment.")
        self._open += 1
        try:
            body = await self._body(headers, receive)
            if isinstance(body, str):
                return await _answer(send, 413 if "bytes" in body else 408, body)
            await self._app(scope, _replayed(body, receive), _with_headers(send))
        finally:
            self._open -= 1

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        access, opening = self._access, scope["method"] == "GET" and scope["path"] == "/"
        if headers.get("host") not in access.hosts:
            return 421, "This address does not belong to the studio. Open the address that it printed."
        if scope["method"] not in ("GET", "POST"):
            return 405, "The studio answers GET and POST."
        origin = headers.get("origin")
        if origin is not None and origin not in access.origins:
            return 403, "Requests from other sites are refused."
        if origin is None and scope["method"] == "POST":
            return 403, "A POST needs the Origin header of the page."
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not opening:
            return 403, "Requests from other sites are refused."
        if access.knows(headers.get("cookie", ""), headers.get("authorization", "")):
            return None
        query = scope.get("query_string", b"").decode("latin-1")
        if opening and access.launches(query):
            return None
        if scope["method"] == "GET" and scope["path"].startswith(SAVED) and access.frames(query):
            return None
        return 401, "Open the address with the token that the studio printed when it started."

    async def _body(self, headers: dict[str, str], receive: Receive) -> bytes | str:
        """The body, or a sentence that says why it is refused."""
        too_large = f"The request has more than {self._limits.body:,} bytes."
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length) > self._limits.body:
            return too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return b""
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self._limits.body:
                        return too_large
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            return f"The request did not arrive within {self._limits.body_seconds:g} seconds."


def _headers(scope: Scope) -> dict[str, str]:
    """The headers by name. One that is given twice has both values, so that neither is taken for the only one."""
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that returns the body first, and then whatever happens to the connection."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message.get("headers", [])}
            more = {**HEADERS, "content-security-policy": POLICY}
            added = [(name.encode(), value.encode()) for name, value in more.items() if name.encode() not in given]
            message = {**message, "headers": [*message.get("headers", []), *added]}
        await send(message)

    return sending


async def _answer(send: Send, status: int, error: str) -> None:
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    send = _with_headers(send)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
