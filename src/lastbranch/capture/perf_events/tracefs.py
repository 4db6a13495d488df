"""The tracefs of the running kernel: its mount, or a private mount that only this process sees.

The private mount has no place in the tree of files (fsopen, fsmount; Linux 5.2), and ends with its descriptor. Making
such a mount needs CAP_SYS_ADMIN.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

__all__ = ["private_tracefs"]

_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432  # the same on all architectures
_CREATE = 6  # FSCONFIG_CMD_CREATE
_CLOEXEC = 1  # of fsopen and fsmount


@cache
def private_tracefs() -> str | None:
    """The folder of a tracefs that this process has mounted for itself, ``None`` if it may not."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    context = call(_FSOPEN, b"tracefs", _CLOEXEC)
    if context < 0:
        return None
    try:
        if call(_FSCONFIG, context, _CREATE, None, None, 0) < 0:
            return None
        mount = call(_FSMOUNT, context, _CLOEXEC, 0)
        return f"/proc/self/fd/{mount}" if mount >= 0 else None
    finally:
        os.close(context)
