"""Names that were found before, on disk: one file for each identity, backend and version.

The folder is the user's own: mode 0700 and owned by them, or it is not used. Files appear by renaming, so a reader
never sees half of one and writers do not wait for each other; a file that is damaged is as good as none.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import stat
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..binaries.files import open_regular
from .columns import Columns, pack, pack_functions, pack_names, unpack, unpack_functions, unpack_names
from .model import FunctionTable, Names

__all__ = ["Cache", "CacheRefused", "open_cache"]

_VERSION = 3
"""Raised when the in-tree readers answer otherwise, or files are written otherwise."""

LIMIT = 1 << 30
"""Bytes of all files together; the least recently used go first."""

_SUM = 4
_BLOCK = 1 << 16


class CacheRefused(Exception):
    """The folder is not private, or not there to be made; the message says what is wrong with it."""


def open_cache(folder: str | None) -> Cache | None:
    """The cache in ``folder``, which is made if need be. Raises `CacheRefused`."""
    if folder is None:
        return None
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        said = os.lstat(folder)
    except OSError as error:
        raise CacheRefused(f"no names are kept: {folder}: {error.strerror}") from error
    if not stat.S_ISDIR(said.st_mode):
        raise CacheRefused(f"no names are kept: {folder} is not a folder")
    if hasattr(os, "geteuid") and (said.st_uid != os.geteuid() or said.st_mode & 0o077):
        raise CacheRefused(
            f"no names are kept: {folder} can be used by others (uid {said.st_uid}, mode {said.st_mode & 0o777:o}); "
            "it must be yours, with mode 700"
        )
    return Cache(folder)


class Cache:
    """Names by key. A key is anything that JSON can write; equal ones mean equal answers."""

    def __init__(self, folder: str, limit: int = LIMIT) -> None:
        self.folder = folder
        self._limit = limit

    def names(self, key: object) -> tuple[NDArray[np.uint64], Names] | None:
        """(distinct ascending addresses, their names), if there are any."""
        found = self._read(key, "names")
        if found is None:
            return None
        try:
            address = found["address"]
            if address.dtype != np.uint64 or (address[1:] <= address[:-1]).any():
                return None
            return address, unpack_names(found, len(address))
        except (ValueError, KeyError):
            return None

    def keep_names(self, key: object, address: NDArray[np.uint64], names: Names) -> None:
        """Write them, in place of what was there."""
        self._write(key, "names", {"address": address, **pack_names(names)})

    def functions(self, key: object) -> FunctionTable | None:
        """The table, if there is one."""
        found = self._read(key, "functions")
        try:
            return None if found is None else unpack_functions(found)
        except ValueError:
            return None

    def keep_functions(self, key: object, table: FunctionTable) -> None:
        """Write it, in place of what was there."""
        self._write(key, "functions", pack_functions(table))

    def remembers(self, key: object) -> bool:
        """Whether `remember` was called with ``key``."""
        return self._read(key, "fact") is not None

    def remember(self, key: object) -> None:
        """A fact that took long to find out and follows from its key."""
        self._write(key, "fact", {})

    # -- files

    def path(self, key: object, kind: str) -> str:
        """Where something is kept."""
        text = json.dumps([_VERSION, key], sort_keys=True)
        return os.path.join(self.folder, f"{hashlib.sha256(text.encode()).hexdigest()[:40]}.{kind}")

    def _read(self, key: object, kind: str) -> Columns | None:
        path = self.path(key, kind)
        try:
            with os.fdopen(open_regular(path), "rb") as file:  # nobody else's, and never written again: mapped
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            if len(data) <= _SUM or int.from_bytes(data[-_SUM:], "little") != _sum(data[:-_SUM]):
                return None
            meta, columns = unpack(data[:-_SUM])
        except (OSError, ValueError, MemoryError):
            return None
        if meta.get("key") != json.loads(json.dumps(key)):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # it was used: others go first
        return columns

    def _write(self, key: object, kind: str, columns: Columns) -> None:
        import tempfile

        data = pack({"key": key}, columns)
        if len(data) > self._limit:
            return
        try:
            self.make_room(len(data))
            fd, path = tempfile.mkstemp(".new", "", self.folder)
        except OSError:
            return
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(data)
                file.write(_sum(memoryview(data)).to_bytes(_SUM, "little"))
            os.replace(path, self.path(key, kind))
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def make_room(self, size: int) -> None:
        """Remove what was not used for longest until ``size`` more bytes are within the limit."""
        with os.scandir(self.folder) as entries:
            files = [(s.st_mtime, s.st_size, e.path) for e in entries if stat.S_ISREG((s := _stat(e)).st_mode)]
        total = size + sum(s for _, s, _ in files)
        for _, length, path in sorted(files):
            if total <= self._limit:
                return
            with contextlib.suppress(OSError):
                os.unlink(path)
                total -= length


def _sum(data: memoryview) -> int:
    """CRC-32 of the sums of words of each block and of the rest: fast, and no damaged byte or block goes unseen."""
    whole = len(data) // _BLOCK * _BLOCK
    words = np.frombuffer(data[:whole], np.uint64).reshape(-1, _BLOCK // 8)
    return zlib.crc32(data[whole:], zlib.crc32(np.add.reduce(words, axis=1).tobytes()))


def _stat(entry: os.DirEntry[str]) -> Any:
    try:
        return entry.stat(follow_symlinks=False)
    except OSError:  # removed by another writer
        return os.stat_result((0,) * 10)
