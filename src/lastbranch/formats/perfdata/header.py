"""The header of a perf.data in file mode: magic, attributes, and features (facts about the machine and the recording).

Features are decoded by table; unknown ones are kept raw.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

from ...errors import Damage, FormatError
from ...model import Cpu, Node, Source, read_at
from ..fields import unpack
from ..interface import not_of_format
from .attr import parse_attr
from .layout import FEATURES, HEADER, MAGIC, OLD_MAGIC, PIPE_HEADER_SIZE
from .state import IndexState

__all__ = ["decode_feature", "feature_name", "is_perfdata", "read_header", "read_magic"]


# -- Magic, attributes, sections


_LITTLE = (MAGIC, OLD_MAGIC)
_SECTION = 16  # struct perf_file_section {u64 offset, size}


def is_perfdata(start: bytes) -> bool:
    """Whether a file that begins with ``start`` is a perf.data, of either byte order."""
    return start[:8] in _LITTLE or start[:8][::-1] in _LITTLE


def read_magic(source: Source) -> tuple[str, bool]:
    """(byte order ``<`` or ``>``, whether it is in pipe mode). Raises `FormatError` for what is no perf.data."""
    magic = read_at(source, 0, PIPE_HEADER_SIZE)
    if not is_perfdata(magic):
        hint = "a capture made by `perf record` begins with PERFILE2"
        raise not_of_format(source.name, magic, "not a perf.data file", hint)
    if len(magic) < PIPE_HEADER_SIZE:
        raise FormatError("file header is cut short", file=source.name, offset=8, field="size", value=len(magic))
    order = "<" if magic[:8] in _LITTLE else ">"
    return order, struct.unpack_from(order + "Q", magic, 8)[0] == PIPE_HEADER_SIZE


def read_header(source: Source, state: IndexState) -> tuple[int, int]:
    """Read attributes and features into ``state``; (start, end) of the data section in bytes of the file."""
    raw = read_at(source, 8, 8 * len(HEADER))
    if len(raw) < 8 * len(HEADER):
        raise FormatError("file header is cut short", file=source.name, offset=8 + len(raw))
    h = dict(zip(HEADER, struct.unpack(f"{state.order}{len(HEADER)}Q", raw), strict=True))
    _attrs(source, state, h)
    start, size = h["data.offset"], h["data.size"]
    note = state.profile.damage.append
    if start > source.size:
        note(Damage("data section begins after the end of the file", 0x28, "data.offset", start))
        return 0, 0
    if size == 0:
        # perf fills it in at the end; a recorder that died leaves 0 and the records up to its death.
        if source.size > start:
            note(Damage("the recorder did not finish the file; reading on to its end", 0x30, "data.size", 0))
        return start, source.size
    end = start + size  # where the file is cut off, the walk says so, and at which record
    _features(source, state, h, end)
    return start, end


def _attrs(source: Source, state: IndexState, h: dict[str, int]) -> None:
    size, start, total = h["attr_size"], h["attrs.offset"], h["attrs.size"]
    name = source.name
    if size < 64 + _SECTION or size > 1 << 16:
        raise FormatError("attributes of impossible size", file=name, offset=0x10, field="attr_size", value=size)
    if total > source.size - start:
        reason = "attributes end after the end of the file"
        raise FormatError(reason, file=name, offset=0x20, field="attrs.size", value=total)
    room = source.size  # sections may not overlap: all ids together fit the file
    for at in range(start, start + total - size + 1, size):
        raw = read_at(source, at, size)
        attr = parse_attr(raw[: size - _SECTION], at, state.order, name)
        ids_at, ids_size = struct.unpack_from(state.order + "2Q", raw, size - _SECTION)
        ids = read_at(source, ids_at, min(ids_size, room)) if ids_at < source.size else b""
        room -= len(ids)
        if len(ids) < ids_size:
            reason = "ids of an event end after the end of the file"
            state.profile.damage.append(Damage(reason, at + size - 8, "ids.size", ids_size))
        attr.ids = struct.unpack(f"{state.order}{len(ids) // 8}Q", ids[: len(ids) & ~7])
        state.add_attr(attr)


def _features(source: Source, state: IndexState, h: dict[str, int], table: int) -> None:
    """The sections after the data, one for each bit that is set, in the order of the bits."""
    room = source.size
    bits = [n * 64 + b for n in range(4) for b in range(64) if h[f"features.{n}"] >> b & 1]
    for i, number in enumerate(bits):
        at = table + _SECTION * i
        entry = read_at(source, at, _SECTION)
        offset, size = struct.unpack(state.order + "2Q", entry) if len(entry) == _SECTION else (0, source.size + 1)
        if offset + size <= source.size and size <= room:
            room -= size
            decode_feature(state, number, read_at(source, offset, size), offset)
            continue
        state.profile.damage.append(Damage(f"header feature {feature_name(number)} is cut off", at))
        if len(entry) < _SECTION:
            return


# -- Features


_FIRST_SIMPLEPERF = 128
_MOST_CPUS = 1 << 16
_MOST_NODES = 1 << 10
_MOST_BYTES = 16 << 20
"""Most bytes of features that are decoded: in a pipe, features are records, and any number of them may follow."""
_SIMPLEPERF = ("SIMPLEPERF_FILE", "SIMPLEPERF_META_INFO", "SIMPLEPERF_DEBUG_UNWIND", "SIMPLEPERF_DEBUG_UNWIND_FILE",
               "SIMPLEPERF_FILE2", "SIMPLEPERF_ETM_BRANCH_LIST", "SIMPLEPERF_INIT_MAP")  # fmt: skip


def feature_name(number: int) -> str:
    """Name of feature bit ``number``; ``FEATURE_n`` for one that is not known."""
    if number < len(FEATURES):
        return FEATURES[number]
    known = number - _FIRST_SIMPLEPERF
    return _SIMPLEPERF[known] if 0 <= known < len(_SIMPLEPERF) else f"FEATURE_{number}"


class _FeatureReader:
    """Values one after the other; `ValueError` past the end."""

    def __init__(self, data: bytes, order: str) -> None:
        self.data, self.order, self.at = data, order, 0

    def many(self, codes: str) -> tuple[Any, ...]:
        """The fields ``codes`` of `struct`."""
        values = unpack(self.order + codes, self.data, self.at)
        self.at += struct.calcsize("=" + codes)
        return values

    def take(self, code: str) -> int:
        """The one number ``code``."""
        value: int = self.many(code)[0]
        return value

    def line(self) -> str:
        """Text up to a NUL."""
        end = self.data.find(b"\0", self.at)
        if end < 0:
            raise ValueError(f"the text at byte {self.at} does not end")
        start, self.at = self.at, end + 1
        return self.data[start:end].decode("utf-8", "replace")

    def block(self, length: int) -> bytes:
        """The next ``length`` bytes."""
        if length > len(self.data) - self.at:
            raise ValueError(f"{length} bytes needed at byte {self.at}, {len(self.data) - self.at} left")
        self.at += length
        return self.data[self.at - length : self.at]

    def kilobytes(self) -> int:
        """u64 KiB, as bytes. `ValueError` for more than 63 bits of them, which no machine has."""
        value = self.take("Q")
        if value >> 53:
            raise ValueError(f"{value} KiB of memory")
        return value << 10

    def text(self) -> str:
        """u32 length, then so many bytes, which include a NUL."""
        return self.block(self.take("I")).split(b"\0")[0].decode("utf-8", "replace")

    def texts(self) -> list[str]:
        """u32 count, then the texts."""
        return [self.text() for _ in range(self.count(4))]

    def count(self, least: int) -> int:
        """u32 count of items that take ``least`` bytes or more each."""
        n = self.take("I")
        if n * least > len(self.data) - self.at:
            raise ValueError(f"count {n} does not fit in {len(self.data) - self.at} bytes")
        return n

    @property
    def more(self) -> bool:
        return self.at < len(self.data)


def decode_feature(state: IndexState, number: int, data: bytes, offset: int) -> None:
    """Store feature ``number``; a damaged feature is kept raw and noted.

    An empty feature says nothing: a recorder that could not find out (the processor's name on some machines) left the
    feature empty.
    """
    name = feature_name(number)
    state.features.add(name)
    if not data:
        return
    decode = _DECODERS.get(name)
    if decode is None:
        if name not in _EMPTY:
            state.profile.raw_features[name] = data
            state.beside += len(data)
        return
    state.feature_bytes += len(data)
    if state.feature_bytes > _MOST_BYTES:
        if state.feature_bytes - len(data) <= _MOST_BYTES:
            reason = f"header features of more than {_MOST_BYTES} bytes; the rest was not read"
            state.profile.damage.append(Damage(reason, offset))
        return
    try:
        decode(state, _FeatureReader(data, state.order))
    except ValueError as error:
        state.profile.raw_features[name] = data
        state.profile.damage.append(Damage(f"header feature {name} is damaged: {error}", offset))


_EMPTY = {"BRANCH_STACK", "AUXTRACE", "STAT"}  # bits that only say that something is there


_Decoder = Callable[[IndexState, _FeatureReader], None]


def _machine(attribute: str, value: Callable[[_FeatureReader], str | int]) -> _Decoder:
    return lambda state, r: setattr(state.profile.machine, attribute, value(r))


def _header(key: str, value: Callable[[_FeatureReader], str]) -> _Decoder:
    return lambda state, r: state.profile.header.update({key: value(r)})


def _cpus(state: IndexState, r: _FeatureReader) -> None:
    machine = state.profile.machine
    machine.cpus_available, machine.cpus_online = r.many("II")


def _event_desc(state: IndexState, r: _FeatureReader) -> None:
    """Names and ids of events: u32 events, u32 attribute size, then attribute, u32 ids, name, ids."""
    events, size = r.many("II")
    for _ in range(events):
        r.at += size
        ids, name = r.take("I"), r.text()
        state.event_names.append((r.many(f"{ids}Q"), name))


def _cpu_topology(state: IndexState, r: _FeatureReader) -> None:
    """Lists of siblings as text, then core and package of each processor, then (newer) lists of dies and each's die."""
    r.texts(), r.texts()
    n = state.profile.machine.cpus_available
    if n * 8 > len(r.data) - r.at:
        return  # older files stop here
    pairs = [r.many("ii") for _ in range(n)]
    dies = [-1] * n
    if r.more:
        r.texts()
        if n * 4 <= len(r.data) - r.at:
            dies = [*r.many(f"{n}i")]
    nodes = {c: node.index for node in state.profile.machine.nodes for c in node.cpus}
    state.profile.machine.cpus = [
        Cpu(i, core, die, package, nodes.get(i, -1), online=core != -1)
        for i, ((core, package), die) in enumerate(zip(pairs, dies, strict=True))
    ]


def _numa(state: IndexState, r: _FeatureReader) -> None:
    machine, room = state.profile.machine, _MOST_CPUS
    nodes = []
    for _ in range(min(r.count(24), _MOST_NODES)):
        index, total, free, cpus = r.take("I"), r.kilobytes(), r.kilobytes(), _cpu_list(r.text(), room)
        room -= len(cpus)  # a processor belongs to one node
        state.feature_bytes += 8 * len(cpus)  # some bytes of text can be many of these
        nodes.append(Node(index, cpus, total, free))
    machine.nodes = nodes
    where = {c: node.index for node in machine.nodes for c in node.cpus}
    machine.cpus = [Cpu(c.index, c.core, c.die, c.package, where.get(c.index, -1), c.online) for c in machine.cpus]


def _cpu_list(text: str, room: int) -> tuple[int, ...]:
    """``0-3,8`` -> (0, 1, 2, 3, 8), of ``room`` at most."""
    out: list[int] = []
    for part in filter(None, text.strip().split(",")):
        lo, _, hi = part.partition("-")
        if not (lo.isdecimal() and (hi or lo).isdecimal() and int(lo) <= int(hi or lo) < _MOST_CPUS):
            raise ValueError(f"processor list {text[:80]!r}")
        if len(out) + int(hi or lo) - int(lo) >= room:
            raise ValueError(f"more than {_MOST_CPUS} processors in the lists of all nodes")
        out.extend(range(int(lo), int(hi or lo) + 1))
    return tuple(out)


def _clock_data(state: IndexState, r: _FeatureReader) -> None:
    """u32 version, u32 clock id, u64 wall clock ns, u64 the same instant in that clock."""
    version, _clock, wall, at = r.many("IIQQ")
    if version != 1:
        return
    if (wall | at) >> 63:
        raise ValueError(f"{wall} ns since 1970 at {at} ns")
    state.wall = (at, wall)


def _caps(state: IndexState, r: _FeatureReader, pmu: str | None = None) -> None:
    caps = {}
    for _ in range(r.count(8)):
        name = r.text()
        caps[name] = r.text()
    state.profile.machine.pmu_caps[pmu if pmu is not None else r.text()] = caps


def _pmu_caps(state: IndexState, r: _FeatureReader) -> None:
    for _ in range(r.count(4)):
        _caps(state, r)


def _tracing_data(state: IndexState, r: _FeatureReader) -> None:
    """The names of tracepoints."""
    state.profile.raw_features["TRACING_DATA"] = r.data
    for system, text in _event_formats(r):
        name, number = _NAME.search(text), _ID.search(text)
        if name and number:
            state.tracepoints[int(number[1])] = f"{system}:{name[1].decode('utf-8', 'replace')}"


def _event_formats(r: _FeatureReader) -> Iterator[tuple[str, bytes]]:
    """(system, text) of each event format that perf copies from the kernel's tracefs.

    The container is that of trace.dat (manual page trace.dat(5) of trace-cmd; perf's writer is trace-event-info.c): a
    magic, a version, byte order, size of a long and of a page, then sections: header_page and header_event, ftrace's
    own event formats, and the formats of each subsystem. A format begins with ``name: sched_switch`` and ``ID: 316``;
    the ID is the event's ``config``.
    """
    if r.block(min(len(_TRACING), len(r.data))) != _TRACING:
        raise ValueError(f"tracing data begin with {r.data[:10].hex(' ')}")
    r.line()
    r.order = ">" if r.take("B") == 1 else "<"
    r.many("BI")  # size of a long, size of a page
    for _ in ("header_page", "header_event"):
        r.line()
        r.block(r.take("Q"))
    for _ in range(r.take("I")):
        yield "ftrace", r.block(r.take("Q"))
    for _ in range(r.take("I")):
        system = r.line()
        for _ in range(r.take("I")):
            yield system, r.block(r.take("Q"))


_TRACING = b"\x17\x08\x44tracing"
_NAME, _ID = re.compile(rb"^name: *(\S+)", re.MULTILINE), re.compile(rb"^ID: *(\d{1,9})\s", re.MULTILINE)


def _build_ids(state: IndexState, r: _FeatureReader) -> None:
    """Records {header, s32 pid, 20 bytes, [size of the id], name}."""
    while r.at + 8 + 28 <= len(r.data):
        _type, misc, size = unpack(state.order + "IHH", r.data, r.at)
        if size < 36 or size > len(r.data) - r.at:
            raise ValueError(f"build id record of {size} bytes with {len(r.data) - r.at} left")
        state.add_build_id(r.data[r.at + 8 : r.at + size], misc)
        r.at += size


def _meta_info(state: IndexState, r: _FeatureReader) -> None:
    """simpleperf: pairs of strings, NUL after each."""
    parts = r.data.rstrip(b"\0").decode("utf-8", "replace").split("\0")
    for key, value in zip(parts[::2], parts[1::2], strict=False):
        state.profile.header[key] = value


_DECODERS: dict[str, _Decoder] = {
    "TRACING_DATA": _tracing_data,
    "BUILD_ID": _build_ids,
    "HOSTNAME": _machine("host", _FeatureReader.text),
    "OSRELEASE": _machine("os_release", _FeatureReader.text),
    "VERSION": _header("perf version", _FeatureReader.text),
    "ARCH": _machine("arch", _FeatureReader.text),
    "NRCPUS": _cpus,
    "CPUDESC": _machine("cpu_description", _FeatureReader.text),
    "CPUID": _machine("cpuid", _FeatureReader.text),
    "TOTAL_MEM": _machine("memory", _FeatureReader.kilobytes),
    "CMDLINE": _header("command line", lambda r: " ".join(r.texts())),
    "EVENT_DESC": _event_desc,
    "CPU_TOPOLOGY": _cpu_topology,
    "NUMA_TOPOLOGY": _numa,
    "SAMPLE_TIME": _header("sample time", lambda r: "{} {}".format(*r.many("QQ"))),
    "CLOCKID": _header("clock resolution", lambda r: f"{r.take('Q')} ns"),
    "CLOCK_DATA": _clock_data,
    # version, type, level, ratio, length of the records' buffer
    "COMPRESSED": _header("compression", lambda r: "zstd, level {2}, ratio {3}".format(*r.many("5I"))),
    "DIR_FORMAT": _header("directory format", lambda r: str(r.take("Q"))),
    "CPU_PMU_CAPS": lambda state, r: _caps(state, r, "cpu"),
    "PMU_CAPS": _pmu_caps,
    "SIMPLEPERF_META_INFO": _meta_info,
}
