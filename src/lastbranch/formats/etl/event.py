"""One ETW event with its header decoded: what `dump` and the payload tables work on.

Bulk readers work on columns and never make these; see `walk`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Event"]


@dataclass(slots=True)
class Event:
    """An event of a trace log, whatever header it came with.

    ``hook`` is the kernel's hook id (group << 8 | type), -1 for events of user providers. ``provider`` holds the 16
    bytes of the provider's GUID as they stand in the file (for kernel events the GUID of the hook's group). ``pid`` and
    ``tid`` are -1 where the header has none. ``time`` is in ticks of the session's clock. ``opcode`` is the
    Type of classic and kernel events, the Opcode of manifest events; ``id`` is 0 for classic ones.
    """

    header: int
    """Header type: 1 to 4, 10, 11, 16 to 21 (the third byte of the event)."""
    pointer_size: int
    time: int
    pid: int
    tid: int
    cpu: int
    hook: int
    provider: bytes
    id: int
    version: int
    opcode: int
    level: int = 0
    task: int = 0
    channel: int = 0
    keyword: int = 0
    flags: int = 0
    """Flags of an EVENT_HEADER, 0 for others."""
    activity: bytes = bytes(16)
    extended: list[tuple[int, bytes]] = field(default_factory=list)
    """Extended data items of an EVENT_HEADER: (type, data), in file order."""
    counters: tuple[int, ...] = ()
    """PMC counter values that ride in the header."""
    offset: int = 0
    """Where the event stands in its (decompressed) buffer, and ``buffer`` where that stands in the file."""
    buffer: int = 0
    payload: bytes = b""
