"""LLVM's sample profile in its extensible binary form: a `SampleTree` in sections.

Numbers are ULEB128, except in the table of sections, which has four little-endian words of 64 bits for each: type,
flags (those that any section can have in the lower half), offset in the file, and size. Functions are named by their
index in the table of names. Source: LLVM 19, llvm/ProfileData/SampleProf.h, SampleProfWriter.cpp, SampleProfReader.cpp
(version 103), and ProfileSummaryBuilder.cpp for the summary.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from ..binaries.dwarf import uleb
from ..errors import FormatError, SelectionError
from ..model import Limits
from .sample_tree import DEEPEST, FunctionSamples, Location, SampleTree

__all__ = ["MAGIC", "as_extbinary", "read_extbinary"]


def _uleb(*numbers: int) -> bytes:
    out = bytearray()
    for number in numbers:
        while number > 0x7F:
            out.append(number & 0x7F | 0x80)
            number >>= 7
        out.append(number)
    return bytes(out)


MAGIC = _uleb(int.from_bytes(b"SPROF42\x04", "big"))
"""How such a file begins; the last byte is the form."""
_VERSION = 103
_ENTRY = struct.Struct("<4Q")


class _Section(IntEnum):
    """Types of sections (SecType)."""

    SUMMARY, NAMES, SYMBOLS, OFFSETS, METADATA, CONTEXTS = 1, 2, 3, 4, 5, 6
    FUNCTIONS = 32


_COMPRESSED = 1 << 0
"""Flag of any section: it is packed with zlib, after its length and that of the packed bytes."""
_HASHED, _UNIQUE = 1 << 32, 1 << 34
"""Flags of names: they are MD5 hashes; local functions have unique ones (``-funique-internal-linkage-names``)."""
_FULL_CONTEXTS, _FLOW, _PREINLINED = 1 << 33, 1 << 34, 1 << 36
"""Flags of the summary: functions are by calling context, and not nested; discriminators are flow-sensitive;
llvm-profgen's pre-inliner chose some."""
_BY_PROBE, _ATTRIBUTES = 1 << 32, 1 << 33
"""Flags of the metadata: it has hashes of the control flow; it has attributes."""
_SHOULD_BE_INLINED = 2
"""The attribute of what the pre-inliner chose."""

_LAYOUT = (
    _Section.SUMMARY, _Section.NAMES, _Section.CONTEXTS, _Section.OFFSETS, _Section.FUNCTIONS, _Section.SYMBOLS,
    _Section.METADATA,
)  # fmt: skip
"""The order in the table, which is the order of reading."""
_PLACED = (
    _Section.SUMMARY, _Section.NAMES, _Section.CONTEXTS, _Section.FUNCTIONS, _Section.SYMBOLS, _Section.OFFSETS,
    _Section.METADATA,
)  # fmt: skip
"""The order in the file, which is that of writing."""


# -- Writing


def as_extbinary(tree: SampleTree) -> bytes:
    """The whole profile, its functions in the order of the text."""
    everything = list(tree.each())
    names = _names(everything)
    functions, offsets = bytearray(), bytearray(_uleb(len(tree.functions)))
    for name, samples in tree.ordered():
        offsets += _uleb(names[name], len(functions))
        functions += _uleb(samples.head) + _body(name, samples, names)
    by_probe = any(samples.checksum for _, samples in everything)
    attributes = any(samples.attributes for _, samples in everything)
    metadata = bytearray()
    if by_probe or attributes:
        for name, samples in tree.ordered():
            metadata += _metadata(name, samples, names, by_probe, attributes)
    unique = any(".__uniq." in name for name in names)
    chosen = any(samples.attributes & _SHOULD_BE_INLINED for _, samples in everything)
    sections = {
        _Section.SUMMARY: (_PREINLINED * chosen | _FLOW * tree.flow, _summary(tree, everything)),
        _Section.NAMES: (_UNIQUE * unique, _uleb(len(names)) + b"".join(map(_encode_name, names))),
        _Section.CONTEXTS: (0, _uleb(0)),
        _Section.OFFSETS: (0, bytes(offsets)),
        _Section.FUNCTIONS: (0, bytes(functions)),
        _Section.SYMBOLS: (0, b""),
        _Section.METADATA: (_BY_PROBE * by_probe | _ATTRIBUTES * attributes, bytes(metadata)),
    }
    head = MAGIC + _uleb(_VERSION) + struct.pack("<Q", len(_LAYOUT))
    places, at = dict[_Section, int](), len(head) + len(_LAYOUT) * _ENTRY.size
    for section in _PLACED:
        places[section] = at
        at += len(sections[section][1])
    table = (_ENTRY.pack(s, sections[s][0], places[s], len(sections[s][1])) for s in _LAYOUT)
    return b"".join([head, *table, *(sections[s][1] for s in _PLACED)])


def _encode_name(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape") + b"\0"


def _names(everything: Iterable[tuple[str, FunctionSamples]]) -> dict[str, int]:
    """The index of each name, in the order of its bytes."""
    found = set[str]()
    for name, samples in everything:
        found.add(name)
        for targets in samples.calls.values():
            found.update(targets)
    return {name: i for i, name in enumerate(sorted(found, key=_encode_name))}


def _body(name: str, samples: FunctionSamples, names: dict[str, int]) -> bytes:
    out = bytearray(_uleb(names[name], samples.total, len(samples.lines)))
    for where in sorted(samples.lines):
        targets = samples.targets(where)
        out += _uleb(*where, samples.lines[where], len(targets))
        for callee, count in targets:
            out += _uleb(names[callee], count)
    callees = list(samples.callees())
    out += _uleb(len(callees))
    for where, callee, inlined in callees:
        out += _uleb(*where) + _body(callee, inlined, names)
    return bytes(out)


def _metadata(name: str, samples: FunctionSamples, names: dict[str, int], by_probe: bool, attributes: bool) -> bytes:
    """The hash and the attributes of a function and of what is inlined in it."""
    callees = list(samples.callees())
    said = ([samples.checksum] if by_probe else []) + ([samples.attributes] if attributes else [])
    out = _uleb(names[name], *said, len(callees))
    return out + b"".join(
        _uleb(*where) + _metadata(callee, inlined, names, by_probe, attributes) for where, callee, inlined in callees
    )


_CUTOFFS = (10_000, *range(100_000, 1_000_000, 100_000), 950_000, 990_000, 999_000, 999_900, 999_990, 999_999)
"""Millionths of all counts, for each of which the summary says how many of the largest counts make them up."""


def _summary(tree: SampleTree, everything: Iterable[tuple[str, FunctionSamples]]) -> bytes:
    counts = Counter(count for _, samples in everything for count in samples.lines.values())
    total, number = sum(count * times for count, times in counts.items()), counts.total()
    heads = max((samples.head for samples in tree.functions.values()), default=0)
    out = _uleb(total, max(counts, default=0), heads, number, len(tree.functions), len(_CUTOFFS))
    descending, so_far, least, seen = iter(sorted(counts.items(), reverse=True)), 0, 0, 0
    for cutoff in _CUTOFFS:
        while so_far < total * cutoff // 1_000_000:
            least, times = next(descending)
            so_far, seen = so_far + least * times, seen + times
        out += _uleb(cutoff, least, seen)
    return out


# -- Reading


@dataclass(slots=True)
class _Cursor:
    """Numbers of a section; ``base`` is where it begins in the file."""

    data: bytes
    file: str
    base: int
    at: int = 0

    @property
    def more(self) -> bool:
        return self.at < len(self.data)

    def wrong(self, what: str, value: object) -> FormatError:
        """The error for an unexpected byte at this offset."""
        return FormatError(
            "damaged sampleprof profile", file=self.file, offset=self.base + self.at, field=what, value=value
        )

    def number(self, what: str, bits: int = 63) -> int:
        """The next number, of at most so many ``bits``."""
        number, after = uleb(self.data, self.at, len(self.data))
        if after > len(self.data):
            raise self.wrong(what, "end of section")
        if number >> bits:
            raise self.wrong(what, number)
        self.at = after
        return number

    def name(self, names: list[str]) -> str:
        """The name of which the index is next."""
        index = self.number("name")
        if index >= len(names):
            raise self.wrong("name", index)
        return names[index]

    def location(self) -> Location:
        return self.number("line") & 0xFFFF, self.number("discriminator", 32)


def read_extbinary(data: bytes, file: str) -> SampleTree:
    """The profile in ``data``, the bytes of ``file``.

    Raises `FormatError` if the file is damaged or of another version, and `SelectionError` if the file has hashes
    instead of names, or a section for each calling context.
    """
    head = _Cursor(data, file, 0, len(MAGIC))
    if (version := head.number("version")) != _VERSION:
        raise head.wrong("version", version)
    if head.at + 8 > len(data):
        raise head.wrong("number of sections", "end of file")
    (number,) = struct.unpack_from("<Q", data, head.at)
    head.at += 8
    if number > (len(data) - head.at) // _ENTRY.size:
        raise head.wrong("number of sections", number)
    tree, names = SampleTree(), list[str]()
    for i in range(number):
        head.at += _ENTRY.size * (i > 0)
        kind, flags, offset, size = _ENTRY.unpack_from(data, head.at)
        if offset + size > len(data):
            raise head.wrong("end of section", offset + size)
        if not size:
            continue
        section = _Cursor(data[offset : offset + size], file, offset)
        if flags & _COMPRESSED:
            section = _unpack(section)
        if kind == _Section.SUMMARY and flags & _FULL_CONTEXTS:
            raise SelectionError(
                f"{file}: a profile with a section for each calling context cannot be held against a binary",
                hint="write it with nested functions",
            )
        if kind == _Section.SUMMARY:
            tree.flow = bool(flags & _FLOW)
        if kind == _Section.NAMES:
            if flags & _HASHED:
                raise SelectionError(f"{file} has hashes in the place of names", hint="write it with names")
            names = _read_names(section)
        elif kind == _Section.FUNCTIONS:
            while section.more:
                _read_function(section, names, tree)
        elif kind == _Section.METADATA:
            while section.more:
                _read_metadata(section, names, tree, flags)
    return tree


def _unpack(section: _Cursor) -> _Cursor:
    whole, packed = section.number("bytes"), section.number("packed bytes")
    if packed > len(section.data) - section.at or whole > Limits.current().expanded(packed):
        raise section.wrong("bytes", max(packed, whole))
    try:
        data = zlib.decompressobj().decompress(section.data[section.at : section.at + packed], whole)
    except zlib.error as error:
        raise section.wrong("packed bytes", str(error)) from error
    if len(data) != whole:
        raise section.wrong("bytes", whole)
    return _Cursor(data, section.file, section.base)


def _read_names(section: _Cursor) -> list[str]:
    number = section.number("number of names")
    found = section.data[section.at :].split(b"\0")[:-1]
    if number > len(found):
        raise section.wrong("number of names", number)
    return [name.decode("utf-8", "surrogateescape") for name in found[:number]]


def _read_function(section: _Cursor, names: list[str], tree: SampleTree) -> None:
    """A function with what is inlined in it, each of these after its place."""
    head = section.number("count")
    samples = tree.top(section.name(names))
    samples.head += head
    left = [_read_counts(section, names, samples)]  # callees that are still to come, of each function outside
    outer = [samples]
    while left:
        if not left[-1]:
            left.pop()
            outer.pop()
            continue
        if len(left) >= DEEPEST:
            raise section.wrong("depth of inlined functions", len(left))
        left[-1] -= 1
        where = section.location()
        samples = outer[-1].inlined.setdefault(where, {}).setdefault(section.name(names), FunctionSamples())
        left.append(_read_counts(section, names, samples))
        outer.append(samples)


def _read_counts(section: _Cursor, names: list[str], samples: FunctionSamples) -> int:
    """The counts of one function; returns how many callees follow."""
    samples.total += section.number("count")
    for _ in range(section.number("number of lines")):
        where = section.location()
        samples.lines[where] = samples.lines.get(where, 0) + section.number("count")
        for _ in range(section.number("number of callees")):
            callee = section.name(names)
            samples.called(where, callee, section.number("count"))
    return section.number("number of callees")


def _read_metadata(section: _Cursor, names: list[str], tree: SampleTree, flags: int) -> None:
    """The counts of a function and of the functions that are inlined in it."""
    samples = tree.functions.get(section.name(names), FunctionSamples())
    left, outer = [_read_said(section, samples, flags)], [samples]
    while left:
        if not left[-1]:
            left.pop()
            outer.pop()
            continue
        left[-1] -= 1
        where = section.location()
        samples = outer[-1].inlined.get(where, {}).get(section.name(names), FunctionSamples())
        left.append(_read_said(section, samples, flags))
        outer.append(samples)


def _read_said(section: _Cursor, samples: FunctionSamples, flags: int) -> int:
    if flags & _BY_PROBE:
        samples.checksum = section.number("hash", 64)
    if flags & _ATTRIBUTES:
        samples.attributes = section.number("attributes", 32)
    return section.number("number of callees")
