"""debuginfod: debug files by build id over HTTP (elfutils, debuginfod(8)). Only where the user asked for it.

``GET SERVER/buildid/HEX/debuginfo`` and ``/executable``. Servers are those of DEBUGINFOD_URLS; what they send is
limited in size and time, and is used only if its build id is the one that was asked for. It is kept in the cache.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import urllib.request
from http import HTTPStatus
from http.client import HTTPException
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from ..images import same_build_id
from .cache import Cache
from .found import Search, image_of

__all__ = ["SIZE_LIMIT", "fetch"]

SIZE_LIMIT = 4 << 30
"""Bytes of one file."""
CONNECT_SECONDS = 10
FILE_SECONDS = 600
_CHUNK = 1 << 18
_SCHEMES = ("http", "https")


class _HttpOnly(urllib.request.HTTPRedirectHandler):
    """A server may send to another server, but to nothing else."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        if urlsplit(newurl).scheme not in _SCHEMES:
            raise URLError(f"redirected to {newurl!r}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def fetch(search: Search, build_id: bytes, kind: str) -> str | None:
    """The path of the ``debuginfo`` or ``executable`` of a build id; ``None``: not there, or not it."""
    if search.cache is None:
        search.rejected.append("debuginfod needs the cache to keep its files in")
        return None
    store = Cache(os.path.join(search.cache.folder, "debuginfod"), SIZE_LIMIT)
    os.makedirs(store.folder, 0o700, exist_ok=True)
    path = os.path.join(store.folder, f"{build_id.hex()}.{kind}")
    if not os.path.exists(path):
        for server in os.environ.get("DEBUGINFOD_URLS", "").split():
            if _download(search, store, f"{server.rstrip('/')}/buildid/{build_id.hex()}/{kind}", path):
                break
        else:
            return None
    image = image_of(path, search.rejected)
    if image is not None and same_build_id(image.build_id or b"", build_id):
        return path
    search.rejected.append(f"what debuginfod sent for {build_id.hex()} has another build id")
    with contextlib.suppress(OSError):
        os.unlink(path)
    return None


def _download(search: Search, store: Cache, url: str, path: str) -> bool:
    """Whether ``url`` was loaded into ``path``, which appears only when it is whole."""
    if urlsplit(url).scheme not in _SCHEMES:
        search.rejected.append(f"{url} is no address of HTTP")
        return False
    opener = urllib.request.OpenerDirector()
    for handler in (urllib.request.ProxyHandler, urllib.request.HTTPHandler, urllib.request.HTTPSHandler,
                    urllib.request.HTTPDefaultErrorHandler, urllib.request.HTTPErrorProcessor, _HttpOnly):  # fmt: skip
        opener.add_handler(handler())
    part = ""
    try:
        with opener.open(url, timeout=CONNECT_SECONDS) as answer:
            size = int(answer.headers.get("Content-Length") or 0)
            if size > SIZE_LIMIT:
                raise OSError(f"{size} bytes are more than {SIZE_LIMIT}")
            store.make_room(size)
            fd, part = tempfile.mkstemp(".new", "", store.folder)
            with os.fdopen(fd, "wb") as out:
                _copy(search, url, answer, out, size)
        os.replace(part, path)
        return True
    except HTTPError as error:
        if error.code != HTTPStatus.NOT_FOUND:  # not to know a build id is an answer
            search.rejected.append(f"{url}: {error}")
    except (OSError, ValueError, HTTPException) as error:
        search.rejected.append(f"{url}: {error}")
    if part:
        with contextlib.suppress(OSError):
            os.unlink(part)
    return False


def _copy(search: Search, url: str, answer: IO[bytes], out: IO[bytes], size: int) -> None:
    """Raises `OSError` for more bytes than promised or allowed, fewer than promised, and when time is up."""
    end, done = time.monotonic() + FILE_SECONDS, 0
    while chunk := answer.read1(_CHUNK):  # type: ignore[attr-defined]
        done += len(chunk)
        if done > (size or SIZE_LIMIT):
            raise OSError(f"more than {size or SIZE_LIMIT} bytes")
        if time.monotonic() > end:
            raise OSError(f"not done after {FILE_SECONDS} s")
        out.write(chunk)
        if search.progress:
            search.progress(url, done, size)
    if done < size:
        raise OSError(f"{done} of {size} bytes came")
