"""Shared by all writers of files: the output appears complete, or the old file stays.

A file being written is next to its final name, as ``NAME.part-`` and 16 random digits: process ids will not do, since
in containers every program is process 1. Its maker holds a lock on it (flock). A part whose lock is free belongs to a
killed program; the next part of that name removes it. Windows has no such locks: parts that nobody has written to for a
day go there.
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from ..closing import on_failure
from ..errors import UnavailableError
from ..long_waits import waiting

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

if sys.platform != "win32":
    import fcntl

__all__ = [
    "FULL",
    "NamedFile",
    "OutputError",
    "PartFile",
    "PartFolder",
    "check_replaceable",
    "keep_old",
    "naming",
    "private_mode",
    "temporary_file",
    "temporary_folder",
    "token",
    "unused_name",
    "writing_file",
]

FULL = (errno.EFBIG, errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))
"""What says that a disk, a quota or a file is full."""
_TOKEN = re.compile("[0-9a-f]{16}")
_PART = ".part-"
_ABANDONED = 24 * 3600
"""Seconds without a change after which a part is nobody's, where there are no locks."""
_ATTEMPTS = 100
_AT_FDCWD, _EXCHANGE = -100, 2  # fcntl.h, linux/fs.h: RENAME_EXCHANGE; Darwin's RENAME_SWAP has the same value


class OutputError(OSError):
    """A file cannot be written. ``filename`` is the name that it was to have, ``errno`` and ``strerror`` say why."""

    def __str__(self) -> str:
        return f"{self.filename}: cannot be written: {self.strerror}"


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Raise the `OSError` of what is inside as `OutputError` of ``name``."""
    try:
        yield
    except OSError as error:
        raise OutputError(error.errno or errno.EIO, error.strerror or str(error), name) from error


def temporary_file(folder: str | None = None) -> io.BufferedRandom:
    """A file without a name, in the folder for temporary files or in ``folder``; errors name that folder."""
    import tempfile

    shown = f"a temporary file in {folder or tempfile.gettempdir()}"
    with naming(shown), tempfile.TemporaryFile(dir=folder, buffering=0) as made:
        return io.BufferedRandom(NamedFile(os.dup(made.fileno()), "r+b", shown))


def temporary_folder(name: str) -> PartFolder:
    """A folder of this user's alone, in the folder for temporary files. The folder goes at the end of its context; the
    folder of a killed program goes when the next folder of this ``name`` is made."""
    import tempfile

    return PartFolder(os.path.join(tempfile.gettempdir(), name), private=True)


def private_mode() -> int:
    """The mode for `os.mkdir` of a folder for this user alone.

    On Windows it is that of any folder: the folder around it says who may read what is in it. CPython (3.11.10, 3.12.4,
    3.13 and later) makes an access list of 0o700 there, for the system, administrators and the owner, and files keep
    that when they are moved elsewhere. What an elevated prompt makes is the administrators', so the same person's
    normal prompt could not read it. Source: the documentation of `os.mkdir`.
    """
    return 0o777 if sys.platform == "win32" else 0o700


class NamedFile(io.FileIO):
    """A raw file whose write errors (`OutputError`) carry the name that people know the file by."""

    def __init__(self, file: str | int, mode: str, shown: str) -> None:
        super().__init__(file, mode)
        self.shown = shown

    def write(self, data: ReadableBuffer, /) -> int:
        with naming(self.shown):
            return super().write(data)

    def truncate(self, size: int | None = None, /) -> int:
        with naming(self.shown):
            return super().truncate(size)

    def sync(self) -> None:
        """Have the disk take what was written."""
        with naming(self.shown):
            os.fsync(self.fileno())


def check_replaceable(path: str) -> None:
    """Raise `UnavailableError` if ``path`` names something that is not a file.

    Writers rename a complete file over the old one: a device or a pipe of that name would be gone.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        kind = "a folder" if os.path.isdir(path) else "not a regular file"
        raise UnavailableError(f"{path} is {kind} and cannot be replaced", hint="give the name of a file")


def unused_name(path: str, kind: str) -> str:
    """An unused name next to ``path``: ``path.kind-`` and 64 random bits."""
    return f"{path}.{kind}-{token()}"


def token() -> str:
    """64 random bits in hexadecimal: what nobody else has, in whatever namespace of process ids."""
    return os.urandom(8).hex()


class _Part:
    """A file beside ``final``, at ``path``, that belongs to this program until the file replaces ``final`` or goes."""

    def __init__(self, final: str | os.PathLike[str], make: Callable[[str], int]) -> None:
        self.final = os.fspath(final)
        with naming(self.final):
            _sweep(self.final)
            self.path, self._lock = _make_part(self.final, make)
        self._done = False

    def discard(self) -> None:
        """Let nothing of it stay. Raises nothing; a second call does nothing."""
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        self.discard()


class PartFile(_Part):
    """A new file: ``file`` is open for reading and writing, unbuffered. `appear` or `discard` is the end of it.

    As a context it is discarded at its end, unless it has appeared. Raises `UnavailableError` for a name that is no
    file's (`check_replaceable`), `OutputError` where none can be made. ``mode`` are its permissions, less the umask.
    """

    def __init__(self, final: str | os.PathLike[str], *, mode: int = 0o666) -> None:
        check_replaceable(os.fspath(final))
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        super().__init__(final, lambda path: os.open(path, flags, mode))
        self.file = NamedFile(self._lock, "r+b", self.final)

    @classmethod
    def adopted(cls, final: str, path: str, descriptor: int) -> PartFile:
        """A part that another process made and gave us: ``descriptor``, which holds its lock, and its ``path``."""
        part = cls.__new__(cls)
        part.final, part.path, part._lock, part._done = final, path, descriptor, False
        part.file = NamedFile(descriptor, "r+b", final)
        return part

    def __enter__(self) -> PartFile:
        return self

    def appear(self) -> None:
        """Close the file and give it its final name, in place of an older file. `OutputError`: nothing of it stays.

        Users that buffer flush first."""
        with on_failure(self.discard):
            self.move(self.final)

    def move(self, name: str) -> None:
        """Close the file under another name than the planned one. `OutputError`: it is where it was."""
        with naming(name):
            if os.name == "nt":  # what is open cannot be renamed there
                self.file.close()
            os.replace(self.path, name)
        self._done = True
        self.file.close()

    def discard(self) -> None:
        if not self._done:
            self._done = True
            self.file.close()
            with suppress(OSError):
                os.unlink(self.path)


class PartFolder(_Part):
    """A new folder: one that becomes ``final`` (`appear`), or in which a file is made that does (`give`).

    The latter is for files that others open by name. As a context it is discarded at its end. Raises `OutputError`
    where none can be made. ``private``: no other user may look into it (`private_mode`).
    """

    def __init__(self, final: str | os.PathLike[str], *, private: bool = False) -> None:
        def make(path: str) -> int:
            os.mkdir(path, private_mode() if private else 0o777)
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if sys.platform != "win32" else -1

        super().__init__(final, make)

    def __enter__(self) -> PartFolder:
        return self

    def file(self, name: str) -> str:
        """The path of a file in the folder."""
        return os.path.join(self.path, name)

    def shown(self, name: str) -> str:
        """The name that people know the file by."""
        return os.path.join(self.final, name)

    def open(self, name: str) -> IO[bytes]:
        """A new file in the folder, open for writing."""
        with naming(self.shown(name)):
            raw = NamedFile(self.file(name), "xb", self.shown(name))
        return io.BufferedWriter(raw)

    def give(self, name: str) -> None:
        """Let the file ``name`` of the folder take the place of ``final``, and the folder go."""
        with naming(self.final):
            os.replace(self.file(name), self.final)
        self.discard()

    def appear(self) -> None:
        """Let the folder take its name. A folder that has it is replaced, and at no instant is there none of the name,
        where the system can exchange two (Linux, macOS)."""
        with naming(self.final):
            if not os.path.isdir(self.final):
                os.rename(self.path, self.final)
            elif not _exchange(self.path, self.final):
                aside = unused_name(self.final, "old")
                os.rename(self.final, aside)
                try:
                    os.rename(self.path, self.final)
                except OSError:
                    os.rename(aside, self.final)
                    raise
                _remove_tree(aside)
        self.discard()  # what has the name of the part now is the old one

    def discard(self) -> None:
        if not self._done:
            self._done = True
            _remove_tree(self.path)
            if self._lock >= 0:
                os.close(self._lock)


@contextmanager
def writing_file(path: str) -> Iterator[IO[bytes]]:
    """A new file that appears as ``path`` when all is written; until then, an older file of that name stays.

    A device or a pipe is written to as it is. Raises `OutputError` where it cannot be written.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # a rename would put a file in a device's place
        with naming(path), waiting(f"a program that reads {path}"):
            raw = NamedFile(path, "wb", path)
        with io.BufferedWriter(raw) as out:
            yield out
        return
    with PartFile(path) as part:
        out = io.BufferedWriter(part.file)
        try:
            yield out
            out.flush()
            part.appear()
        finally:
            _drop(out)


def _drop(out: IO[bytes]) -> None:
    """Close a writer in spite of a full buffer: closing tries to write the buffer, which has failed before."""
    with suppress(OSError, ValueError):
        out.close()


def keep_old(path: str) -> None:
    """Let the file at ``path``, which is about to be replaced, be ``path.old`` as well. `OutputError` if it cannot."""
    if not os.path.isfile(path):
        return
    with naming(path + ".old"):
        other = unused_name(path, "old")
        try:
            os.link(path, other)
        except OSError:  # file systems without links: there is an instant without the file
            os.replace(path, path + ".old")
        else:
            os.replace(other, path + ".old")


# -- names, locks, sweeping


def _make_part(final: str, make: Callable[[str], int]) -> tuple[str, int]:
    """The path of a new part, and a descriptor that holds its lock."""
    for _ in range(_ATTEMPTS):
        path = unused_name(final, _PART.strip(".-"))
        try:
            descriptor = make(path)
        except FileExistsError:
            continue
        except FileNotFoundError:
            if not os.path.isdir(os.path.dirname(path) or "."):
                raise
            continue  # swept before it was locked
        if descriptor < 0 or (_lock(descriptor) is not False and _is(descriptor, path)):
            return path, descriptor
        os.close(descriptor)
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), final)


def _lock(descriptor: int) -> bool | None:
    """Take the lock. False: another program has it; ``None``: there are no locks here."""
    if sys.platform == "win32":
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return None
    return True


def _is(descriptor: int, path: str) -> bool:
    """Whether what is open is what has the name now."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


def _sweep(final: str) -> None:
    """Remove parts of ``final`` that dead programs of this user have left. Raises nothing."""
    folder, name = os.path.split(final)
    try:
        there = os.listdir(folder or ".")
    except OSError:
        return
    for other in there:
        if other.startswith(name + _PART) and _TOKEN.fullmatch(other, len(name + _PART)):
            with suppress(OSError):
                _remove_if_dead(os.path.join(folder, other))


def _remove_if_dead(path: str) -> None:
    found = os.stat(path, follow_symlinks=False)
    kind = stat.S_IFMT(found.st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFDIR):
        return
    remove = os.unlink if kind == stat.S_IFREG else _remove_tree
    if sys.platform == "win32":
        if time.time() - found.st_mtime > _ABANDONED:
            remove(path)
        return
    if found.st_uid != os.geteuid():
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if _lock(descriptor) and _is(descriptor, path):
            remove(path)
    finally:
        os.close(descriptor)


def _remove_tree(path: str) -> None:
    """Remove a folder and what is in it, as far as that goes."""
    import shutil

    shutil.rmtree(path, ignore_errors=True)


def _exchange(one: str, other: str) -> bool:
    """Have two names of one file system change places at once; False where the system cannot."""
    if sys.platform == "win32":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    raw = os.fsencode(one), os.fsencode(other)
    if sys.platform == "darwin":
        return hasattr(libc, "renamex_np") and libc.renamex_np(*raw, _EXCHANGE) == 0
    return hasattr(libc, "renameat2") and libc.renameat2(_AT_FDCWD, raw[0], _AT_FDCWD, raw[1], _EXCHANGE) == 0
