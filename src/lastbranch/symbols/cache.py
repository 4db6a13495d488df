"""The cache on disk: one file for each key. A symbol file has one cache file for each identity, backend and version.

The folder must belong to the user and have mode 0700. Files are renamed into place, so that readers never see a part of
one and writers do not wait for each other. A damaged file counts as missing.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import mmap
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..binaries.files import open_regular
from ..closing import on_failure
from ..model import private_mode
from .model import FunctionTable, Names
from .table_bytes import Columns, pack, pack_functions, pack_names, unpack, unpack_functions, unpack_names

__all__ = ["Cache", "CacheRefused", "open_cache"]

_VERSION = 4
"""Increased when the answers of the in-tree readers or the form of the files change."""

LIMIT = 1 << 30
"""Bytes of all files; the least recently used are removed first."""

_Answer = TypeVar("_Answer")

_SUM = 4
_BLOCK = 1 << 16


class CacheRefused(Exception):
    """The folder is not private or cannot be created; the message has the reason."""


def open_cache(folder: str | None, what: str = "names") -> Cache | None:
    """The cache of ``what`` in ``folder``, which is created if it is missing. Raises `CacheRefused`."""
    if folder is None:
        return None
    try:
        os.makedirs(folder, private_mode(), exist_ok=True)
        state = os.lstat(folder)
    except OSError as error:
        raise CacheRefused(f"{what} are not cached: {folder}: {error.strerror}") from error
    if not stat.S_ISDIR(state.st_mode):
        raise CacheRefused(f"{what} are not cached: {folder} is not a folder")
    if hasattr(os, "geteuid") and (state.st_uid != os.geteuid() or state.st_mode & 0o077):
        raise CacheRefused(
            f"{what} are not cached: {folder} can be used by others (uid {state.st_uid}, "
            f"mode {state.st_mode & 0o777:o}); it must be yours, with mode 700"
        )
    return Cache(folder)


class Cache:
    """Names by key. A key is any JSON value; equal keys mean equal answers."""

    def __init__(self, folder: str, limit: int = LIMIT) -> None:
        self.folder = folder
        self.limit = limit

    def names(self, key: object) -> tuple[NDArray[np.uint64], Names] | None:
        """(distinct ascending addresses, their names), or ``None``."""

        def parse(columns: Columns) -> tuple[NDArray[np.uint64], Names]:
            address = columns["address"]
            if address.dtype != np.uint64 or (address[1:] <= address[:-1]).any():
                raise ValueError("addresses do not ascend")
            return address, unpack_names(columns, len(address))

        return self.read(key, "names", parse)

    def keep_names(self, key: object, address: NDArray[np.uint64], names: Names) -> None:
        """Write them, in place of what was there."""
        self.write(key, "names", {"address": address, **pack_names(names)})

    def functions(self, key: object) -> FunctionTable | None:
        """The table, or ``None``."""
        return self.read(key, "functions", unpack_functions)

    def keep_functions(self, key: object, table: FunctionTable) -> None:
        """Write it, in place of what was there."""
        self.write(key, "functions", pack_functions(table))

    def remembers(self, key: object) -> bool:
        """Whether `remember` was called with ``key``."""
        return self.read(key, "fact", lambda columns: True) is True

    def remember(self, key: object) -> None:
        """Keep a fact that took long to establish and follows from its key alone."""
        self.write(key, "fact", {})

    # -- Files

    def path(self, key: object, kind: str) -> str:
        """The path of the file for ``key``."""
        text = json.dumps([_VERSION, key], sort_keys=True)
        return os.path.join(self.folder, f"{hashlib.sha256(text.encode()).hexdigest()[:40]}.{kind}")

    def read(self, key: object, kind: str, parse: Callable[[Columns], _Answer]) -> _Answer | None:
        """The result of ``parse`` for the file's columns; ``None`` where the file is missing, damaged or of another
        key."""
        path = self.path(key, kind)
        try:
            with os.fdopen(open_regular(path), "rb") as file:  # private, and never written again: safe to map
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            if len(data) <= _SUM or int.from_bytes(data[-_SUM:], "little") != _sum(data[:-_SUM]):
                return None
            meta, columns = unpack(data[:-_SUM])
            if meta.get("key") != json.loads(json.dumps(key)):
                return None
            with contextlib.suppress(OSError):
                os.utime(path)  # used: others are removed first
            return parse(columns)
        except (OSError, ValueError, KeyError, MemoryError):
            return None

    def write(self, key: object, kind: str, columns: Columns) -> None:
        """Keep ``columns`` for ``key``, in place of what was there; nothing is kept where that fails."""
        data = pack({"key": key}, columns)
        if len(data) > self.limit:
            return
        with contextlib.suppress(OSError), self.new_file(self.path(key, kind)) as file:
            file.write(data)
            file.write(_sum(memoryview(data)).to_bytes(_SUM, "little"))

    def files(self) -> list[tuple[float, int, str]]:
        """(time of last use in seconds since 1970, bytes, path) of each file."""
        with os.scandir(self.folder) as entries:
            return [(s.st_mtime, s.st_size, e.path) for e in entries if stat.S_ISREG((s := _stat(e)).st_mode)]

    def key_of(self, path: str) -> list[Any] | None:
        """The key of one of the `files`; ``None`` where it cannot be read."""
        try:
            with os.fdopen(open_regular(path), "rb") as file:
                meta, _ = unpack(file.read()[:-_SUM])
        except (OSError, ValueError):
            return None
        return meta["key"] if isinstance(meta.get("key"), list) else None

    @contextlib.contextmanager
    def new_file(self, path: str) -> Iterator[IO[bytes]]:
        """A file to be written, which is kept as ``path`` in the folder when the block ends well, and else is removed.

        Only then the least recently used files make room for it: what is announced, or breaks off, costs none of them.
        Raises `OSError` where it cannot be kept, as one that is larger than the limit.
        """
        import tempfile

        made = tempfile.NamedTemporaryFile("wb", suffix=".new", prefix="", dir=self.folder, delete=False)  # noqa: SIM115
        with on_failure(_remove, made.name):
            with made as file:
                yield file
            self._make_room(made.name)
            os.replace(made.name, path)

    def _make_room(self, part: str) -> None:
        """Remove the least recently used of the other files until they are within the limit with ``part``."""
        size = os.stat(part).st_size
        if size > self.limit:
            raise OSError(errno.EFBIG, f"{size} bytes are more than the {self.limit} of the cache")
        others = [file for file in self.files() if file[2] != part]
        total = size + sum(s for _, s, _ in others)
        for _, length, path in sorted(others):
            if total <= self.limit:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)
                total -= length


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _sum(data: memoryview) -> int:
    """CRC-32 of the sums of words of each block and of the rest: fast, and it detects any damaged byte or block."""
    whole = len(data) // _BLOCK * _BLOCK
    words = np.frombuffer(data[:whole], np.uint64).reshape(-1, _BLOCK // 8)
    return zlib.crc32(data[whole:], zlib.crc32(np.add.reduce(words, axis=1).tobytes()))


def _stat(entry: os.DirEntry[str]) -> Any:
    try:
        return entry.stat(follow_symlinks=False)
    except OSError:  # removed by another writer
        return os.stat_result((0,) * 10)
