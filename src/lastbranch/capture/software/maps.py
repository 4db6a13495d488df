"""What is mapped in a process, and the build ids of the files."""

from __future__ import annotations

import os
from functools import lru_cache

from ...errors import LastbranchError
from ..procfs import Mapping, mappings

__all__ = ["build_id_of", "executable_maps"]


def executable_maps(pid: int) -> list[Mapping]:
    """Executable mappings of ``pid``; none where it is gone."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            return mappings(file.read())
    except OSError:
        return []


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
        return read_image(source).build_id or b""
    except LastbranchError:
        return b""
    finally:
        source.close()
