"""SeSystemProfilePrivilege: enabled in this process's token before a call that needs it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..status import EtwError, Status
from .libraries import Libraries, wide

__all__ = ["SYSTEM_PROFILE", "TokenPrivileges", "enable_privilege", "system_profile"]

SYSTEM_PROFILE = "SeSystemProfilePrivilege"
NOT_ALL_ASSIGNED = 1300
"""What GetLastError says after an AdjustTokenPrivileges that returned TRUE and enabled nothing."""
_QUERY, _ADJUST = 0x8, 0x20
"""TOKEN_QUERY, TOKEN_ADJUST_PRIVILEGES."""
_ENABLED = 0x2
"""SE_PRIVILEGE_ENABLED."""


_REFUSALS = (Status.ACCESS_DENIED, Status.PRIVILEGE_NOT_HELD)


class _Luid(ctypes.Structure):
    _fields_ = [("LowPart", ctypes.c_uint32), ("HighPart", ctypes.c_int32)]


class TokenPrivileges(ctypes.Structure):
    """TOKEN_PRIVILEGES with one privilege: 16 bytes, in 32 and in 64 bits."""

    _fields_ = [("PrivilegeCount", ctypes.c_uint32), ("Luid", _Luid), ("Attributes", ctypes.c_uint32)]


def enable_privilege(libraries: Libraries, name: str = SYSTEM_PROFILE) -> None:
    """Enable privilege ``name`` for this process; it stays enabled.

    Raises `EtwError`: 1314 where the token does not have it, else the code of the call that failed.
    """
    token = ctypes.c_void_p()
    process = libraries.function("GetCurrentProcess")()
    _true(libraries, "OpenProcessToken", process, _QUERY | _ADJUST, ctypes.byref(token))
    try:
        asked = TokenPrivileges(1, _Luid(), _ENABLED)
        at = ctypes.addressof(asked) + TokenPrivileges.Luid.offset
        _true(libraries, "LookupPrivilegeValueW", None, wide("LookupPrivilegeValue", name), at)
        _true(libraries, "AdjustTokenPrivileges", token, False, ctypes.byref(asked), 0, None, None)
        if libraries.loader.last_error() == NOT_ALL_ASSIGNED:
            raise EtwError(
                "AdjustTokenPrivileges", Status.PRIVILEGE_NOT_HELD, f"the account does not hold {name}",
                hint="run from an elevated prompt",
            )  # fmt: skip
    finally:
        libraries.function("CloseHandle")(token)


def _true(libraries: Libraries, name: str, *arguments: Any) -> None:
    """Call ``name``, which returns a BOOL and leaves its code for GetLastError."""
    if not libraries.function(name)(*arguments):
        raise EtwError(name.removesuffix("W"), libraries.loader.last_error())


@contextmanager
def system_profile(libraries: Libraries) -> Iterator[None]:
    """Calls that need `SYSTEM_PROFILE`. Where it cannot be enabled Windows still decides; its refusal then says why."""
    refused: EtwError | None = None
    try:
        enable_privilege(libraries)
    except EtwError as error:
        refused = error
    try:
        yield
    except EtwError as error:
        if refused is None or error.status not in _REFUSALS:
            raise
        why = f"{Status(error.status).reason}, and {SYSTEM_PROFILE} could not be enabled ({refused})"
        raise EtwError(error.call, error.status, why, hint=refused.hint) from refused
