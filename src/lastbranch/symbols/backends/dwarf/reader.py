"""Names, lines and inline chains from DWARF, read in-tree: ELF, and PE as GNU tools write it.

Units of split DWARF have their entries in files of their own, or in a package (DWARF 5, 7.3).
"""

from __future__ import annotations

import ntpath
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ....arrays import Ints, distinct
from ....binaries.dwarf import DW_AT, DW_FORM, DW_SECT
from ....binaries.files import Space, Words, below, strings_at
from ....binaries.image import SegmentFlags
from ....binaries.sections import Binary, open_binary
from ....errors import FormatError, LastbranchError
from ...model import DebugFiles, FunctionTable, Names
from ...table_bytes import Columns, pack, texts_column, texts_of, unpack
from .. import symbol_tables
from ..symbol_tables import Symbols
from .entries import EntryKind, Tree, read_attributes, texts, walk
from .frames import (
    InlineFrames,
    LinePlaces,
    Origins,
    Ranges,
    chains_of,
    describe_chains,
    innermost,
    name_addresses,
    ranges_of,
)
from .lines import LineHeader, read_header, read_lines
from .units import NO_BASE, Info, Sections

__all__ = ["Dwarf", "SplitUnits", "names_split_files", "symbolize"]


# -- Reading a large file has two long parts that do not need each other: a copy of this process does one of them


def meanwhile(work: Callable[[], Columns]) -> Callable[[], Columns]:
    """Begin ``work`` in a copy of this process. The function that is returned waits for its columns; call it once.

    Where the process cannot be copied (a confined one may make neither pipes nor processes: `sandbox`), or the copy
    fails, that function does the work itself.
    """
    if not hasattr(os, "fork") or threading.active_count() > 1 or (os.cpu_count() or 1) < 2:
        return work
    try:
        back, out = os.pipe()
    except OSError:
        return work
    process = os.fork()
    if process == 0:
        try:
            with os.fdopen(out, "wb") as stream:
                stream.write(pack({}, work()))
        finally:
            os._exit(0)  # what this process has open is not the copy's to flush or close
    os.close(out)

    def columns() -> Columns:
        with os.fdopen(back, "rb") as stream:
            packed = stream.read()
        os.waitpid(process, 0)
        try:
            return unpack(packed)[1]
        except ValueError:
            return work()

    return columns


# -- Names, lines and inline chains of addresses from DWARF


LARGE = 4 << 20
"""Bytes of line number programs, or of entries, that are worth a copy of the process."""
SHARE = 0.3
"""The share of the entries that a copy of this process reads, beside the copy that reads line number programs."""

OpenSplit = Callable[[str, str, int], Info | None]
"""(``DW_AT_comp_dir``, ``DW_AT_dwo_name``, DWO id) -> the split unit's file, checked; ``None``: not available."""

BASES = DW_AT.str_offsets_base, DW_AT.addr_base, DW_AT.GNU_addr_base, DW_AT.rnglists_base, DW_AT.GNU_ranges_base
FIRST = DW_AT.low_pc, DW_AT.stmt_list, DW_AT.comp_dir, DW_AT.dwo_name, DW_AT.GNU_dwo_name, DW_AT.GNU_dwo_id


@dataclass(slots=True)
class WantedAddresses:
    """The addresses to name, ascending."""

    address: Words
    unit: Ints
    """Row of the unit of each, or -1."""
    expected: NDArray[np.bool_]
    """Whether a function holds it, as far as symbols show; others are padding between functions."""


class Dwarf:
    """The DWARF of one module. ``code`` is its range of link addresses: the linker dropped code outside it.

    A damaged unit costs its own names, and adds to ``notes``.
    """

    def __init__(self, sections: Sections, code: tuple[int, int], split: OpenSplit, notes: list[str]) -> None:
        self.info = Info(sections, notes)
        self.notes = notes
        self.code = code
        self.split = split
        info, every = self.info, np.arange(len(self.info.units))
        self.entries = np.array([u.entry for u in info.units], np.int64)
        self.old_ranges = set_bases(info, self.entries)
        first = read_attributes(info, self.entries, FIRST, every)
        info.low = np.where(first[DW_AT.low_pc].kind == EntryKind.ADDRESS, first[DW_AT.low_pc].value, np.uint64(0))
        statements = first[DW_AT.stmt_list]
        self.statements = np.where(statements.there, np.minimum(statements.value, np.uint64(NO_BASE)), NO_BASE).astype(
            np.int64
        )
        self.folders = texts(info, first[DW_AT.comp_dir])
        self.split_names = [
            a or b
            for a, b in zip(texts(info, first[DW_AT.dwo_name]), texts(info, first[DW_AT.GNU_dwo_name]), strict=True)
        ]
        self.split_ids = [u.dwo_id or int(i) for u, i in zip(info.units, first[DW_AT.GNU_dwo_id].value, strict=True)]
        self.headers: dict[int, LineHeader | None] = {}

    def symbolize(self, address: Words, symbols: Symbols) -> Names:
        """The names of ``address`` (ascending). The outermost function has its name from ``symbols`` (by address)."""
        owners = self._clip(self._unit_ranges()).disjoint()
        unit, symbol = owners.at(address), symbols.at(address)
        # With exported symbols only, an address without a symbol may be in a local function.
        expected = (symbol >= 0) | bool(symbols.public.all())
        wanted = WantedAddresses(address, unit, expected)
        places = self._places(address, unit)
        splits = {n: info for n in distinct(unit[unit >= 0]).tolist() if (info := self._split(n)) is not None}
        here = np.flatnonzero((unit >= 0) & ~np.isin(unit, list(splits)))
        shared = np.isin(unit[here], self._units_for_copy(unit[here]))
        others = self._chains_meanwhile(here[shared], wanted, owners)
        parts = [self._chains(self.info, here[~shared], wanted, None, owners)]
        for number, info in splits.items():
            parts.append(self._chains(info, np.flatnonzero(unit == number), wanted, number, owners))
        return name_addresses(unit, symbol, places(), [*parts, *others()], symbols, self._path)

    def _units_for_copy(self, unit: Ints) -> Ints:
        """Which of the units in ``unit`` a copy of this process reads; none where that is not worth it."""
        used = distinct(unit)
        sums = np.cumsum((self.info.end - self.info.start)[used])
        total = int(sums[-1]) if len(used) else 0
        return used[sums > (1 - SHARE) * total] if total > LARGE else used[:0]

    def _chains_meanwhile(
        self, rows: Ints, wanted: WantedAddresses, owners: Ranges
    ) -> Callable[[], list[tuple[InlineFrames, Origins]]]:
        """Start `_chains` of ``rows`` in a copy of this process. The function that is returned waits for the result."""
        if not len(rows):
            return list

        def work() -> Columns:
            known = len(self.notes)
            frames, origins = self._chains(self.info, rows, wanted, None, owners)
            return {
                **frames.columns(),
                "origin_name": texts_column(origins.name),
                "origin_unit": origins.unit,
                "origin_file": origins.file,
                "origin_line": origins.line,
                "notes": texts_column(self.notes[known:]),
            }

        finish = meanwhile(work)

        def chains() -> list[tuple[InlineFrames, Origins]]:
            columns = finish()
            self.notes += texts_of(columns, "notes")
            numbers = (columns[f"origin_{name}"] for name in ("unit", "file", "line"))
            frames = InlineFrames(
                **{name: column for name, column in columns.items() if name in InlineFrames.__slots__}
            )
            return [(frames, Origins(texts_of(columns, "origin_name"), *numbers))]

        return chains

    def _split(self, number: int) -> Info | None:
        """The file with the entries of unit ``number``, if that is split, with its bases set."""
        name = self.split_names[number]
        info = self.split(self.folders[number], name, self.split_ids[number]) if name else None
        if info is not None:
            wide = info.offset_size[0] == 8
            new = info.version[0] >= 5
            info.address_base[:], info.low[:] = self.info.address_base[number], self.info.low[number]
            info.string_base[:] = (16 if wide else 8) if new else 0  # after the header of the only table
            info.range_base[:] = (20 if wide else 12) if new else self.old_ranges[number]
        return info

    def _unit_ranges(self) -> Ranges:
        """Addresses of units; for units without, and in DWARF 2, which has no range lists, those of their functions."""
        every = np.arange(len(self.info.units))
        own_ranges = ranges_of(self.info, self.entries, every)
        silent = np.union1d(np.setdiff1d(every, own_ranges.row), np.flatnonzero(self.info.version == 2))
        if not len(silent):
            return own_ranges
        tree = walk(self.info, silent, whole=True)
        found = ranges_of(self.info, tree.offset, tree.unit)
        return Ranges.join([own_ranges, Ranges(found.low, found.high, tree.unit[found.row])])

    def _clip(self, ranges: Ranges) -> Ranges:
        low, high = self.code
        kept = (ranges.low >= np.uint64(low)) & (ranges.high <= np.uint64(high))
        return ranges.take(kept)

    def _chains(
        self, info: Info, rows: Ints, wanted: WantedAddresses, skeleton: int | None, owners: Ranges
    ) -> tuple[InlineFrames, Origins]:
        """Frames of the addresses in ``rows`` from ``info``. A split file has one unit, the unit of ``skeleton``."""
        mine = wanted.unit[rows] if skeleton is None else np.zeros(len(rows), np.int64)
        address = wanted.address[rows]
        nested = bool((info.version[mine] > 2).all())

        def find(left: Ints, whole: bool) -> tuple[Tree, Ints]:
            tree = walk(info, distinct(mine[left]), whole=whole)
            ranges = ranges_of(info, tree.offset, tree.unit)
            # The linker keeps one copy of a function that several units have. The entries of the others name the same
            # addresses, but describe code that was dropped.
            own = owners.at(ranges.low) == (tree.unit[ranges.row] if skeleton is None else skeleton)
            ranges = ranges.take(own)
            return tree, innermost(tree, ranges, address[left], nested=nested)

        tree, entry = find(np.arange(len(rows)), False)
        left = np.flatnonzero((entry < 0) & wanted.expected[rows])
        if len(left):
            more, found = find(left, True)
            entry[left] = np.where(found >= 0, found + len(tree), -1)
            tree = tree.join(more)
        frames, origins = describe_chains(info, tree, chains_of(tree, entry))
        frames.owner = rows[frames.owner]
        if skeleton is not None:
            frames.unit[:] = skeleton
            origins.unit[:] = skeleton
        return frames, origins

    def _places(self, address: Words, unit: Ints) -> Callable[[], LinePlaces]:
        """Start to read line tables, large ones in a copy of this process. The function that is returned waits for the
        places of ``address``."""
        used = distinct(unit[unit >= 0]).tolist()
        headers = {unit: header for unit in used if (header := self._header(unit)) is not None}
        space = self.info.sections("line")

        def read() -> Columns:
            lines = read_lines(space, headers)
            row = lines.find(address, unit)
            columns = ("file", "line", "column", "discriminator")
            found = {name: np.append(getattr(lines, name), np.uint32(0))[row] for name in columns}
            return {"there": (row >= 0).astype(np.uint8), **found}

        large = sum(h.end - h.program for h in headers.values()) > LARGE
        finish = meanwhile(read) if large else read

        def places() -> LinePlaces:
            columns = finish()
            return LinePlaces(columns.pop("there") != 0, **columns)

        return places

    def _header(self, unit: int) -> LineHeader | None:
        if unit not in self.headers:
            start = int(self.statements[unit])
            sections = self.info.sections

            def text(form: int, offset: int) -> str:
                return strings_at(sections("line_str" if form == DW_FORM.line_strp else "str").raw, [offset])[0]

            try:
                self.headers[unit] = read_header(sections("line"), start, text) if start < NO_BASE else None
            except FormatError as error:
                self.headers[unit] = None
                self.notes.append(f"{error} (no lines of that unit)")
        return self.headers[unit]

    def _path(self, unit: int, number: int) -> str:
        header = self._header(unit)
        return header.path(number, self.folders[unit]) if header else ""


def set_bases(info: Info, entries: Ints) -> Ints:
    """Set where the tables of each unit begin. Returns where the ranges of split units begin before DWARF 5."""
    found = read_attributes(info, entries, BASES, np.arange(len(info.units)))
    strings, addresses, gnu_addresses, ranges, old_ranges = (
        np.where(found[n].there, np.minimum(found[n].value, np.uint64(NO_BASE)), NO_BASE).astype(np.int64)
        for n in BASES
    )
    info.string_base, info.range_base = strings, ranges
    info.address_base = np.minimum(addresses, gnu_addresses)
    return old_ranges


_MOST = 3
"""Notes of one kind."""


def has_dwarf(files: DebugFiles) -> bool:
    """Whether ``files`` have DWARF. Raises `FormatError` or `OSError`."""
    return any(binary.has(".debug_info") for binary in _binaries(files))


def symbolize(files: DebugFiles, address: Words) -> Names:
    """The names of ``address`` (ascending). Raises `FormatError` or `OSError`."""
    binaries = _binaries(files)
    described = next((b for b in reversed(binaries) if b.has(".debug_info")), None)
    if described is None:
        return symbol_tables.symbolize(files, address)
    main = binaries[0]
    base = np.uint64(main.image.image_base if files.kind == "pe" else 0)
    symbols = symbol_tables.symbols_of(files, main, binaries[-1]).by_address()
    symbols = replace(symbols, start=symbols.start + base)

    def sections(name: str) -> Space:
        return described.section(f".debug_{name}")

    notes: list[str] = []
    splits = SplitUnits(files, sections, notes)
    names = Dwarf(sections, _code_range(main), splits.open, notes).symbolize(address + base, symbols)
    names.notes = [*_few(notes, "more damaged parts"), *_missing_note(splits.missing), *_dwz_note(described)]
    if base:
        names.functions = [f._replace(start=max(0, f.start - int(base))) for f in names.functions]
    return names


def names_split_files(binary: Binary) -> bool:
    """Whether units of ``binary`` name files with their entries. Raises `FormatError`."""
    dwarf = Dwarf(lambda name: binary.section(f".debug_{name}"), (0, 0), lambda *_: None, [])
    return any(dwarf.split_names)


def functions(files: DebugFiles) -> FunctionTable:
    """All code symbols. Raises `FormatError` or `OSError`."""
    return symbol_tables.functions(files)


def _binaries(files: DebugFiles) -> list[Binary]:
    """The binary and its separate debug file."""
    paths = [files.binary, files.debug if files.kind == "elf" else None]
    return [open_binary(path) for path in paths if path]


def _missing_note(names: list[str]) -> list[str]:
    """The note about split files that were not found."""
    which = ", ".join(_few(names, "more"))
    return [f"split DWARF is missing or from another build (no inlined frames there): {which}"] if names else []


def _dwz_note(binary: Binary) -> list[str]:
    """dwz moves what several files share to one of its own, whose name and build id are in ``.gnu_debugaltlink``."""
    if not binary.has(".gnu_debugaltlink"):
        return []
    link = binary.section(".gnu_debugaltlink")
    name = bytes(link.raw[: link.size]).partition(b"\0")[0].decode("utf-8", "backslashreplace")
    return [f"data that dwz moved to {name} is not read: some inlined functions have no name"]


def _few(texts: list[str], rest: str) -> list[str]:
    texts = list(dict.fromkeys(texts))
    return [*texts[:_MOST], f"{len(texts) - _MOST} {rest}"] if len(texts) > _MOST else texts


def _code_range(binary: Binary) -> tuple[int, int]:
    code = [s for s in binary.image.sections if s.flags & SegmentFlags.EXECUTE]
    return min((s.vaddr for s in code), default=0), max((s.vaddr + s.size for s in code), default=(1 << 64) - 1)


# -- Split units


SHARED = frozenset({"addr", "line", "line_str", "ranges"})
"""Sections that stay in the main file."""

COLUMNS = {
    DW_SECT.info: "info",
    DW_SECT.abbrev: "abbrev",
    DW_SECT.str_offsets: "str_offsets",
    DW_SECT.rnglists: "rnglists",
}
"""Column -> section. (Before DWARF 5, 8 was .debug_macro, and packages had no range lists.)"""

UNITS_LIMIT = 1 << 20


class SplitUnits:
    """Opens the split units of one module: from its package, else from files below the folders of `DebugFiles.dwo`."""

    def __init__(self, files: DebugFiles, main: Sections, notes: list[str]) -> None:
        self.files, self.main, self.notes = files, main, notes
        self._package = self._open_package() if files.dwp else None
        self.missing: list[str] = []
        """Names of files that were not found or belong to another build."""

    def open(self, folder: str, name: str, dwo_id: int) -> Info | None:
        """The file of the unit with ``dwo_id``, or ``None``."""
        for info in self._candidates(folder, name, dwo_id):
            if info.units and _identity(info) == dwo_id:
                return info
        self.missing.append(name)
        return None

    def _open_package(self) -> _Package | None:
        try:
            return _Package(open_binary(self.files.dwp or ""), self.main)
        except (LastbranchError, OSError) as error:
            self.notes.append(f"{error} (the package is not used)")
            return None

    def _candidates(self, folder: str, name: str, dwo_id: int) -> Iterator[Info]:
        if self._package is not None:
            sections = self._package.unit(dwo_id)
            if sections is not None:
                yield Info(sections, self.notes)
        hints = dict.fromkeys((f"{folder}/{name}", name, ntpath.basename(name)))
        for root in self.files.dwo:
            for path in filter(None, (below(root, hint) for hint in hints)):
                try:
                    yield Info(_sections(open_binary(path), self.main), self.notes)
                except (LastbranchError, OSError) as error:
                    self.notes.append(str(error))


def _sections(binary: Binary, main: Sections) -> Sections:
    return lambda name: main(name) if name in SHARED else binary.section(f".debug_{name}.dwo")


def _identity(info: Info) -> int:
    if info.units[0].dwo_id:
        return info.units[0].dwo_id
    found = read_attributes(info, np.array([info.units[0].entry]), (DW_AT.GNU_dwo_id,))
    return int(found[DW_AT.GNU_dwo_id].value[0])


class _Package:
    """A ``.dwp`` file. Its index has the part of each section that belongs to a unit (DWARF 5, 7.3.5)."""

    def __init__(self, binary: Binary, main: Sections) -> None:
        self.binary, self.main = binary, main
        index = binary.section(".debug_cu_index")
        version, columns, units, slots = (int(v) for v in index.read(np.arange(4) * 4, 4))
        if version & 0xFFFF not in (2, 5) and version not in (2, 5):
            raise index.bad("neither version 2 nor 5", 0, "version", version)
        tables = 16 + 12 * slots + 4 * columns * (2 * units + 1)
        if max(columns, units, slots) > UNITS_LIMIT or tables > index.size:
            raise index.bad("more units than bytes", 4, "unit_count", units)
        self.hashes = index.read(16 + 8 * np.arange(slots), 8)
        self.rows = index.read(16 + 8 * slots + 4 * np.arange(slots), 4).astype(np.int64)
        body = index.read(16 + 12 * slots + 4 * np.arange(columns * (2 * units + 1)), 4).astype(np.int64)
        self.columns = body[:columns].tolist()
        self.offsets, self.sizes = body[columns:].reshape(2, units, columns) if units else np.zeros((2, 0, 0), np.int64)

    def unit(self, dwo_id: int) -> Sections | None:
        """The sections of the unit of ``dwo_id``. Reading a section raises `FormatError` if the section ends after the
        file."""
        slot = np.flatnonzero((self.hashes == np.uint64(dwo_id)) & (self.rows > 0))
        row = int(self.rows[slot[0]]) - 1 if len(slot) else -1
        if not 0 <= row < len(self.offsets):
            return None
        parts = {
            COLUMNS[kind]: (int(offset), int(size))
            for kind, offset, size in zip(self.columns, self.offsets[row], self.sizes[row], strict=True)
            if kind in COLUMNS
        }
        spaces: dict[str, Space] = {}

        def section(name: str) -> Space:
            if name in SHARED:
                return self.main(name)
            whole = self.binary.section(f".debug_{name}.dwo")
            if name not in parts:
                return whole
            if name not in spaces:
                offset, size = parts[name]
                if offset + size > whole.size:
                    raise whole.bad("a part past its end", offset, "section size", size)
                part = whole.raw[offset : offset + size]
                spaces[name] = Space.of(part, whole.order, whole.name, whole.file)
            return spaces[name]

        return section
