"""Serves the viewer to one browser on this machine."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import struct
import tempfile
import threading
import webbrowser
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import suppress
from html import escape
from itertools import count
from pathlib import Path
from queue import PriorityQueue
from types import FrameType
from typing import Any, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import LastbranchError, UnavailableError
from ..model import visible
from . import page, wire
from .growing import LIVE, GrowingCapture
from .kept import KeptAnswers
from .loaded import Loaded, Parameters
from .partial import FirstLook
from .questions import ask
from .security import Guard, new_token

__all__ = ["application", "listen", "open_browser", "serve", "settings"]

_OPENED = "The viewer is open in the browser, and at this address; Ctrl-C ends it."
_SERVING = "The viewer is at this address; Ctrl-C ends it."
_NO_BROWSER = "No browser was found. Open this address; Ctrl-C ends the viewer."
_GROWING = " when the recording has ended."
_SILENT = 5
"""Seconds after which a page hears from the server, also without news: so a lost connection is noticed."""
_KEPT = 64 << 20
"""Bytes of answers that are kept."""
_FRAME = frozenset(["overview", "timeline"])
"""The questions of the frame around every screen: asked after the screen's own, whose pass over the samples answers the
frame, too."""
_GRACE = 0.05
"""Seconds that other questions about a large capture wait: a page asks several at once, and the screen comes first."""
_LONGEST_WAIT = 1
"""Seconds that the end waits for what is being answered."""
_IDLE = 10
"""Seconds after which a connection without a new request is closed."""
_STARTING = 5
"""Seconds that a browser has to start."""
_TEXT_BROWSERS = frozenset(["www-browser", "links", "elinks", "lynx", "w3m"])
"""They do not run the page, and keep the terminal until they end."""
_UNFORESEEN = "the viewer failed here, which is a bug in lastbranch: {}: {}"


def application(
    loaded: Loaded,
    port: int,
    token: str,
    opened: Callable[[], None] = lambda: None,
    kept: KeptAnswers | None = None,
    growing: GrowingCapture | None = None,
) -> Guard:
    """The ASGI application: the files of the page, ``ask/QUESTION?PARAMETERS``, and the same below ``watch/``, whose
    response is a row of `_framed` parts: an answer about a part of the samples first, where all of them take long.
    ``opened`` is called when the page is served; answers come from ``kept``, and go there. Answers are about what
    ``growing`` has, if there is such a capture, and ``events`` are server-sent ones of its states."""
    endpoints = _Endpoints(loaded, opened, kept, growing)
    routes = [
        Route("/", endpoints.file),
        Route("/events", endpoints.events),
        Route("/ask/{question}", endpoints.answer),
        Route("/watch/{question}", endpoints.watch),
        Route("/{name}", endpoints.file),
    ]
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False
    return Guard(app, port, token)


class _Endpoints:
    """The endpoints of the routes of `application`."""

    def __init__(
        self, loaded: Loaded, opened: Callable[[], None], kept: KeptAnswers | None, growing: GrowingCapture | None
    ) -> None:
        self._opened, self._growing = opened, growing
        self._line = _OneByOne()
        self._shown = _shown(loaded, kept, self._line)
        self._keeping = set[asyncio.Task[bytes]]()
        """The event loop has weak references alone."""

    def _newest(self) -> _Shown:
        if self._growing is not None and self._growing.loaded is not self._shown.loaded:
            self._shown = _shown(self._growing.loaded, None, self._line)
        return self._shown

    async def file(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in page.FILES:
            return Response(status_code=404)
        if name == "index.html":
            self._opened()
        return Response(page.asset(name), headers={"content-type": page.FILES[name]})

    async def answer(self, request: Request) -> Response:
        question, parameters = request.path_params["question"], dict(request.query_params)
        done = await self._answered(self._newest().answers, question, parameters)
        if isinstance(done, _Failure):
            return Response(done.text, done.status, media_type="application/json")
        return Response(done, media_type="application/octet-stream")

    async def watch(self, request: Request) -> Response:
        question, parameters = request.path_params["question"], dict(request.query_params)
        shown = self._newest()
        frames = self._frames(shown, question, parameters)
        if shown.loaded.recording == LIVE and not shown.first.is_large:
            # It is soon there, and asked for each second: a stream, which can be given up, takes longer to make.
            return Response(b"".join([frame async for frame in frames]), media_type="application/octet-stream")
        return StreamingResponse(frames, media_type="application/octet-stream")

    async def events(self, _request: Request) -> Response:
        if self._growing is None:
            return Response(status_code=204)  # there will be none: do not ask again
        return StreamingResponse(_states(self._growing), media_type="text/event-stream")

    async def _answered(self, answers: _Answers, question: str, parameters: Parameters) -> bytes | _Failure:
        line = self._line
        try:
            done = await line.do(lambda: answers.get((question, parameters)), _WHOLE + (question in _FRAME))
            if answers.unkept:
                task = asyncio.ensure_future(line.do(answers.keep, _KEEP))
                self._keeping.add(task)
                task.add_done_callback(self._keeping.discard)
            return done
        except LastbranchError as error:
            return _Failure(422, visible(str(error)), error.hint)
        except OSError as error:  # the capture has vanished, or cannot be read any more
            return _Failure(422, visible(str(error)), None)
        except Exception as error:
            return _Failure(500, visible(_UNFORESEEN.format(type(error).__name__, error)), None)

    async def _frames(self, shown: _Shown, question: str, parameters: Parameters) -> AsyncIterator[bytes]:
        loaded, first, answers = shown
        if first.is_large and (question in _FRAME or not first.is_for(question)):
            await asyncio.sleep(_GRACE)
        # For a growing recording the page has an answer already: about an earlier state.
        if first.is_for(question) and (question, parameters) not in answers and loaded.recording != LIVE:
            with suppress(Exception):  # the answer about all samples will report the failure
                rank = _PART + (question in _FRAME)
                yield _framed(b"PART", await self._line.do(lambda: wire.encode(first.ask(question, parameters)), rank))
        done = await self._answered(answers, question, parameters)
        yield _framed(b"FAIL", done.text) if isinstance(done, _Failure) else _framed(b"DONE", done)


async def _states(growing: GrowingCapture) -> AsyncIterator[str]:
    """Events with the number of changes of the capture and whether it still grows: now, and at each change."""
    loop, change, said = asyncio.get_running_loop(), asyncio.Event(), ""

    def changed() -> None:
        with suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(change.set)

    with growing.watched(changed):
        while not growing.closed:
            change.clear()
            state = json.dumps({"revision": growing.revision, "recording": growing.recording})
            yield f"data: {state}\n\n" if state != said else ":\n\n"
            said = state
            with suppress(TimeoutError):
                await asyncio.wait_for(change.wait(), _SILENT)


class _Connection(H11Protocol):
    """Is closed when nothing was asked for `_IDLE` seconds, whatever has arrived of a request by then: everybody on
    this machine can connect, and descriptors are few."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # asyncio declares any transport; a server gets these
        super().connection_made(transport)
        self.loop.call_later(_IDLE, self._look, self.cycle)

    def _look(self, last: object) -> None:
        answered = self.cycle is None or self.cycle.response_complete
        if self.cycle is last and answered:
            self.transport.close()
        elif not self.transport.is_closing():
            self.loop.call_later(_IDLE, self._look, self.cycle)


class _Failure(NamedTuple):
    """Why there is no answer."""

    status: int
    error: str
    hint: str | None

    @property
    def text(self) -> bytes:
        return json.dumps({"error": self.error, "hint": visible(self.hint) if self.hint else None}).encode()


def _framed(kind: bytes, data: bytes) -> bytes:
    """A part of a response: four letters, uint32 size, the data (web/src/http.ts reads it)."""
    return struct.pack("<4sI", kind, len(data)) + data


class _Shown(NamedTuple):
    """One state of a capture, and the answers about this state."""

    loaded: Loaded
    first: FirstLook
    answers: _Answers


def _shown(loaded: Loaded, kept: KeptAnswers | None, line: _OneByOne) -> _Shown:
    for side in (loaded, loaded.before):
        for stream in side.profile.streams if side else ():
            stream.progress = line.go_on
    return _Shown(loaded, FirstLook(loaded), _Answers(loaded, kept))


class _Answers:
    """The newest answers, as bytes; and those that an earlier viewer has kept, if there is such a cache."""

    def __init__(self, loaded: Loaded, disk: KeptAnswers | None) -> None:
        self._loaded, self._kept, self._disk = loaded, OrderedDict[Hashable, bytes](), disk
        self.unkept: list[tuple[str, Parameters, bytes]] = []
        """Questions and answers that are still to be kept."""

    def __contains__(self, asked: tuple[str, Parameters]) -> bool:
        return _key(*asked) in self._kept or (self._disk is not None and self._disk.may_have(*asked))

    def keep(self) -> bytes:
        """Keep the newest answer on disk: called when nobody waits."""
        if self._disk is not None and self.unkept:
            self._disk.keep(*self.unkept.pop())
        return b""

    def get(self, asked: tuple[str, Parameters]) -> bytes:
        """The answer to (question, parameters). Raises what `ask` raises."""
        key = _key(*asked)
        if key not in self._kept:
            self._loaded.check_unchanged()
            known = self._disk.get(*asked) if self._disk is not None else None
            self._kept[key] = known or wire.encode(ask(self._loaded, *asked))
            if self._disk is not None and known is None:
                self.unkept.append((*asked, self._kept[key]))
            while len(self._kept) > 1 and sum(map(len, self._kept.values())) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


def _key(question: str, parameters: Parameters) -> Hashable:
    return question, frozenset(parameters.items())


class _Abandoned(Exception):
    """Nobody waits for this any more."""


_PART, _WHOLE, _KEEP = 0, 2, 4
"""How soon: answers about a part of the samples first, keeping answers last. One more for what can wait until others
are done."""


class _OneByOne:
    """Does work in a thread of its own, which does not keep the program from ending."""

    def __init__(self) -> None:
        self._work: PriorityQueue[tuple[int, int, _Job]] = PriorityQueue()
        self._numbers = count()
        self._thread: threading.Thread | None = None
        self._now: asyncio.Future[bytes] | None = None

    async def do(self, work: Callable[[], bytes], rank: int) -> bytes:
        """The result of ``work``; of waiting work, the lowest ``rank`` is done first."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="answers", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        self._work.put((rank, next(self._numbers), (work, loop, future)))
        return await future

    def go_on(self, _done: int, _all: int) -> None:
        """Called for each batch that is counted: raises `_Abandoned` if the browser has left."""
        if self._now is not None and self._now.cancelled():
            raise _Abandoned

    def _run(self) -> None:
        while True:
            _, _, (work, loop, future) = self._work.get()
            if future.cancelled():  # the browser has left
                continue
            self._now = future
            done: Callable[[], None]
            try:
                result = work()
                done = _unless_cancelled(future, future.set_result, result)
            except Exception as error:
                done = _unless_cancelled(future, future.set_exception, error)
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(done)


_Job = tuple[Callable[[], bytes], asyncio.AbstractEventLoop, "asyncio.Future[bytes]"]


def _unless_cancelled(future: asyncio.Future[bytes], settle: Callable[[Any], None], value: Any) -> Callable[[], None]:
    return lambda: None if future.cancelled() else settle(value)


def listen(port: int = 0) -> socket.socket:
    """A socket on loopback; ``port`` 0 is any that is free. Raises `UnavailableError` where the port is taken."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if os.name == "posix":  # elsewhere the option would let two servers share a port
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError as error:
        listening.close()
        taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
        raise UnavailableError(
            f"port {port} of 127.0.0.1 {'is in use' if error.errno == errno.EADDRINUSE else f'cannot be had: {error}'}",
            hint="omit --port: a free one is chosen then" if taken else None,
        ) from error
    return listening


def settings(
    loaded: Loaded,
    port: int,
    token: str,
    opened: Callable[[], None] = lambda: None,
    kept: KeptAnswers | None = None,
    growing: GrowingCapture | None = None,
) -> uvicorn.Config:
    """How `application` is served."""
    return uvicorn.Config(
        application(loaded, port, token, opened, kept, growing),
        http=_Connection,
        log_level="critical",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=_LONGEST_WAIT,
    )


class _Server(uvicorn.Server):
    """Sleeps until there is something to do: a viewer stands open for hours, and beside recordings. uvicorn's own looks
    ten times a second whether it shall end."""

    _end: Callable[[], object] | None = None

    async def main_loop(self) -> None:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        self._end = lambda: loop.call_soon_threadsafe(ended.set)
        if not await self.on_tick(0):
            await ended.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self._end is not None:
            self._end()


def serve(
    loaded: Loaded,
    listening: socket.socket,
    start: str,
    say: Callable[[str], None],
    browse: bool,
    kept: KeptAnswers | None = None,
    growing: GrowingCapture | None = None,
) -> None:
    """Serve until Ctrl-C. ``start`` is the fragment of the first page, ``say`` gets lines for the user; ``browse``
    opens the browser; ``kept`` has answers; ``growing`` has newer states of ``loaded``."""
    port, token = listening.getsockname()[1], new_token()
    address = f"http://127.0.0.1:{port}/{token}/{start}"
    redirect: Path | None = None

    def opened() -> None:
        if redirect is not None:
            redirect.unlink(missing_ok=True)

    server = _Server(settings(loaded, port, token, opened, kept, growing))
    listening.listen()  # before the browser comes
    try:
        with suppress(KeyboardInterrupt):  # from here on it is how the user ends the viewer
            redirect = open_browser(address) if browse else None
            words = _OPENED if redirect else _NO_BROWSER if browse else _SERVING
            say(f"{words[:-1] + _GROWING if growing else words}\n{address}")
            server.run(sockets=[listening])
    finally:
        opened()


def open_browser(address: str) -> Path | None:
    """Open ``address`` in the user's browser; ``None`` where there is none.

    The command line of a browser can be read by everybody on the machine, and the address has the token. So the browser
    opens a file that only the user can read, which leads there. Returns that file.
    """
    handle, name = tempfile.mkstemp(prefix="lastbranch-", suffix=".html")  # mode 0600
    path = Path(name)
    text = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={escape(address)}">'
    with os.fdopen(handle, "w") as file:
        file.write(text + f'<a href="{escape(address)}">lastbranch</a>\n')
    # A browser may run until its user closes the window, before `webbrowser` returns: we must answer the browser
    # meanwhile.
    opened = list[bool]()
    thread = threading.Thread(target=lambda: opened.append(_open(path.as_uri())), name="browser", daemon=True)
    thread.start()
    thread.join(_STARTING)
    if not opened or opened[0]:
        return path
    path.unlink(missing_ok=True)
    return None


def _open(address: str) -> bool:
    """Whether a browser was found for ``address``."""
    with suppress(webbrowser.Error, OSError):
        if getattr(webbrowser.get(), "basename", "") not in _TEXT_BROWSERS:
            return webbrowser.open(address)
    return False
