"""Providers of this process: the registry lists the sessions that enabled them, and events go to these sessions.

A write looks up the route of its descriptor in a table of its thread, which the first write fills. When sessions come
or go, all tables are replaced. The path of an event takes no lock.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import selectors
import socket
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, TypeVar
from uuid import UUID

from ....errors import FormatError
from ....model import token
from ...flags import EnableProvider
from ...interface import ClassicHeader, EnableCallback, EventDescriptor
from ...properties import NO_GUID
from ...status import EtwError, Status
from ..protocol import address_in, unpack
from ..session_registry import EnableState, Notice, ProcessKey, Registry, remove
from .targets import Target, target_of
from .writer import NO_ACTIVITY, Put, Writer, connect_writer, put_classic, put_for

__all__ = ["Registration", "current", "trace_event"]


# -- The writers of this process: one for each thread and session, and a thread that learns when sessions end
#
# Everything here belongs to one process: a child by fork gets its own (`current`), and writes to nothing of its
# parent's.


SessionKey = tuple[ProcessKey, str]
"""A session: its daemon, and the file name of its socket."""
QUIET = 2.0
"""Seconds to wait for current writes when a session ends."""
_writing: set[CodeType] = set()
Function = TypeVar("Function", bound=Callable[..., Any])


def writing(function: Function) -> Function:
    """Mark a function that writes events. While a thread is in it, its writers are not closed."""
    _writing.add(function.__code__)
    return function


def session_of(state: EnableState) -> SessionKey:
    """The session that a provider was enabled by."""
    return state.owner, state.socket


class _ThreadWriters:
    """The writers of one thread, retired when the thread ends."""

    def __init__(self, retired: deque[Writer], wake: Callable[[], None]) -> None:
        self.writers: dict[SessionKey, Writer] = {}
        self._retired, self._wake = retired, wake

    def __del__(self) -> None:
        if self.writers:
            self._retired.extend(self.writers.values())
            self._wake()


class Attachments:
    """The writers of this process, and the thread that watches their sessions and the sockets for notices."""

    def __init__(self) -> None:
        self.ended: list[Callable[[SessionKey], None]] = []
        """Functions that the thread calls when a session has ended, before it closes the writers."""
        self._local = threading.local()
        self._lock = threading.Lock()
        self._writers: dict[Writer, SessionKey] = {}
        self._retired: deque[Writer] = deque()
        self._calls: deque[Callable[[], None]] = deque()
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._listen)
        self._thread = threading.Thread(target=self._run, name="lastbranch-etw", daemon=True)
        self._thread.start()

    # -- writers

    def writer(self, registry: Registry, session: SessionKey) -> Writer:
        """This thread's writer to ``session``. Raises `EtwError` if it cannot attach."""
        of_thread: _ThreadWriters | None = getattr(self._local, "writers", None)
        if of_thread is None:
            of_thread = self._local.writers = _ThreadWriters(self._retired, self._wake)
        writer = of_thread.writers.get(session)
        if writer is None or writer.closed:
            with registry.folder("sessions") as folder:
                writer = connect_writer(address_in(folder, session[1]))
            of_thread.writers = {key: kept for key, kept in of_thread.writers.items() if not kept.closed}
            of_thread.writers[session] = writer
            with self._lock:
                self._writers[writer] = session
            self.call_soon(lambda: self._watch_writer(writer))
        return writer

    def refuse(self, session: SessionKey) -> None:
        """Count an event of a thread without a writer as lost, through another writer to ``session``."""
        with self._lock:
            other = next((writer for writer, of in self._writers.items() if of == session), None)
            if other is not None:
                other.count_refused()

    def _watch_writer(self, writer: Writer) -> None:
        if writer in self._writers and writer.connection is not None:
            self.watch(writer.connection.stream, lambda: self._over(self._writers.get(writer)))

    def _over(self, session: SessionKey | None) -> None:
        """A session is ending, or is gone."""
        if session is None:
            return
        for call in list(self.ended):
            call(session)
        with self._lock:
            writers = [writer for writer, of in self._writers.items() if of == session]
        self.wait_for_writes()
        self._close(writers)

    def wait_for_writes(self) -> None:
        """Wait until the current writes of other threads have ended.

        A look at the threads' frames under the interpreter lock is exact: a call that begins later reads anew where to
        write. So writes have no cost for this.
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
        """Call ``call`` whenever ``stream`` is readable. Only the thread itself may call this method."""
        self._selector.register(stream, selectors.EVENT_READ, call)

    def forget(self, stream: socket.socket) -> None:
        """In the thread: stop watching ``stream``."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(stream)

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call ``call`` in the thread."""
        self._calls.append(call)
        self._wake()

    def call_and_wait(self, call: Callable[[], None]) -> None:
        """Call ``call`` in the thread and wait for it. Its exceptions are raised here."""
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

        self.call_soon(run)
        while not done.wait(1) and self._thread.is_alive():
            pass
        if failed:
            raise failed[0]

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it is awake
            self._wake_writer.send(b"\0")

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_reader.recv(4096)

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
        """After a fork, in the child: close everything that belongs to the parent, and notify nobody."""
        for writer in self._writers:
            writer.abandon()
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()


def _writes() -> set[FrameType]:
    """Frames of other threads in functions marked by `writing`."""
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


def current() -> Attachments:
    """The attachments of this process."""
    global _current
    with _lock:
        if _current is None:
            _current = Attachments()
        return _current


def _in_child() -> None:
    global _current, _lock
    _lock = threading.Lock()
    parents, _current = _current, None
    if parents is not None:
        parents.abandon()
        for registration in list(_registered):
            registration._register_anew()


os.register_at_fork(after_in_child=_in_child)


# -- routes: from one kind of event to the sessions that take it, made once for a thread and a descriptor


Item = tuple[int, bytes]
"""Type and data of an extended item."""
_NONE_TAKEN = (Status.WMI_INSTANCE_NOT_FOUND, Status.ACCESS_DENIED)
"""The session has ended, or takes nothing of this process: no event is lost. Other failures lose events."""


def route(
    registry: Registry,
    provider: UUID,
    targets: Mapping[SessionKey, Target],
    descriptor: EventDescriptor,
    more: Sequence[Item] = (),
) -> Put:
    """A function that writes events of ``descriptor``, with ``more`` items, to the ``targets`` that take them."""
    puts = []
    for session, target in targets.items():
        if not target.takes_event(descriptor):
            continue
        try:
            writer = current().writer(registry, session)
        except EtwError as error:
            if error.status not in _NONE_TAKEN:
                puts.append(_refuse_all(session))
            continue
        puts.append(put_for(writer, provider, descriptor, _encode([*target.items(), *more])))
    if len(puts) < 2:
        return puts[0] if puts else _nothing
    return lambda data, tail=NO_ACTIVITY: max([put(data, tail) for put in puts])


def _nothing(data: bytes, tail: bytes = NO_ACTIVITY) -> int:
    return 0


def _refuse_all(session: SessionKey) -> Put:
    """For a session that has no room for another writer, or whose daemon gives a wrong answer."""

    def refused(data: bytes, tail: bytes = NO_ACTIVITY) -> int:
        current().refuse(session)
        return Status.NOT_ENOUGH_MEMORY

    return refused


def _encode(items: list[Item]) -> bytes:
    if not items:
        return b""
    from ....formats.etl import encode_items

    return encode_items(items)


_RELATED, _TRAITS = 1, 12  # EVENT_HEADER_EXT_TYPE_RELATED_ACTIVITYID, _PROV_TRAITS
_SET_TRAITS = 2  # EVENT_INFO_CLASS
_UNUSED_CLASSES = {
    0: "programs are not tracked by their binaries",
    1: "it is reserved",
    3: "the type of a data descriptor is unused",
}
_MOST_KEPT = 1024
_GUID = 16
_registered: weakref.WeakSet[Registration] = weakref.WeakSet()


class _Table(threading.local):
    """One thread's routes: by the identity of the descriptor, and by its value for new objects."""

    def __init__(self) -> None:
        self.by_id: dict[int, tuple[EventDescriptor, Put]] = {}
        self.by_value: dict[EventDescriptor, Put] = {}


class Registration:
    """A provider that this process has registered; see `interface.Registration`.

    Raises `EtwError` 5 if the registry cannot be used. The callback runs in a thread of its own. It runs before the
    constructor returns for each session that has already enabled the provider.
    """

    def __init__(self, registry: Registry, provider: UUID, callback: EnableCallback | None = None) -> None:
        self.provider = provider
        self.enabled = False
        self.level = self.keywords = 0
        self._traits: tuple[Item, ...] = ()
        self._registry, self._callback = registry, callback
        self._targets: dict[SessionKey, Target] = {}
        self._table = _Table()
        self._socket: socket.socket | None = None
        self.write = self._writer()
        _registered.add(self)
        self._begin()

    # -- events

    def _writer(self) -> Callable[..., int]:
        """`write`, as a closure: it is faster than a method."""

        @writing
        def write(descriptor: EventDescriptor, data: bytes = b"", activity: bytes = b"", related: bytes = b"") -> int:
            if not self.enabled:
                return 0
            try:
                put = self._table.by_id[id(descriptor)][1]
            except KeyError:
                put = self._put(descriptor)
            if activity or related:
                return self._write_related(descriptor, data, activity, related)
            return put(data)

        return write

    def _put(self, descriptor: EventDescriptor) -> Put:
        table = self._table
        if len(table.by_value) > _MOST_KEPT:
            table.by_value.clear()
            table.by_id.clear()
        put = table.by_value.get(descriptor)
        if put is None:
            put = table.by_value[descriptor] = self._route(descriptor)
        if len(table.by_id) < _MOST_KEPT:
            table.by_id[id(descriptor)] = descriptor, put  # while it is in the table, no other object has its id
        return put

    def _route(self, descriptor: EventDescriptor, *more: tuple[int, bytes]) -> Put:
        return route(self._registry, self.provider, self._targets, descriptor, (*self._traits, *more))

    def _write_related(self, descriptor: EventDescriptor, data: bytes, activity: bytes, related: bytes) -> int:
        tail = bytes(8) + (activity or bytes(_GUID))
        if not related:
            return self._put(descriptor)(data, tail)
        return self._route(descriptor, (_RELATED, related))(data, tail)

    def takes(self, level: int, keyword: int) -> bool:
        """Whether any session takes an event of this level and keyword."""
        return any(target.takes(level, keyword) for target in self._targets.values())

    def set_information(self, kind: int, data: bytes) -> None:
        """Have each event carry the provider's traits (class 2). `EtwError` 87 for traits that are none and for an
        unknown class, 50 for classes that do nothing here."""
        call = "EventSetInformation"
        if kind in _UNUSED_CLASSES:
            raise EtwError(call, Status.NOT_SUPPORTED, f"class {kind} is not supported: {_UNUSED_CLASSES[kind]}")
        if kind != _SET_TRAITS:
            raise EtwError(call, Status.INVALID_PARAMETER, f"no class {kind}")
        if len(data) < 3 or int.from_bytes(data[:2], "little") != len(data) or b"\0" not in data[2:]:
            raise EtwError(call, Status.INVALID_PARAMETER, "traits are their size, the provider's name, and more")
        self._traits = ((_TRAITS, data),)
        self._table = _Table()

    # -- sessions

    def _begin(self) -> None:
        attachments = current()
        attachments.ended.append(self._drop_session)
        attachments.call_and_wait(self._listen)

    def _listen(self) -> None:
        """Open the socket for notices, and read which sessions have enabled the provider."""
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._name = f"{token()}.sock"
        try:
            with self._registry.folder("providers", str(self.provider)) as folder:
                stream.bind(address_in(folder, self._name))
                remove(folder, *(name for name in os.listdir(folder) if _is_stale(folder, name)))
        except OSError as error:
            stream.close()
            raise EtwError("EventRegister", Status.ACCESS_DENIED, f"no socket for notices: {error}") from error
        self._socket = stream
        current().watch(stream, self._take_notices)
        self._refresh()

    def _take_notices(self) -> None:
        stream = self._socket
        while stream is not None:
            try:
                data, sender = stream.recvfrom(256)
            except BlockingIOError:
                return
            try:
                notice: Notice = unpack(Notice, data)
            except FormatError:
                continue
            self._refresh(notice)
            if sender:
                with contextlib.suppress(OSError):
                    stream.sendto(data, sender)

    def _refresh(self, notice: Notice | None = None) -> None:
        """Read which sessions enable the provider now, and report changes to the callback."""
        before = self._targets
        states = self._registry.enabled(self.provider).values()
        made = [(session_of(state), target_of(state)) for state in states]
        self._change({session: target for session, target in made if target is not None})
        for session in before.keys() - self._targets.keys():
            self._call(EnableProvider.DISABLE, before[session])
        for session, target in self._targets.items():
            asked = notice is not None and target.state.handle == notice.handle
            if asked and notice is not None and notice.code == EnableProvider.CAPTURE_STATE:
                self._call(EnableProvider.CAPTURE_STATE, target, notice.keywords)
            elif asked or before.get(session) != target:
                self._call(EnableProvider.ENABLE, target)

    def _drop_session(self, session: SessionKey) -> None:
        if session in self._targets:
            gone = self._targets[session]
            self._change({key: target for key, target in self._targets.items() if key != session})
            self._call(EnableProvider.DISABLE, gone)

    def _change(self, targets: dict[SessionKey, Target]) -> None:
        self._targets = targets
        levels = [target.state.level for target in targets.values()]
        self.level = 0 if 0 in levels else max(levels, default=0)
        wanted = [target.state.match_any for target in targets.values()]
        self.keywords = 0
        for keywords in wanted if all(wanted) else ():
            self.keywords |= keywords
        self._table = _Table()  # stored after the targets, because threads read this word before the targets
        self.enabled = bool(targets)

    def _call(self, code: EnableProvider, target: Target, keywords: int | None = None) -> None:
        if self._callback is not None:
            state = target.state
            wanted = state.match_any if keywords is None else keywords
            with contextlib.suppress(Exception):  # an error of one provider must not stop the notices of all others
                self._callback(state.source or NO_GUID, code, state.level, wanted, state.match_all, state.filters)

    # -- the end

    def close(self) -> None:
        """Unregister. Further calls do nothing."""
        _registered.discard(self)
        if self._socket is not None:
            current().call_and_wait(self._end)

    def _end(self) -> None:
        attachments, stream = current(), self._socket
        self._change({})
        attachments.wait_for_writes()
        if stream is None:
            return
        self._socket = None
        attachments.ended.remove(self._drop_session)
        attachments.forget(stream)
        stream.close()
        self._unlink()

    def _unlink(self) -> None:
        with contextlib.suppress(OSError, EtwError), self._registry.folder("providers", str(self.provider)) as folder:
            os.unlink(self._name, dir_fd=folder)

    def _register_anew(self) -> None:
        """In a child by fork: register anew."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._change({})
        with contextlib.suppress(EtwError):
            self._begin()


def _is_stale(folder: int, name: str) -> bool:
    """Whether nobody has the socket open: its process was killed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as stream:
        return stream.connect_ex(address_in(folder, name)) == errno.ECONNREFUSED


@writing
def trace_event(registry: Registry, handle: int, header: ClassicHeader, data: bytes) -> None:
    """TraceEvent: write one classic event to session ``handle``.

    Raises `EtwError` 6 if there is no such session, 234 and 534 for an event that is too large, 8 without a buffer.
    """
    entry = registry.find(handle)
    if entry is None:
        raise EtwError("TraceEvent", Status.INVALID_HANDLE, f"there is no session {handle}")
    writer = current().writer(registry, (entry.owner, entry.socket))
    status = put_classic(writer, header, data)
    if status:
        raise EtwError("TraceEvent", status)


def _all_close() -> None:
    for registration in list(_registered):
        registration._unlink()


atexit.register(_all_close)
