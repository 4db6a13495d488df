"""The TB5 file of a handle: views read committed data, one writer adds to it.

One lock guards the writer, because several threads may write streams. Only this module turns errors of lower layers
into `TbrwError`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import RLock
from typing import IO

from ..closing import on_failure
from ..errors import Damage, FormatError, UnavailableError
from ..formats.tb5.layout import Scope, Section, StreamSection, Table
from ..formats.tb5.reader import Tb5File
from ..formats.tb5.writer import Tb5Writer, lock, sync_folder
from ..model import Array, OutputError, PartFolder, check_replaceable
from ..opening import FileSource
from .rules import FileMode
from .status import Status, TbrwError
from .structures import ID_MARK

__all__ = ["Store", "file_name", "translated"]


# -- CREATE_ALWAYS: the new file replaces an older file once the new file holds something

_ATTEMPTS = 10


class NewFile:
    """An empty TB5 file. ``name`` is its path: next to ``path`` until it replaces the older file.

    Raises `UnavailableError` while another writer has the file, `OSError` if it cannot be created.
    """

    def __init__(self, path: str) -> None:
        check_replaceable(path)
        self.path = path
        self._held, self.replaces = _open_locked(path)
        self._identity = _identity(os.fstat(self._held.fileno()))
        self._part: PartFolder | None = None
        self._appeared = False
        with on_failure(self.give_up):
            self._part = PartFolder(path, private=True)
            self.name = self._part.file(os.path.basename(path))
            Tb5Writer.create(self.name).close()
            if os.name == "nt":  # open files cannot be renamed there
                self._held.close()
                self.appear()

    def appear(self) -> None:
        """Replace the older file, once."""
        if self._part is not None:
            self._identity = _identity(os.stat(self.name))
            self._part.give(os.path.basename(self.path))
            self._part, self.name, self._appeared = None, self.path, True
            sync_folder(self.path)

    def give_up(self) -> None:
        """Remove the new file. An older file that was not replaced stays, and so does any file of other programs."""
        if self._part is not None:
            self._part.discard()
        if self._appeared or not self.replaces:
            with suppress(FileNotFoundError):
                if _identity(os.stat(self.path)) == self._identity:
                    os.unlink(self.path)
        self.close()

    def close(self) -> None:
        """Let others write to the file."""
        self._held.close()


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _open_locked(path: str) -> tuple[IO[bytes], bool]:
    """The file at ``path``, locked, and whether it existed. If not, an empty one is created for the lock."""
    for _ in range(_ATTEMPTS):
        try:
            file, found = open(path, "r+b", buffering=0), True  # noqa: SIM115 - closed by close
        except FileNotFoundError:
            try:
                file, found = open(path, "x+b", buffering=0), False  # noqa: SIM115
            except FileExistsError:
                continue
        with on_failure(file.close), suppress(FileNotFoundError):
            lock(file, path)
            if _identity(os.fstat(file.fileno())) == _identity(os.stat(path)):
                return file, found
        file.close()  # it was replaced between the two
    raise UnavailableError(f"{path}: other programs are writing to it", hint="try again when they are done")


@contextmanager
def translated(otherwise: Status = Status.SAM_ERROR) -> Iterator[None]:
    """Turn errors of the store into `TbrwError`, with status ``otherwise`` if they have none of their own."""
    try:
        yield
    except FormatError as error:
        raise TbrwError(Status.INVALID_SAMPLE_FILE, str(error), hint=error.hint) from error
    except UnavailableError as error:
        raise TbrwError(Status.FILE_OPEN_FAILED, str(error), hint=error.hint) from error
    except MemoryError as error:
        raise TbrwError(Status.NO_MEMORY, "out of memory") from error
    except OutputError as error:
        failed = TbrwError(otherwise, str(error))
        failed.exit_code = UnavailableError.exit_code
        raise failed from error
    except OSError as error:
        raise TbrwError(otherwise, f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error


def file_name(name: str) -> str:
    """``name``. Raises `TbrwError` (FILE_OPEN_FAILED) if no file can have that name."""
    try:
        if b"\0" in os.fsencode(name):
            raise ValueError("a NUL")
    except ValueError as error:
        raise TbrwError(Status.FILE_OPEN_FAILED, f"{name!r} is not a file name: {error}") from None
    return name


class Store:
    """``path`` opened with ``mode``. A new file exists from the start, or replaces an older one at the first commit,
    and grows with each. ``damage`` and ``closed_well`` describe the file at opening."""

    def __init__(self, path: str, mode: FileMode) -> None:
        self.path, self.lock = file_name(path), RLock()
        self._writer: Tb5Writer | None = None
        self._old: list[Tb5File] = []
        self._readers = 0
        self._new: NewFile | None = None
        self._changed = self.closed = False
        with translated(Status.FILE_OPEN_FAILED):
            if mode & FileMode.CREATE_ALWAYS:
                self._new = NewFile(path)
            try:
                if mode & FileMode.WRITE:
                    self._writer = Tb5Writer.append(self._name)
                if self._new is not None and not self._new.replaces:
                    self._new.appear()
                self.view = self._look()
            except BaseException:
                if self._writer is not None:
                    self._writer.abort()
                if self._new is not None:
                    self._new.give_up()
                raise
        self.damage: list[Damage] = list(self.view.damage)
        self.closed_well = self.view.closed_well

    @property
    def _name(self) -> str:
        """The current path of the file."""
        return self.path if self._new is None else self._new.name

    def _look(self) -> Tb5File:
        """The file as last committed, from a source that several threads can read at once."""
        return Tb5File(FileSource(self._name))

    # -- reading

    def sections(self) -> set[Section]:
        """The global sections that exist."""
        return {Section(k.section) for k in self.view.tables if k.scope is Scope.GLOBAL and k.section in set(Section)}

    def streams(self) -> list[set[StreamSection]]:
        """The sections of each stream."""
        found: list[set[StreamSection]] = [set() for _ in range(self.view.streams)]
        for key in self.view.tables:
            if key.scope is Scope.STREAM and key.section in set(StreamSection):
                found[key.stream].add(StreamSection(key.section))
        return found

    def bound(self) -> set[int]:
        """Numbers of the bound streams."""
        return {n for n in range(len(self.streams())) if self.view.is_bound(n)}

    def text(self, unique_id: int) -> str:
        """The string of a unique id. Raises `TbrwError` (INVALID_STRING) for the NULL string and for what is no id."""
        if not unique_id & ID_MARK:
            what = "the NULL string" if not unique_id else "no unique id of this file"
            raise TbrwError(Status.INVALID_STRING, f"soi_uniqueid = {unique_id:#x} is {what}")
        try:
            return self.view.string(unique_id & ~ID_MARK)
        except FormatError as error:
            raise TbrwError(Status.INVALID_STRING, str(error)) from error

    # -- writing

    @property
    def writer(self) -> Tb5Writer:
        """The writer; calls of it belong under ``lock``."""
        assert self._writer is not None, "the rules refuse to write a file that is open for reading"
        return self._writer

    def put(self, tables: Iterable[tuple[Table, Array | bytes]]) -> None:
        """Write whole tables and commit."""
        with self.adding() as writer:
            for key, records in tables:
                writer.put(key, records)

    @contextmanager
    def adding(self) -> Iterator[Tb5Writer]:
        """Data written inside the block becomes part of the file at its end; after an exception, nothing does."""
        with self.lock, translated():
            writer = self.writer
            with on_failure(writer.rollback):
                yield writer
                writer.commit()
            self._changed = True
            if self._new is not None:
                self._new.appear()
            self.refresh()

    @contextmanager
    def reading(self) -> Iterator[Tb5File]:
        """The view, which stays open inside even if more is committed in the meantime."""
        with self.lock:
            view, self._readers = self.view, self._readers + 1
        try:
            with translated():
                yield view
        finally:
            with self.lock:
                self._readers -= 1
                if self.closed and not self._readers:
                    self._close_old()

    def refresh(self) -> None:
        """Open a view of the newest commit."""
        self._old.append(self.view)
        self.view = self._look()
        if not self._readers:
            self._close_old()

    def _close_old(self) -> None:
        while self._old:
            self._old.pop().close()

    def close(self, *, abort: bool = False) -> None:
        """Close. Committed data stays. With ``abort`` a new file without content is removed. If nothing was added,
        nothing is written."""
        with self.lock, translated():
            self.closed = True
            self._old.append(self.view)
            if not self._readers:
                self._close_old()
            try:
                if self._writer is not None:
                    (self._writer.close if self._changed and not abort else self._writer.abort)()
                if self._new is not None and not abort:
                    self._new.appear()
            finally:
                if self._new is not None:
                    (self._new.close if self._changed or not abort else self._new.give_up)()
