"""What is mapped in a process, and the build ids of the files."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import NamedTuple

from ...errors import LastbranchError

__all__ = ["Mapping", "build_id_of", "executable_maps"]


class Mapping(NamedTuple):
    """One executable mapping; ``offset`` into the file ``name``."""

    start: int
    end: int
    offset: int
    name: str


def executable_maps(pid: int) -> list[Mapping]:
    """Executable mappings of ``pid`` from /proc/PID/maps (proc(5)); none where it is gone. Named as the kernel names
    them in perf records: ``//anon`` without a file."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape") as lines:
            return [m for line in lines if (m := _executable(line)) is not None]
    except OSError:
        return []


def _executable(line: str) -> Mapping | None:
    place, rights, offset, _device, _inode, *name = line.rstrip("\n").split(maxsplit=5)
    if "x" not in rights:
        return None
    start, _, end = place.partition("-")
    return Mapping(int(start, 16), int(end, 16), int(offset, 16), name[0] if name else "//anon")


def build_id_of(path: str) -> bytes:
    """The build id of the file at ``path`` as it is now, empty where it has none."""
    try:
        info = os.stat(path)
    except (OSError, ValueError):
        return b""
    return _build_id(path, info.st_ino, info.st_mtime_ns)


@lru_cache(maxsize=1024)
def _build_id(path: str, inode: int, changed: int) -> bytes:
    from ...images import read_image
    from ...opening import FileSource

    try:
        source = FileSource(path)
    except (OSError, LastbranchError):
        return b""
    try:
        return (read_image(source).build_id or b"")[:20]
    except LastbranchError:
        return b""
    finally:
        source.close()
