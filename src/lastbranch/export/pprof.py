"""``--to pprof``: gzipped profile.proto, for ``pprof`` and other readers.

Messages and field numbers are those of proto/profile.proto in github.com/google/pprof. A sample is a stack of a thread
with two values for each event: samples, and the events that they represent.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import IO, Literal

import numpy as np

from ..arrays import Sums, distinct
from ..model import Array, Module, ModuleKind, Profile, visible
from ..symbols import Names, Symbolizer
from .interface import ExportOptions, ExportResult
from .stack_pass import FrameNames, Lane, StackPass, names_of, process_name, thread_name

__all__ = ["Message", "export"]


# -- Messages of protocol buffers from declared tables (protobuf.dev, "Encoding"): what an export of them needs
#
# A field's kind is ``int`` (int64, uint64 and bool), ``text``, ``ints`` (repeated, packed), ``message`` or
# ``messages``.


Field = tuple[int, Literal["int", "text", "ints", "message", "messages"]]
"""(number, kind)"""

Value = int | str | bytes | Sequence[int] | Sequence[bytes]

_VARINT, _LENGTH = 0, 2
_ONE_BYTE = [bytes([n]) for n in range(128)]


def varint(number: int) -> bytes:
    """A number, least significant 7 bits first; negative ones as 64-bit two's complement."""
    if 0 <= number < 128:
        return _ONE_BYTE[number]
    number &= (1 << 64) - 1
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


class Message:
    """A kind of message: field name -> `Field`."""

    def __init__(self, **fields: Field) -> None:
        self._fields = fields

    def __call__(self, **values: Value) -> bytes:
        """The message with these values. A number that is 0, the default of proto3, is not written."""
        out = []
        for name, value in values.items():
            number, kind = self._fields[name]
            if kind == "int":
                assert isinstance(value, int)
                if value:
                    out += [varint(number << 3 | _VARINT), varint(value)]
                continue
            for data in _bodies(kind, value):
                out += [varint(number << 3 | _LENGTH), varint(len(data)), data]
        return b"".join(out)


def _bodies(kind: str, value: Value) -> Sequence[bytes]:
    """Data written with its length before it."""
    match kind, value:
        case "text", str():
            return [value.encode()]
        case "ints", _ if not isinstance(value, int | str | bytes):
            return [b"".join(varint(n) for n in value if isinstance(n, int))] if value else []
        case "message", bytes():
            return [value]
        case "messages", _ if not isinstance(value, int | str | bytes):
            return [m for m in value if isinstance(m, bytes)]
    raise TypeError(f"{kind} of {type(value).__name__}")


VALUE_TYPE = Message(type=(1, "int"), unit=(2, "int"))
SAMPLE = Message(location_id=(1, "ints"), value=(2, "ints"), label=(3, "messages"))
LABEL = Message(key=(1, "int"), str=(2, "int"), num=(3, "int"))
MAPPING = Message(
    id=(1, "int"),
    memory_start=(2, "int"),
    memory_limit=(3, "int"),
    file_offset=(4, "int"),
    filename=(5, "int"),
    build_id=(6, "int"),
    has_functions=(7, "int"),
    has_filenames=(8, "int"),
    has_line_numbers=(9, "int"),
    has_inline_frames=(10, "int"),
)
LOCATION = Message(id=(1, "int"), mapping_id=(2, "int"), address=(3, "int"), line=(4, "messages"))
LINE = Message(function_id=(1, "int"), line=(2, "int"), column=(3, "int"))
FUNCTION = Message(id=(1, "int"), name=(2, "int"), system_name=(3, "int"), filename=(4, "int"), start_line=(5, "int"))
PROFILE = Message(
    sample_type=(1, "messages"),
    sample=(2, "messages"),
    mapping=(3, "messages"),
    location=(4, "messages"),
    function=(5, "messages"),
    string_table=(6, "text"),
    time_nanos=(9, "int"),
    duration_nanos=(10, "int"),
    period_type=(11, "message"),
    period=(12, "int"),
    comment=(13, "ints"),
    default_sample_type=(14, "int"),
)

_ADDRESSES = (1 << 64) - 1


def export(profile: Profile, out: IO[bytes], options: ExportOptions) -> ExportResult:
    """Write the samples of ``profile``, equal stacks of a thread as one.

    Raises `NotRecordedError` where there are no samples.
    """
    done = StackPass(profile, options)
    counts = _count(done)
    with Symbolizer(profile, options.symbols) as symbols, gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as packed:
        names = names_of(profile, done.frames, symbols)
        writer = _ProfileWriter(profile, done, names)
        for message in writer.messages(counts):
            packed.write(message)
        return done.exported(symbols.notes)


def _count(done: StackPass) -> list[Array]:
    """Sorted and distinct lane, stack and event; samples and period of each."""
    counts = Sums([np.int64] * 3, [np.int64] * 2)
    for rows in done.rows():
        weight = rows["weight"]
        counts.add(rows["lane"], rows["stack"], rows["event"], weight, rows["period"].astype(np.int64) * weight)
    return counts.result()


@dataclass
class _ProfileWriter:
    profile: Profile
    done: StackPass
    names: Names
    strings: dict[str, int] = field(default_factory=lambda: {"": 0})

    def messages(self, counts: list[Array]) -> Iterable[bytes]:
        """The fields of a Profile. The string table comes last, because everything before it adds strings."""
        self._columns = {event: 2 * i for i, event in enumerate(distinct(counts[2]).tolist())}
        events = [(self.profile.events[e], visible(self.profile.events[e].name)) for e in self._columns]
        types = [(kind, "count") for _, name in events for kind in (f"{name}_samples", name)]
        yield PROFILE(sample_type=[VALUE_TYPE(type=self._text(t), unit=self._text(u)) for t, u in types])
        yield from self._samples(counts)
        frames = self.done.frames
        yield from (PROFILE(mapping=[m]) for m in self._mappings(frames))
        yield from (PROFILE(location=[m]) for m in self._locations(frames))
        yield from (PROFILE(function=[m]) for m in self._functions())
        if self.done.first is not None and self.done.last is not None:
            clock = self.profile.clock
            yield PROFILE(
                time_nanos=clock.wall_ns(self.done.first) or 0,
                duration_nanos=clock.to_ns(self.done.last - self.done.first),
            )
        if events:
            event, name = events[0]
            kind = VALUE_TYPE(type=self._text(name), unit=self._text("count"))
            default = self._text(f"{name}_samples")
            yield PROFILE(period_type=kind, period=event.period, default_sample_type=default)
        yield PROFILE(comment=[self._text(note) for note in self.done.notes])
        for text in self.strings:
            yield PROFILE(string_table=text)

    def _text(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))

    def _samples(self, counts: list[Array]) -> Iterable[bytes]:
        """One for each lane and stack: counts are sorted by these."""
        stacks = [[frame + 1 for frame in stack] for stack in self.done.stacks]
        labels = [self._labels(lane) for lane in self.done.lanes]
        lane, stack, event, samples, period = counts
        ends = np.flatnonzero((np.diff(lane, append=-1) != 0) | (np.diff(stack, append=-1) != 0)) + 1
        at = 0
        for end in ends.tolist():
            values = [0] * (2 * len(self._columns))
            for i in range(at, end):
                column = self._columns[int(event[i])]
                values[column : column + 2] = int(samples[i]), int(period[i])
            at = end
            sample = SAMPLE(location_id=stacks[stack[end - 1]], value=values, label=labels[lane[end - 1]])
            yield PROFILE(sample=[sample])

    def _labels(self, lane: Lane) -> list[bytes]:
        numbers = (("pid", lane.pid), ("tid", lane.tid))
        names = (("process", process_name(self.profile, lane)), ("thread", thread_name(self.profile, lane)))
        return [LABEL(key=self._text(key), num=number) for key, number in numbers] + [
            LABEL(key=self._text(key), str=self._text(name)) for key, name in names
        ]

    def _mappings(self, frames: FrameNames) -> Iterable[bytes]:
        lengths = np.diff(self.names.offsets)
        with_line = np.repeat(np.arange(len(frames)), lengths)[self.names.frame_line > 0]
        traits = {
            "has_functions": lengths > 0,
            "has_filenames": np.bincount(with_line, minlength=len(frames)) > 0,
            "has_line_numbers": np.bincount(with_line, minlength=len(frames)) > 0,
            "has_inline_frames": lengths > 1,
        }
        rows = distinct(frames.module[frames.module >= 0]).tolist()
        modules = self.profile.modules
        # The first mapping is taken for that of the main binary.
        for row in sorted(rows, key=lambda row: modules[row].kind is not ModuleKind.FILE):
            module, mine = modules[row], frames.module == row
            start, limit, offset = _extent(module, frames.address[mine])
            yield MAPPING(
                id=row + 1,
                memory_start=start,
                memory_limit=limit,
                file_offset=offset,
                filename=self._text(visible(module.name)),
                build_id=self._text(_build_id(module)),
                **{name: int(trait[mine].any()) for name, trait in traits.items()},
            )

    def _locations(self, frames: FrameNames) -> Iterable[bytes]:
        names = self.names
        columns = (names.frame_function + 1, names.frame_line, names.frame_column)
        lines = [LINE(function_id=f, line=n, column=c) for f, n, c in zip(*(x.tolist() for x in columns), strict=True)]
        places = zip(pairwise(names.offsets.tolist()), frames.module.tolist(), frames.address.tolist(), strict=True)
        for i, ((first, past), module, address) in enumerate(places, 1):
            yield LOCATION(id=i, mapping_id=module + 1, address=address, line=lines[first:past])

    def _functions(self) -> Iterable[bytes]:
        for i, f in enumerate(self.names.functions, 1):
            shown, name, file = (self._text(visible(t)) for t in (f.shown, f.name, f.file))
            yield FUNCTION(id=i, name=shown, system_name=name, filename=file, start_line=f.line)


def _extent(module: Module, address: Array) -> tuple[int, int, int]:
    """(start, limit, offset in the file) of the code of a module at module addresses, as if it were loaded there."""
    code = [s for s in module.segments if s.executable]
    lowest, highest = int(address.min()), int(address.max())
    start, limit, offset = min(((s.address, s.address + s.size, s.offset) for s in code), default=(0, module.size, 0))
    if module.kind is ModuleKind.ANONYMOUS:
        start, limit = lowest, highest + 1
    limit = max([limit, highest + 1, *(s.address + s.size for s in code)])
    return min(start, lowest), min(limit, _ADDRESSES), offset - max(0, start - lowest)


def _build_id(module: Module) -> str:
    """The ELF build id, or the GUID and age of the PDB."""
    return module.build_id.hex() or (f"{module.pdb_guid.hex}{module.pdb_age:x}".upper() if module.pdb_guid else "")
