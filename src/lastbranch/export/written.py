"""Profiles for compilers, read back: what `counts`, `autofdo`, `gcov`, `profgen`, `bolt` and `sampleprof` write, and
other tools in their formats; and what `perf2bolt` makes of a profile for BOLT (.fdata). Numbers in them are not
trusted: each is checked against its bits and the bytes left."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from struct import Struct

import numpy as np

from ..errors import FormatError, SelectionError
from ..model import Array, Source, read_at
from .extbinary import MAGIC as EXTBINARY
from .extbinary import read_extbinary
from .gcov import FUNCTIONS, MAGIC, NAMES
from .sample_tree import DEEPEST, FunctionSamples, Location, SampleTree

__all__ = ["OUTSIDE", "Counts", "End", "Places", "WrittenProfile", "read_written"]

OUTSIDE = (1 << 64) - 1
"""Address of an end of a branch that is not in the binary, or not known."""


@dataclass(slots=True)
class Counts:
    """Rows with two addresses each, ``a`` and ``b`` (uint64), and how often they were counted (int64 ``n``)."""

    a: Array
    b: Array
    n: Array


@dataclass(slots=True)
class Places:
    """A profile by address: ranges, and branches. `OUTSIDE` is no address of the binary.

    ``origin`` is what addresses count from: ``link`` addresses, also those of ``functions`` that were looked up, the
    first page of ``code``, or offsets in the ``file``.
    """

    ranges: Counts
    branches: Counts
    origin: str = "link"


End = tuple[str, int] | None
"""An end of a branch in a profile by function: its name and the offset in it; ``None``: outside of the binary."""


@dataclass(slots=True)
class WrittenProfile:
    """A profile for a compiler: ``places``; or by function: counts of ``branches`` between offsets in functions; or by
    source line: counts of ``lines`` of functions, in whichever they were inlined. If these lines are pseudo probes,
    ``probes`` has the probes by function, hash of the function's control flow, and line. ``tree`` is the whole of a
    sample profile.

    ``plain``: discriminators are numbers, as in `line_samples.tree_of`. ``build_id`` is that of the binary it was made
    of (empty where the profile does not say it), as perf pads it.
    """

    form: str
    places: Places | None = None
    branches: Counter[tuple[End, End]] | None = None
    lines: Counter[tuple[str, Location]] = field(default_factory=Counter)
    probes: Counter[tuple[str, int, Location]] = field(default_factory=Counter)
    tree: SampleTree | None = None
    plain: bool = False
    build_id: bytes = b""


def read_written(source: Source, is_binary: Callable[[bytes], bool] | None = None) -> WrittenProfile:
    """The profile in ``source``. ``is_binary`` says which word of the text of counts is the binary's module.

    Raises `FormatError` that names file, offset and value where it is none of these formats or damaged, and
    `SelectionError` for a kind of sample profile that has other things than lines.
    """
    data = read_at(source, 0, source.size)
    for form, begins, read in _FORMS:
        if re.match(begins, data):
            return read(_Lines(data, source.name, form, is_binary))
    raise FormatError(
        "not a profile for compilers",
        file=source.name,
        offset=0,
        value=data[:16] or None,
        hint="there are: counts, autofdo, gcov, profgen, bolt (pre-aggregated or .fdata), sampleprof",
    )


@dataclass(slots=True)
class _Lines:
    """The bytes of a profile, line by line."""

    data: bytes
    file: str
    form: str
    is_binary: Callable[[bytes], bool] | None
    at: int = 0
    """Where the line begins that was read last."""
    next: int = 0

    def __iter__(self) -> Iterator[bytes]:
        while (line := self.line()) is not None:
            yield line

    def line(self) -> bytes | None:
        """The next line, without its end."""
        if self.next >= len(self.data):
            return None
        self.at, end = self.next, self.data.find(b"\n", self.next)
        self.next = end + 1 if end >= 0 else len(self.data)
        return self.data[self.at : self.next].rstrip(b"\r\n")

    def wrong(self, what: str, value: object) -> FormatError:
        """The error for a line, or for the word at ``at``, that is not valid."""
        return FormatError(f"damaged {self.form} profile", file=self.file, offset=self.at, field=what, value=value)

    def number(self, digits: bytes, what: str = "count") -> int:
        value = int(digits)
        if value >> 63:
            raise self.wrong(what, value)
        return value


# -- by address


class _FunctionRows:
    """Counts, read in sequence."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int]] = []

    def add(self, a: int, b: int, n: int) -> None:
        self._rows.append((a, b, n))

    def counts(self) -> Counts:
        a, b, n = zip(*self._rows, strict=True) if self._rows else ((), (), ())
        return Counts(np.array(a, np.uint64), np.array(b, np.uint64), np.array(n, np.int64))


_HEX, _N = rb"([0-9a-f]{1,16})", rb"(\d{1,20})"
_COUNTS_RANGE = re.compile(rb"R (\S+) %b %b %b" % (_HEX, _HEX, _N))
_COUNTS_BRANCH = re.compile(rb"B (\S+) %b (\S+) %b %b \d+" % (_HEX, _HEX, _N))


def _read_counts(lines: _Lines) -> WrittenProfile:
    ranges, branches, builds = _FunctionRows(), _FunctionRows(), set[bytes]()
    is_binary = lines.is_binary or (lambda _: True)

    def mine(module: bytes) -> bool:
        found = is_binary(module)
        if found:
            builds.add(module.rpartition(b"@build-id:")[2] if b"@build-id:" in module else b"")
        return found

    for line in lines:
        if found := _COUNTS_RANGE.fullmatch(line):
            module, start, end, n = found.groups()
            if mine(module):
                ranges.add(int(start, 16), int(end, 16), lines.number(n))
        elif found := _COUNTS_BRANCH.fullmatch(line):
            here, source, there, target, n = found.groups()
            a, b = (int(at, 16) if mine(m) else OUTSIDE for m, at in ((here, source), (there, target)))
            if a != OUTSIDE or b != OUTSIDE:
                branches.add(a, b, lines.number(n))
        else:
            raise lines.wrong("line", line[:60])
    build_id = next(iter(builds)).decode() if len(builds) == 1 else ""
    hexadecimal = bytes.fromhex(build_id) if re.fullmatch(r"([0-9a-f]{2})+", build_id) else b""
    return WrittenProfile("counts", Places(ranges.counts(), branches.counts()), build_id=hexadecimal)


_BOLT_BRANCH = re.compile(rb"B %b %b %b \d+" % (_HEX, _HEX, _N))
_BOLT_RANGE = re.compile(rb"[Ff] %b %b %b" % (_HEX, _HEX, _N))


def _read_bolt(lines: _Lines) -> WrittenProfile:
    ranges, branches = _FunctionRows(), _FunctionRows()
    for line in lines:
        if found := _BOLT_BRANCH.fullmatch(line):
            source, target, n = found.groups()
            branches.add(int(source, 16) or OUTSIDE, int(target, 16) or OUTSIDE, lines.number(n))
        elif found := _BOLT_RANGE.fullmatch(line):
            start, end, n = found.groups()
            ranges.add(int(start, 16), int(end, 16), lines.number(n))
        else:
            raise lines.wrong("line", line[:60])
    return WrittenProfile("bolt", Places(ranges.counts(), branches.counts()))


_RANGE = re.compile(rb"%b-%b:%b" % (_HEX, _HEX, _N))
_ADDRESS = re.compile(rb"%b:%b" % (_HEX, _N))
_BRANCH = re.compile(rb"%b->%b:%b" % (_HEX, _HEX, _N))
_BUILD_ID = re.compile(rb"// build_id: 0x([0-9a-f]{40})")


def _read_sections(lines: _Lines) -> WrittenProfile:
    """AutoFDO's text (ranges, addresses of samples, branches), or llvm-profgen's (ranges, branches)."""
    ranges, branches, sections, build_id = _FunctionRows(), _FunctionRows(), 0, b""
    for head in lines:
        if head.startswith(b"//") or not head:
            said = _BUILD_ID.fullmatch(head)
            build_id = bytes.fromhex(said[1].decode()) if said else build_id
            continue
        if not re.fullmatch(_N, head):
            raise lines.wrong("number of lines", head[:60])
        sections += 1
        for _ in range(int(head)):
            line = lines.line() or b""
            if found := _RANGE.fullmatch(line) or _BRANCH.fullmatch(line):
                a, b, n = found.groups()
                rows = ranges if found.re is _RANGE else branches
                rows.add(int(a, 16), int(b, 16), lines.number(n))
            elif not _ADDRESS.fullmatch(line):
                raise lines.wrong("line", line[:60])
    if sections not in (2, 3):
        raise lines.wrong("number of sections", sections)
    form, origin = ("profgen", "code") if sections == 2 else ("autofdo", "file")
    return WrittenProfile(form, Places(ranges.counts(), branches.counts(), origin), build_id=build_id)


# -- by function


_END = rb"([01]) ((?:\\.|[^ \\])+) %b" % _HEX
_FDATA_BRANCH = re.compile(rb"%b %b \d+ %b" % (_END, _END, _N))
_FDATA_MEMORY = re.compile(rb"[345] .*")


def _read_fdata(lines: _Lines) -> WrittenProfile:
    """BOLT's profile: a branch a line, ``is-symbol function offset is-symbol function offset mispredicted count``
    (bolt/lib/Profile/DataReader.cpp). Loads and stores are left out."""
    found = Counter[tuple[End, End]]()
    for line in lines:
        if branch := _FDATA_BRANCH.fullmatch(line):
            *ends, n = branch.groups()
            source, target = _end(*ends[:3]), _end(*ends[3:])
            found[source, target] += lines.number(n)
        elif line == b"no_lbr" or line.startswith(b"no_lbr "):
            raise SelectionError(
                f"{lines.file}: a profile without branches cannot be held against a binary",
                hint="make it of a capture with branch records",
            )
        elif line != b"boltedcollection" and not _FDATA_MEMORY.fullmatch(line):
            raise lines.wrong("line", line[:60])
    return WrittenProfile("fdata", branches=found)


def _end(is_symbol: bytes, name: bytes, offset: bytes) -> End:
    return (_text(re.sub(rb"\\(.)", rb"\1", name)), int(offset, 16)) if is_symbol == b"1" else None


# -- by line


_HEAD = re.compile(rb"(.+):(\d{1,20}):(\d{1,20})")
_AT = re.compile(rb"( *)(\d{1,9})(?:\.(\d{1,10}))?: (.*)")
_BODY = re.compile(rb"(\d{1,20})((?: .+:\d{1,20})*)")
_CALLEE = re.compile(rb" (.+?):(\d{1,20})(?= |$)")
_INLINED = re.compile(rb"(.+):(\d{1,20})")
_SAID = re.compile(rb"( *)!(CFGChecksum|Attributes): (\d{1,20})")
_BITS = {b"CFGChecksum": 64, b"Attributes": 32}


def _read_sampleprof(lines: _Lines) -> WrittenProfile:
    tree, outer = SampleTree(), list[FunctionSamples]()  # outer: what is read now, after what it is inlined in
    for line in lines:
        if not line or line.lstrip().startswith(b"#"):
            continue
        if line.startswith(b"["):
            raise SelectionError(
                f"{lines.file}: a profile with a section for each calling context cannot be held against a binary",
                hint="write it with nested functions",
            )
        if said := _SAID.fullmatch(line):
            value = int(said[3])
            if not 1 <= len(said[1]) <= len(outer) or value >> _BITS[said[2]]:
                raise lines.wrong("line", line[:60])
            samples = outer[len(said[1]) - 1]
            if said[2] == b"CFGChecksum":
                samples.checksum = value
            else:
                samples.attributes = value
            continue
        if line.lstrip().startswith(b"!"):
            continue
        if not line.startswith(b" "):
            if not (head := _HEAD.fullmatch(line)):
                raise lines.wrong("function", line[:60])
            outer[:] = [tree.top(_text(head[1]))]
            outer[0].total += lines.number(head[2])
            outer[0].head += lines.number(head[3])
            continue
        if not (at := _AT.fullmatch(line)) or not 1 <= len(at[1]) <= len(outer):
            raise lines.wrong("line", line[:60])
        del outer[len(at[1]) :]
        samples, where = outer[-1], (int(at[2]) & 0xFFFF, int(at[3] or b"0"))
        if body := _BODY.fullmatch(at[4]):
            samples.lines[where] = samples.lines.get(where, 0) + lines.number(body[1])
            for callee, n in _CALLEE.findall(body[2]):
                samples.called(where, _text(callee), lines.number(n))
        elif (inlined := _INLINED.fullmatch(at[4])) and len(outer) < DEEPEST:
            inner = samples.inlined.setdefault(where, {}).setdefault(_text(inlined[1]), FunctionSamples())
            inner.total += lines.number(inlined[2])
            outer.append(inner)
        else:
            raise lines.wrong("line", line[:60])
    return _of_tree(tree)


def _read_extbinary(lines: _Lines) -> WrittenProfile:
    return _of_tree(read_extbinary(lines.data, lines.file))


def _of_tree(tree: SampleTree) -> WrittenProfile:
    found, by_probe = WrittenProfile("sampleprof", tree=tree), False
    for name, samples in tree.each():
        by_probe = by_probe or samples.checksum != 0
        for where, n in samples.lines.items():
            found.lines[name, where] += n
            found.probes[name, samples.checksum, where] += n
    if not by_probe:
        found.probes.clear()
    return found


_U32, _U64, _TARGET = Struct("<I"), Struct("<Q"), Struct("<I2Q")


def _read_gcov(lines: _Lines) -> WrittenProfile:
    """The functions of a file for gcc: see `gcov`."""
    data = lines.data

    def take(form: Struct) -> int:
        lines.at = lines.next
        if lines.at + form.size > len(data):
            raise lines.wrong("end of file", len(data))
        lines.next += form.size
        return int(form.unpack_from(data, lines.at)[0])

    def section(tag: int) -> int:
        if (got := take(_U32)) != tag:
            raise lines.wrong("tag", got)
        take(_U32)
        return take(_U32)

    found, names = WrittenProfile("gcov", plain=True), list[str]()
    for _ in range(3):
        take(_U32)
    for _ in range(section(NAMES)):
        size = take(_U32)
        if size > len(data) - lines.next:
            raise lines.wrong("bytes of a name", size)
        names.append(_text(data[lines.next : lines.next + size].rstrip(b"\0")))
        lines.next += size
    lines.next = min(lines.next, len(data))
    for _ in range(section(FUNCTIONS)):
        take(_U64)
        inside = 1
        while inside:  # what is inlined follows its caller, each after the place of its call
            name = take(_U32)
            if name >= len(names):
                raise lines.wrong("name", name)
            counted, inlined = take(_U32), take(_U32)
            for _ in range(counted):
                where, targets, n = take(_U32), take(_U32), take(_U64)
                if n >> 63:
                    raise lines.wrong("count", n)
                found.lines[names[name], (where >> 16, where & 0xFFFF)] += n
                for _ in range(targets):
                    take(_TARGET)
            inside += inlined - 1
            if inside:
                take(_U32)
    return found


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


_FORMS: tuple[tuple[str, bytes, Callable[[_Lines], WrittenProfile]], ...] = (
    ("gcov", re.escape(MAGIC.to_bytes(4, "little")), _read_gcov),
    ("counts", rb"R \S+ [0-9a-f]+ [0-9a-f]+ \d+\s|B \S+ [0-9a-f]+ \S+ [0-9a-f]+ \d+ \d+\s", _read_counts),
    ("bolt", rb"[BFf] [0-9a-f]+ [0-9a-f]+ \d+\s", _read_bolt),
    ("fdata", rb"(boltedcollection\n)?([01] \S.* [0-9a-f]+ [01] \S.* [0-9a-f]+ \d+ \d+\s|no_lbr\b)", _read_fdata),
    ("autofdo or profgen", rb"\d+\r?\n", _read_sections),
    ("sampleprof", re.escape(EXTBINARY), _read_extbinary),
    ("sampleprof", rb"(#.*\n)*\S.*:\d+(:\d+)?\r?\n", _read_sampleprof),
)
"""(what it is called, how it begins, what reads it)."""
