"""The output of `dump` for every format: one row per event, the selection of rows, and values as text."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import Damage
from ..model import COLUMNS, Change, Clock, Mode, Profile, Progress, SampleBatch, column, visible
from .fields import Hex

if TYPE_CHECKING:
    from fractions import Fraction

__all__ = [
    "Cells",
    "Dump",
    "Form",
    "JSON",
    "Placed",
    "EventRow",
    "TEXT",
    "Wanted",
    "cells_of",
    "dump_profile",
    "milliseconds",
    "sample_rows",
]


Cells = tuple[str, str, str, str, str, str, str]
"""Texts of time in ms, pid, tid, cpu, event, size and fields."""

_FINEST = 9
_LONGEST = 1 << 15
"""Letters of a value in a cell: many readers of csv, Python's among them, take no cell over 128 k."""


@dataclass(slots=True)
class EventRow:
    """One event. ``time`` is in ticks since the first event of the capture, ``None`` where it has no time stamp.

    ``pid`` and ``tid`` are what the event is about (-1: not known), ``size`` the bytes of its payload (``None``: not
    kept). ``event`` is the full name, ``fields`` are the values by their names in the format's specification.
    """

    time: int | None
    pid: int
    tid: int
    cpu: int
    event: str
    size: int | None
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events are selected; what is empty or ``None`` does not restrict.

    ``events`` are names in lower case, ``provider`` the 16 bytes of a GUID as files have them, ``start`` and ``end``
    seconds since the first event (``start <= time < end``).
    """

    events: frozenset[str] = frozenset()
    provider: bytes | None = None
    pids: frozenset[int] = frozenset()
    start: Fraction | None = None
    end: Fraction | None = None

    def named(self, *names: str) -> bool:
        """Whether one of the names of an event is selected."""
        return not self.events or any(name.lower() in self.events for name in names)

    def ticks(self, clock: Clock) -> tuple[int | None, int | None]:
        """``start`` and ``end`` in ticks. Raises `NotRecordedError` where a clock without time is to be cut."""
        first, last = (None if s is None else clock.ticks(s) for s in (self.start, self.end))
        return first, last


@dataclass(slots=True)
class Dump:
    """The wanted events of a capture in time order; ``damage`` is complete when ``cells`` has ended."""

    name: str
    clock: Clock
    cells: Callable[[Form], Iterator[Cells]]
    damage: Callable[[], list[Damage]] = field(default=list)
    notes: Callable[[], list[str]] = field(default=list)
    """What contradicts itself, complete when ``cells`` has ended."""


def milliseconds(clock: Clock) -> Callable[[int], str]:
    """Ticks as text in milliseconds, by integers alone.

    With all decimals where the clock's rate has finitely many (4 at 10 MHz, 6 at 1 GHz), else rounded to nanoseconds. A
    clock without a rate only orders events: its ticks stay what they are.
    """
    if not clock.has_time:
        return str
    exact = (n for n in range(3, _FINEST + 1) if 10**n % clock.frequency == 0)
    places = next(exact, _FINEST) - 3
    scale, frequency = 10 ** (places + 3), clock.frequency

    def text(ticks: int) -> str:
        sign, ticks = ("-", -ticks) if ticks < 0 else ("", ticks)
        whole, part = divmod((2 * ticks * scale + frequency) // (2 * frequency), 10**places)
        return f"{sign}{whole}.{part:0{places}d}" if places else f"{sign}{whole}"

    return text


# -- values as text


class Form:
    """How values are written: as text that people read."""

    nothing = ""
    between = ","
    quote = ""
    """Around plain ASCII that means a number."""

    def value(self, value: Any) -> str:
        """Any value that a field can have."""
        return self.limited(visible(_text(value)))

    def limited(self, text: str) -> str:
        """``text``, cut off where a cell would be too long."""
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...({len(text) - _LONGEST} more)"

    def string(self, text: str) -> str:
        """`value` of a string, faster."""
        return text if len(text) <= _LONGEST and text.isprintable() else self.value(text)

    def template(self, names: Iterable[str]) -> str:
        """The format, for ``%``, that makes a cell from the texts of the fields' values."""
        return "; ".join(f"{visible(name)}=".replace("%", "%%") + "%s" for name in names)

    def row(self, row: EventRow, time: Callable[[int], str]) -> Cells:
        """The cells of one event; ``time`` is from `milliseconds`."""
        fields = self.template(row.fields) % tuple(map(self.value, row.fields.values()))
        stamp = self.nothing if row.time is None else time(row.time)
        size = self.nothing if row.size is None else str(row.size)
        return stamp, str(row.pid), str(row.tid), str(row.cpu), self.string(row.event), size, fields


class _Json(Form):
    """JSON: plain numbers and truth values as they are, text where it says more."""

    nothing = "null"
    between = ", "
    quote = '"'

    def value(self, value: Any) -> str:
        return json.dumps(_plain(value))

    def limited(self, text: str) -> str:
        return text

    def string(self, text: str) -> str:
        return encode_basestring_ascii(text) if text.isprintable() else self.value(text)

    def template(self, names: Iterable[str]) -> str:
        pairs = ", ".join(json.dumps(visible(name)).replace("%", "%%") + ": %s" for name in names)
        return "{" + pairs + "}"


TEXT, JSON = Form(), _Json()


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return "{" + " ".join(f"{name}={_text(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_text(part) for part in value) + "]"
    return str(value)


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if value is None or type(value) in (int, bool):
        return value
    if isinstance(value, dict):
        return {visible(str(name)): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if type(value) is float and value - value == 0:  # neither infinite nor NaN, which JSON does not know
        return value
    return visible(_text(value))


# -- A profile as rows for `dump`: samples and changes of address spaces in time order, whatever format they are from


_NOT_FIELDS = frozenset(("time", "pid", "tid", "cpu", "event", "mode", "position"))
_NUMBERS = frozenset(
    ("period", "hw_idx", "weight", "time_enabled", "time_running", "read_value", "read_lost", "cgroup")
)
"""Columns of counts; other wide ones are addresses or bits."""
_HEXADECIMAL = frozenset(c.name for c in COLUMNS if np.dtype(c.dtype).itemsize == 8) - _NUMBERS

Placed = tuple[int, int, EventRow]
"""Time and, for rows of one time, the place; what is to be shown."""


def dump_profile(profile: Profile, wanted: Wanted, progress: Progress | None = None) -> Dump:
    """The ``wanted`` rows of ``profile``."""
    if progress is not None:
        for stream in profile.streams:
            stream.progress = progress

    def cells(form: Form) -> Iterator[Cells]:
        events = [event.name for event in profile.events]
        changes = sorted(_changes(profile, wanted), key=lambda one: one[:2])
        samples = (one for batch in profile.batches(ordered=True) for one in sample_rows(batch, events, wanted))
        return cells_of(profile, wanted, form, changes, samples)

    return Dump(profile.name, profile.clock, cells, lambda: profile.damage)


def cells_of(profile: Profile, wanted: Wanted, form: Form, *rows: Iterable[Placed]) -> Iterator[Cells]:
    """The cells of the ``rows`` of the ``wanted`` times and processes, in order.

    Time 0 is before the recording and not on its clock.
    """
    zero, clock = profile.start or 0, profile.clock
    text, (first, last) = milliseconds(clock), wanted.ticks(clock)
    for time, _, row in heapq.merge(*rows, key=lambda one: one[:2]):
        if last is not None and time - zero >= last:
            return
        if (first is None or time - zero >= first) and (not wanted.pids or row.pid in wanted.pids):
            row.time = None if row.time is None or (not row.time and clock.has_time) else row.time - zero
            yield form.row(row, text)


def _changes(profile: Profile, wanted: Wanted) -> Iterator[Placed]:
    columns = {name: values.tolist() for name, values in profile.timeline.columns().items()}
    for i, kind in enumerate(columns["kind"]):
        name = Change(kind).name
        if not wanted.named(name):
            continue
        one = {name: values[i] for name, values in columns.items()}
        fields: dict[str, Any] = {}
        if kind in (Change.MAP, Change.UNMAP):
            fields = {"start": Hex(one["start"]), "end": Hex(one["end"])}
        if kind == Change.MAP:
            fields |= {"offset": Hex(one["offset"]), "module": profile.modules[one["module"]].name}
        elif kind == Change.FORK:
            fields = {"parent": one["parent"]}
        elif kind == Change.RAN:
            fields = {"cpu_ns": one["start"]}
        elif kind == Change.NAME:
            fields = {"name": profile.timeline.names[one["module"]]}
        yield one["time"], -1, EventRow(one["time"], one["pid"], one["tid"], -1, name, None, fields)


def sample_rows(
    batch: SampleBatch,
    events: Sequence[str],
    wanted: Wanted,
    places: Sequence[int] | None = None,
    mode: str = "mode",
    names: Mapping[str, str] = MappingProxyType({}),
    hexadecimal: frozenset[str] = _HEXADECIMAL,
) -> Iterator[Placed]:
    """The ``wanted`` samples of ``batch``, whose events are called ``events``.

    ``names`` are those of columns that a format calls otherwise; ``mode`` is that of the mode.
    """
    shown: list[tuple[str, list[Any], list[int] | None, bool]] = []
    for column_name, array in batch.columns.items():
        if column_name not in _NOT_FIELDS:
            values = [Hex(v) for v in array.tolist()] if column_name in hexadecimal else array.tolist()
            group = column(column_name).group
            bounds = None if group == "sample" else batch.offsets[group].tolist()
            shown.append((names.get(column_name, column_name), values, bounds, array.dtype.itemsize == 1))
    required = (batch.time, batch.pid, batch.tid, batch.cpu, batch.event, batch.mode)
    for i, (time, pid, tid, cpu, event, at_mode) in enumerate(zip(*(c.tolist() for c in required), strict=True)):
        name = events[event]
        if not wanted.named("SAMPLE", name, f"SAMPLE/{name}"):
            continue
        fields: dict[str, Any] = {"event": name}
        fields[mode] = Mode.NAMES[at_mode] if at_mode < len(Mode.NAMES) else str(at_mode)
        for field_name, values, bounds, packed in shown:
            if bounds is None:
                fields[field_name] = values[i]
            else:
                part = values[bounds[i] : bounds[i + 1]]
                fields[field_name] = bytes(part) if packed else part
        yield time, places[i] if places else 0, EventRow(time, pid, tid, cpu, "SAMPLE", None, fields)
