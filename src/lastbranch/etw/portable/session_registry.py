"""The sessions, enablings and providers of one user: a private directory of small files under one lock.

::

    ROOT/lock                       flock, held while anything below changes, never while waiting for a process
    ROOT/sessions/HASH.state .sock  one session: its entry, and where its daemon listens
    ROOT/enable/GUID                the sessions that enabled a provider, and how; may exist before the provider does
    ROOT/providers/GUID/*.sock      datagram sockets of registered providers
    ROOT/profile                    profile sources and intervals, which are machine-wide (`profile_sources`)

HASH is computed from the case-folded session name. ROOT is ``$LASTBRANCH_ETW_DIR``, else
``$XDG_RUNTIME_DIR/lastbranch`` if that directory belongs to this user, else ``/tmp/lastbranch-UID``. ROOT and its
directories belong to this user, have mode 0700, and are no links. The next process that holds the lock removes an entry
whose process has ended. Providers learn of changes by notices to their sockets (`notify`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from ...errors import FormatError
from ..flags import EnableProvider
from ..properties import NO_GUID, Filter
from ..status import EtwError, Status, status_of
from .protocol import address_in, pack, unpack

__all__ = [
    "EnableState",
    "Entry",
    "MAX_SESSIONS",
    "MAX_SYSTEM_LOGGERS",
    "Notice",
    "ProcessKey",
    "Registry",
    "notify",
    "UNFINISHED",
    "process_key",
    "read_state",
    "remove",
    "root_path",
    "session_key",
    "write_state",
]


# -- processes: an id and a start time, because ids are reused


class ProcessKey(NamedTuple):
    """A process. ``start`` is its start time in clock ticks since boot (field 22 of /proc/PID/stat)."""

    pid: int
    start: int

    @property
    def alive(self) -> bool:
        """Whether that very process is running (a zombie is not)."""
        return self.start != 0 and process_key(self.pid) == self


def process_key(pid: int | None = None) -> ProcessKey:
    """The key of process ``pid``, by default of this one. Its start is 0 if there is no such process."""
    number = os.getpid() if pid is None else pid
    try:
        with open(f"/proc/{number}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return ProcessKey(number, 0 if fields[0] in (b"Z", b"X") else int(fields[19]))
    except (OSError, IndexError, ValueError):
        return ProcessKey(number, 0)


# -- contents of the registry's files


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One session."""

    handle: int
    name: str
    guid: UUID
    owner: ProcessKey
    """The daemon; until that is `ready`, the process that starts it."""
    system: bool
    ready: bool
    key: str = field(repr=False)
    """`session_key` of the name: the file name of the entry, without suffix."""

    @property
    def socket(self) -> str:
        """File name of the daemon's socket in the directory of sessions."""
        return f"{self.key}.sock"

    def of_daemon(self, daemon: ProcessKey) -> Entry:
        """The entry after its daemon has started."""
        return replace(self, owner=daemon, ready=True)


@dataclass(frozen=True, slots=True)
class EnableState:
    """How session ``handle`` enabled a provider."""

    handle: int
    owner: ProcessKey
    """The session's daemon."""
    socket: str
    """File name of its socket, in the directory of sessions."""
    level: int = 0
    match_any: int = 0
    match_all: int = 0
    property: int = 0
    """EVENT_ENABLE_PROPERTY_* bits."""
    source: UUID = NO_GUID
    """SourceId of ENABLE_TRACE_PARAMETERS, for the provider's callback."""
    filters: tuple[Filter, ...] = ()


# -- state files: replaced atomically, never through a link
#
# Writers hold the registry's lock. So one temporary name is enough, and the next writer overwrites the remains of a
# killed writer.


MOST = 1 << 20
"""Bytes of the largest file that is read."""


UNFINISHED = ".new"
"""Ends the name of a file that `write_state` has not written whole: its process was killed meanwhile."""


def write_state(folder: int, name: str, value: Any) -> None:
    """Replace file ``name`` in the directory of descriptor ``folder`` by ``value``, with mode 0600."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    new = f"{name}{UNFINISHED}"
    with open(os.open(new, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(pack(value))
    os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)


def read_state(folder: int, name: str, kind: Any) -> Any:
    """The value of type ``kind`` that `write_state` wrote; ``None`` if there is no such file, or another value."""
    try:
        with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder), "rb") as f:
            data = f.read(MOST + 1)
        return unpack(kind, data) if len(data) <= MOST else None
    except (OSError, FormatError):
        return None


def remove(folder: int, *names: str) -> None:
    """Remove files that may not exist."""
    for name in names:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)


MAX_SESSIONS = 64
MAX_SYSTEM_LOGGERS = 8
LOCK_TIMEOUT = 20.0
"""Seconds to wait for the lock, which is held for milliseconds."""
_PRIVATE = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def root_path() -> Path:
    """The folder of this user's registry."""
    if given := os.environ.get("LASTBRANCH_ETW_DIR"):
        return Path(os.path.abspath(given))
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    with suppress(OSError):  # it may belong to another user, or be gone: sudo keeps the variable
        if os.stat(runtime).st_uid == os.geteuid():
            return Path(runtime, "lastbranch")
    return Path(f"/tmp/lastbranch-{os.geteuid()}")


class Registry:
    """The registry in ``root``, by default `root_path`. It is created when first needed, and keeps no file open."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root_path() if root is None else root

    @contextmanager
    def folder(self, *names: str) -> Iterator[int]:
        """A descriptor of directory ``root/names...``. Each directory is created if needed, and checked.

        Raises `EtwError` 5 if a folder is a link, belongs to another user or is open to others, 161 if it cannot be
        made.
        """
        with ExitStack() as stack:
            at = None
            for name in (str(self.root), *names):
                at = _private(name, at)
                stack.callback(os.close, at)
            assert at is not None
            yield at

    @contextmanager
    def locked(self) -> Iterator[LockedRegistry]:
        """The registry under its lock, for changes.

        Raises `EtwError` 1460 if the lock is not available in time, and the code of `status_of` on an `OSError`.
        """
        with ExitStack() as stack:
            root, sessions, enable = (stack.enter_context(self.folder(*n)) for n in ((), ("sessions",), ("enable",)))
            try:
                lock = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=root)
                stack.callback(os.close, lock)
                _lock(lock)
                yield LockedRegistry(sessions, enable)
            except OSError as error:
                raise EtwError("registry", status_of(error), f"{self.root}: {error}") from error

    # -- one call each

    def entries(self) -> list[Entry]:
        """Entries of the running sessions, by handle. Entries of dead sessions are removed."""
        with self.locked() as held:
            return held.entries()

    def find(self, session: int | str) -> Entry | None:
        """The entry of a running session by handle, or by name without regard to case."""
        with self.locked() as held:
            return held.find(session)

    def enabled(self, provider: UUID) -> dict[int, EnableState]:
        """Session handle -> how it enabled the provider, for running sessions. Takes no lock."""
        with self.folder("enable") as folder:
            return _states(folder, str(provider))

    def providers(self, provider: UUID) -> list[Path]:
        """Datagram sockets of the registered instances of a provider."""
        with self.folder("providers", str(provider)) as folder:
            names = sorted(name for name in os.listdir(folder) if name.endswith(".sock"))
        return [self.root / "providers" / str(provider) / name for name in names]


class LockedRegistry:
    """The registry while this process holds its lock."""

    def __init__(self, sessions: int, enable: int) -> None:
        self._sessions, self._enable = sessions, enable

    def entries(self) -> list[Entry]:
        """Entries of the running sessions, by handle. Entries of dead sessions are removed, together with their
        enablings."""
        found, stale = [], False
        for key in {name.partition(".")[0] for name in os.listdir(self._sessions)}:
            entry = read_state(self._sessions, f"{key}.state", Entry)
            if entry is not None and entry.key == key and entry.owner.alive:
                found.append(entry)
            else:
                self._remove(key)
                stale = True
        if stale:
            self._forget({entry.handle for entry in found})
        return sorted(found)

    def find(self, session: int | str) -> Entry | None:
        """As `Registry.find`."""
        key = session if isinstance(session, int) else session_key(session)
        return next((e for e in self.entries() if e.ready and key in (e.handle, e.key)), None)

    def reserve(self, name: str, guid: UUID, system: bool) -> Entry:
        """Create an entry with the lowest free handle, owned by this process, for a session that is about to start.

        Raises `EtwError` 183 if a session has the name or the GUID, 1450 if too many sessions run.
        """
        entries = self.entries()
        key = session_key(name)
        for other in entries:
            if other.key == key or (guid.int and other.guid == guid):
                raise EtwError("StartTrace", Status.ALREADY_EXISTS, f'session "{other.name}" has that name or GUID')
        if len(entries) >= MAX_SESSIONS:
            raise EtwError("StartTrace", Status.NO_SYSTEM_RESOURCES, f"{MAX_SESSIONS} sessions run")
        if system and sum(e.system for e in entries) >= MAX_SYSTEM_LOGGERS:
            raise EtwError("StartTrace", Status.NO_SYSTEM_RESOURCES, f"{MAX_SYSTEM_LOGGERS} system loggers run")
        handle = min(set(range(1, MAX_SESSIONS + 1)) - {e.handle for e in entries})
        entry = Entry(handle, name, guid, process_key(), system, ready=False, key=key)
        self.put(entry)
        self._forget({e.handle for e in entries})
        return entry

    def put(self, entry: Entry) -> None:
        """Store an entry. It replaces that of the same name."""
        write_state(self._sessions, f"{entry.key}.state", entry)

    def drop(self, key: str, owner: ProcessKey) -> None:
        """Remove the entry of ``key`` and what its session enabled, if ``owner`` still owns the entry."""
        there = read_state(self._sessions, f"{key}.state", Entry)
        if there is not None and there.owner == owner:
            self._remove(key)
            self._forget({entry.handle for entry in self.entries()})

    def set_enabled(self, provider: UUID, handle: int, state: EnableState | None) -> None:
        """Store how session ``handle`` enabled a provider, or (``None``) that the session disabled it. Notifies
        nobody."""
        states = _states(self._enable, str(provider))
        states.pop(handle, None)
        if state is not None:
            states[handle] = state
        self._write(str(provider), states)

    def enabled_by(self, handle: int) -> list[UUID]:
        """Providers that session ``handle`` enabled."""
        names = [name for name in os.listdir(self._enable) if "." not in name]
        return [UUID(name) for name in names if handle in _states(self._enable, name)]

    def _forget(self, alive: set[int]) -> None:
        """Drop what sessions enabled that are not in ``alive``."""
        for name in os.listdir(self._enable):
            states = _states(self._enable, name)
            kept = {handle: state for handle, state in states.items() if handle in alive}
            if not states or kept != states:
                self._write(name, kept)

    def _write(self, name: str, states: dict[int, EnableState]) -> None:
        if states:
            write_state(self._enable, name, list(states.values()))
        else:
            remove(self._enable, name)

    def _remove(self, key: str) -> None:
        remove(self._sessions, *(f"{key}.{end}" for end in ("state", f"state{UNFINISHED}", "sock", "log")))


def session_key(name: str) -> str:
    """A file name for a session name. Names that differ in case only have the same key."""
    from hashlib import sha256  # loads OpenSSL, which daemons do without

    return sha256(name.casefold().encode("utf-8", "surrogatepass")).hexdigest()


def _states(folder: int, name: str) -> dict[int, EnableState]:
    states: list[EnableState] = read_state(folder, name, list[EnableState]) or []
    return {state.handle: state for state in states if state.owner.alive}


def _private(name: str, within: int | None) -> int:
    try:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=within)
        folder = os.open(name, _PRIVATE, dir_fd=within)
    except OSError as error:
        denied = error.errno in (errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM)
        why = f"{name} cannot be the directory of sessions: {error.strerror}"
        raise EtwError("registry", Status.ACCESS_DENIED if denied else Status.BAD_PATHNAME, why) from error
    found = os.fstat(folder)
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        os.close(folder)
        raise EtwError(
            "registry",
            Status.ACCESS_DENIED,
            f"{name} is of user {found.st_uid}, mode {found.st_mode & 0o7777:o}",
            hint="it must be this user's own, and mode 0700",
        )
    return folder


def _lock(descriptor: int) -> None:
    end = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise EtwError("registry", Status.TIMEOUT, "another process holds the lock of the registry") from None
            time.sleep(0.002)


# -- notices: datagrams to the sockets of registered providers when a session enables or disables them
#
# A notice says only that something changed, and for CAPTURE_STATE what is requested. The provider reads the rest from
# the registry. It returns the notice after its callback has run; EnableTraceEx2 with a timeout waits for that.


class Notice(NamedTuple):
    """One datagram: session ``handle`` applied ``code`` to the provider. ``keywords`` are those of a CAPTURE_STATE."""

    code: EnableProvider
    handle: int
    keywords: int = 0


def notify(registry: Registry, provider: UUID, notice: Notice, timeout: float = 0.0) -> bool:
    """Send ``notice`` to all instances of a provider, and remove the sockets of dead ones.

    With a ``timeout`` (seconds), wait until all have answered. False if they have not in time.
    """
    data, notified = pack(notice), 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as sender:
        if timeout:
            sender.bind("")  # the system assigns an address, to which providers answer
        with registry.folder("providers", str(provider)) as folder:
            for path in registry.providers(provider):
                try:
                    sender.sendto(data, address_in(folder, path.name))
                    notified += 1
                except (ConnectionRefusedError, ConnectionResetError):
                    remove(folder, path.name)
                except FileNotFoundError:
                    continue
                except BlockingIOError:
                    notified += 1  # its queue of notices is full; it will look at the registry anyway
        return not timeout or _wait_for_answer(sender, data, notified, timeout)


def _wait_for_answer(sender: socket.socket, data: bytes, expected: int, timeout: float) -> bool:
    end = time.monotonic() + timeout
    while expected:
        left = end - time.monotonic()
        if left <= 0:
            return False
        sender.settimeout(left)
        try:
            expected -= sender.recv(len(data) + 1) == data
        except TimeoutError:
            return False
    return True
