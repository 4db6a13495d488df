"""The TB5 file under a handle: what is committed, read through a view; what is added, through one writer.

Calls of the writer are made under one lock (streams may be written from several threads). Errors of the layers below
become `TbrwError` here, and only here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import RLock

from ..errors import FormatError, UnavailableError
from ..formats.tb5 import Tb5File, Tb5Writer
from ..formats.tb5.constants import Section, StreamSection
from ..formats.tb5.layout import Scope, Table
from ..model import Array
from ..opening import FileSource
from ..store.binding import _Binding
from .memory import ID_MARK
from .rules import FileMode
from .status import Status, TbrwError

__all__ = ["Store", "translated"]


@contextmanager
def translated(otherwise: Status = Status.SAM_ERROR) -> Iterator[None]:
    """Errors of the store as `TbrwError`; what has no status of its own gets ``otherwise``."""
    try:
        yield
    except FormatError as error:
        raise TbrwError(Status.INVALID_SAMPLE_FILE, str(error), hint=error.hint) from error
    except UnavailableError as error:
        raise TbrwError(Status.FILE_OPEN_FAILED, str(error), hint=error.hint) from error
    except MemoryError as error:
        raise TbrwError(Status.NO_MEMORY, "out of memory") from error
    except OSError as error:
        raise TbrwError(otherwise, f"{error.filename}: {error.strerror}" if error.filename else str(error)) from error


class Store:
    """``path`` opened with ``mode``. A new file is there from the start and grows by what is committed."""

    def __init__(self, path: str, mode: FileMode) -> None:
        self.path, self.lock = path, RLock()
        self._writer: Tb5Writer | None = None
        self._old: list[Tb5File] = []
        self._readers = 0
        self.closed = False
        with translated(Status.FILE_OPEN_FAILED):
            if mode & FileMode.CREATE_ALWAYS:
                Tb5Writer.create(path).close()
            if mode & FileMode.WRITE:
                self._writer = Tb5Writer.append(path)
            try:
                self.view = self._look()
            except BaseException:
                if self._writer is not None:
                    self._writer.abort()
                raise

    def _look(self) -> Tb5File:
        """The file as last committed, from a source that several threads can read at once."""
        return Tb5File(FileSource(self.path))

    # -- what is there

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

    # -- what is added

    @property
    def writer(self) -> Tb5Writer:
        """The writer; calls of it belong under ``lock``."""
        assert self._writer is not None, "the rules refuse to write a file that is open for reading"
        return self._writer

    def put(self, tables: Iterable[tuple[Table, Array | bytes]]) -> None:
        """Write whole tables and commit."""
        with self.lock, translated():
            for key, records in tables:
                self.writer.put(key, records)
            self.commit()

    def commit(self) -> None:
        """All complete tables become part of the file."""
        with self.lock, translated():
            self.writer.commit()
            self.refresh()

    @contextmanager
    def reading(self) -> Iterator[Tb5File]:
        """The view, which stays open inside even if more is committed meanwhile."""
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
        """See what has been committed."""
        self._old.append(self.view)
        self.view = self._look()
        if not self._readers:
            self._close_old()

    def _close_old(self) -> None:
        while self._old:
            self._old.pop().close()

    def bind(self, stream: int) -> None:
        """Bind a stream."""
        with self.lock, translated():
            _Binding(self.view, self.writer, stream).run()
            self.commit()

    def unbind(self, stream: int) -> None:
        """Write a directory without the bind information of a stream."""
        with self.lock, translated():
            self.writer.unbind(stream)
            self.commit()

    def close(self, *, abort: bool = False) -> None:
        """Close; with ``abort`` without regard to tables that are not done. What was committed stays."""
        with self.lock, translated():
            self.closed = True
            self._old.append(self.view)
            if not self._readers:
                self._close_old()
            if self._writer is not None:
                (self._writer.abort if abort else self._writer.close)()
