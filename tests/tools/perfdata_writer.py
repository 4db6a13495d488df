"""An independent, slow and clear reader and writer of perf.data files: the other witness in the tests.

It shares nothing with the package. Every layout below is declared once, field by field in file order
(Linux include/uapi/linux/perf_event.h, tools/lib/perf/include/perf/event.h and tools/perf/util/header.c).
A `Walk` reads bytes by such a declaration and notes where each field lies and how wide it is; a big-endian
machine's file is then the same bytes with each noted field turned around, and nothing else touched.

* ``parse(data)`` reads a little-endian file-mode capture into a `Capture`.
* ``to_file``, ``to_big_endian``, ``to_pipe``, ``to_compressed`` and ``to_compressed2`` write a capture;
  ``encode`` is what they call, and combines the forms.
* ``Builder`` composes captures from nothing::

      b = Builder(sample_type=IP | TID | TIME | BRANCH_STACK)
      b.mmap2(pid=1, addr=0x1000, length=0x1000, pgoff=0, name="/bin/x", time=10)
      b.sample(ip=0x1234, pid=1, time=20, branches=[(0x1230, 0x1004, flags(predicted=1, cycles=7))])
      data = b.build()

A declaration is a tuple of items. ``"name:K"`` is one field of kind K: B H I Q unsigned integers of 1, 2, 4 and 8
bytes, i signed of 4, F the branch flag word, A and a the two bit-field words of the attr, s a text behind its u32
length, z a NUL-terminated text up to the end, attr a whole perf_event_attr. ``(name, count, K or declaration)`` is a
list; the count is a number, the name of an earlier field, a function of the fields, or None for "up to the end".
Kind x in a list is plain bytes.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Spec = tuple[Any, ...]
Fields = dict[str, Any]

(
    IP,
    TID,
    TIME,
    ADDR,
    READ,
    CALLCHAIN,
    ID,
    CPU,
    PERIOD,
    STREAM_ID,
    RAW,
    BRANCH_STACK,
    REGS_USER,
    STACK_USER,
    WEIGHT,
    DATA_SRC,
    IDENTIFIER,
    TRANSACTION,
    REGS_INTR,
    PHYS_ADDR,
    AUX,
    CGROUP,
    DATA_PAGE_SIZE,
    CODE_PAGE_SIZE,
    WEIGHT_STRUCT,
) = (1 << i for i in range(25))
BRANCH_ANY, BRANCH_TYPE_SAVE, BRANCH_HW_INDEX, BRANCH_COUNTERS = 1 << 3, 1 << 16, 1 << 17, 1 << 19
FORMAT_ENABLED, FORMAT_RUNNING, FORMAT_ID, FORMAT_GROUP, FORMAT_LOST = (1 << i for i in range(5))
SAMPLE_ID_ALL = 1 << 18
MISC_KERNEL, MISC_USER = 1, 2
MISC_MMAP_DATA = MISC_COMM_EXEC = MISC_SWITCH_OUT = 1 << 13
MISC_MMAP_BUILD_ID = 1 << 14

WIDTH = {"B": 1, "H": 2, "I": 4, "i": 4, "a": 4, "Q": 8, "F": 8, "A": 8}
FLAG_NAMES = ("mispred", "predicted", "in_tx", "abort", "cycles", "type", "spec", "new_type", "priv", "reserved")
BITS = {  # widths of bit fields in the order of their declaration: from the lowest bit on little-endian machines
    "F": (1, 1, 1, 1, 16, 4, 2, 4, 3, 31),
    "A": (1,) * 15 + (2,) + (1,) * 47,  # perf_event_attr's flags; precise_ip is the only wide one
    "a": (1, 1, 1, 29),  # aux_action: aux_start_paused, aux_pause, aux_resume
}


def spec(*items: Any) -> Spec:
    """A declaration; a string may hold several fields."""
    return tuple(one for item in items for one in (item.split() if isinstance(item, str) else [item]))


ATTR = spec(
    "type:I size:I config:Q sample_period:Q sample_type:Q read_format:Q flags:A wakeup_events:I bp_type:I",
    "config1:Q config2:Q branch_sample_type:Q sample_regs_user:Q sample_stack_user:I clockid:i sample_regs_intr:Q",
    "aux_watermark:I sample_max_stack:H reserved_2:H aux_sample_size:I aux_action:a sig_data:Q config3:Q config4:Q",
)
TASK = spec("pid:i ppid:i tid:i ptid:i time:Q")
MMAP = spec("pid:i tid:i addr:Q length:Q pgoff:Q")
CPU_MAP = spec(
    "type:H",
    ("cpus", lambda f: f["type"] == 0, spec("nr:H", ("cpu", "nr", "H"))),
    ("mask", lambda f: f["type"] == 1, spec(
        "nr:H long_size:H", ("pad", lambda f: 2 * (f["long_size"] == 8), "x"),
        ("mask32", lambda f: f["nr"] * (f["long_size"] == 4), "I"),
        ("mask64", lambda f: f["nr"] * (f["long_size"] == 8), "Q"))),
    ("range", lambda f: f["type"] == 2, spec("any_cpu:B pad:B start_cpu:H end_cpu:H")), ("pad", None, "x"),
)  # fmt: skip
BUILD_ID = spec("pid:i", ("build_id", 20, "x"), "build_id_size:B pad1:B pad2:H")
RECORDS: dict[int, tuple[str, Spec]] = {
    1: ("MMAP", spec(*MMAP, "name:z")),
    2: ("LOST", spec("id:Q lost:Q")),
    3: ("COMM", spec("pid:i tid:i name:z")),
    4: ("EXIT", TASK),
    5: ("THROTTLE", spec("time:Q id:Q stream_id:Q")),
    6: ("UNTHROTTLE", spec("time:Q id:Q stream_id:Q")),
    7: ("FORK", TASK),
    8: ("READ", ()),  # by attr.read_format
    9: ("SAMPLE", ()),  # by the attr
    10: ("MMAP2", spec(*MMAP, "maj:I min:I ino:Q ino_generation:Q prot:I flags:I name:z")),
    11: ("AUX", spec("aux_offset:Q aux_size:Q flags:Q")),
    12: ("ITRACE_START", spec("pid:i tid:i")),
    13: ("LOST_SAMPLES", spec("lost:Q")),
    14: ("SWITCH", ()),
    15: ("SWITCH_CPU_WIDE", spec("next_prev_pid:i next_prev_tid:i")),
    16: ("NAMESPACES", spec("pid:i tid:i nr:Q", ("links", "nr", spec("dev:Q inode:Q")))),
    17: ("KSYMBOL", spec("addr:Q length:I ksym_type:H flags:H name:z")),
    18: ("BPF_EVENT", spec("type:H flags:H prog_id:I", ("tag", 8, "x"))),
    19: ("CGROUP", spec("cgroup_id:Q name:z")),
    20: ("TEXT_POKE", spec("addr:Q old_len:H new_len:H", ("code", None, "x"))),  # old bytes, new bytes, padding
    21: ("AUX_OUTPUT_HW_ID", spec("hw_id:Q")),
    64: ("HEADER_ATTR", spec("attr:attr", ("ids", None, "Q"))),
    65: ("HEADER_EVENT_TYPE", spec("event_id:Q", ("name", None, "x"))),
    66: ("HEADER_TRACING_DATA", spec("size:I")),  # size bytes follow the record
    67: ("HEADER_BUILD_ID", spec(*BUILD_ID, "name:z")),
    68: ("FINISHED_ROUND", ()),
    69: ("ID_INDEX", spec("nr:Q", ("entries", "nr", spec("id:Q idx:Q cpu:Q tid:Q")),
                          ("guests", None, spec("machine_pid:Q vcpu:Q")))),
    70: ("AUXTRACE_INFO", spec("type:I reserved:I", ("priv", None, "Q"))),
    71: ("AUXTRACE", spec("size:Q aux_offset:Q reference:Q idx:I tid:i cpu:i reserved:I")),  # size bytes follow
    72: ("AUXTRACE_ERROR", spec("type:I code:I cpu:i pid:i tid:i fmt:I ip:Q", ("time", lambda f: f["fmt"] > 0, "Q"),
                                ("msg", lambda f: 64 if f["fmt"] >= 2 else None, "x"), "machine_pid:i vcpu:I")),
    73: ("THREAD_MAP", spec("nr:Q", ("threads", "nr", spec("pid:Q", ("name", 16, "x"))))),
    74: ("CPU_MAP", CPU_MAP),
    75: ("STAT_CONFIG", spec("nr:Q", ("entries", "nr", spec("tag:Q value:Q")))),
    76: ("STAT", spec("id:Q cpu:i thread:i value:Q enabled:Q running:Q")),
    77: ("STAT_ROUND", spec("type:Q time:Q")),
    78: ("EVENT_UPDATE", spec("type:Q id:Q", ("scale", lambda f: f["type"] == 1, "Q"),
                              ("cpus", lambda f: f["type"] == 3, CPU_MAP), ("data", None, "x"))),
    79: ("TIME_CONV", spec("shift:Q mult:Q zero:Q cycles:Q mask:Q has_zero:B has_short:B", ("pad", None, "x"))),
    80: ("HEADER_FEATURE", spec("feat_id:Q", ("data", None, "x"))),
    81: ("COMPRESSED", spec(("data", None, "x"))),
    82: ("FINISHED_INIT", ()),
    83: ("COMPRESSED2", spec("data_size:Q", ("data", None, "x"))),
}  # fmt: skip
MMAP2_BUILD_ID = spec(*MMAP, "build_id_size:B pad1:B pad2:H", ("build_id", 20, "x"), "prot:I flags:I name:z")
RECORD_TYPES = {name: number for number, (name, _) in RECORDS.items()}

TEXT = spec("value:s")
FEATURES: dict[int, tuple[str, Spec | None]] = {  # None: opaque, cannot be turned into another byte order
    1: ("TRACING_DATA", None),
    2: ("BUILD_ID", spec(("entries", None, spec("type:I misc:H size:H", *BUILD_ID,
                                                ("name", lambda f: f["size"] - 36, "x"))))),
    3: ("HOSTNAME", TEXT), 4: ("OSRELEASE", TEXT), 5: ("VERSION", TEXT), 6: ("ARCH", TEXT),
    7: ("NRCPUS", spec("available:I online:I")),
    8: ("CPUDESC", TEXT), 9: ("CPUID", TEXT), 10: ("TOTAL_MEM", spec("value:Q")),
    11: ("CMDLINE", spec("nr:I", ("args", "nr", "s"))),
    12: ("EVENT_DESC", spec("nr:I attr_size:I", ("events", "nr", spec(
        "attr:attr nr_ids:I name:s", ("ids", "nr_ids", "Q"))))),
    13: ("CPU_TOPOLOGY", spec("nr_cores:I", ("cores", "nr_cores", "s"), "nr_threads:I", ("threads", "nr_threads", "s"),
                              ("cpus", "@cpus", spec("core:I socket:I")), "nr_dies:I", ("dies", "nr_dies", "s"),
                              ("die_ids", "@cpus", "I"))),
    14: ("NUMA_TOPOLOGY", spec("nr:I", ("nodes", "nr", spec("node:I mem_total:Q mem_free:Q cpus:s")))),
    15: ("BRANCH_STACK", ()),
    16: ("PMU_MAPPINGS", spec("nr:I", ("pmus", "nr", spec("type:I name:s")))),
    17: ("GROUP_DESC", spec("nr:I", ("groups", "nr", spec("name:s leader:I members:I")))),
    18: ("AUXTRACE", spec("nr:Q", ("entries", "nr", spec("offset:Q size:Q")))),
    19: ("STAT", ()),
    20: ("CACHE", spec("version:I nr:I", ("caches", "nr", spec(
        "level:I line_size:I sets:I ways:I type:s size:s map:s")))),
    21: ("SAMPLE_TIME", spec("first:Q last:Q")),
    22: ("MEM_TOPOLOGY", spec("version:Q block_size:Q nr:Q", ("nodes", "nr", spec(
        "node:Q size:Q bits:Q", ("set", lambda f: (f["bits"] + 63) // 64, "Q"))))),
    23: ("CLOCKID", spec("resolution:Q")), 24: ("DIR_FORMAT", spec("version:Q")),
    25: ("BPF_PROG_INFO", None), 26: ("BPF_BTF", None),
    27: ("COMPRESSED", spec("version:I type:I level:I ratio:I mmap_len:I")),
    28: ("CPU_PMU_CAPS", spec("nr:I", ("caps", "nr", spec("name:s value:s")))),
    29: ("CLOCK_DATA", spec("version:I clockid:I wall:Q clock:Q")),
    30: ("HYBRID_TOPOLOGY", spec("nr:I", ("pmus", "nr", spec("name:s cpus:s")))),
    31: ("PMU_CAPS", spec("nr:I", ("pmus", "nr", spec("nr_caps:I", ("caps", "nr_caps", spec("name:s value:s")),
                                                      "name:s")))),
}  # fmt: skip
FEATURE_NUMBERS = {name: number for number, (name, _) in FEATURES.items()}
NOT_IN_PIPES = {15, 18, 19, 20, 24}  # perf writes no HEADER_FEATURE record for these


@dataclass
class Attr:
    """One perf_event_attr with the ids of its counters."""

    raw: bytes
    ids: list[int] = field(default_factory=list)

    @cached_property
    def fields(self) -> Fields:
        return Walk(self.raw).read(ATTR, len(self.raw), short=True)

    def __getitem__(self, name: str) -> int:
        return int(self.fields.get(name, 0))


@dataclass
class Record:
    """One record: `body` is all behind the 8-byte header, `payload` what AUXTRACE and TRACING_DATA put after it."""

    type: int
    misc: int
    body: bytes
    offset: int = -1
    payload: bytes = b""
    fields: Fields = field(default_factory=dict)

    @property
    def name(self) -> str:
        return RECORDS[self.type][0] if self.type in RECORDS else f"type {self.type}"


@dataclass
class Capture:
    """A whole file: attrs, feature sections as raw bytes by number, and the data records in file order."""

    attrs: list[Attr]
    features: dict[int, bytes]
    records: list[Record]

    def feature(self, name: str) -> Fields:
        """The decoded feature section of that name."""
        return _feature_walk(self, FEATURE_NUMBERS[name])[0]

    def named(self, *names: str) -> list[Record]:
        return [record for record in self.records if record.name in names]


class Walk:
    """Reads little-endian fields one after the other and notes where each lies (`spans`: offset and kind)."""

    def __init__(self, data: bytes, pos: int = 0, cpus: int = 0) -> None:
        self.data, self.pos, self.cpus = data, pos, cpus
        self.spans: list[tuple[int, str]] = []

    def read(self, declaration: Spec, end: int, short: bool = False) -> Fields:
        """The fields of a structure that ends at `end`; with `short` an old writer may lack the last ones."""
        out: Fields = {}
        for item in declaration:
            if short and self.pos == end and (isinstance(item, str) or item[1] == "@cpus"):
                break
            if isinstance(item, str):
                name, kind = item.split(":")
                out[name] = self.one(kind, end)
                continue
            name, count, kind = item
            if isinstance(count, str):
                count = self.cpus if count == "@cpus" else out.get(count, 0)
            elif callable(count):
                count = count(out)
            if kind == "x":
                out[name] = self.raw(end - self.pos if count is None else count, end)
            elif count is None:
                out[name] = []
                while self.pos < end:
                    out[name].append(self.one(kind, end))
            else:
                out[name] = [self.one(kind, end) for _ in range(count)]
        return out

    def one(self, kind: Any, end: int) -> Any:
        if isinstance(kind, tuple):
            return self.read(kind, end)
        if kind == "attr":
            size = struct.unpack_from("<I", self.data, self.pos + 4)[0]
            return self.read(ATTR, self.pos + (size or 64), short=True)
        if kind in "sz":
            length = self.one("I", end) if kind == "s" else end - self.pos
            return self.raw(length, end).split(b"\0")[0].decode("utf-8", "surrogateescape")
        self.spans.append((self.pos, kind))
        return int.from_bytes(self.raw(WIDTH[kind], end), "little", signed=kind == "i")

    def raw(self, size: int, end: int) -> bytes:
        if self.pos + size > end:
            raise ValueError(f"{size} bytes wanted at {self.pos}, but the structure ends at {end}")
        self.pos += size
        return self.data[self.pos - size : self.pos]


def pack(declaration: Spec, values: Fields) -> bytes:
    """The little-endian bytes of a declaration; what is not given is 0, counts follow their lists unless given."""
    values = dict(values)
    for item in declaration:
        if not isinstance(item, str) and isinstance(item[1], str) and item[0] in values:
            values.setdefault(item[1], len(values[item[0]]))
    out = b""
    for item in declaration:
        if isinstance(item, str):
            name, kind = item.split(":")
            out += _pack_one(kind, values.setdefault(name, "" if kind in "sz" else 0))
            continue
        name, count, kind = item
        if kind == "x":
            value = values.get(name, b"")
            out += value.ljust(count, b"\0") if isinstance(count, int) else value
        else:
            fallback = [0] * int(count(values) or 0) if callable(count) else []
            out += b"".join(_pack_one(kind, value) for value in values.get(name, fallback))
    return out


def _pack_one(kind: Any, value: Any) -> bytes:
    if isinstance(kind, tuple):
        if not isinstance(value, dict):  # a plain tuple: values in the order of the declaration
            names = [item.split(":")[0] if isinstance(item, str) else item[0] for item in kind]
            value = dict(zip(names, value, strict=True))
        return pack(kind, value)
    if kind == "attr":
        return bytes(value)
    if kind in "sz":
        text: bytes = value.encode("utf-8", "surrogateescape") + b"\0"
        text += bytes(-len(text) % (64 if kind == "s" else 8))
        return struct.pack("<I", len(text)) + text if kind == "s" else text
    return (int(value) % (1 << 8 * WIDTH[kind])).to_bytes(WIDTH[kind], "little")


def flags(**fields_: int) -> int:
    """A branch flag word (little-endian layout) from its fields by name, those in FLAG_NAMES."""
    value = shift = 0
    for name, width in zip(FLAG_NAMES, BITS["F"], strict=True):
        value |= (fields_.pop(name, 0) & ((1 << width) - 1)) << shift
        shift += width
    assert not fields_, f"no such flag: {sorted(fields_)}"
    return value


def repack(value: int, widths: Iterable[int], bits: int) -> int:
    """The word of a big-endian machine with the same bit fields: the first field in the highest bits."""
    out, low, high = 0, 0, bits
    for width in widths:
        high -= width
        out |= ((value >> low) & ((1 << width) - 1)) << high
        low += width
    return out


def swap(data: bytes, spans: Iterable[tuple[int, str]]) -> bytes:
    """`data` as a big-endian machine would have written it, given where the fields are."""
    out = bytearray(data)
    for pos, kind in spans:
        width = WIDTH[kind]
        value = int.from_bytes(data[pos : pos + width], "little")
        value = repack(value, BITS[kind], 8 * width) if kind in BITS else value
        out[pos : pos + width] = value.to_bytes(width, "big")
    return bytes(out)


def sample_spec(attr: Attr) -> Spec:
    """The declaration of the samples of one attr, in the order of the ABI."""
    a = attr.fields
    kinds, branch = a["sample_type"], a.get("branch_sample_type", 0)
    user, intr = (a.get(f"sample_regs_{which}", 0).bit_count() for which in ("user", "intr"))
    parts: list[tuple[int, Spec]] = [
        (IDENTIFIER, spec("identifier:Q")),
        (IP, spec("ip:Q")),
        (TID, spec("pid:i tid:i")),
        (TIME, spec("time:Q")),
        (ADDR, spec("addr:Q")),
        (ID, spec("id:Q")),
        (STREAM_ID, spec("stream_id:Q")),
        (CPU, spec("cpu:I cpu_pad:I")),
        (PERIOD, spec("period:Q")),
        (READ, read_spec(a["read_format"])),
        (CALLCHAIN, spec("callchain_nr:Q", ("callchain", "callchain_nr", "Q"))),
        (RAW, spec("raw_size:I", ("raw", "raw_size", "x"))),
        (
            BRANCH_STACK,
            spec(
                "branch_nr:Q",
                *(["hw_idx:Q"] if branch & BRANCH_HW_INDEX else []),
                ("branches", "branch_nr", spec("from:Q to:Q flags:F")),
                *([("counters", "branch_nr", "Q")] if branch & BRANCH_COUNTERS else []),
            ),
        ),
        (REGS_USER, spec("regs_user_abi:Q", ("regs_user", lambda f: user * bool(f["regs_user_abi"]), "Q"))),
        (
            STACK_USER,
            spec(
                "stack_size:Q", ("stack", "stack_size", "x"), ("stack_dyn_size", lambda f: bool(f["stack_size"]), "Q")
            ),
        ),
        (WEIGHT | WEIGHT_STRUCT, spec("weight:Q")),  # the struct's fields keep their bits on both machines
        (DATA_SRC, spec("data_src:Q")),
        (TRANSACTION, spec("transaction:Q")),
        (REGS_INTR, spec("regs_intr_abi:Q", ("regs_intr", lambda f: intr * bool(f["regs_intr_abi"]), "Q"))),
        (PHYS_ADDR, spec("phys_addr:Q")),
        (CGROUP, spec("cgroup:Q")),
        (DATA_PAGE_SIZE, spec("data_page_size:Q")),
        (CODE_PAGE_SIZE, spec("code_page_size:Q")),
        (AUX, spec("aux_size:Q", ("aux", "aux_size", "x"))),
    ]
    return tuple(item for bit, part in parts if kinds & bit for item in part)


def read_spec(fmt: int) -> Spec:
    """struct read_format, for samples with READ and for READ records."""
    extra = ["read_id:Q"] * bool(fmt & FORMAT_ID) + ["read_lost:Q"] * bool(fmt & FORMAT_LOST)
    times = ["time_enabled:Q"] * bool(fmt & FORMAT_ENABLED) + ["time_running:Q"] * bool(fmt & FORMAT_RUNNING)
    if fmt & FORMAT_GROUP:
        return spec("read_nr:Q", *times, ("read_values", "read_nr", spec("value:Q", *extra)))
    return spec("value:Q", *times, *extra)


def trailer_spec(attr: Attr) -> Spec:
    """struct sample_id, which ends every kernel record but SAMPLE if attr.sample_id_all."""
    if not attr["flags"] & SAMPLE_ID_ALL:
        return ()
    parts = {
        TID: "pid:i tid:i",
        TIME: "time:Q",
        ID: "id:Q",
        STREAM_ID: "stream_id:Q",
        CPU: "cpu:I cpu_pad:I",
        IDENTIFIER: "identifier:Q",
    }
    return spec(*(part for bit, part in parts.items() if attr["sample_type"] & bit))


def record_spec(kind: int, misc: int, attr: Attr) -> Spec | None:
    """The declaration of a record's body without its trailer; None for an unknown type."""
    if kind == 8:
        return spec("pid:i tid:i", *read_spec(attr["read_format"]))
    if kind == 9:
        return sample_spec(attr)
    if kind == 10 and misc & MISC_MMAP_BUILD_ID:
        return MMAP2_BUILD_ID
    return RECORDS[kind][1] if kind in RECORDS else None


def attr_of(attrs: list[Attr], kind: int, body: bytes) -> Attr:
    """The attr of a record, by the record's id; the first attr for a record without an id."""
    first = attrs[0]
    kinds = first["sample_type"]
    if len(attrs) == 1 or kind >= 64 or not kinds & (ID | IDENTIFIER):
        return first
    if kind == 9:
        pos = 0 if kinds & IDENTIFIER else 8 * (kinds & (IP | TID | TIME | ADDR)).bit_count()
    else:
        pos = len(body) - 8 * (1 if kinds & IDENTIFIER else 1 + (kinds & (STREAM_ID | CPU)).bit_count())
    number = int.from_bytes(body[pos : pos + 8], "little") if pos >= 0 else 0
    return next((attr for attr in attrs if number in attr.ids), first)


def record_walk(attrs: list[Attr], record: Record) -> tuple[Fields, list[tuple[int, str]]]:
    """The fields of a record (a trailer under "sample_id") and where they lie in the body."""
    attr = attr_of(attrs, record.type, record.body)
    declaration = record_spec(record.type, record.misc, attr)
    if declaration is None:
        raise ValueError(f"record type {record.type} is not known here")
    trailer = trailer_spec(attr) if record.type < 64 and record.type != 9 else ()
    walk, end = Walk(record.body), len(record.body)
    out = walk.read(declaration, end - len(pack(trailer, {})), short=record.type >= 64)
    if trailer:
        walk.pos = end - len(pack(trailer, {}))
        out["sample_id"] = walk.read(trailer, end)
    assert walk.pos == end or record.type == 66, f"{record.name} record at {record.offset}: {end - walk.pos} bytes left"
    return out, walk.spans


def _feature_walk(capture: Capture, number: int) -> tuple[Fields, list[tuple[int, str]]]:
    name, declaration = FEATURES.get(number, (f"feature {number}", None))
    if declaration is None:
        raise ValueError(f"the layout of {name} is not known here")
    cpus = struct.unpack_from("<I", capture.features[7])[0] if 7 in capture.features else 0
    data = capture.features[number]
    walk = Walk(data, cpus=cpus)
    return walk.read(declaration, len(data), short=True), walk.spans


def parse(data: bytes) -> Capture:
    """Reads a little-endian perf.data file (not a pipe); every record of a known type is decoded into `fields`."""
    magic, _, attr_size, attrs_at, attrs_size, at, size, _, _, *words = struct.unpack_from("<8s12Q", data)
    if magic != b"PERFILE2":
        raise ValueError("not a little-endian perf.data file")
    attrs = []
    for pos in range(attrs_at, attrs_at + attrs_size, attr_size):
        ids_at, ids_size = struct.unpack_from("<2Q", data, pos + attr_size - 16)
        ids = struct.unpack_from(f"<{ids_size // 8}Q", data, ids_at)
        attrs.append(Attr(data[pos : pos + attr_size - 16], list(ids)))
    bits = sum(word << 64 * i for i, word in enumerate(words))
    features = {}
    for i, number in enumerate(n for n in range(256) if bits >> n & 1):
        start, length = struct.unpack_from("<2Q", data, at + size + 16 * i)
        features[number] = data[start : start + length]
    capture, end = Capture(attrs, features, []), at + size
    while at < end:
        kind, misc, length = struct.unpack_from("<IHH", data, at)
        if length < 8 or at + length > end:
            raise ValueError(f"record at {at} has size {length}")
        record = Record(kind, misc, data[at + 8 : at + length], at)
        at += length
        if kind in (66, 71):
            extra = struct.unpack_from("<I" if kind == 66 else "<Q", record.body)[0]
            record.payload = data[at : at + extra]
            at += extra
        if kind in RECORDS:
            record.fields = record_walk(attrs, record)[0]
        capture.records.append(record)
    return capture


def encode(
    capture: Capture, *, big: bool = False, pipe: bool = False, compress: int = 0, level: int = 3, chunk: int = 20011
) -> bytes:
    """Writes a capture: in which byte order, as a file or a pipe, and with or without COMPRESSED (81 or 83) records.

    `chunk` is how many bytes go into one compressed record; compressed records ignore the borders of records, as perf's
    do.
    """
    assert not (big and capture.named("COMPRESSED", "COMPRESSED2")), "what is compressed cannot be turned around"
    order = ">" if big else "<"
    stream = []
    for record in capture.records:
        body = swap(record.body, record_walk(capture.attrs, record)[1]) if big else record.body
        if big and record.type == 80:
            number = struct.unpack_from("<Q", record.body)[0]
            body = body[:8] + feature_bytes(
                Capture([], {**capture.features, number: record.body[8:]}, []), number, True
            )
        stream.append((record.type, _record(order, record.type, body, record.misc) + record.payload))
    features = {number: feature_bytes(capture, number, big) for number in sorted(capture.features)}
    data = b"".join(raw for _, raw in stream)
    if compress:
        plain, data = len(data), _compressed(stream, compress, level, chunk, order)
        ratio = round(plain / max(1, len(data)))
        features[27] = struct.pack(order + "5I", 1, 1, level, ratio, max(chunk, 1 << 19))  # version 1, type 1: zstd
    attrs = []
    for attr in capture.attrs:
        walk = Walk(attr.raw)
        walk.read(ATTR, len(attr.raw), short=True)
        raw = swap(attr.raw, walk.spans) if big else attr.raw
        attrs.append((raw, struct.pack(f"{order}{len(attr.ids)}Q", *attr.ids)))
    magic = b"PERFILE2"[:: -1 if big else 1]
    if pipe:
        head = [_record(order, 64, raw + ids) for raw, ids in attrs]
        head += [_feature_record(order, number, features[number]) for number in features if number not in NOT_IN_PIPES]
        return magic + struct.pack(order + "Q", 16) + b"".join(head) + _event_updates(capture, order) + data
    attr_size = len(attrs[0][0]) + 16
    ids_at = 104
    attrs_at = ids_at + sum(len(ids) for _, ids in attrs)
    data_at = attrs_at + attr_size * len(attrs)
    entries = b""
    for raw, ids in attrs:
        assert len(raw) == attr_size - 16, "a file has one size for all its attrs"
        entries += raw + struct.pack(order + "2Q", ids_at if ids else 0, len(ids))
        ids_at += len(ids)
    at = data_at + len(data) + 16 * len(features)
    table = b""
    for number in sorted(features):
        table += struct.pack(order + "2Q", at, len(features[number]))
        at += len(features[number])
    words = [sum(1 << (n - base) for n in features if base <= n < base + 64) for base in range(0, 256, 64)]
    head_words = (104, attr_size, attrs_at, len(entries), data_at, len(data), 0, 0, *words)
    out = magic + struct.pack(order + "12Q", *head_words) + b"".join(ids for _, ids in attrs) + entries + data
    return out + table + b"".join(features[number] for number in sorted(features))


def feature_bytes(capture: Capture, number: int, big: bool) -> bytes:
    """One feature section in either byte order."""
    return swap(capture.features[number], _feature_walk(capture, number)[1]) if big else capture.features[number]


def _record(order: str, kind: int, body: bytes, misc: int = 0) -> bytes:
    return struct.pack(order + "IHH", kind, misc, 8 + len(body)) + body


def _feature_record(order: str, number: int, payload: bytes) -> bytes:
    """The record that replaces a feature section in a pipe."""
    if number == 1:
        payload += bytes(-len(payload) % 8)
        return _record(order, 66, struct.pack(order + "I", len(payload))) + payload
    if number == 2:  # the section is a list of HEADER_BUILD_ID records already, but for their type
        out, at = b"", 0
        while at < len(payload):
            misc, size = struct.unpack_from(order + "HH", payload, at + 4)
            out += _record(order, 67, payload[at + 8 : at + size], misc)
            at += size
        return out
    return _record(order, 80, struct.pack(order + "Q", number) + payload)


def _event_updates(capture: Capture, order: str) -> bytes:
    """EVENT_UPDATE records with the names of the events, which a pipe has no other place for."""
    events = capture.feature("EVENT_DESC")["events"] if 12 in capture.features else []
    return b"".join(
        _record(order, 78, struct.pack(order + "2Q", 2, event["ids"][0]) + _pack_one("z", event["name"]))
        for event in events
        if event["ids"]
    )


def _compressed(stream: Iterable[tuple[int, bytes]], kind: int, level: int, chunk: int, order: str) -> bytes:
    """Kernel records in one zstd stream, flushed at each record; perf's own records stay plain in between."""
    import zstandard

    zstd = zstandard.ZstdCompressor(level=level).compressobj()
    out, pending = bytearray(), bytearray()

    def flush() -> None:
        for at in range(0, len(pending), chunk):
            body = zstd.compress(bytes(pending[at : at + chunk])) + zstd.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
            if kind == 83:
                body = struct.pack(order + "Q", len(body)) + body + bytes(-len(body) % 8)
            out.extend(_record(order, kind, body))
        pending.clear()

    for number, raw in stream:
        if number < 64:
            pending += raw
        else:
            flush()
            out += raw
    flush()
    return bytes(out)


def to_file(capture: Capture) -> bytes:
    """The capture as an ordinary little-endian file."""
    return encode(capture)


def to_big_endian(capture: Capture) -> bytes:
    """The file a big-endian machine would have written."""
    return encode(capture, big=True)


def to_pipe(capture: Capture) -> bytes:
    """The capture as `perf record -o -` would have written it: a stream with its description in records."""
    return encode(capture, pipe=True)


def to_compressed(capture: Capture, level: int = 3) -> bytes:
    """As `perf record -z` wrote until Linux 6.15: COMPRESSED records, not aligned."""
    return encode(capture, compress=81, level=level)


def to_compressed2(capture: Capture, level: int = 3) -> bytes:
    """As `perf record -z` writes since Linux 6.16: COMPRESSED2 records, aligned to 8."""
    return encode(capture, compress=83, level=level)


def inode_of(path: str | os.PathLike[str]) -> Fields:
    """The fields of an MMAP2 record that identify the mapped file. The generation is 0 where the file system does not
    tell it (``FS_IOC_GETVERSION``)."""
    import fcntl

    word = bytearray(8)
    with open(path, "rb") as file, suppress(OSError):
        fcntl.ioctl(file, 0x80087601, word)
    state, generation = os.stat(path), int.from_bytes(word[:4], sys.byteorder)
    return {
        "maj": os.major(state.st_dev),
        "min": os.minor(state.st_dev),
        "ino": state.st_ino,
        "ino_generation": generation,
    }


class Builder:
    """Composes a capture record by record, in file order; `build` gives its bytes in any form `encode` knows.

    The arguments describe the first attr (see `attr`). Every record takes `time` and, where it makes sense, `pid`,
    `tid`, `cpu`, `id`, `stream_id`: these fill its sample_id trailer. `event` says to which attr a record belongs.
    A count that is given explicitly is written as given, so that files can lie.
    """

    def __init__(self, **attr: Any) -> None:
        self.capture = Capture([], {}, [])
        self.attr(**attr)

    def attr(
        self,
        *,
        size: int = 128,
        sample_type: int = IP | TID | TIME | BRANCH_STACK,
        sample_id_all: bool = True,
        ids: Iterable[int] | None = None,
        **fields_: int,
    ) -> int:
        """Adds an event and gives its number; `fields_` are the fields of ATTR, `size` cuts the structure off."""
        fields_.setdefault("sample_period", 4000)
        fields_.setdefault("branch_sample_type", BRANCH_ANY if sample_type & BRANCH_STACK else 0)
        fields_.setdefault("flags", 1 << 8 | 1 << 9 | 1 << 13 | 1 << 23 | 1 << 24)  # mmap comm task mmap2 comm_exec
        fields_["flags"] |= SAMPLE_ID_ALL * sample_id_all
        raw = pack(ATTR, {**fields_, "size": size, "sample_type": sample_type}).ljust(size, b"\0")[:size]
        if ids is None:
            ids = [101 + len(self.capture.attrs)] if sample_type & (ID | IDENTIFIER) else []
        self.capture.attrs.append(Attr(raw, list(ids)))
        return len(self.capture.attrs) - 1

    def record(self, kind: int | str, misc: int = 0, *, event: int = 0, payload: bytes = b"", **values: Any) -> None:
        """Any record, by number or by its name in RECORDS, from its fields by name."""
        number = RECORD_TYPES[kind] if isinstance(kind, str) else kind
        attr = self.capture.attrs[event]
        declaration = record_spec(number, misc, attr)
        assert declaration is not None, f"record type {kind} is not known here"
        trailer = trailer_spec(attr) if number < 64 and number != 9 else ()
        known = {item.split(":")[0] if isinstance(item, str) else item[0] for item in (*declaration, *trailer)}
        known |= {item[1] for item in declaration if not isinstance(item, str) and isinstance(item[1], str)}
        wrong = set(values) - known - {"pid", "tid", "time", "cpu", "id", "stream_id"}
        assert not wrong, f"{kind} records have no {sorted(wrong)}"
        if attr.ids:
            values = {"identifier": attr.ids[0], "id": attr.ids[0], **values}
        if "pid" in values:
            values.setdefault("tid", values["pid"])
        body = pack(declaration, values)
        if number == 7:  # the kernel writes a FORK record in the parent's context
            values = {**values, "pid": values.get("ppid", 0), "tid": values.get("ptid", 0)}
        self.capture.records.append(Record(number, misc, body + pack(trailer, values), payload=payload))

    def append(self, kind: int, misc: int = 0, body: bytes = b"") -> None:
        """Any record, from its bytes (trailer included)."""
        self.capture.records.append(Record(kind, misc, body))

    def sample(self, misc: int = MISC_USER, **values: Any) -> None:
        """A sample; lists are branches=[(from, to, flags)], counters, callchain, read_values, regs_user, regs_intr."""
        if self.capture.attrs[values.get("event", 0)]["sample_type"] & RAW:
            values.setdefault("raw", b"")
        for name, size in (("raw", 4), ("stack", 8), ("aux", 8)):
            if name in values:  # the kernel pads these, size field included, to a multiple of 8
                values[name] += bytes(-(len(values[name]) + size) % 8)
        if values.get("stack"):
            values["stack_dyn_size"] = [values.get("stack_dyn_size", len(values["stack"]))]
        for name in {"regs_user", "regs_intr"} & set(values):
            values.setdefault(name + "_abi", 2)  # PERF_SAMPLE_REGS_ABI_64
        self.record("SAMPLE", misc, **values)

    def mmap(self, misc: int = MISC_USER, *, data: bool = False, **values: Any) -> None:
        """MMAP (v1) of pid, addr, length, pgoff, name."""
        self.record("MMAP", misc | MISC_MMAP_DATA * data, **values)

    def kernel_map(self, addr: int, length: int, name: str = "[kernel.kallsyms]_text", **values: Any) -> None:
        """MMAP of the kernel or of a module, as perf makes them: pid -1, and pgoff is the address for the kernel."""
        values = {"pid": -1, "tid": 0, "pgoff": addr if name.startswith("[kernel") else 0, **values}
        self.record("MMAP", MISC_KERNEL, addr=addr, length=length, name=name, **values)

    def mmap2(self, misc: int = MISC_USER, *, data: bool = False, build_id: bytes | None = None, **values: Any) -> None:
        """MMAP2 of pid, addr, length, pgoff, name, prot, flags; with a build id it has the build id form."""
        values = {"prot": 1 if data else 5, "flags": 2, **values}
        if build_id is not None:
            misc |= MISC_MMAP_BUILD_ID
            values.update(build_id=build_id, build_id_size=values.get("build_id_size", len(build_id)))
        self.record("MMAP2", misc | MISC_MMAP_DATA * data, **values)

    def comm(self, *, exec: bool = False, **values: Any) -> None:
        """COMM of pid, name; with `exec` the process has begun a new program."""
        self.record("COMM", MISC_COMM_EXEC * exec, **values)

    def fork(self, *, pid: int, ppid: int, **values: Any) -> None:
        """FORK of process pid by ppid; a new thread has pid == ppid and its own tid."""
        self.record("FORK", **{"pid": pid, "ppid": ppid, "tid": pid, "ptid": ppid, **values})

    def exit(self, *, pid: int, **values: Any) -> None:
        """EXIT of a thread (of the whole process if tid == pid)."""
        self.record("EXIT", **{"pid": pid, "ppid": pid, "tid": pid, "ptid": pid, **values})

    def feature(self, name: str, **values: Any) -> None:
        """A feature section by its name and fields in FEATURES."""
        declaration = FEATURES[FEATURE_NUMBERS[name]][1]
        assert declaration is not None, f"the layout of {name} is not known here"
        self.capture.features[FEATURE_NUMBERS[name]] = pack(declaration, values)

    def build_id(self, name: str, build_id: bytes, *, misc: int = MISC_USER, pid: int = -1) -> None:
        """Adds an entry to the BUILD_ID section; misc bit 15 says that the size byte counts."""
        body = pack(BUILD_ID, {"pid": pid, "build_id": build_id, "build_id_size": len(build_id)}) + _pack_one("z", name)
        self.capture.features[2] = self.capture.features.get(2, b"") + _record("<", 0, body, misc | 1 << 15)

    def build(self, **form: Any) -> bytes:
        """The bytes; `form` is what `encode` takes: big, pipe, compress (81 or 83), level, chunk."""
        return encode(self.capture, **form)
