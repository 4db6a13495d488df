"""The guide's structures (chapter 8) as ctypes classes, made from the declarations of the file format.

Beyond C, a string field takes `str`, UTF-8 `bytes`, ``None`` or a unique id directly (``host.host_name = "a"``) as well
as through ``soi_ptr`` and ``soi_uniqueid``, and a pointer field takes a structure, a list of them, a ctypes array or a
ctypes pointer. A structure keeps the targets of its pointers alive. The size field is filled in from the start.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from enum import IntEnum
from itertools import count
from typing import Any, ClassVar, NamedTuple
from weakref import ref

from ..formats.tb5.layout import (
    POINTERS,
    STRUCTS,
    AccessMethod,
    ArchType,
    CpuArchitecture,
    CpuMode,
    DescSubtype,
    DescType,
    EventFlag,
    Field,
    ModuleFlag,
    OsFamily,
    Scope,
    Section,
    StreamSection,
    StreamType,
    Struct,
    Table,
    struct_of,
)
from .rules import FileMode
from .status import Status

__all__ = [
    "ALIASES",
    "ENUMERATIONS",
    "ID_MARK",
    "NUMBERS",
    "PAIRS",
    "PLACES",
    "RECORDS",
    "REQUIRED",
    "Record",
    "TBRW_STRING_OR_ID",
    "TYPES",
    "VIEWABLE",
    "buffer_of",
    "memory_at",
    "parts_of",
    "register",
    "text_at",
]


# -- targets of strings and pointers: a number is followed as a pointer only if a pointer was stored there
#
# A C library has to trust its caller's pointers. Here a pointer field is a plain 64-bit word to ctypes, so it may hold
# a unique id, a stale address or any number. To follow that would crash the process. Every target is
# registered when a field is made to point to it, for as long as the object that owns the memory lives.


ID_MARK = 1 << 63
"""Set in every unique id that is handed out (8.1 keeps the bit free for that)."""

_targets: dict[int, tuple[ref[Any], int]] = {}
"""Address -> (owner of the memory, bytes from there on)."""


def register(owner: Any, address: int | None = None, size: int | None = None) -> None:
    """``size`` bytes at ``address`` (both of ``owner`` itself unless given) may be pointed to while ``owner`` lives."""
    at = ctypes.addressof(owner) if address is None else address

    def forget(gone: ref[Any]) -> None:
        if at in _targets and _targets[at][0] is gone:
            del _targets[at]

    _targets[at] = (ref(owner, forget), ctypes.sizeof(owner) if size is None else size)


def owner_of(address: int) -> Any:
    """The object whose memory starts at a registered address, or ``None``."""
    held = _targets.get(address)
    return None if held is None else held[0]()


def buffer_of(record: ctypes.Structure) -> range:
    """The addresses of the buffer that a structure was laid over with ``from_buffer``; none where it was not.

    The owner of the structure owns that memory. Its pointers may lead there without being registered,
    which a `bytearray` cannot be.
    """
    held: dict[str, Any] = record._objects or {}  # type: ignore[assignment]
    for kept in held.values():
        if isinstance(kept, memoryview) and not kept.readonly:
            start = ctypes.addressof(ctypes.c_char.from_buffer(kept))
            return range(start, start + kept.nbytes)
    return range(0)


def memory_at(address: int, size: int, own: range = range(0)) -> bytes | None:
    """``size`` bytes at a registered address or inside ``own``; ``None`` if nothing, or less, is there."""
    if address in own and address + size <= own.stop:
        return ctypes.string_at(address, size)
    held = _targets.get(address)
    if held is None or held[1] < size or held[0]() is None:
        return None
    return ctypes.string_at(address, size)


def text_at(address: int) -> str | None:
    """The string at a registered address, up to its NUL; ``None`` if there is none."""
    owner = owner_of(address)
    return owner.value if isinstance(owner, ctypes.Array) and owner._type_ is ctypes.c_wchar else None


class TBRW_STRING_OR_ID(ctypes.Union):  # noqa: N801 (the guide's name)
    """A string (8.1): a pointer in a structure to be written, a unique id in a structure that was read."""

    _fields_ = (("soi_uniqueid", ctypes.c_uint64), ("_pointer", ctypes.POINTER(ctypes.c_wchar)))

    @property
    def soi_ptr(self) -> str | None:
        """The string that was put here; ``None`` if there is none. A unique id is not a string."""
        return text_at(self.soi_uniqueid)

    @soi_ptr.setter
    def soi_ptr(self, text: str | bytes | None) -> None:
        if text is None:
            self.soi_uniqueid = 0
            return
        held = ctypes.create_unicode_buffer(text.decode() if isinstance(text, bytes) else text)
        register(held)
        self._pointer = held

    def __repr__(self) -> str:
        text = self.soi_ptr
        return f"<string {self.soi_uniqueid:#x}>" if text is None else repr(text)


class Record(ctypes.Structure):
    """Base of the guide's structures."""

    declared: ClassVar[Struct]
    """The record type that the class was made from."""
    _pointers: ClassVar[dict[str, type[Record]]] = {}
    _strings: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        if self.size_field and not getattr(self, self.size_field):
            setattr(self, self.size_field, self.declared.size)

    @property
    def size_field(self) -> str:
        """Name of the field that holds the size of the structure; empty where it has none."""
        first = self.declared.fields[0].name
        return first if first.endswith("_size") else ""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._strings and not isinstance(value, TBRW_STRING_OR_ID):
            string = getattr(self, name)
            setattr(string, "soi_uniqueid" if isinstance(value, int) else "soi_ptr", value)
        elif name in self._pointers and value is not None:
            super().__setattr__(name, _pointer_to(self._pointers[name], value))
        else:
            super().__setattr__(name, value)

    def values(self) -> Iterator[tuple[str, Any]]:
        """(name, value) of all fields but pointers: numbers, and strings as TBRW_STRING_OR_ID."""
        for f in self.declared.fields:
            pair = _PAIRS.get(f.name.rpartition("_")[0])
            if pair is not None:
                start, _, end = f.name.rpartition("_")
                inner = next(n for n in pair[1] if end.lower() in n.lower())
                yield f"{start}.{inner}", getattr(getattr(self, start), inner)
            elif f.code != "pointer":
                yield from ((name, getattr(self, name)) for name, _ in f.bits or ((f.name, 0),))

    def children(self) -> Iterator[tuple[Record, int]]:
        """(structure, index) of all that the pointers lead to."""
        pointer = POINTERS.get(self.declared.name)
        if pointer is not None:
            entries = getattr(self, pointer.target(getattr(self, "arch_type", 0))[0])
            yield from ((entries[i], i) for i in range(getattr(self, pointer.counter)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{n}={v!r}' for n, v in self.values())})"


def _pointer_to(kind: type[Record], value: Any) -> Any:
    """The content of a field of type pointer-to-``kind`` for ``value``; the target is registered."""
    if isinstance(value, list | tuple):
        value = (kind * len(value))(*value)
    if isinstance(value, ctypes.Structure):
        value = ctypes.pointer(value)
    if isinstance(value, ctypes.Array):
        register(value)
    elif value:
        start = ctypes.addressof(value.contents)
        for kept in (value._objects or {}).values():
            if isinstance(kept, ctypes.Structure | ctypes.Array) and ctypes.addressof(kept) == start:
                base = kept._b_base_
                if isinstance(base, ctypes.Array):  # &array[i]: from there to the end of the array
                    register(base, start, ctypes.addressof(base) + ctypes.sizeof(base) - start)
                else:
                    register(kept)
    return value


# -- classes from declarations

_CODES: dict[str, Any] = {
    "u1": ctypes.c_uint8,
    "u2": ctypes.c_uint16,
    "u4": ctypes.c_uint32,
    "u8": ctypes.c_uint64,
    "s8": ctypes.c_int64,
    "string": TBRW_STRING_OR_ID,
}

_PAIRS = {
    "sampling_start_time": ("VTUNE_ANALYZER_FILETIME", ("dwLowDateTime", "dwHighDateTime")),
    "sampling_end_time": ("VTUNE_ANALYZER_FILETIME", ("dwLowDateTime", "dwHighDateTime")),
    "csd": ("TBRW_CodeDescriptor", ("lowWord", "highWord")),
}
"""Two declared words, ``name_...``, that are one structure called ``name`` in C: its type and its fields."""

ALIASES: dict[str, dict[str, str]] = {
    "TBRW_CPU": {"cpu_pacakge_num": "cpu_package_num"},
    "TBRW_SAMPREC_DESC_ENTRY": {"desc_sub_type": "desc_subtype"},
}
"""Other spellings of the guide: 8.3 against 6.3, 6.9 against 8.11."""

PAIRS: dict[str, type[ctypes.Structure]] = {
    name: type(name, (ctypes.Structure,), {"_fields_": [(f, ctypes.c_uint32) for f in fields], "__doc__": doc})
    for (name, fields), doc in {
        _PAIRS["csd"]: "IA-32 code segment descriptor (6.10).",
        _PAIRS["sampling_end_time"]: "100 ns since 1601-01-01 UTC (8.8).",
    }.items()
}
"""The structures that the guide uses inside others and does not list."""

RECORDS: dict[str, type[Record]] = {}
"""The classes by the guide's names."""


def _members(struct: Struct, fields: Iterable[Field]) -> Iterator[tuple[str, Any]]:
    """ctypes fields; the names of unions that C leaves without a name start with an underscore."""
    pair = ""
    for f in fields:
        start = f.name.rpartition("_")[0]
        if start in _PAIRS:
            if start != pair:
                yield start, PAIRS[_PAIRS[start][0]]
            pair = start
        elif f.bits:
            code = _CODES[f.code]
            bits = type("Bits", (ctypes.Structure,), {"_fields_": [(name, code, width) for name, width in f.bits]})
            yield f"_{f.name}", _union([(f.name, code), ("_bits", bits)], ["_bits"])
        elif f.code == "pointer":
            targets = [(name, ctypes.POINTER(_record(kind))) for name, kind in POINTERS[struct.name].targets]
            yield targets[0] if len(targets) == 1 else (f"_{f.name}", _union(targets))
        else:
            yield f.name, _CODES[f.code]


def _union(members: list[tuple[str, Any]], anonymous: Iterable[str] = ()) -> type[ctypes.Union]:
    return type("Union", (ctypes.Union,), {"_anonymous_": tuple(anonymous), "_fields_": members})


def _body(struct: Struct, fields: Iterable[Field]) -> dict[str, Any]:
    members = list(_members(struct, fields))
    return {"_anonymous_": tuple(n for n, _ in members if n.startswith("_")), "_fields_": members}


def _alias(own: str) -> property:
    return property(lambda self: getattr(self, own), lambda self, value: setattr(self, own, value))


def _record(name: str) -> type[Record]:
    """The class of a declared record, made once."""
    if name in RECORDS:
        return RECORDS[name]
    struct = STRUCTS[name]
    over = [f for f in struct.fields if f.overlay]
    end = max((f.offset + f.size for f in over), default=0)
    body = _body(struct, [f for f in struct.fields if not f.overlay and f.offset >= end])
    if over:  # a union of two structures at the start
        under = [f for f in struct.fields if not f.overlay and f.offset < end]
        both = [(n, type(n, (ctypes.Structure,), _body(struct, part))) for n, part in (("_a", under), ("_b", over))]
        body["_fields_"].insert(0, ("_head", _union(both, ["_a", "_b"])))
        body["_anonymous_"] += ("_head",)
    for other, own in ALIASES.get(name, {}).items():
        body[other] = _alias(own)
    targets = POINTERS[name].targets if name in POINTERS else ()
    body |= {
        "__doc__": f"{name} of the guide, {struct.size} bytes: {', '.join(f.name for f in struct.fields)}.",
        "__module__": __name__,
        "declared": struct,
        "_strings": frozenset(struct.strings()),
        "_pointers": {field: _record(kind) for field, kind in targets},
    }
    RECORDS[name] = type(name, (Record,), body)
    return RECORDS[name]


for _name in STRUCTS:
    _record(_name)


# -- the guide's named numbers and basic types


class ComputedType(IntEnum):
    """ST_* from 0x2000 (8.11): computed for display, never part of a record. The text of the guide has lost the name of
    the second; numbers from there on moved between releases, so nothing should keep them."""

    PROCESS, _LOST, THREAD, MODULE_SEGMENT_NAME, SEG_NUM, SEG_OFFSET, SEG_TYPE = range(0x2000, 0x2007)
    MODULE_LOAD_ADDRESS, MODULE, MODULE_PATH, EVENT_ID, EVENT, HARDWARE_THREAD, CORE = range(0x2007, 0x200E)
    PACKAGE, SAMPLES, EVENT_COUNTS, FUNCTION, FUNCTION_FULL_NAME, CLASS, FN_SIZE, RVA = range(0x200E, 0x2016)
    FN_SEG_OFFSET, FN_RVA, WALL_CLOCK, FNID_SUM, FNID_AVG, FNID_MIN, FNID_MAX = range(0x2016, 0x201D)
    PROCESS_IDX, THREAD_IDX, MODULE_IDX, EVENT_IDX, SAMPLE_IDX = range(0x201D, 0x2022)
    PERCENTAGE_TOTAL, PERCENTAGE_SEL, MODULE_IDX_FOR_PROCESS_NAME, ANNOTATION, POST_PROCESS_LAST = range(0x2022, 0x2027)


ENUMERATIONS: dict[str, type[IntEnum]] = {
    "TBRW_SECTION_IDENTIFIER": Section,
    "TBRW_STREAM_SECTION_IDENTIFIER": StreamSection,
    "TBRW_STREAM_TYPE": StreamType,
    "TBRW_DESC_TYPE": DescType,
    "TBRW_DESC_SUBTYPE": DescSubtype,
    "TBRW_ACCESS_METHOD": AccessMethod,
    "TBRW_GEN_ENTRY_SUBTYPES": ArchType,
}
"""Enumeration types that the guide names."""

_PATTERNS: list[tuple[str, Any]] = [
    ("TBRW_FILE_{}", FileMode), ("TBRW_{}_SECTION", Section), ("TBRW_{}_SECTION", StreamSection),
    ("TBRW_{}_STREAM", StreamType), ("TBRW_OSFAMILY_{}", OsFamily), ("TBRW_MODE_{}", CpuMode),
    ("TBRW_GST_{}", ArchType), ("CPU_ARCHITECTURE_{}", CpuArchitecture), ("TBRW_MODULE_{}", ModuleFlag),
    ("TBRW_EVENT_{}", EventFlag), ("TBRW_{}", AccessMethod), ("ST_{}", DescType), ("ST_{}", ComputedType),
    ("SST_{}", DescSubtype), ("TBRW_{}", Status),
]  # fmt: skip
_SPELLED = {
    "BITS16": "16BIT",
    "BITS32": "32BIT",
    "BITS64": "64BIT",
    "FIRST_MODULE_REC_IN_PROCESS": "1ST_MODULE_REC_IN_PROCESS",
    "USER_DEFINED_STREAM": "USER_DEFINED_STREAM",
}
"""Names of the guide that are no Python names."""

NUMBERS: dict[str, int] = {
    pattern.format(_SPELLED.get(name, name)): value
    for pattern, numbers in _PATTERNS
    for name, value in numbers.__members__.items()
    if not name.startswith("_")
}
"""Name in the guide -> member of an enumeration."""
NUMBERS["VT_SUCCESS"] = Status.SUCCESS
NUMBERS["ST_TIMESTAMP"] = DescType.TIME_STAMP  # so called in 6.9
NUMBERS |= {"TRUE": 1, "FALSE": 0}  # what callbacks return (5.9)

TYPES: dict[str, Any] = {
    "TBRW_CHAR": ctypes.c_wchar, "TBRW_U8": ctypes.c_uint8, "TBRW_U16": ctypes.c_uint16, "TBRW_U32": ctypes.c_uint32,
    "TBRW_U64": ctypes.c_uint64, "TBRW_S32": ctypes.c_int32, "TBRW_S64": ctypes.c_int64,
    "TBRW_PTR": ctypes.c_void_p, "TBRW_PSampleRecordPC": ctypes.POINTER(RECORDS["TBRW_SampleRecordPC"]),
}  # fmt: skip
"""Basic types (8.1, 6.10). Handles of Python are objects: only C programs need TBRW_PTR."""


# -- The section of each structure, and the table of the file that holds it


class Place(NamedTuple):
    """A table inside a section of the file or of a stream."""

    scope: Scope
    section: Section | StreamSection
    part: int

    def table(self, stream: int | None = None) -> Table:
        """The key of the table; ``stream`` is the number of a stream, or ``None`` for the file itself."""
        return Table(self.scope, stream or 0, self.section, self.part)


def parts_of(scope: Scope, section: int) -> list[str]:
    """Names of the structures in a section, by part; empty for sections of bytes and data."""
    structs = (struct_of(Table(scope, 0, section, part)) for part in count())
    names = []
    for struct in structs:
        if struct is None:
            break
        names.append(struct.name)
    return names


_SECTIONS = [(Scope.GLOBAL, s) for s in Section] + [(Scope.STREAM, s) for s in StreamSection]

PLACES: dict[str, Place] = {
    name: Place(scope, section, part)
    for scope, section in _SECTIONS
    for part, name in enumerate(parts_of(scope, section))
}
"""Name of the structure -> its place."""

REQUIRED: dict[tuple[Scope, int], tuple[str, ...]] = {
    (Scope.GLOBAL, Section.HARDWARE): ("TBRW_SYSTEM",),
    (Scope.GLOBAL, Section.SOFTWARE): ("TBRW_HOST", "TBRW_OS", "TBRW_APPLICATION"),
    (Scope.GLOBAL, Section.VERSION_INFO): ("TBRW_VERSION_INFO",),
    (Scope.STREAM, StreamSection.STREAM_INFO): ("TBRW_STREAM_INFO",),
    (Scope.STREAM, StreamSection.DATA_DESCRIPTION): ("TBRW_SAMPREC_DESC_ENTRY",),
}
"""What a section must hold to be complete (tables 4 and 5, "required information"); other sections may be empty."""

VIEWABLE = {
    Scope.GLOBAL: (Section.HARDWARE, Section.SOFTWARE, Section.VERSION_INFO, Section.MODULE),
    Scope.STREAM: (
        StreamSection.EVENT_DESCRIPTION,
        StreamSection.STREAM_INFO,
        StreamSection.DATA_DESCRIPTION,
        StreamSection.DATA,
    ),
}
"""Sections that a file needs to be viewed as a sampling session (6.2)."""
