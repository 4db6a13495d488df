"""Files as a `Source`: regular ones, ones closed between two passes, and copies of streams."""

from __future__ import annotations

import os
import re
import stat
import sys
from contextlib import closing, suppress
from threading import Lock
from typing import TYPE_CHECKING, cast

from ..errors import FormatError
from ..formats.registry import SNIFFED, format_of
from ..long_waits import waiting
from ..model import BytesSource, OpenFile, naming

if TYPE_CHECKING:
    from io import BufferedReader

    from ..formats.perfdata.directory import JoinedFiles

__all__ = ["FileSource", "RestingFile", "open_source", "recorded_folder"]

_SPOOL_CHUNK = 1 << 20


def open_source(path: str) -> FileSource | JoinedFiles:
    """The bytes of ``path``; a pipe, a device or ``-`` (standard input) is copied to a temporary file first.
    A directory of ``perf record --threads``, or any of its files, is one capture."""
    if path == "-":
        return _spool(cast("BufferedReader", sys.stdin.buffer), "<stdin>", "standard input")
    mode = os.stat(path).st_mode
    folder = recorded_folder(path)
    if folder is not None:
        return _open_folder(folder)
    if stat.S_ISDIR(mode):
        raise FormatError("is a directory", file=path)
    if not stat.S_ISREG(mode):
        with waiting(f"a program that writes to {path}"):
            stream = open(path, "rb")  # noqa: SIM115
        with stream:
            return _spool(stream, path, path)
    return FileSource(path)


_THREAD_FILE = re.compile(r"data\.(\d+)")


def recorded_folder(path: str) -> str | None:
    """The directory of ``perf record --threads`` that ``path`` is, or is a file of; ``None`` for anything else."""
    folder, name = (path, "data") if os.path.isdir(path) else os.path.split(path)
    if name != "data" and not _THREAD_FILE.fullmatch(name):
        return None
    from ..formats.perfdata.directory import is_of_directory

    with suppress(OSError, FormatError), closing(FileSource(os.path.join(folder, "data"))) as source:
        if is_of_directory(source):
            return folder or "."
    return None


def _open_folder(folder: str) -> JoinedFiles:
    """All files of a directory that `recorded_folder` found."""
    from ..formats.perfdata.directory import join_files

    numbers = sorted(int(match[1]) for name in os.listdir(folder) if (match := _THREAD_FILE.fullmatch(name)))
    files = [FileSource(os.path.join(folder, name)) for name in ("data", *(f"data.{number}" for number in numbers))]
    return join_files(files[0], files[1:], folder)


class FileSource(OpenFile):
    """A regular file as a `Source`. Raises `FormatError` for anything else, which is opened without blocking."""

    def __init__(self, path: str, name: str | None = None) -> None:
        flags = ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
        fd = os.open(path, os.O_RDONLY | sum(getattr(os, f, 0) for f in flags))
        super().__init__(os.fdopen(fd, "rb", buffering=0), name if name is not None else path)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            self.close()
            raise FormatError("not a regular file", file=self.name)

    def state(self) -> tuple[int, ...]:
        """What differs from another file's, and from its own once it was changed."""
        found = os.fstat(self._file.fileno())
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


class RestingFile:
    """A regular file as a `Source` that can be closed between two passes: a thousand captures are more files than a
    process may have open. Raises `FormatError` where another file lies there when it is read again."""

    def __init__(self, path: str) -> None:
        self._file: FileSource | None = FileSource(path)
        self.name, self.limits, self.size = path, self._file.limits, self._file.size
        self._state, self._lock, self._readers, self._rests = self._file.state(), Lock(), 0, False

    def readinto(self, offset: int, buffer: memoryview) -> int:
        """Fill ``buffer`` from ``offset``: see `Source`."""
        with self._lock:
            file, self._rests = self._open_again(), False
            self._readers += 1
        try:
            return file.readinto(offset, buffer)
        finally:
            with self._lock:
                self._readers -= 1
                if self._rests:
                    self._close()

    def expect(self, offset: int, length: int) -> None:
        with self._lock:
            if self._file is not None:
                self._file.expect(offset, length)

    def rest(self) -> None:
        """Close the file, when nobody reads it any more; it is opened again for the next reader."""
        with self._lock:
            self._rests = True
            self._close()

    def _close(self) -> None:
        if self._file is not None and not self._readers:
            self._file.close()
            self._file = None

    def _open_again(self) -> FileSource:
        if self._file is None:
            self._file = FileSource(self.name)
            if self._file.state() != self._state:
                self._close()
                raise FormatError("was changed or replaced while it was read", file=self.name)
        return self._file


def _spool(stream: BufferedReader, name: str, called: str) -> FileSource:
    """A stream that cannot be read twice, copied to a temporary file without a name if it begins as a capture: others
    may have no end. Users know it as ``called``. Raises `FormatError`."""
    import tempfile

    with waiting(f"data on {called}") as came:

        def more() -> bytes:
            chunk = stream.read1(_SPOOL_CHUNK)
            came(f"the end of {called}")
            return chunk

        begin = chunk = more()
        while chunk and len(begin) < SNIFFED:
            chunk = more()
            begin += chunk
        format_of(BytesSource(begin[:SNIFFED], name))
        with tempfile.NamedTemporaryFile(prefix="lastbranch-", buffering=0) as copy:
            chunk = begin
            while chunk:
                with naming(copy.name):
                    chunk = chunk[copy.write(chunk) :]
                chunk = chunk or more()
            return FileSource(copy.name, name)
