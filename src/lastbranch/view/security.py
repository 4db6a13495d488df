"""Keeps everybody else out of the viewer: other machines, other users, other pages in the same browser.

A request is answered only if it came over loopback, names the address that the server was bound to (which a page of a
host name that was made to resolve to loopback does not), begins its path with the token that only the opened browser
knows, and was made by the viewer's own page. Browsers say who made it in ``Sec-Fetch-Site`` and ``Origin``.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

__all__ = ["WASM", "Guard", "content_security_policy", "new_token"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

WASM = "'wasm-unsafe-eval'"
"""A source of scripts: WebAssembly, which lays out graphs, and nothing else that is compiled at run time."""

_TOKEN_BYTES = 24
_LOOPBACK = ("127.0.0.1", "::1")
_OWN = ("same-origin", "none")
"""``Sec-Fetch-Site`` of what the viewer's page asks for, and of an address that was typed in."""


def new_token() -> str:
    """A path segment that nobody guesses."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def content_security_policy(scripts: str, styles: str, **more: str) -> str:
    """The policy of the viewer's page: nothing, but ``scripts`` and ``styles`` (sources) and ``more`` directives, whose
    names have _ for -."""
    allowed = {
        "default-src": "'none'",
        "script-src": scripts,
        "style-src": styles,
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    allowed |= {name.replace("_", "-"): sources for name, sources in more.items()}
    return "; ".join(f"{name} {sources}" for name, sources in allowed.items())


_HEADERS = {
    "content-security-policy": content_security_policy(
        f"'self' {WASM}", "'self'", connect_src="'self'", worker_src="'self'", img_src="data:", frame_ancestors="'none'"
    ),
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""The headers of every response, refusals included."""


class Guard:
    """ASGI middleware: `App` gets only requests of the viewer's own page, their path without the token."""

    def __init__(self, app: App, port: int, token: str) -> None:
        self._app = app
        self._host, self._origin = f"127.0.0.1:{port}".encode(), f"http://127.0.0.1:{port}".encode()
        self._prefix = f"/{token}/"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        with_headers = _adding(send)
        status = self._refusal(scope)
        if status:
            await with_headers({"type": "http.response.start", "status": status, "headers": []})
            await with_headers({"type": "http.response.body", "body": b""})
            return
        path = "/" + scope["path"].removeprefix(self._prefix)
        await self._app({**scope, "path": path, "raw_path": path.encode()}, receive, with_headers)

    def _refusal(self, scope: Scope) -> int:
        """The status of the response to what is refused, 0 for what is not."""
        headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.lower(), []).append(value)
        if headers.get(b"host") != [self._host]:
            return 421
        if (scope.get("client") or ("", 0))[0] not in _LOOPBACK or headers.get(b"origin", [self._origin]) != [
            self._origin
        ]:
            return 403
        prefix = scope["path"][: len(self._prefix)]
        if not secrets.compare_digest(prefix.encode(), self._prefix.encode()):
            return 404
        if scope["method"] not in ("GET", "HEAD"):
            return 405
        (site,) = headers.get(b"sec-fetch-site", [b"none"])[-1:]
        # The page itself may be opened from elsewhere, as by the file that redirects to it: whoever does has the token.
        opened = scope["path"] == self._prefix and headers.get(b"sec-fetch-dest") == [b"document"]
        return 0 if site.decode("latin-1") in _OWN or opened else 403


def _adding(send: Send) -> Send:
    async def send_with_headers(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            own = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", ()), *own]}
        await send(message)

    return send_with_headers
