"""The writers of this process: one for each thread and session, and a thread that learns when sessions end.

Everything here belongs to one process: a child by fork gets its own (`current`), and writes to nothing of its parent's.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

from ...status import EtwError
from ..protocol import at_folder
from ..registry import EnableState, ProcessKey, Registry
from .writer import Writer, connect_writer

__all__ = ["SessionKey", "current", "on_fork", "session_of", "writing"]


SessionKey = tuple[ProcessKey, str]
"""Which session is meant: its daemon, and the file name of its socket."""
QUIET = 2.0
"""Seconds to wait for writes that are under way when a session ends."""
_writing: set[CodeType] = set()
Function = TypeVar("Function", bound=Callable[..., Any])


def writing(function: Function) -> Function:
    """Mark a function that writes events: as long as a thread is in it, its writers are not closed."""
    _writing.add(function.__code__)
    return function


def session_of(state: EnableState) -> SessionKey:
    """The session that a provider was enabled by."""
    return state.owner, state.socket


class _Mine:
    """The writers of one thread. They are given up when the thread ends."""

    def __init__(self, retired: deque[Writer], wake: Callable[[], None]) -> None:
        self.writers: dict[SessionKey, Writer] = {}
        self._retired, self._wake = retired, wake

    def __del__(self) -> None:
        if self.writers:
            self._retired.extend(self.writers.values())
            self._wake()


class Attachments:
    """Writers, and the thread that watches their sessions and whatever else is to be watched."""

    def __init__(self) -> None:
        self.ended: list[Callable[[SessionKey], None]] = []
        """Called in the thread when a session has ended, before its writers are closed."""
        self._local = threading.local()
        self._lock = threading.Lock()
        self._writers: dict[Writer, SessionKey] = {}
        self._retired: deque[Writer] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._selector = selectors.DefaultSelector()
        self._ear, self._mouth = socket.socketpair()
        self._ear.setblocking(False)
        self._mouth.setblocking(False)
        self._selector.register(self._ear, selectors.EVENT_READ, self._listen)
        self._thread = threading.Thread(target=self._run, name="lastbranch-etw", daemon=True)
        self._thread.start()

    # -- writers

    def writer(self, registry: Registry, session: SessionKey) -> Writer:
        """This thread's writer to ``session``. `EtwError` if it cannot be had."""
        mine: _Mine | None = getattr(self._local, "mine", None)
        if mine is None:
            mine = self._local.mine = _Mine(self._retired, self._wake)
        writer = mine.writers.get(session)
        if writer is None or writer.closed:
            with registry.folder("sessions") as folder:
                writer = connect_writer(at_folder(folder, session[1]))
            mine.writers = {key: kept for key, kept in mine.writers.items() if not kept.closed}
            mine.writers[session] = writer
            with self._lock:
                self._writers[writer] = session
            self.soon(lambda: self._watch_writer(writer))
        return writer

    def refuse(self, session: SessionKey) -> None:
        """Count an event that is lost as its thread can have no writer, by another one to ``session``."""
        with self._lock:
            other = next((writer for writer, of in self._writers.items() if of == session), None)
            if other is not None:
                other.count_refused()

    def _watch_writer(self, writer: Writer) -> None:
        if writer in self._writers and writer.connection is not None:
            self.watch(writer.connection.stream, lambda: self._over(self._writers.get(writer)))

    def _over(self, session: SessionKey | None) -> None:
        """A session says that it ends, or is gone."""
        if session is None:
            return
        for call in list(self.ended):
            call(session)
        with self._lock:
            writers = [writer for writer, of in self._writers.items() if of == session]
        self.settle()
        self._close(writers)

    def settle(self) -> None:
        """Wait until the writes that are under way in other threads have ended.

        Looking at the threads' frames under the interpreter lock is exact: a call that begins later reads anew where it
        is to write. So a write pays nothing for it.
        """
        end = time.monotonic() + QUIET
        under_way = _writes()
        while under_way and time.monotonic() < end:
            time.sleep(0.0005)
            under_way &= _writes()

    def _close(self, writers: list[Writer]) -> None:
        for writer in writers:
            with self._lock:
                known = self._writers.pop(writer, None)
            if known is not None:
                if writer.connection is not None:
                    self.forget(writer.connection.stream)
                writer.close()

    # -- the thread

    @property
    def inside(self) -> bool:
        """Whether the caller is the thread."""
        return threading.current_thread() is self._thread

    def watch(self, stream: socket.socket, call: Callable[[], None]) -> None:
        """In the thread: have ``call`` called when ``stream`` can be read."""
        self._selector.register(stream, selectors.EVENT_READ, call)

    def forget(self, stream: socket.socket) -> None:
        """In the thread: end that."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(stream)

    def soon(self, call: Callable[[], None]) -> None:
        """Have ``call`` called in the thread."""
        self._calls.append(call)
        self._wake()

    def now(self, call: Callable[[], None]) -> None:
        """Have ``call`` called in the thread, and wait for it; its exceptions are the caller's."""
        if self.inside:
            call()
            return
        done, failed = threading.Event(), []

        def run() -> None:
            try:
                call()
            except BaseException as error:
                failed.append(error)
            finally:
                done.set()

        self.soon(run)
        while not done.wait(1) and self._thread.is_alive():
            pass
        if failed:
            raise failed[0]

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake
            self._mouth.send(b"\0")

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            self._ear.recv(4096)

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                with contextlib.suppress(OSError, EtwError):
                    key.data()
            while self._calls:
                with contextlib.suppress(OSError, EtwError):
                    self._calls.popleft()()
            while self._retired:
                self._close([self._retired.popleft()])

    def abandon(self) -> None:
        """In a child by fork: let go of everything that is the parent's, without a word to anybody."""
        for writer in self._writers:
            writer.abandon()
        self._selector.close()
        self._ear.close()
        self._mouth.close()


def _writes() -> set[FrameType]:
    """Calls of functions that are marked as `writing`, which other threads are in."""
    me, found = threading.get_ident(), set()
    for ident, top in sys._current_frames().items():
        frame = top if ident != me else None
        while frame is not None:
            if frame.f_code in _writing:
                found.add(frame)
            frame = frame.f_back
    return found


_current: Attachments | None = None
_lock = threading.Lock()
_forked: list[Callable[[], None]] = []


def current() -> Attachments:
    """Those of this process."""
    global _current
    with _lock:
        if _current is None:
            _current = Attachments()
        return _current


def on_fork(call: Callable[[], None]) -> None:
    """Have ``call`` called in every child by fork, after it let go of what is its parent's."""
    _forked.append(call)


def _in_child() -> None:
    global _current, _lock
    _lock = threading.Lock()
    parents, _current = _current, None
    if parents is not None:
        parents.abandon()
        for call in _forked:
            call()


os.register_at_fork(after_in_child=_in_child)
