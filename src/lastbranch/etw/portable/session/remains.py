"""The remains of a session in buffering mode whose daemon was killed, and how they become a log.

The pools are memory without a name (`pool`), which goes with the last process that has it. So the daemon of such a
session has a keeper: a process that does nothing but hold the same descriptors, and outlives it. A file of the registry
says what they are: ROOT/remains/HASH, replaced whenever a writer comes or goes, before its buffers are used again. The
buffers of writers that have left are in a memory of their own.

`rescue` maps what the keeper holds, copies the newest buffers as the daemon would have, writes them, and ends the
keeper. A stop in order leaves nothing. A new session of the name takes the place of what an earlier one left.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ...properties import SessionRequest
from ...status import EtwError, Status
from ..clock import Clock
from ..pool import SPARE, Geometry, Mapping
from ..session_registry import (
    UNFINISHED,
    ProcessKey,
    Registry,
    process_key,
    read_state,
    remove,
    session_key,
    write_state,
)
from .writers import Piece

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .flight_recorder import Copies, RecorderSlot

__all__ = ["Keeper", "Rescued", "left_sessions", "rescue"]


VERSION = 1
"""Version of `_Remains`, of the layout of the pools, and of `_LEFT`."""
_CALL = "session rescue"
_FOLDER = "remains"
_LEFT = struct.Struct("<qQIIII")
"""A buffer that a writer left: time of its last event, bytes, events, processor index, process, CRC-32."""
_KEEP, _DROP = b"K", b"D"
_MESSAGE = struct.Struct("<cQ")


class _Slot(NamedTuple):
    """A writer: the inode of its pool."""

    pool: int
    number: int
    cpu: int
    pid: int


@dataclass(frozen=True, slots=True)
class _Remains:
    """The file of the registry."""

    version: int
    request: SessionRequest
    handle: int
    daemon: ProcessKey
    keeper: ProcessKey
    begun: tuple[int, int]
    """Ticks and FILETIME at the start."""
    geometry: list[int]
    events: list[bytes]
    """Encoded events of the header buffer."""
    slots: list[_Slot]
    left: int
    """Inode of the buffers of writers that have left, 0: none."""
    lost: tuple[int, int]
    """Events and buffers."""


# -- the side of the daemon


class Keeper:
    """Keeps the pools of the session whose entry is ``key``, in a process of its own."""

    def __init__(
        self,
        registry: Registry,
        key: str,
        request: SessionRequest,
        handle: int,
        begun: tuple[int, int],
        header_events: Callable[[int], Iterable[bytes]],
    ) -> None:
        self._registry, self._key = registry, key
        self._request, self._handle, self._begun = request, handle, begun
        self._header_events = header_events
        self._kept: set[int] = set()
        self._left = 0
        _end_remains(registry, key)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            _keep(theirs.fileno())
        theirs.close()
        self._socket.setblocking(False)
        self._process = process_key(pid)

    def changed(
        self,
        geometry: Geometry,
        slots: Sequence[RecorderSlot],
        fds: dict[Mapping, int],
        left: Copies | None,
        lost: tuple[int, int],
    ) -> None:
        """Store which writers there are. ``fds`` are the descriptors of their pools; ``left`` what others left,
        ``None`` if that is as before."""
        inodes = {pool: self._keep(fd) for pool, fd in fds.items()}
        if left is not None:
            self._left = self._keep_left(left)
        found = _Remains(
            VERSION,
            self._request,
            self._handle,
            process_key(),
            self._process,
            self._begun,
            list(geometry),
            list(self._header_events(self._begun[0])),
            [_Slot(inodes[slot.pool], slot.number, slot.cpu, slot.pid) for slot in slots if not slot.broken],
            self._left,
            lost,
        )
        with self._registry.folder(_FOLDER) as folder:
            write_state(folder, self._key, found)
        for gone in self._kept - {*inodes.values(), self._left}:
            self._post(_DROP, gone)
            self._kept.discard(gone)

    def _keep(self, fd: int) -> int:
        inode = os.fstat(fd).st_ino
        if inode not in self._kept:
            self._kept.add(inode)
            self._post(_KEEP, inode, fd)
        return inode

    def _keep_left(self, left: Copies) -> int:
        if not left:
            return 0
        with open(os.memfd_create("lastbranch-left", os.MFD_CLOEXEC), "wb") as file:
            for time, piece in left:
                body = piece.bytes[piece.start : piece.start + piece.size]
                file.write(_LEFT.pack(time, len(body), piece.events, piece.cpu, piece.owner, zlib.crc32(body)))
                file.write(body)
            file.flush()
            return self._keep(file.fileno())

    def _post(self, what: bytes, inode: int = 0, fd: int = -1) -> None:
        with suppress(OSError):  # a keeper that was killed keeps nothing; the session goes on
            socket.send_fds(self._socket, [_MESSAGE.pack(what, inode)], [fd] if fd >= 0 else [])

    def end(self) -> None:
        """The session ends in order: nothing remains."""
        with suppress(EtwError), self._registry.folder(_FOLDER) as folder:
            remove(folder, self._key)
        self._socket.close()
        with suppress(OSError):
            os.kill(self._process.pid, signal.SIGKILL)
            os.waitpid(self._process.pid, 0)


def _keep(own: int) -> None:
    """Be the keeper: hold the descriptors that come through socket ``own``, after the end of the daemon, too."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(own, 3)
        os.closerange(4, 1 << 16)
        null = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(null, standard)
        os.close(null)
        kept: dict[int, int] = {}
        with socket.socket(fileno=3) as messages:
            while True:
                data, fds, _, _ = socket.recv_fds(messages, _MESSAGE.size, 1)
                if not data:
                    break
                what, inode = _MESSAGE.unpack(data)
                if fds:
                    kept[inode] = fds[0]
                elif what == _DROP and inode in kept:
                    os.close(kept.pop(inode))
        while True:
            signal.pause()
    finally:
        os._exit(1)


# -- afterwards


class Rescued(NamedTuple):
    """The result of a rescue: the session, and how much of it is in the file."""

    request: SessionRequest
    writers: int
    buffers: int
    events: int
    damage: list[str]
    """A sentence for each part that could not be read."""


def left_sessions(registry: Registry | None = None) -> list[str]:
    """The names of the sessions whose daemons were killed, of which something is left."""
    registry = registry or Registry()
    with registry.folder(_FOLDER) as folder:
        keys = sorted(key for key in os.listdir(folder) if not key.endswith(UNFINISHED))
        found = [read_state(folder, key, _Remains) for key in keys]
    return [one.request.name for one in found if one and not one.daemon.alive and one.keeper.alive]


def rescue(name: str, path: str, registry: Registry | None = None) -> Rescued:
    """Write what the session ``name`` had when its daemon was killed to the log ``path``, and let it go.

    `EtwError` 4201 if nothing of such a session is left, 183 if it runs, 13 for remains that are damaged or of another
    version, and as for log files.
    """
    registry = registry or Registry()
    key = session_key(name)
    remains = _read(registry, name, key)
    if remains.daemon.alive:
        raise EtwError(_CALL, Status.ALREADY_EXISTS, f'session "{name}" runs: `session flush` writes its buffers')
    with _open_held(remains, name) as held:
        found = _save(remains, held, os.path.abspath(path))
    _end_remains(registry, key)
    return found


def _read(registry: Registry, name: str, key: str) -> _Remains:
    with registry.folder(_FOLDER) as folder:
        try:
            with open(os.open(key, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder), "rb") as file:
                version = _version(file.read())
        except FileNotFoundError:
            left = ", ".join(left_sessions(registry)) or "none"
            why = f'no session "{name}" was left by a daemon that was killed; there are: {left}'
            raise EtwError(_CALL, Status.WMI_INSTANCE_NOT_FOUND, why) from None
        found: _Remains | None = read_state(folder, key, _Remains)
    where = registry.root / _FOLDER / key
    if version not in (VERSION, None):
        why = f"{where}: the session is of version {version} of the pool, and this program reads version {VERSION}"
        raise EtwError(_CALL, Status.INVALID_DATA, why)
    if found is None:
        raise EtwError(_CALL, Status.INVALID_DATA, f"{where}: damaged, not the state of a session")
    if not found.keeper.alive:
        why = f'the buffers of session "{name}" are gone: process {found.keeper.pid}, which kept them, has ended'
        raise EtwError(_CALL, Status.WMI_INSTANCE_NOT_FOUND, why)
    return found


def _version(data: bytes) -> object:
    import json

    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found.get("version") if isinstance(found, dict) else None


@contextmanager
def _open_held(remains: _Remains, name: str) -> Iterator[dict[int, int]]:
    """Inode -> descriptor of what the keeper holds."""
    with ExitStack() as stack:
        held: dict[int, int] = {}
        folder = f"/proc/{remains.keeper.pid}/fd"
        try:
            for number in os.listdir(folder):
                if "memfd:lastbranch" not in os.readlink(f"{folder}/{number}"):
                    continue
                fd = os.open(f"{folder}/{number}", os.O_RDWR | os.O_CLOEXEC)
                stack.callback(os.close, fd)
                held[os.fstat(fd).st_ino] = fd
        except OSError as error:
            why = f'the buffers of session "{name}" cannot be read: {error}'
            raise EtwError(_CALL, Status.ACCESS_DENIED, why) from error
        yield held


def _save(remains: _Remains, held: dict[int, int], path: str) -> Rescued:
    from .delivery import Delivery
    from .flight_recorder import RecorderSlot, newest, with_times

    request = remains.request
    geometry = _geometry(remains.geometry)
    damage: list[str] = []
    copies = _copies_left(held[remains.left], damage) if remains.left in held else []
    if remains.left and remains.left not in held:
        damage.append("the buffers of writers that had left are gone")
    pools: dict[int, Mapping] = {}
    events_lost, buffers_lost = remains.lost
    for one in remains.slots:
        try:
            if one.pool not in pools:
                if one.pool not in held:
                    raise EtwError(_CALL, Status.INVALID_DATA, "its pool is gone")
                pools[one.pool] = Mapping(held[one.pool], geometry)
            if not 0 <= one.number < geometry.slots:
                raise EtwError(_CALL, Status.INVALID_DATA, f"slot {one.number} of {geometry.slots}")
        except EtwError as error:
            damage.append(f"writer {one.number} (process {one.pid}): {error.reason}")
            continue
        slot = RecorderSlot(pools[one.pool], one.number, one.cpu, one.pid, fresh=False)
        copied = slot.copies()
        events_lost += slot.lost
        if slot.broken:
            buffers_lost += slot.buffers_lost
            damage.append(f"writer {one.number} (process {one.pid}): its counters or buffers are damaged")
        copies += with_times(copied)
    kept = newest(copies, geometry.kept - SPARE)
    clock = Clock.of(request.clock)
    delivery = Delivery(
        request, remains.handle, clock, geometry, None, os.cpu_count() or 1, remains.begun, lambda _: remains.events
    )
    pieces = [piece for _, piece in kept]
    delivery.snapshot(request, path, pieces, (events_lost, buffers_lost))
    return Rescued(request, len(remains.slots), len(pieces), sum(piece.events for piece in pieces), damage)


def _geometry(words: list[int]) -> Geometry:
    """The layout of the pools. `EtwError` 13 for an impossible one."""
    with suppress(TypeError):
        found = Geometry(*words)
        if found.is_possible and found.kept:
            return found
    raise EtwError(_CALL, Status.INVALID_DATA, f"no layout of pools in buffering mode: {words}")


def _copies_left(fd: int, damage: list[str]) -> Copies:
    """The buffers of writers that had left."""
    data = memoryview(os.pread(fd, os.fstat(fd).st_size, 0))
    found: Copies = []
    at = 0
    while at < len(data):
        if len(data) - at < _LEFT.size:
            damage.append(f"the buffers of writers that had left end early, at byte {at}")
            break
        time, size, events, cpu, owner, crc = _LEFT.unpack_from(data, at)
        body = data[at + _LEFT.size : at + _LEFT.size + size]
        if len(body) != size or zlib.crc32(body) != crc:
            damage.append(f"a buffer of a writer that had left is damaged, at byte {at}")
            break
        found.append((time, Piece(None, body, cpu, 0, size, events, -1, marked=False, owner=owner)))
        at += _LEFT.size + size
    return found


def _end_remains(registry: Registry, key: str) -> None:
    """Let go what a killed daemon left, if it left something."""
    with registry.folder(_FOLDER) as folder:
        found: _Remains | None = read_state(folder, key, _Remains)
        remove(folder, key, key + UNFINISHED)
    if found is not None and not found.daemon.alive and found.keeper.alive:
        with suppress(OSError):
            os.kill(found.keeper.pid, signal.SIGKILL)
