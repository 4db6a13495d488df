"""Files that captures and symbol files name: how to follow such a path, open the file, and view its bytes as arrays.

Such a name is a hint: the name is joined to a folder that the user trusts; with all links resolved, the path must stay
below the folder; and only a regular file is opened.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError, LastbranchError
from ..model import OpenFile, Source

__all__ = [
    "File",
    "PAD",
    "Space",
    "Words",
    "below",
    "is_remote",
    "is_unchanged",
    "open_regular",
    "read_regular",
    "strings_at",
    "whole_file",
]


def is_remote(path: str) -> bool:
    """Whether ``path`` is on another machine (UNC) or a device of Windows."""
    return path.replace("\\", "/").startswith("//")


def open_regular(path: str, *, links: bool = True) -> int:
    """A descriptor of the regular file at ``path``, opened without waiting for a writer.

    Raises `OSError`: also for FIFOs, devices, sockets, folders and remote paths, and for links unless ``links``.
    """
    if is_remote(path) or "\0" in path:
        raise OSError(f"not a local file: {path!r}")
    flags = ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY", "O_NOCTTY", *(() if links else ("O_NOFOLLOW",)))
    fd = os.open(path, os.O_RDONLY | sum(getattr(os, f, 0) for f in flags))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"not a regular file: {path!r}")
    return fd


def whole_file(path: str, limit: int = -1, *, links: bool = True) -> bytes:
    """The bytes of the regular file at ``path``, the first ``limit`` of them. Raises `OSError` as `open_regular`."""
    with os.fdopen(open_regular(path, links=links), "rb") as file:
        return file.read(limit)


def below(root: str, hint: str) -> str | None:
    """The regular file that ``hint`` means in folder ``root``, absolute and free of links; ``None`` if there is none.

    ``hint`` may be a POSIX or Windows path; an absolute one counts from ``root``. One that leaves ``root``, by ``..``
    or by a link, is not followed.
    """
    parts = [p for p in hint.replace("\\", "/").split("/") if p not in ("", ".")]
    if not parts or ".." in parts or "\0" in hint or is_remote(hint) or is_remote(root):
        return None
    if parts[0][1:] == ":":  # a drive letter
        parts = parts[1:]
    try:
        top = os.path.realpath(root)
        found = os.path.realpath(os.path.join(top, *parts))
        inside = os.path.commonpath([top, found]) == top
        return found if inside and stat.S_ISREG(os.stat(found).st_mode) else None
    except (OSError, ValueError):
        return None


def is_unchanged(path: str, inode: Sequence[int], until: int) -> bool:
    """Whether ``path`` is the file with this ``inode`` (`Module.inode`), and was last written at ``until`` or before
    (ns since 1970).

    An inode's number is given to other files later. Its generation is not, but few file systems tell it (ext4, XFS,
    btrfs: ioctl_iflags(2)); of the others the number decides. The time of the inode's last change would be harder to
    set back than the time of the last writing, but `perf record` itself changes the inode: perf makes a link in its
    cache.
    """
    if len(inode) != 4 or not hasattr(os, "major"):
        return False
    try:
        fd = open_regular(path)
    except OSError:
        return False
    try:
        now = os.fstat(fd)
        same = (os.major(now.st_dev), os.minor(now.st_dev), now.st_ino) == tuple(inode[:3])
        return same and now.st_mtime_ns <= until and _generation(fd) in (None, inode[3])
    finally:
        os.close(fd)


_FS_IOC_GETVERSION = 0x80087601  # _IOR('v', 1, long), linux/fs.h


def _generation(fd: int) -> int | None:
    """The generation of an open file's inode; ``None`` where the file system does not tell it."""
    from fcntl import ioctl  # not on Windows

    word = bytearray(8)
    try:
        ioctl(fd, _FS_IOC_GETVERSION, word)
    except OSError:
        return None
    return int.from_bytes(word[:4], sys.byteorder)


# -- Bytes of checked files as arrays, read at any offset
#
# The file bounds all reads: a section is checked against its size before memory is taken for it, and an array is never
# indexed beyond its padding.


Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]

PAD = 16
"""Zero bytes after the end of a `Space`, so that a word or LEB128 number can be read at its last byte."""


class File(OpenFile):
    """A `Source` over the regular file at ``path``."""

    def __init__(self, path: str) -> None:
        super().__init__(open(open_regular(path), "rb", buffering=0), path)  # noqa: SIM115


_Answer = TypeVar("_Answer")


def read_regular(path: str, read: Callable[[Source], _Answer], rejected: list[str]) -> _Answer | None:
    """The result of ``read`` for the regular file at ``path``; ``None`` if there is no regular file, or if ``read``
    raises a `LastbranchError`, whose message is added to ``rejected``."""
    try:
        source = File(path)
    except (OSError, LastbranchError):
        return None
    try:
        return read(source)
    except LastbranchError as error:
        rejected.append(str(error))
        return None
    finally:
        source.close()


class Space:
    """The bytes of a section, read at many offsets at once.

    Offsets may have any value: those outside read as the zeros at the end.
    ``order`` is ``<`` or ``>``.
    """

    def __init__(self, raw: bytearray, order: str = "<", name: str = "", file: str = "") -> None:
        """``raw`` ends with `PAD` zeros and is kept."""
        self.size, self.order, self.name, self.file = len(raw) - PAD, order, name, file
        self.raw = raw
        """For scalar access and searches."""
        self.data: Bytes = np.frombuffer(raw, np.uint8)
        self._views: dict[int, NDArray[np.unsignedinteger]] = {1: self.data[: self.size + 8]}

    @classmethod
    def of(cls, data: bytes | bytearray | memoryview, order: str = "<", name: str = "", file: str = "") -> Space:
        """A space over a copy of ``data``."""
        return cls(bytearray(data) + bytes(PAD), order, name, file)

    @classmethod
    def part(cls, source: Source, offset: int, size: int, order: str, name: str) -> Space:
        """``size`` bytes of ``source`` at ``offset``. Raises `FormatError` where the file ends first."""
        if offset + size > source.size:
            reason = f"{name}: {size} bytes are past the end of the file"
            raise FormatError(reason, file=source.name, offset=offset, field="size", value=size)
        raw = bytearray(size + PAD)
        got = source.readinto(offset, memoryview(raw)[:size])
        del raw[got:size]
        return cls(raw, order, name, source.name)

    def read(self, at: NDArray[np.integer], width: int) -> Words:
        """Unsigned words of ``width`` bytes (1, 2, 3, 4 or 8) at byte offsets ``at``, however aligned."""
        if width == 3:
            shifts = (0, 8, 16) if self.order == "<" else (16, 8, 0)
            low, mid, high = (self.read(at + i, 1) << np.uint64(s) for i, s in enumerate(shifts))
            whole: Words = low | mid | high
            return whole
        view: NDArray[Any] | None = self._views.get(width)
        if view is None:
            code = np.dtype(f"{self.order}u{width}")
            view = self._views[width] = np.ndarray(self.size + 8, code, self.data, strides=(1,))
        found: Words = view[self.clip(at)].astype(np.uint64)
        return found

    def clip(self, at: NDArray[np.integer]) -> NDArray[np.int64]:
        """``at`` with the offset of the first byte after the section, a zero, in place of offsets outside it."""
        at = at.astype(np.int64, copy=False)
        inside: NDArray[np.int64] = np.where((at < 0) | (at > self.size), self.size, at)
        return inside

    def uleb(self, at: NDArray[np.integer]) -> tuple[Words, NDArray[np.int64]]:
        """Unsigned LEB128 numbers at ``at``, and the offsets after them. Bits past the 64th are lost."""
        at = self.clip(at)
        byte = self.data[at].astype(np.uint64)
        value, at = byte & np.uint64(0x7F), at + 1
        more, shift = np.flatnonzero(byte >= 0x80), 7
        while len(more) and shift < 70:
            byte = self.data[self.clip(at[more])].astype(np.uint64)
            value[more] |= (byte & np.uint64(0x7F)) << np.uint64(min(shift, 63))
            at[more] += 1
            more, shift = more[byte >= 0x80], shift + 7
        return value, at

    def sleb(self, at: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Signed LEB128 numbers at ``at``, and the offsets after them."""
        value, end = self.uleb(at)
        bits = np.minimum(7 * (end - self.clip(at)), 64).astype(np.uint64)
        negative = (value >> (bits - np.uint64(1)) & np.uint64(1)).astype(bool) & (bits < 64)
        filled = np.where(negative, value | (~np.uint64(0) << np.minimum(bits, np.uint64(63))), value)
        return filled.view(np.int64), end

    def bad(self, reason: str, offset: int, field: str, value: object) -> FormatError:
        """The error about ``field`` at byte ``offset`` of this section."""
        return FormatError(f"{self.name}: {reason}", file=self.file, offset=offset, field=field, value=value)


def strings_at(raw: bytes | bytearray, offsets: Sequence[int], limit: int = 1 << 16) -> list[str]:
    """Strings that end with a zero byte at ``offsets``; empty where outside, cut after ``limit`` bytes."""
    found = []
    for at in offsets:
        end = raw.find(b"\0", at, at + limit)
        text = raw[at:end] if end >= 0 else raw[at : at + limit]
        found.append(text.decode("utf-8", "backslashreplace"))
    return found
