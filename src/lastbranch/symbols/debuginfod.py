"""debuginfod: debug files by build id over HTTP (elfutils, debuginfod(8)), only where the user enables it.

``GET SERVER/buildid/HEX/debuginfo`` and ``/executable``. Servers are those of DEBUGINFOD_URLS. Their files are limited
in size and time, need the requested build id, and are kept in the cache.

The time limit of a socket limits silence only: a server that sends a byte now and then, or an endless row of interim
responses, never exceeds the limit. So another thread shuts connections down when the time for an answer, or for a file,
is up.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from ..binaries import read_image
from ..binaries.files import read_regular
from ..binaries.image import same_build_id
from ..model import private_mode
from .cache import Cache

__all__ = ["SIZE_LIMIT", "fetch"]

SIZE_LIMIT = 4 << 30
"""Bytes of one file."""
CONNECT_SECONDS = 10
"""Longest silence."""
ANSWER_SECONDS = 90
"""Until the file begins to arrive: a server may have to unpack it first."""
FILE_SECONDS = 600
_CHUNK = 1 << 18
Progress = Callable[[str, int, int], None]
"""Called with (address, bytes done, bytes in all or 0)."""
_TURN = 0.2
"""Seconds between checks of connections that are to end."""
_SCHEMES = ("http", "https")


class _HttpOnly(urllib.request.HTTPRedirectHandler):
    """A server may redirect to another server, but to nothing else."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        if urlsplit(newurl).scheme not in _SCHEMES:
            raise URLError(f"redirected to {newurl!r}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Limit:
    """The time of a server, over all its redirections. After it the connections are shut down."""

    def __init__(self, seconds: float) -> None:
        self._sockets: list[socket.socket] = []
        """Duplicates: several owners pass on the sockets that are used."""
        self._over = threading.Event()
        self.begin(seconds)

    def begin(self, seconds: float) -> None:
        """Start the limit anew."""
        self.seconds, self._end = seconds, time.monotonic() + seconds

    @property
    def exceeded(self) -> bool:
        return time.monotonic() > self._end

    def handlers(self) -> list[urllib.request.BaseHandler]:
        """Handlers of HTTP and HTTPS that put this limit on their connections."""
        limit = self

        def limited(make: Callable[..., HTTPConnection]) -> Callable[..., HTTPConnection]:
            def connection(*words: Any, **more: Any) -> HTTPConnection:
                made = make(*words, **more)
                made._create_connection = limit._connect  # type: ignore[attr-defined] # also before TLS has begun
                return made

            return connection

        class Http(urllib.request.HTTPHandler):
            def do_open(self, http_class: Any, req: Any, **more: Any) -> Any:
                return super().do_open(limited(http_class), req, **more)

        class Https(urllib.request.HTTPSHandler):
            def do_open(self, http_class: Any, req: Any, **more: Any) -> Any:
                return super().do_open(limited(http_class), req, **more)

        return [Http(), Https()]

    def _connect(self, *words: Any, **more: Any) -> socket.socket:
        made = socket.create_connection(*words, **more)
        self._sockets.append(made.dup())
        return made

    @contextlib.contextmanager
    def enforced(self) -> Iterator[None]:
        """Inside of this context, connections end after the limit as if the server had closed them."""
        watch = threading.Thread(target=self._watch, daemon=True)
        watch.start()
        try:
            yield
        finally:
            self._over.set()
            watch.join()
            for each in self._sockets:
                each.close()

    def _watch(self) -> None:
        while not self._over.wait(max(_TURN, self._end - time.monotonic())):
            for each in list(self._sockets) if self.exceeded else ():
                with contextlib.suppress(OSError):  # it has ended already
                    each.shutdown(socket.SHUT_RDWR)


def fetch(folder: str, build_id: bytes, kind: str, rejected: list[str], progress: Progress | None) -> str | None:
    """The path of the ``debuginfo`` or ``executable`` of a build id, which is kept below ``folder``; ``None`` where no
    server has it: ``rejected`` gets the reasons."""
    store = Cache(os.path.join(folder, "debuginfod"), SIZE_LIMIT)
    os.makedirs(store.folder, private_mode(), exist_ok=True)
    path = os.path.join(store.folder, f"{build_id.hex()}.{kind}")

    def is_wanted(file: str) -> bool:
        image = read_regular(file, read_image, rejected)
        if image is not None and same_build_id(image.build_id or b"", build_id):
            return True
        rejected.append(f"the file that debuginfod sent for {build_id.hex()} has another build id")
        return False

    if os.path.exists(path):
        if is_wanted(path):
            return path
        with contextlib.suppress(OSError):
            os.unlink(path)
    for server in os.environ.get("DEBUGINFOD_URLS", "").split():
        url = f"{server.rstrip('/')}/buildid/{build_id.hex()}/{kind}"
        if _download(url, path, store, is_wanted, rejected, progress):
            return path
    return None


class _NotWanted(Exception):
    """What came is not what was asked for; `rejected` has the reason."""


def _download(
    url: str,
    path: str,
    store: Cache,
    is_wanted: Callable[[str], bool],
    rejected: list[str],
    progress: Progress | None,
) -> bool:
    """Whether ``url`` was loaded into ``path``, which is created only when it is complete and wanted."""
    if urlsplit(url).scheme not in _SCHEMES:
        rejected.append(f"{url} is not an HTTP address")
        return False
    limit, opener = _Limit(ANSWER_SECONDS), urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        *limit.handlers(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _HttpOnly(),
    ):
        opener.add_handler(handler)
    try:
        with limit.enforced(), opener.open(url, timeout=CONNECT_SECONDS) as answer:
            limit.begin(FILE_SECONDS)
            size = int(answer.headers.get("Content-Length") or 0)
            if size > SIZE_LIMIT:
                raise OSError(f"{size} bytes exceed the limit of {SIZE_LIMIT}")
            with store.new_file(path) as out:
                _copy(answer, out, size, limit, lambda done: progress and progress(url, done, size))
                out.flush()
                if not is_wanted(out.name):
                    raise _NotWanted
        return True
    except _NotWanted:
        return False
    except HTTPError as error:
        if error.code != HTTPStatus.NOT_FOUND:  # an unknown build id is no failure
            rejected.append(f"{url}: {error}")
    except (OSError, ValueError, HTTPException) as error:
        rejected.append(f"{url}: {f'not done after {limit.seconds:g} s' if limit.exceeded else error}")
    return False


def _copy(answer: IO[bytes], out: IO[bytes], size: int, limit: _Limit, show: Callable[[int], object]) -> None:
    """Copy ``answer``. Raises `OSError` for more bytes than announced or allowed, for fewer, and after the limit."""
    done = 0
    while chunk := answer.read1(_CHUNK):  # type: ignore[attr-defined]
        done += len(chunk)
        if done > (size or SIZE_LIMIT):
            raise OSError(f"more than {size or SIZE_LIMIT} bytes")
        if limit.exceeded:
            break
        out.write(chunk)
        show(done)
    if limit.exceeded:
        raise OSError("too slow")
    if done < size:
        raise OSError(f"{done} of {size} bytes arrived")
