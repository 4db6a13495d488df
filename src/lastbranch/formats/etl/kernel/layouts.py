"""All kernel layouts in one table, the rule that finds the one for an event, and kernel events from named fields."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from ....errors import FormatError
from ..event import Event
from ..payload.layouts import Layout, Versions, newest
from . import config, io, net, perf, process, session
from .providers import Key, hook_provider

__all__ = ["LAYOUTS", "kernel_event", "kernel_layout"]


LAYOUTS: dict[Key, Versions] = {}
for _table in (session, process, perf, io, net, config):
    LAYOUTS.update(_table.TABLE)


def kernel_layout(key: Key, version: int) -> Layout | None:
    """The layout of a version, else of the newest known lower one; None for an unknown event or so old a version."""
    versions = LAYOUTS.get(key)
    return None if versions is None else newest(versions, version)


def kernel_event(key: Key, time: int, pointer: int, fields: dict[str, Any], *, version: int, pid: int = 0) -> Event:
    """The event of a kernel group, or of a classic GUID, with its payload from ``fields``; those left out are 0.

    ``pointer``: 4 or 8; 8 also where 4 bytes are too few, as of a 64-bit process that a 32-bit session is told of.
    FormatError for a value that its field cannot hold.
    """
    declared = kernel_layout(key, version)
    assert declared is not None, key
    group, type_ = key
    for part in declared.fields:
        for name in part.type.parts or (part.name,):
            fields.setdefault(name, 0)
    try:
        payload = declared.encode(fields, pointer)
    except ValueError as error:
        if pointer == 4:
            return kernel_event(key, time, 8, fields, version=version, pid=pid)
        raise FormatError(f"a field cannot be written: {error}", field=str(key)) from error
    wide = pointer == 8
    if isinstance(group, int):
        hook = group << 8 | type_
        kind, provider = (2 if wide else 1), hook_provider(hook)
    else:
        hook, kind, provider = -1, (20 if wide else 10), UUID(group).bytes_le
    return Event(kind, pointer, time, pid, 0, 0, hook, provider, 0, version, type_, payload=payload)
