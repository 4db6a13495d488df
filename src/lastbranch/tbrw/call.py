"""How a function of chapter 9 is made from one row: its prototype in short, what it says of itself, and its body.

A prototype is written as ``name(in, in...) -> out, out``: OUT parameters of the guide have left the argument list and
are returned behind the status. The function that is made has that signature, and checks its arguments by `_KINDS`. A
body gets the arguments (the handle instead of ``ptr``), returns the OUT values and raises `TbrwError` for any other
status.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from inspect import Parameter, Signature
from types import GenericAlias
from typing import Any

from .handle import Handle
from .status import Status, TbrwError
from .structures import RECORDS, TBRW_STRING_OR_ID

__all__ = ["TooSmall", "make"]

TBRW_PTR = Handle | None

_KINDS: dict[str, Any] = {
    "ptr": TBRW_PTR, "tbrw_ptr": TBRW_PTR,
    "filename": str | os.PathLike[str], "error_string": str | None,
    "buf_ptr": Any, "buffer": Any, "data_ptr": Any, "data_entry": Any, "wcs": Any, "utf8": Any, "user_ptr": Any,
    "callback_func": Callable[..., int], "string_id": TBRW_STRING_OR_ID | int,
    "p_pid": RECORDS["TBRW_PID"] | None, "p_tid": RECORDS["TBRW_TID"] | None, "p_module": RECORDS["TBRW_MODULE"] | None,
    "system": RECORDS["TBRW_SYSTEM"], "host": RECORDS["TBRW_HOST"], "os": RECORDS["TBRW_OS"],
    "application": RECORDS["TBRW_APPLICATION"], "process": RECORDS["TBRW_PID"], "thread": RECORDS["TBRW_TID"],
    "module": RECORDS["TBRW_MODULE"], "version_info": RECORDS["TBRW_VERSION_INFO"],
    "stream_info": RECORDS["TBRW_STREAM_INFO"], "event_descriptor_entry": RECORDS["TBRW_EVENT"],
    "data_descriptor_entry": RECORDS["TBRW_SAMPREC_DESC_ENTRY"],
}  # fmt: skip
"""Types of parameters and OUT values by name; all others are numbers."""


class TooSmall(TbrwError):
    """BUFFER_TOO_SMALL, with the size that is needed: the only error that has OUT values."""

    def __init__(self, given: int, needed: int) -> None:
        super().__init__(Status.BUFFER_TOO_SMALL, f"a buffer of {given} is too small, {needed} are needed")
        self.needed = needed


def make(prototype: str, chapter: str, text: str, body: Callable[..., Any]) -> Callable[..., Any]:
    """The function ``TBRW_`` + name of a row."""
    head, _, returned = prototype.partition(" -> ")
    name, _, inside = head.rstrip(")").partition("(")
    names, outs = [list(filter(None, part.split(", "))) for part in (inside, returned)]
    kinds = [_KINDS.get(n, int) for n in names]
    out_kinds = [_KINDS.get(n, int) for n in outs]
    failed = tuple(0 if kind is int else None for kind in out_kinds)
    signature = Signature(
        [Parameter(n, Parameter.POSITIONAL_OR_KEYWORD, annotation=k) for n, k in zip(names, kinds, strict=True)],
        return_annotation=GenericAlias(tuple, (int, *out_kinds)) if outs else int,
    )

    def call(*args: Any, **named: Any) -> Any:
        given = signature.bind(*args, **named).args if named or len(args) != len(names) else args
        try:
            values = [_checked(n, k, v) for n, k, v in zip(names, kinds, given, strict=True)]
            result = body(*values)
        except TooSmall as error:
            return error.status, error.needed
        except TbrwError as error:
            return (error.status, *failed) if outs else error.status
        if not outs:
            return Status.SUCCESS if result is None else result
        return (Status.SUCCESS, *(result if len(outs) > 1 else (result,)))

    call.__name__ = call.__qualname__ = f"TBRW_{name}"
    call.__module__ = "lastbranch.tbrw"
    shown = ", ".join(["status", *outs])
    call.__doc__ = f"{text}\n\nReturns ``{shown}``. Guide: {chapter}."
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {**dict(zip(names, kinds, strict=True)), "return": signature.return_annotation}
    return call


def _checked(name: str, kind: Any, value: Any) -> Any:
    """An argument as bodies take it. Raises `TbrwError` where it cannot be what the call needs."""
    if kind is int:
        try:
            return operator.index(value)
        except TypeError:
            raise TbrwError(Status.BAD_PARAMETER, f"{name} = {value!r} is not a number") from None
    if kind is TBRW_PTR:
        if not isinstance(value, Handle) or value.closed:
            raise TbrwError(Status.BAD_PARAMETER, f"{name} is not an open file")
        return value
    if name == "filename":
        if not isinstance(value, str | os.PathLike):
            raise TbrwError(Status.BAD_PARAMETER, f"filename = {value!r} is not a path")
        return os.fspath(value)
    if name == "callback_func" and not callable(value):
        raise TbrwError(Status.UNEXPECTED_NULL_PTR, "callback_func cannot be called")
    if isinstance(kind, type) and kind in RECORDS.values():
        if value is None:
            raise TbrwError(Status.UNEXPECTED_NULL_PTR, f"{name} is NULL")
        if not isinstance(value, kind):
            raise TbrwError(Status.BAD_PARAMETER, f"{name} is a {type(value).__name__}, not a {kind.__name__}")
    return value
