"""What `dump` prints, whatever the format: one row for each event, which rows are wanted, and values as text."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from json.encoder import encode_basestring_ascii
from typing import Any

from ..errors import Damage
from ..model import Change, Clock, Mode, Profile, Progress, SampleBatch, column, visible
from .fields import Hex

__all__ = ["Cells", "Dump", "Form", "JSON", "Row", "TEXT", "Wanted", "dump_profile", "milliseconds"]


Cells = tuple[str, str, str, str, str, str, str]
"""Texts of time in ms, pid, tid, cpu, event, size and fields."""

_FINEST = 9
_LONGEST = 1 << 15
"""Letters of a value in a cell: many readers of csv, Python's among them, take no cell over 128 k."""


@dataclass(slots=True)
class Row:
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
    """Which events are asked for; what is empty or ``None`` does not restrict.

    ``events`` are names in lower case, ``provider`` the 16 bytes of a GUID as files have them, ``start`` and ``end``
    seconds since the first event (``start <= time < end``).
    """

    events: frozenset[str] = frozenset()
    provider: bytes | None = None
    pids: frozenset[int] = frozenset()
    start: Fraction | None = None
    end: Fraction | None = None

    def named(self, *names: str) -> bool:
        """Whether one of the names that an event goes by is asked for."""
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

    def value(self, value: Any) -> str:
        """Any value that a field can have."""
        return self.limited(visible(_text(value)))

    def limited(self, text: str) -> str:
        """``text``, cut off where a cell would be too long."""
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...({len(text) - _LONGEST} more)"

    def string(self, text: str) -> str:
        """`value` of a string, faster."""
        return text if len(text) <= _LONGEST and text.isprintable() else self.value(text)

    def quoted(self, text: str) -> str:
        """Plain ASCII that stands for a number."""
        return text

    def template(self, names: Iterable[str]) -> str:
        """What ``%`` makes the cell of fields of, from the texts of their values."""
        return "; ".join(f"{visible(name)}=".replace("%", "%%") + "%s" for name in names)

    def row(self, row: Row, time: Callable[[int], str]) -> Cells:
        """The cells of one event; ``time`` is from `milliseconds`."""
        fields = self.template(row.fields) % tuple(map(self.value, row.fields.values()))
        stamp = self.nothing if row.time is None else time(row.time)
        size = self.nothing if row.size is None else str(row.size)
        return stamp, str(row.pid), str(row.tid), str(row.cpu), self.string(row.event), size, fields


class _Json(Form):
    """JSON: plain numbers and truth values as they are, text where it says more."""

    nothing = "null"
    between = ", "

    def value(self, value: Any) -> str:
        return json.dumps(_plain(value))

    def limited(self, text: str) -> str:
        return text

    def string(self, text: str) -> str:
        return encode_basestring_ascii(text) if text.isprintable() else self.value(text)

    def quoted(self, text: str) -> str:
        return f'"{text}"'

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
"""Columns that are counted; what else is wide is an address or bits."""


def dump_profile(profile: Profile, wanted: Wanted, progress: Progress | None = None) -> Dump:
    """The ``wanted`` rows of ``profile``."""
    if progress is not None:
        for stream in profile.streams:
            stream.progress = progress

    def cells(form: Form) -> Iterator[Cells]:
        time = milliseconds(profile.clock)
        return (form.row(row, time) for row in _rows(profile, wanted))

    return Dump(profile.name, profile.clock, cells, lambda: profile.damage)


def _rows(profile: Profile, wanted: Wanted) -> Iterator[Row]:
    changes = sorted(_changes(profile), key=lambda one: one[0])
    zero, timed = profile.start or 0, profile.clock.has_time
    samples = (one for batch in profile.batches(ordered=True) for one in _samples(batch, profile))
    first, last = wanted.ticks(profile.clock)
    for time, row in heapq.merge(changes, samples, key=lambda one: one[0]):
        name = row.fields.get("event", "")
        if last is not None and time - zero >= last:
            return
        if not wanted.named(row.event, name, f"SAMPLE/{name}") or (wanted.pids and row.pid not in wanted.pids):
            continue
        if first is not None and time - zero < first:
            continue
        row.time = time - zero if time or not timed else None  # time 0: before the recording, not on its clock
        yield row


def _changes(profile: Profile) -> Iterator[tuple[int, Row]]:
    columns = {name: values.tolist() for name, values in profile.timeline.columns().items()}
    for i, kind in enumerate(columns["kind"]):
        one = {name: values[i] for name, values in columns.items()}
        fields: dict[str, Any] = {}
        if kind in (Change.MAP, Change.UNMAP):
            fields = {"start": Hex(one["start"]), "end": Hex(one["end"])}
        if kind == Change.MAP:
            fields |= {"offset": Hex(one["offset"]), "module": profile.modules[one["module"]].name}
        elif kind == Change.FORK:
            fields = {"parent": one["parent"]}
        elif kind == Change.NAME:
            fields = {"name": profile.timeline.names[one["module"]]}
        yield one["time"], Row(one["time"], one["pid"], one["tid"], -1, Change(kind).name, None, fields)


def _samples(batch: SampleBatch, profile: Profile) -> Iterator[tuple[int, Row]]:
    shown: dict[str, tuple[list[Any], list[int] | None]] = {}
    for name, array in batch.columns.items():
        if name not in _NOT_FIELDS:
            plain = name in _NUMBERS or array.dtype.itemsize < 8
            group = column(name).group
            bounds = None if group == "sample" else batch.offsets[group].tolist()
            shown[name] = (array.tolist() if plain else [Hex(v) for v in array.tolist()]), bounds
    required = (batch.time, batch.pid, batch.tid, batch.cpu, batch.event, batch.mode)
    for i, (time, pid, tid, cpu, event, mode) in enumerate(zip(*(c.tolist() for c in required), strict=True)):
        fields: dict[str, Any] = {"event": profile.events[event].name, "mode": Mode.NAMES[mode]}
        for name, (values, bounds) in shown.items():
            if bounds is None:
                fields[name] = values[i]
            else:
                part = values[bounds[i] : bounds[i + 1]]
                fields[name] = bytes(part) if batch[name].dtype.itemsize == 1 else part
        yield time, Row(time, pid, tid, cpu, "SAMPLE", None, fields)
