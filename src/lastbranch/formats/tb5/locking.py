"""One writer at a time."""

from __future__ import annotations

import os
from typing import IO

from ...errors import UnavailableError

__all__ = ["lock"]


def lock(file: IO[bytes], path: str) -> None:
    """Take the file for writing until it is closed. Raises `UnavailableError` where another program has it."""
    try:
        if os.name == "nt":
            import msvcrt

            file.seek(1 << 62)  # a byte that no reader touches
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
        else:
            import fcntl

            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise UnavailableError(f"{path}: another program is writing to it", hint="try again when it is done") from error
