"""perf_event_attr: the programming of an event, and the resulting record layout."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from ...errors import FormatError
from ...model import Event
from ..fields import Fields, decode
from .layout import ATTR_FIELDS, ATTR_FLAGS, HARDWARE_EVENTS, SAMPLE, SAMPLE_ID, SOFTWARE_EVENTS, TYPE

__all__ = ["Attr", "event_of", "parse_attr"]

_SIZE_MIN = 64
_CLOCKS = SOFTWARE_EVENTS.index("cpu-clock"), SOFTWARE_EVENTS.index("task-clock")
_KNOWN_SIZE = struct.calcsize("=" + "".join(code for _, code in ATTR_FIELDS))


@dataclass(slots=True)
class Attr:
    """One attribute: ``fields`` by name (0 where the recorder's structure was shorter), and the ids of its counters."""

    fields: dict[str, int]
    ids: tuple[int, ...] = ()
    name: str = ""
    extra: bytes = b""
    """Bytes of a later kernel's structure, beyond what is known."""
    flags: frozenset[str] = field(default_factory=frozenset)
    sample_id: Fields = ()
    """The trailer of its records."""
    trailer: int = 0
    """Bytes of that."""
    time_at: int | None = None
    """Where the time is in it; ``None`` without one."""

    def __post_init__(self) -> None:
        if "sample_id_all" in self.flags:
            parts = [fields for bit, fields in SAMPLE_ID if self.sample_type & bit]
            self.sample_id, self.trailer = sum(parts, ()), 8 * len(parts)
            self.time_at = next((8 * i for i, ((name, _), *_) in enumerate(parts) if name == "time"), None)

    @property
    def timed(self) -> bool:
        """Whether samples have a time."""
        return bool(self.sample_type & SAMPLE.TIME)

    @property
    def counts_time(self) -> bool:
        """Whether its count is CPU time in ns."""
        return self.fields["type"] == TYPE.SOFTWARE and self.fields["config"] in _CLOCKS

    @property
    def sample_type(self) -> int:
        return self.fields["sample_type"]

    @property
    def layout_key(self) -> tuple[int, ...]:
        """Attributes with equal keys have equal sample layouts."""
        names = ("sample_type", "read_format", "branch_sample_type", "sample_regs_user", "sample_regs_intr")
        return tuple(self.fields[n] for n in names)


def parse_attr(data: bytes, offset: int, order: str, file: str) -> Attr:
    """The attribute at the start of ``data``; ``offset`` is its place in ``file``, ``order`` is ``<`` or ``>``.

    Its ``size`` field is its length: any size from 64 is read, later fields that are not known are kept.
    Raises `FormatError` for a structure that is cut short or smaller than the first one ever.
    """
    if len(data) < _SIZE_MIN:
        raise FormatError("event attribute is cut short", file=file, offset=offset, field="size", value=len(data))
    size = struct.unpack_from(order + "I", data, 4)[0] or _SIZE_MIN
    if size < _SIZE_MIN or size > len(data):
        raise FormatError("event attribute of impossible size", file=file, offset=offset + 4, field="size", value=size)
    fields = dict.fromkeys((name for name, _ in ATTR_FIELDS), 0)
    fields |= decode(ATTR_FIELDS, data[:size], order, cut=True)
    if order == ">":  # C bit fields are laid out from the top there
        mirrored = int(f"{fields['flags']:064b}"[::-1], 2)
        precise_ip = mirrored >> 15 & 1, mirrored >> 16 & 1  # the one field of two bits keeps their order
        fields["flags"] = mirrored & ~(3 << 15) | precise_ip[0] << 16 | precise_ip[1] << 15
    flags = frozenset(name for bit, name in enumerate(ATTR_FLAGS) if fields["flags"] >> bit & 1)
    return Attr(fields, extra=data[_KNOWN_SIZE:size], flags=flags)


_CACHE = ("L1-dcache", "L1-icache", "LLC", "dTLB", "iTLB", "branch", "node")
_CACHE_OP = ("load", "store", "prefetch")


def _default_name(fields: dict[str, int]) -> str:
    """The name that perf gives to an event that has no name in the file."""
    kind, config = fields["type"], fields["config"]
    for of, names in ((TYPE.HARDWARE, HARDWARE_EVENTS), (TYPE.SOFTWARE, SOFTWARE_EVENTS)):
        if kind == of and config < len(names):
            return names[config]
    if kind == TYPE.TRACEPOINT:
        return f"tracepoint:{config}"
    if kind == TYPE.HW_CACHE and config & 0xFF < len(_CACHE) and config >> 8 & 0xFF < len(_CACHE_OP):
        suffix = "-misses" if config >> 16 & 0xFF else "s"
        return f"{_CACHE[config & 0xFF]}-{_CACHE_OP[config >> 8 & 0xFF]}{suffix}"
    return f"r{config:x}" if kind == TYPE.RAW else f"type{kind}:{config:#x}"


def event_of(attr: Attr) -> Event:
    """The row of the events table for ``attr``."""
    f, frequency = attr.fields, "freq" in attr.flags
    stacks = bool(attr.sample_type & SAMPLE.BRANCH_STACK)
    return Event(
        name=attr.name or _default_name(f),
        period=0 if frequency else f["sample_period"],
        frequency=f["sample_period"] if frequency else 0,
        branch_select=f["branch_sample_type"] if stacks else None,
        branch_select_kind="perf",
        has_callchain=bool(attr.sample_type & SAMPLE.CALLCHAIN),
        has_period=bool(attr.sample_type & SAMPLE.PERIOD),
        programming=dict(f),
        ids=attr.ids,
    )
