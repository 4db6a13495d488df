"""The sessions, enablings and providers of one user: a private directory of small files under one lock.

::

    ROOT/lock                       flock, held while anything below is changed, never while waiting for a process
    ROOT/sessions/HASH.state .sock  one session: its entry, and where its daemon listens
    ROOT/enable/GUID                who enabled the provider, and with what; may be there before the provider is
    ROOT/providers/GUID/*.sock      datagram sockets of registered providers
    ROOT/profile                    profile sources and intervals, which are machine-wide (`profile_sources`)

HASH is of the case-folded session name. ROOT is ``$LASTBRANCH_ETW_DIR``, else ``$XDG_RUNTIME_DIR/lastbranch`` where
that directory is this user's, else ``/tmp/lastbranch-UID``; it and its directories are 0700, of this user, and not
links. An entry whose process is gone is removed by whoever sees it next with the lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from uuid import UUID

from ..status import EtwError, Status
from .entries import EnableState, Entry
from .processes import ProcessKey, process_key
from .rules import status_of
from .statefile import read_state, remove, write_state

__all__ = [
    "LOCK_TIMEOUT", "MAX_SESSIONS", "MAX_SYSTEM_LOGGERS", "EnableState", "Entry", "Held", "Registry", "root_path",
    "session_key",
]  # fmt: skip

MAX_SESSIONS = 64
MAX_SYSTEM_LOGGERS = 8
LOCK_TIMEOUT = 20.0
"""Seconds to wait for the lock, which is held for milliseconds."""
_PRIVATE = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def root_path() -> Path:
    """Where this user's registry lies."""
    if given := os.environ.get("LASTBRANCH_ETW_DIR"):
        return Path(os.path.abspath(given))
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    with suppress(OSError):  # it may be another user's, or gone: sudo keeps the variable
        if os.stat(runtime).st_uid == os.geteuid():
            return Path(runtime, "lastbranch")
    return Path(f"/tmp/lastbranch-{os.geteuid()}")


class Registry:
    """The registry in directory ``root``, `root_path` by default. Holds nothing open; made when first needed."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root_path() if root is None else root

    @contextmanager
    def folder(self, *names: str) -> Iterator[int]:
        """A descriptor of directory ``root/names...``, made and checked on the way.

        Raises `EtwError` 5 if one of them is a link, another user's, or open to others; 161 if it cannot be made.
        """
        with ExitStack() as stack:
            at = None
            for name in (str(self.root), *names):
                at = _private(name, at)
                stack.callback(os.close, at)
            assert at is not None
            yield at

    @contextmanager
    def locked(self) -> Iterator[Held]:
        """The registry under its lock, for changes.

        Raises `EtwError` 1460 if the lock is not to be had in time, and with a code of its own for what the file system
        refuses meanwhile.
        """
        with ExitStack() as stack:
            root, sessions, enable = (stack.enter_context(self.folder(*n)) for n in ((), ("sessions",), ("enable",)))
            try:
                lock = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=root)
                stack.callback(os.close, lock)
                _lock(lock)
                yield Held(sessions, enable)
            except OSError as error:
                raise EtwError("registry", status_of(error), f"{self.root}: {error}") from error

    # -- one call each

    def entries(self) -> list[Entry]:
        """Entries of the sessions that live, by handle; those of dead ones are removed."""
        with self.locked() as held:
            return held.entries()

    def find(self, session: int | str) -> Entry | None:
        """The entry of a running session by handle, or by name without regard to case."""
        with self.locked() as held:
            return held.find(session)

    def set_enabled(self, provider: UUID, handle: int, state: EnableState | None) -> None:
        """Write down what session ``handle`` enabled of a provider, or that it disabled it. Tells nobody (`notify`)."""
        with self.locked() as held:
            held.set_enabled(provider, handle, state)

    def enabled(self, provider: UUID) -> dict[int, EnableState]:
        """Session handle -> how it enabled the provider, of sessions that live. Takes no lock."""
        with self.folder("enable") as folder:
            return _states(folder, str(provider))

    def providers(self, provider: UUID) -> list[Path]:
        """Datagram sockets of the registered instances of a provider."""
        with self.folder("providers", str(provider)) as folder:
            names = sorted(name for name in os.listdir(folder) if name.endswith(".sock"))
        return [self.root / "providers" / str(provider) / name for name in names]


class Held:
    """The registry while its lock is held."""

    def __init__(self, sessions: int, enable: int) -> None:
        self._sessions, self._enable = sessions, enable

    def entries(self) -> list[Entry]:
        """Entries of the sessions that live, by handle; those of dead ones are removed with all they enabled."""
        found, stale = [], False
        for key in {name.partition(".")[0] for name in os.listdir(self._sessions)}:
            entry = Entry.of(read_state(self._sessions, f"{key}.state"))
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
        """An entry of this process's for a session that is about to start, with the lowest free handle.

        Raises `EtwError` 183 if a session has the name or the GUID, 1450 if there are too many.
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
        """Write an entry, over that of the same name."""
        write_state(self._sessions, f"{entry.key}.state", entry.to_json())

    def drop(self, key: str, owner: ProcessKey) -> None:
        """Remove the entry of ``key`` and what its session enabled, if the entry still is ``owner``'s."""
        there = Entry.of(read_state(self._sessions, f"{key}.state"))
        if there is not None and there.owner == owner:
            self._remove(key)
            self._forget({entry.handle for entry in self.entries()})

    def set_enabled(self, provider: UUID, handle: int, state: EnableState | None) -> None:
        """As `Registry.set_enabled`."""
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
        """Drop enablings by sessions that are no more."""
        for name in os.listdir(self._enable):
            states = _states(self._enable, name)
            kept = {handle: state for handle, state in states.items() if handle in alive}
            if not states or kept != states:
                self._write(name, kept)

    def _write(self, name: str, states: dict[int, EnableState]) -> None:
        if states:
            write_state(self._enable, name, [state.to_json() for state in states.values()])
        else:
            remove(self._enable, name)

    def _remove(self, key: str) -> None:
        remove(self._sessions, *(f"{key}.{end}" for end in ("state", "state.new", "sock", "log")))


def session_key(name: str) -> str:
    """Names that are the same without regard to case have the same key; it is a file name."""
    from hashlib import sha256  # a library of its own, which daemons do without

    return sha256(name.casefold().encode("utf-8", "surrogatepass")).hexdigest()


def _states(folder: int, name: str) -> dict[int, EnableState]:
    found = read_state(folder, name)
    states = [EnableState.of(one) for one in found] if isinstance(found, list) else []
    return {state.handle: state for state in states if state is not None and state.owner.alive}


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
            "registry", Status.ACCESS_DENIED, f"{name} is of user {found.st_uid}, mode {found.st_mode & 0o7777:o}",
            hint="it must be this user's own, and mode 0700",
        )  # fmt: skip
    return folder


def _lock(descriptor: int) -> None:
    end = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise EtwError("registry", Status.TIMEOUT, "another process keeps the registry locked") from None
            time.sleep(0.002)
