"""Names of providers, and the filters of EnableTraceEx2 as data."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable
from uuid import UUID

from .flags import FilterType
from .properties import Filter
from .status import EtwError, Status

__all__ = ["event_id_filter", "pid_filter", "provider_guid"]

_NAMESPACE = UUID("482c2db2-c390-47c8-87f8-1a15bfc130fb")
_MEANT_AS_GUID = re.compile(r"\{|[0-9a-fA-F]+(-[0-9a-fA-F]+){4}$")
_MAX_EVENT_IDS, _MAX_PIDS = 64, 8


def provider_guid(text: str) -> UUID:
    """The GUID in ``text``, with or without braces, or the GUID of the provider of that name.

    EventSource and TraceLogging make it: SHA-1 of a namespace and the name in capitals. `EtwError` 87 for an empty
    name, and for text that looks like a GUID but is none.
    """
    try:
        return UUID(text)
    except ValueError:
        pass
    if not text or _MEANT_AS_GUID.match(text):
        raise EtwError("EnableTraceEx2", Status.INVALID_PARAMETER, f"a provider has a GUID or a name, not {text!r}")
    digest = bytearray(
        hashlib.sha1(_NAMESPACE.bytes + text.upper().encode("utf-16-be"), usedforsecurity=False).digest()
    )
    digest[7] = digest[7] & 0x0F | 0x50
    return UUID(bytes_le=bytes(digest[:16]))


def event_id_filter(ids: Iterable[int], *, take: bool = True) -> Filter:
    """EVENT_FILTER_EVENT_ID: take only these events or, without ``take``, all others."""
    numbers = sorted(set(ids))
    if len(numbers) > _MAX_EVENT_IDS or any(not 0 <= n <= 0xFFFF for n in numbers):
        raise EtwError("EnableTraceEx2", Status.INVALID_PARAMETER, f"{_MAX_EVENT_IDS} ids of 16 bits are the most")
    return Filter(FilterType.EVENT_ID, struct.pack(f"<BBH{len(numbers)}H", take, 0, len(numbers), *numbers))


def pid_filter(pids: Iterable[int]) -> Filter:
    """Only providers in these processes, 8 at most."""
    numbers = list(pids)
    if not 0 < len(numbers) <= _MAX_PIDS:
        raise EtwError("EnableTraceEx2", Status.INVALID_PARAMETER, f"1 to {_MAX_PIDS} process ids")
    return Filter(FilterType.PID, struct.pack(f"<{len(numbers)}I", *numbers))
