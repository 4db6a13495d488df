"""The border of the API: inside, failures are exceptions; outside, each function returns a status first."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

from .status import EtwError, Status
from .structures import structure, uuid_of

__all__ = ["guid_given", "returns_status", "returns_status_and"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


def returns_status(body: Callable[_P, None]) -> Callable[_P, int]:
    """``body`` with its failure as the value that is returned."""

    @functools.wraps(body)
    def call(*args: _P.args, **named: _P.kwargs) -> int:
        try:
            body(*args, **named)
        except EtwError as error:
            return error.status
        return Status.SUCCESS

    return _shown(call, body, "int")


def returns_status_and(failed: _T) -> Callable[[Callable[_P, _T]], Callable[_P, tuple[int, _T]]]:
    """The same for a body with an OUT value: (status, value), and ``failed`` for it where the call fails."""

    def decorate(body: Callable[_P, _T]) -> Callable[_P, tuple[int, _T]]:
        @functools.wraps(body)
        def call(*args: _P.args, **named: _P.kwargs) -> tuple[int, _T]:
            try:
                return Status.SUCCESS, body(*args, **named)
            except EtwError as error:
                return error.status, failed

        return _shown(call, body, f"tuple[int, {type(failed).__name__}]")

    return decorate


_C = TypeVar("_C", bound=Callable[..., Any])


def _shown(call: _C, body: Callable[..., Any], returned: str) -> _C:
    call.__signature__ = inspect.signature(body).replace(return_annotation=returned)  # type: ignore[attr-defined]
    return call


def guid_given(call: str, guid: Any) -> UUID:
    """The GUID that an argument is: a `UUID` or a GUID structure. Raises `EtwError` (87) for anything else."""
    if isinstance(guid, UUID):
        return guid
    if isinstance(guid, structure("GUID")):
        return uuid_of(guid)
    raise EtwError(call, Status.INVALID_PARAMETER, f"{guid!r} is no GUID")
