"""Small JSON files in the registry's directory: written whole or not at all, never through a link.

Callers hold the registry's lock when they write, so that one temporary name is enough and a writer that was killed
leaves nothing behind that the next does not overwrite.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

__all__ = ["MOST", "read_state", "remove", "write_state"]

MOST = 1 << 20
"""Bytes of one file; a longer one is not read."""


def write_state(folder: int, name: str, value: Any) -> None:
    """Replace file ``name`` in the directory of descriptor ``folder`` by ``value``, mode 0600."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    new = f"{name}.new"
    with open(os.open(new, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(json.dumps(value, separators=(",", ":")).encode())
    os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)


def read_state(folder: int, name: str) -> Any:
    """What `write_state` wrote; ``None`` where there is no such file or it is something else."""
    try:
        with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder), "rb") as f:
            data = f.read(MOST + 1)
        return json.loads(data) if len(data) <= MOST else None
    except (OSError, ValueError, RecursionError):
        return None


def remove(folder: int, *names: str) -> None:
    """Remove files that may be gone already."""
    for name in names:
        with suppress(OSError):
            os.unlink(name, dir_fd=folder)
