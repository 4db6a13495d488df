"""Win32 status codes that the trace API returns, the exception that carries one, and functions that return them.

Codes and texts are winerror.h's. ``docs/reference/etw.md`` says which call returns which, and where that is our choice.
"""

from __future__ import annotations

import errno
import functools
import inspect
from collections.abc import Callable
from enum import IntEnum
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

from ..errors import LastbranchError
from .structures import structure, uuid_of

__all__ = [
    "EtwError",
    "Status",
    "guid_given",
    "returns_status",
    "returns_status_and",
    "status_of",
    "status_of_reading",
]


class Status(IntEnum):
    """A Win32 error code; `SUCCESS` is 0. ``reason`` is its meaning."""

    reason: str

    def __new__(cls, value: int, reason: str = "") -> Status:
        made = int.__new__(cls, value)
        made._value_ = value
        made.reason = reason
        return made

    SUCCESS = 0, "the operation completed"
    FILE_NOT_FOUND = 2, "the file cannot be found"
    PATH_NOT_FOUND = 3, "the path cannot be found"
    ACCESS_DENIED = 5, "access is denied"
    INVALID_HANDLE = 6, "the handle is invalid"
    NOT_ENOUGH_MEMORY = 8, "not enough memory"
    INVALID_DATA = 13, "the data is invalid"
    OUTOFMEMORY = 14, "not enough memory to complete the call"
    BAD_LENGTH = 24, "the length of the buffer or structure is wrong"
    NOT_SUPPORTED = 50, "the request is not supported"
    INVALID_PARAMETER = 87, "a parameter is wrong"
    DISK_FULL = 112, "there is not enough space on the disk"
    CALL_NOT_IMPLEMENTED = 120, "the system does not implement the call"
    INSUFFICIENT_BUFFER = 122, "the buffer is too small for the data"
    INVALID_NAME = 123, "the name is not valid"
    MOD_NOT_FOUND = 126, "the module cannot be found"
    PROC_NOT_FOUND = 127, "the procedure cannot be found"
    BAD_PATHNAME = 161, "the path is invalid"
    BUSY = 170, "the resource is in use"
    ALREADY_EXISTS = 183, "it exists already"
    ENVVAR_NOT_FOUND = 203, "the variable cannot be found"
    MORE_DATA = 234, "more data is available than fits"
    ARITHMETIC_OVERFLOW = 534, "the event is larger than 64 KB"
    NOACCESS = 998, "a callback failed"
    CANCELLED = 1223, "the call was cancelled"
    IMPLEMENTATION_LIMIT = 1292, "an operation went beyond a limit of the implementation"
    PRIVILEGE_NOT_HELD = 1314, "a required privilege is not held"
    NO_SYSTEM_RESOURCES = 1450, "system resources are exhausted: too many sessions"
    TIMEOUT = 1460, "the call timed out"
    LOG_FILE_FULL = 1502, "the event log file is full"
    WMI_GUID_NOT_FOUND = 4200, "the provider is not known"
    WMI_INSTANCE_NOT_FOUND = 4201, "there is no session of that name or handle"
    INVALID_TIME = 1901, "the end is before the start"
    CTX_CLOSE_PENDING = 7007, "the trace closes when the callbacks have ended"


class EtwError(LastbranchError):
    """A failed call of the trace API: ``status`` is the code, ``call`` the function's name, ``reason`` the cause."""

    exit_code = 5

    def __init__(self, call: str, status: int, why: str = "", *, hint: str | None = None) -> None:
        self.call = call
        known = Status._value2member_map_.get(status)
        self.status: int = known if isinstance(known, Status) else status
        self.reason: str = why or getattr(known, "reason", "an unknown error")
        super().__init__(f"{call}: {self.reason} (code {int(status)})", hint=hint)


_OF_ERRNO = {
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR), Status.BAD_PATHNAME),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), Status.ACCESS_DENIED),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), Status.DISK_FULL),
    errno.ENOMEM: Status.NOT_ENOUGH_MEMORY,
}
_OF_READING = {errno.ENOENT: Status.FILE_NOT_FOUND, errno.ENOTDIR: Status.PATH_NOT_FOUND}


def status_of(error: OSError, other: Status = Status.NO_SYSTEM_RESOURCES) -> Status:
    """The code for what the system refused to a session; ``other`` where no code fits."""
    return _OF_ERRNO.get(error.errno or 0, other)


def status_of_reading(error: OSError) -> Status:
    """The code for a file that a consumer cannot open or a merge cannot write."""
    return _OF_READING.get(error.errno or 0) or status_of(error, Status.BAD_PATHNAME)


# -- The edge of the API: inside, failures are exceptions; outside, each function returns a status first


_P = ParamSpec("_P")
_T = TypeVar("_T")


def returns_status(body: Callable[_P, Status | None]) -> Callable[_P, int]:
    """``body`` as a function that returns a status: its own, or success."""

    @functools.wraps(body)
    def call(*args: _P.args, **named: _P.kwargs) -> int:
        try:
            return body(*args, **named) or Status.SUCCESS
        except EtwError as error:
            return error.status

    return _show_code(call, body, "int")


def returns_status_and(failed: _T) -> Callable[[Callable[_P, _T]], Callable[_P, tuple[int, _T]]]:
    """The same for a body with an OUT value: returns (status, value), with ``failed`` as the value of a failed call."""

    def decorate(body: Callable[_P, _T]) -> Callable[_P, tuple[int, _T]]:
        @functools.wraps(body)
        def call(*args: _P.args, **named: _P.kwargs) -> tuple[int, _T]:
            try:
                return Status.SUCCESS, body(*args, **named)
            except EtwError as error:
                return error.status, failed

        return _show_code(call, body, f"tuple[int, {type(failed).__name__}]")

    return decorate


_C = TypeVar("_C", bound=Callable[..., Any])


def _show_code(call: _C, body: Callable[..., Any], returned: str) -> _C:
    call.__signature__ = inspect.signature(body).replace(return_annotation=returned)  # type: ignore[attr-defined]
    return call


def guid_given(call: str, guid: Any) -> UUID:
    """The GUID of an argument, a `UUID` or a GUID structure. Raises `EtwError` (87) for anything else."""
    if isinstance(guid, UUID):
        return guid
    if isinstance(guid, structure("GUID")):
        return uuid_of(guid)
    raise EtwError(call, Status.INVALID_PARAMETER, f"{guid!r} is not a GUID")
