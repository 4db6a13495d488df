"""Full disks for tests: small file systems, if this user may mount them, simulated disks, and files with a size
limit."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of ``size`` (``64k``) as the new folder."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        made = subprocess.run(words, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no program `mount`")
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> Path:
    """A file that takes all the room of its disk."""
    found = os.statvfs(folder)
    (filler := folder / "filler").write_bytes(bytes(found.f_bavail * found.f_frsize))
    return filler


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """No file of this process and its children can grow beyond ``size`` bytes: writing fails with EFBIG."""
    import resource
    import signal

    old, limit = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # a compiled module would be cut short
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        sys.dont_write_bytecode = writes
        signal.signal(signal.SIGXFSZ, old)


class MadeUpDisks:
    """Replaces the module `os` of code that writes files: the files of a folder have room for ``rooms[folder]`` bytes
    together."""

    def __init__(self, rooms: dict[Path, int]) -> None:
        self._rooms = {str(folder): size for folder, size in rooms.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _left(self, fd: int) -> int:
        folder = os.path.dirname(os.readlink(f"/proc/self/fd/{fd}"))
        return self._rooms[folder] - sum(one.stat().st_size for one in os.scandir(folder))

    def _taken(self, fd: int, size: int, at: int) -> int:
        room = max(0, os.fstat(fd).st_size - at) + self._left(fd)
        if room <= 0 < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return min(size, room)

    def write(self, fd: int, data: bytes) -> int:
        return os.write(fd, data[: self._taken(fd, len(data), os.lseek(fd, 0, os.SEEK_CUR))])

    def pwrite(self, fd: int, data: bytes, at: int) -> int:
        return os.pwrite(fd, data[: self._taken(fd, len(data), at)], at)

    def fstatvfs(self, fd: int) -> SimpleNamespace:
        return SimpleNamespace(f_bavail=max(0, self._left(fd)), f_frsize=1)
