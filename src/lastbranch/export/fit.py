"""How much of a profile for a compiler fits a binary: ``export --check``.

A profile by address fits if the code can execute the counts: a range begins at an instruction, ends at a branch, and
has no unconditional branch in between; a branch starts at a branch instruction that can reach the recorded target.
Offsets in functions are addresses where the binary has the function, and a block that runs on into the next one is a
branch there. A profile by line fits if the binary has code of the same function, line and discriminator.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from ..analysis.counting.executed import ends_range, row_of
from ..arrays import distinct, interval_of, sum_covering
from ..binaries.image import Code, Image, SegmentFlags, same_build_id
from ..binaries.pseudo_probes import read_descriptors
from ..binaries.sections import open_binary
from ..bind import bind
from ..errors import NotRecordedError, UnavailableError
from ..isa import NOT_A_BRANCH, UNDECODABLE, Decoder, Instructions
from ..model import Array, Module, Profile, counted, visible, word
from ..opening import code_of, image_at, open_source, use_binary
from ..symbols import FunctionTable, Symbolizer, SymbolOptions
from .line_samples import source_lines
from .modules import first_code
from .sample_tree import SampleTree
from .written import OUTSIDE, Counts, End, Places, WrittenProfile, read_written

__all__ = ["Fit", "FitRow", "fit"]


@dataclass(frozen=True, slots=True)
class FitRow:
    """The number of items of a kind in a profile and the sum of their counts; and both for the items that fit."""

    what: str
    things: int
    fitting: int
    counts: int
    fitting_counts: int


@dataclass(slots=True)
class Fit:
    """How much of a profile fits; the last row is the whole of it, whose share decides."""

    rows: list[FitRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """For the user: why the rest does not."""
    fitting: SampleTree | None = None
    """Of a profile by pseudo probe: the functions that the binary has with the same control flow."""

    @property
    def share(self) -> float:
        """Which part of the counts fits, from 0 to 1."""
        return self.rows[-1].fitting_counts / self.rows[-1].counts


def fit(path: str, binary: str, symbols: SymbolOptions | None = None) -> Fit:
    """Compare the profile at ``path`` with the file ``binary``.

    Raises what `read_written` raises, `NotRecordedError` where nothing was counted in the binary, `UnavailableError`
    where it cannot be read or has no lines that the profile could be compared with, `OSError`.
    """
    profile, image = _profile_of(binary)
    module, out = profile.modules[0], Fit()

    def is_binary(said: bytes) -> bool:
        """Whether that word of the text of counts is the binary: its identity, or the same file name."""
        name, _, identity = said.decode("utf-8", "surrogateescape").partition("@build-id:")
        if identity:
            return bool(module.build_id) and identity == module.build_id.hex()
        return name.rpartition("/")[2].rpartition("\\x5c")[2] == word(module.short)

    source = open_source(path)
    try:
        written = read_written(source, is_binary)
    finally:
        source.close()
    if written.build_id and module.build_id and not same_build_id(written.build_id, module.build_id):
        ids = written.build_id.hex(), module.build_id.hex()
        out.notes.append(f"the profile is of build id {ids[0]}, the binary has {ids[1]}")
    with Symbolizer(profile, symbols) as symbolizer:
        if written.branches is not None:
            _fit_places(
                out, _place_branches(out, written.branches, symbolizer.functions(0), image), profile, image, symbolizer
            )
        elif written.places is not None:
            _fit_places(out, written.places, profile, image, symbolizer)
        elif written.probes:
            _fit_probes(out, written, module)
        else:
            _fit_lines(out, written, profile, symbols)
    if not out.rows[-1].counts:
        raise NotRecordedError(f"{visible(path)} has no counts of {word(module.name)}")
    return out


def _profile_of(binary: str) -> tuple[Profile, Image]:
    """A profile whose only module is the file ``binary``."""
    image = image_at(binary)
    module = Module(
        binary,
        build_id=image.build_id or b"",
        timestamp=image.timestamp or 0,
        size=image.image_size or 0,
        pdb_guid=image.pdb_guid,
        pdb_age=image.pdb_age or 0,
    )
    profile = bind(Profile(binary, image.format, modules=[module]))
    use_binary(profile, 0, binary)
    if module.missing:
        raise UnavailableError(f"{visible(binary)}: {module.missing}")
    return profile, image


def _sum(counts: Array) -> int:
    """The sum, which may not fit in 64 bits: numbers of a file are what they are."""
    return (int((counts >> 32).sum()) << 32) + int((counts & 0xFFFFFFFF).sum())


# -- by address


def _fit_places(out: Fit, places: Places, profile: Profile, image: Image, symbolizer: Symbolizer) -> None:
    module = profile.modules[0]
    code = code_of(module)
    if code is None:
        raise UnavailableError(f"the code of {word(module.name)} cannot be read")
    start, end, source, target = (
        _link_addresses(column, places.origin, module)
        for column in (places.ranges.a, places.ranges.b, places.branches.a, places.branches.b)
    )
    pieces = _Pieces(image, symbolizer.functions(0).start)
    found = pieces.decoded(code, np.concatenate([start, source, target]), np.concatenate([end, source, target]))
    reasons = Counter[str]()
    good = _straight(found, pieces, start, end, places.ranges.n, reasons)
    taken = _possible(found, pieces, source, target, places, reasons)
    rows = [_row("branches", taken, places.branches.n)]
    if len(good) or places.origin != "functions":
        rows.insert(0, _row("ranges", good, places.ranges.n))
    whole = [
        sum(values) for values in zip(*((r.things, r.fitting, r.counts, r.fitting_counts) for r in rows), strict=True)
    ]
    out.rows += [*rows, FitRow("profile", *whole)]
    out.notes += [f"{number} {reason}" for reason, number in reasons.most_common() if number]


def _place_branches(out: Fit, branches: Counter[tuple[End, End]], functions: FunctionTable, image: Image) -> Places:
    """The ``branches`` at link addresses: those of functions that the binary lacks are where no code is."""
    starts = {f"__BOLT_PSEUDO_{s.name}": [(s.vaddr, s.vaddr + s.size)] for s in image.linkage_stubs}
    for row, (function, start, end) in enumerate(
        zip(functions.functions, functions.start.tolist(), functions.end.tolist(), strict=True)
    ):
        for name in {function.name, *functions.aliases.get(row, ())}:
            stub = re.fullmatch(r"([^@]+)(@.*)?@plt", name)
            starts.setdefault(f"{stub[1]}@PLT" if stub else name, []).append((start, end))
    missing = Counter[str]()

    def address(end: End, n: int) -> int:
        if end is None:
            return OUTSIDE
        # Local functions have names like helper/2 or helper/file.c/1: BOLT numbers functions of one name by address.
        name, _, number = (end[0], "", "") if end[0] in starts else end[0].partition("/")
        which = int(number.rpartition("/")[2]) - 1 if re.fullmatch(r"(.*/)?[1-9]\d{0,8}", number) else 0
        if which >= len(starts.get(name, ())):
            missing[end[0]] += n
            return OUTSIDE - 1
        start, past = starts[name][which]
        return start + end[1] if end[1] < max(past - start, 1) else OUTSIDE - 1

    rows = [(address(a, n), address(b, n), n) for (a, b), n in branches.items()]
    _note_missing(out, missing)
    a, b, n = zip(*rows, strict=True) if rows else ((), (), ())
    none, zero = np.empty(0, np.uint64), np.empty(0, np.int64)
    found = Counts(np.array(a, np.uint64), np.array(b, np.uint64), np.array(n, np.int64))
    return Places(Counts(none, none, zero), found, "functions")


def _row(what: str, good: Array, n: Array) -> FitRow:
    return FitRow(what, len(n), int(good.sum()), _sum(n), _sum(n[good]))


def _link_addresses(address: Array, origin: str, module: Module) -> Array:
    """Addresses of a profile as link addresses; `OUTSIDE` for what cannot be one."""
    out, outside = address.copy(), address == np.uint64(OUTSIDE)
    if origin == "code":
        base = np.uint64(first_code(module))
        out = address + base
        outside |= out == 1  # how llvm-profgen writes a source elsewhere
    elif origin == "file":
        out = np.full(len(address), OUTSIDE - 1, np.uint64)  # no code is there
        for s in module.segments:
            if s.executable:
                inside = (address >= np.uint64(s.offset)) & (address - np.uint64(s.offset) < np.uint64(s.size))
                out[inside] = address[inside] - np.uint64(s.offset) + np.uint64(s.address)
    out[outside] = np.uint64(OUTSIDE)
    return out


class _Pieces:
    """The code of a binary, cut where sections and functions begin: there an instruction begins for sure."""

    def __init__(self, image: Image, functions: Array) -> None:
        sections = [(s.vaddr, s.size) for s in image.sections if s.flags & SegmentFlags.EXECUTE and s.size]
        code = sorted(sections or [(s.vaddr, s.memory_size) for s in image.executable_segments])
        self._sections = np.array(code, np.uint64).reshape(-1, 2)
        low, high = self._sections[:, 0], self._sections[:, 0] + self._sections[:, 1]
        edges = distinct(np.concatenate([low, high, functions[self.inside(functions)]]))
        within = interval_of(low, high, edges[:-1]) >= 0
        self.start, self.end = edges[:-1][within], edges[1:][within]

    def inside(self, address: Array) -> Array:
        """Which addresses are in code."""
        low = self._sections[:, 0]
        return interval_of(low, low + self._sections[:, 1], address) >= 0

    def decoded(self, code: Code, first: Array, last: Array) -> Instructions:
        """The instructions of all pieces that lie between an address ``first`` and its ``last``."""
        begin = np.searchsorted(self.end, first, side="right")
        past = np.searchsorted(self.start, last, side="right")
        some = begin < past
        rows = sum_covering(begin[some], past[some], np.ones(int(some.sum()), np.int64), len(self.start)) > 0
        start, size = self.start[rows], (self.end[rows] - self.start[rows]).astype(np.int64)
        found, _ = Decoder(code.arch).classify(*code.read_many(start, size), start, size)
        return found


def _straight(found: Instructions, pieces: _Pieces, start: Array, end: Array, n: Array, reasons: Counter[str]) -> Array:
    """Which ranges are straight-line code that ends with a branch; counts of the others are added to ``reasons``."""
    address, length, kind, _ = found
    first, last = row_of(address, start), row_of(address, end)
    after = np.append(address[1:], np.uint64(OUTSIDE))
    stop = ends_range(*found) | (kind == UNDECODABLE) | (after != address + length)
    before = np.concatenate([[0], np.cumsum(stop)])
    tests = {
        "ranges begin or end outside code": ~(pieces.inside(start) & pieces.inside(end)),
        "ranges begin or end inside an instruction": (first < 0) | (last < 0),
        "ranges end before they begin": end < start,
        "ranges run past an unconditional branch": before[last] > before[first],
        "ranges end at an instruction that is no branch": _no_branch(kind, last),
    }
    return _passing_rows(tests, n, reasons)


def _possible(
    found: Instructions, pieces: _Pieces, source: Array, target: Array, places: Places, reasons: Counter[str]
) -> Array:
    """Which branches the code has; counts of the others are added to ``reasons``."""
    address, length, kind, direct = found
    at, to = row_of(address, source), row_of(address, target)
    runs_on = (at >= 0) & (places.origin == "functions")
    row = at[runs_on]
    runs_on[runs_on] = ((address + length)[row] == target[runs_on]) & ~ends_range(*found)[row]
    from_here, to_here = (source != np.uint64(OUTSIDE)) & ~runs_on, target != np.uint64(OUTSIDE)
    goes = direct[at] if len(direct) else np.zeros(len(at), np.uint64)
    is_direct = from_here & (at >= 0) & (goes != 0)
    tests = {
        "branches start outside code": from_here & ~pieces.inside(source),
        "branches start inside an instruction": from_here & (at < 0),
        "branches start at an instruction that is no branch": from_here & _no_branch(kind, at),
        "branches go elsewhere than the code does": is_direct & (goes != target),
        "branches go outside code": to_here & ~pieces.inside(target),
        "branches go into an instruction": to_here & (to < 0),
    }
    return _passing_rows(tests, places.branches.n, reasons)


def _no_branch(kind: Array, row: Array) -> Array:
    return np.isin(kind[row], (NOT_A_BRANCH, UNDECODABLE)) if len(kind) else np.ones(len(row), bool)


def _passing_rows(tests: dict[str, Array], n: Array, reasons: Counter[str]) -> Array:
    """Rows that no test holds for; the counts of the others by the first that does."""
    left = np.ones(len(n), bool)
    for reason, wrong in tests.items():
        reasons[reason] += _sum(n[left & wrong])
        left &= ~wrong
    return left


_NAMED = 3
"""Functions that are named where they are missing."""


def _note_missing(out: Fit, functions: Counter[str]) -> None:
    if functions:
        lacking = counted(len(functions), "function is", "functions are")
        out.notes.append(f"{lacking} not in the binary: {_most(functions)}")


def _most(functions: Counter[str]) -> str:
    """The names with the largest counts."""
    most = ", ".join(word(function) for function, _ in functions.most_common(_NAMED))
    return f"{most}{', ...' if len(functions) > _NAMED else ''}"


# -- by line


_Thing = TypeVar("_Thing")


def _fit_lines(out: Fit, written: WrittenProfile, profile: Profile, symbols: SymbolOptions | None) -> None:
    totals = Counter[str]()
    for (function, _), n in written.lines.items():
        totals[function] += n
    known, notes = source_lines(profile, 0, totals.keys(), symbols, written.plain)
    there = {function for function, _ in known}
    rows = [
        _of("functions", totals.items(), there),
        _of("lines", written.lines.items(), known),
    ]
    last = rows[-1]
    out.rows += [*rows, FitRow("profile", last.things, last.fitting, last.counts, last.fitting_counts)]
    _note_missing(out, Counter({function: n for function, n in totals.items() if function not in there}))
    changed = rows[0].fitting_counts - last.fitting_counts
    if changed:
        out.notes.append(f"{changed} counts are of lines that functions of the binary do not have")
    out.notes += notes


# -- by pseudo probe


def _fit_probes(out: Fit, written: WrittenProfile, module: Module) -> None:
    """A probe fits if the binary has its function with the same control flow: only then do compilers use it."""
    try:
        descriptors, damage = read_descriptors(open_binary(module.binary))
    except OSError as error:
        raise UnavailableError(f"{word(module.name)} cannot be read: {error}") from error
    if not descriptors:
        raise UnavailableError(
            f"{word(module.name)} has no pseudo probes: {'; '.join(damage) or 'it was built without them'}",
            hint="build with clang -fpseudo-probe-for-profiling",
        )
    known = {(visible(d.name), d.hash) for d in descriptors.values()}
    names = {name for name, _ in known}
    functions = Counter[tuple[str, int]]()
    for (name, checksum, _), n in written.probes.items():
        functions[name, checksum] += n
    fitting = {probe for probe in written.probes if probe[:2] in known}
    if written.tree is not None:
        out.fitting = written.tree.where(lambda name, samples: (name, samples.checksum) in known)
    rows = [_of("functions", functions.items(), known), _of("probes", written.probes.items(), fitting)]
    last = rows[-1]
    out.rows += [*rows, FitRow("profile", last.things, last.fitting, last.counts, last.fitting_counts)]
    for why, there in ("that the binary does not have", False), ("whose control flow changed", True):
        lost = Counter(
            {f: n for (f, checksum), n in functions.items() if (f in names) == there and (f, checksum) not in known}
        )
        if lost:
            counts = counted(lost.total(), "count is", "counts are")
            out.notes.append(f"{counts} of {counted(len(lost), 'function')} {why}: {_most(lost)}")
    out.notes += [f"pseudo probes: {what}" for what in damage]


def _of(what: str, counts: Iterable[tuple[_Thing, int]], known: set[_Thing]) -> FitRow:
    things = fitting = total = good = 0
    for thing, n in counts:
        fits = thing in known
        things, fitting, total, good = things + 1, fitting + fits, total + n, good + n * fits
    return FitRow(what, things, fitting, total, good)
