"""Line number programs (DWARF 5, section 6.2; versions 2 to 5), all units at once.

The state machine's registers are sums and last values over the instructions of a sequence, so no instruction is
executed: `bytecode` finds where each begins, and cumulative sums do the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....arrays import Ints, bisect_within
from ....binaries.dwarf import DW_FORM, DW_LNCT, DW_LNE, DW_LNS, uleb
from ....binaries.files import Space, Words
from .bytecode import instruction_starts, state_table
from .units import BLOCK, LEB, OFFSET, SIZES, Cursor

__all__ = ["LineHeader", "read_header", "read_lines"]


# -- Headers of line number programs: the coding of instructions, and names of files (DWARF 5, 6.2.4)


Texts = Callable[[int, int], str]
"""The string of a form at an offset: ``.debug_str`` or ``.debug_line_str``."""

ENTRIES_LIMIT = 1 << 20


@dataclass(slots=True)
class LineHeader:
    """One header. Offsets count from the start of ``.debug_line``."""

    version: int
    program: int
    end: int
    minimum: int
    """``minimum_instruction_length``."""
    line_base: int
    line_range: int
    operands: tuple[int, ...]
    """``standard_opcode_lengths``."""
    folders: list[str] = field(default_factory=list)
    files: list[tuple[str, int]] = field(default_factory=list)
    """(name, number of its folder)."""

    def path(self, number: int, compilation: str) -> str:
        """The full path of file ``number``, relative to folder ``compilation``; empty where there is none."""
        row = number if self.version >= 5 else number - 1
        if not 0 <= row < len(self.files):
            return ""
        name, place = self.files[row]
        if _is_absolute(name):
            return name
        index = place if self.version >= 5 else place - 1
        folder = self.folders[index] if 0 <= index < len(self.folders) else ""
        if _is_absolute(folder) or (self.version >= 5 and place == 0):
            return _join(folder, name)
        return _join(compilation, folder, name)


def _is_absolute(path: str) -> bool:
    return path[:1] in ("/", "\\") or path[1:3] in (":\\", ":/")


def _join(*parts: str) -> str:
    """Parts of a path as LLVM joins them: with the separator of the first part."""
    separator = "\\" if parts[0][1:3] == ":\\" else "/"
    joined = ""
    for part in filter(None, parts):
        if joined:
            joined = joined.rstrip("/\\") + separator + part.lstrip("/")
        else:
            joined = part
    return joined


def read_header(space: Space, start: int, text: Texts) -> LineHeader | None:
    """The header at ``start``; ``None`` for a version that is not known. Raises `FormatError`."""
    if not 0 <= start < space.size:
        raise space.bad("no line table there", start, "DW_AT_stmt_list", start)
    cursor = Cursor(space, start)
    end, offset_size = cursor.unit_end("a line table")
    version = cursor.number(2)
    if not 2 <= version <= 5:
        return None
    if version >= 5:
        cursor.number(2)  # sizes of addresses and of segment selectors
    header_length = cursor.number(offset_size)
    program = cursor.at + header_length
    if program > end:
        raise space.bad("the program begins after its end", start, "header_length", header_length)
    minimum = cursor.number(1)
    if version >= 4:
        cursor.number(1)  # maximum_operations_per_instruction: 1 but on VLIW processors
    cursor.number(1)  # default_is_stmt
    line_base = (cursor.number(1) ^ 0x80) - 0x80
    line_range, opcode_base = cursor.number(1), cursor.number(1)
    if line_range == 0 or opcode_base == 0:
        raise space.bad("a line table that cannot be decoded", start, "line_range", line_range)
    operands = tuple(space.raw[cursor.at : cursor.at + opcode_base - 1])
    tables = _Tables(space, cursor.at + opcode_base - 1, program, offset_size, text)
    folders, files = (tables.coded(), tables.coded()) if version >= 5 else (tables.plain(0), tables.plain(3))
    return LineHeader(version, program, end, minimum, line_base, line_range, operands, [f for f, _ in folders], files)


class _Tables(Cursor):
    """Reads the two tables of a header, one after the other, up to offset ``end``."""

    def __init__(self, space: Space, at: int, end: int, offset_size: int, text: Texts) -> None:
        super().__init__(space, at)
        self.end, self.offset_size, self.text = end, offset_size, text

    def plain(self, numbers: int) -> list[tuple[str, int]]:
        """Before DWARF 5: strings, each with ``numbers`` LEB128 numbers, up to an empty one."""
        found: list[tuple[str, int]] = []
        while self.at < self.end:
            name = self._string()
            if not name:
                break
            values = [self._leb() for _ in range(numbers)]
            found.append((name, values[0] if values else 0))
        return found

    def coded(self) -> list[tuple[str, int]]:
        """DWARF 5: the formats of the fields, a count, and the fields."""
        count = self.number(1)
        formats = [(self._leb(), self._leb()) for _ in range(count)]
        rows = self._leb()
        if rows > min(ENTRIES_LIMIT, self.end - self.at):
            raise self.space.bad("more entries than bytes", self.at, "file_names_count", rows)
        found = []
        for _ in range(rows):
            name, place = "", 0
            for content, form in formats:
                value = self._value(form)
                if content == DW_LNCT.path and isinstance(value, str):
                    name = value
                elif content == DW_LNCT.directory_index and isinstance(value, int):
                    place = value
            found.append((name, place))
        return found

    def _value(self, form: int) -> int | str:
        if form == DW_FORM.string:
            return self._string()
        size = SIZES.get(form)
        if size is not None and size <= BLOCK:
            length = self._leb() if size == BLOCK else self.number(BLOCK - size)
            self.at = min(self.end, self.at + length)
            return 0
        if size == LEB:
            return self._leb()
        size = self.offset_size if size == OFFSET else size
        if size is None or size < 0:
            raise self.space.bad("an unknown form", self.at, "form", form)
        value = self.number(size)
        return self.text(form, value) if form in (DW_FORM.strp, DW_FORM.line_strp) else value

    def _leb(self) -> int:
        if self.at >= self.space.size:
            raise self.space.bad("the header ends within a table", self.at, "header_length", self.end)
        value, self.at = uleb(self.space.raw, self.at)
        return value

    def _string(self) -> str:
        end = self.space.raw.find(b"\0", self.at, self.end)
        end = end if end >= 0 else self.end
        text, self.at = self.space.raw[self.at : end], end + 1
        return text.decode("utf-8", "backslashreplace")


PART = 1 << 18
"""Bytes of programs that are read at once: the columns of so many instructions fit into a processor's cache."""


@dataclass(slots=True)
class LineTable:
    """Rows of line tables, and their sequences. The rows of a sequence ascend by address."""

    address: Words
    file: NDArray[np.uint32]
    line: NDArray[np.uint32]
    column: NDArray[np.uint32]
    discriminator: NDArray[np.uint32]
    sequence_unit: Ints
    """Ascending; within a unit sequences ascend by their ends."""
    sequence_low: Words
    sequence_high: Words
    sequence_first: Ints
    sequence_last: Ints
    """Rows ``first:last``; the last one only marks the end of the sequence."""

    def find(self, address: Words, unit: Ints) -> Ints:
        """The last row at or below each address in the line program of its ``unit``; -1: none."""
        begin = np.searchsorted(self.sequence_unit, unit, side="left")
        end = np.searchsorted(self.sequence_unit, unit, side="right")
        sequence = bisect_within(self.sequence_high, begin, end.copy(), address, right=True)
        found = np.flatnonzero(sequence < end)
        found = found[self.sequence_low[sequence[found]] <= address[found]]
        sequence = sequence[found]
        first, last = self.sequence_first[sequence] + 1, self.sequence_last[sequence] - 1
        row = np.full(len(address), -1, np.int64)
        row[found] = bisect_within(self.address, first, last, address[found], right=True) - 1
        return row


def read_lines(space: Space, headers: dict[int, LineHeader]) -> LineTable:
    """The line tables of ``headers`` (unit -> header) in one table."""
    return _join_tables([_read(space, part) for part in _parts(headers)])


def _parts(headers: dict[int, LineHeader]) -> Iterator[dict[int, LineHeader]]:
    """Programs with the same standard opcodes, about `PART` bytes at a time."""
    open_parts: dict[tuple[int, ...], dict[int, LineHeader]] = {}
    sizes: dict[tuple[int, ...], int] = {}
    for unit, header in headers.items():
        key = header.operands
        open_parts.setdefault(key, {})[unit] = header
        sizes[key] = sizes.get(key, 0) + header.end - header.program
        if sizes[key] > PART:
            sizes[key] = 0
            yield open_parts.pop(key)
    yield from open_parts.values()


@dataclass(slots=True)
class _Instructions:
    """The instructions of several programs that have the same standard opcodes, a row each."""

    program: Ints
    """Row of the header."""
    standard: NDArray[np.int64]
    """Opcode; 256 for a special one, as its number means something else in a program that has fewer of them."""
    kind: NDArray[np.int64]
    """Extended opcode, 0 for an instruction without one."""
    operand: Words
    """Unsigned operand, 0 for an instruction without one."""
    address_by: Ints
    """Bytes that the instruction adds to the address."""
    line_by: Ints
    """Lines that the instruction adds to the line number."""


def _decode(space: Space, headers: list[LineHeader]) -> _Instructions:
    operands = headers[0].operands
    base = len(operands) + 1
    codes = {opcode: (-1,) * count for opcode, count in enumerate(operands, 1)}
    if base > DW_LNS.fixed_advance_pc:
        codes[DW_LNS.fixed_advance_pc] = (2,)
    codes |= dict.fromkeys(range(base, 256), ())
    begin, end = (np.array([getattr(h, n) for h in headers], np.int64) for n in ("program", "end"))
    at, program = instruction_starts(space, begin, end, state_table(codes, DW_LNS.extended_op))
    opcode = space.data[at].astype(np.int64)
    special = opcode >= base
    standard = np.where(special, 256, opcode)
    line_base, line_range, step = (
        np.array([getattr(h, n) for h in headers], np.int64)[program] for n in ("line_base", "line_range", "minimum")
    )
    extended = standard == DW_LNS.extended_op
    kind = np.where(extended, space.data[space.clip(at + 2)], 0)
    operand = np.zeros(len(at), np.uint64)
    signed = np.flatnonzero(standard == DW_LNS.advance_line)
    line_by = np.zeros(len(at), np.int64)
    line_by[signed] = space.sleb(at[signed] + 1)[0]
    for rows, offset in (
        (np.flatnonzero(np.isin(standard, (DW_LNS.advance_pc, DW_LNS.set_file, DW_LNS.set_column))), 1),
        (np.flatnonzero(kind == DW_LNE.set_discriminator), 3),
    ):
        operand[rows] = space.uleb(at[rows] + offset)[0]
    fixed = np.flatnonzero(standard == DW_LNS.fixed_advance_pc)
    operand[fixed] = space.read(at[fixed] + 1, 2)
    places = np.flatnonzero(kind == DW_LNE.set_address)
    length = space.data[at[places] + 1].astype(np.int64) - 1
    for width in (4, 8):
        mine = places[length == width]
        operand[mine] = space.read(at[mine] + 3, width)

    adjusted = np.where(special, opcode - base, 255 - base)
    by = np.where(special | (standard == DW_LNS.const_add_pc), adjusted // line_range * step, 0)
    by = np.where(standard == DW_LNS.advance_pc, operand.astype(np.int64) * step, by)
    by[fixed] = operand[fixed].astype(np.int64)
    line_by = np.where(special, line_base + adjusted % line_range, line_by)
    return _Instructions(program, standard, kind, operand, by, line_by)


def _read(space: Space, headers: dict[int, LineHeader]) -> LineTable:
    code = _decode(space, list(headers.values()))
    if not len(code.program):
        return _join_tables([])
    program, standard, kind, operand, by = code.program, code.standard, code.kind, code.operand, code.address_by
    ends = kind == DW_LNE.end_sequence
    emits = (standard == 256) | (standard == DW_LNS.copy) | ends
    row_number = np.arange(len(program))
    fresh = np.append(True, ends[:-1] | (program[1:] != program[:-1]))
    sequence = np.maximum.accumulate(np.where(fresh, row_number, 0))

    def latest(there: NDArray[np.bool_]) -> Ints:
        """The last instruction with ``there`` up to each one, in the same sequence; -1: none."""
        last = np.maximum.accumulate(np.where(there, row_number, -1))
        return np.where(last >= sequence, last, -1)

    def register(there: NDArray[np.bool_], begin: int) -> Words:
        last = latest(there)
        return np.where(last >= 0, operand[np.maximum(last, 0)], np.uint64(begin))

    moved = np.cumsum(by).view(np.uint64)
    placed = latest(kind == DW_LNE.set_address)
    origin = np.where(placed >= 0, placed, sequence)
    moved_before = moved[origin] - np.where(placed >= 0, 0, by[origin]).view(np.uint64)
    address = np.where(placed >= 0, operand[np.maximum(placed, 0)], np.uint64(0)) + moved - moved_before
    lines = np.cumsum(code.line_by)
    line = 1 + lines - (lines - code.line_by)[sequence]
    file, column = register(standard == DW_LNS.set_file, 1), register(standard == DW_LNS.set_column, 0)
    emitted = np.append(-1, np.maximum.accumulate(np.where(emits, row_number, -1))[:-1])
    discriminated = latest(kind == DW_LNE.set_discriminator)
    discriminator = np.where(discriminated > emitted, operand[np.maximum(discriminated, 0)], np.uint64(0))

    rows = np.flatnonzero(emits)
    last = np.flatnonzero(ends[rows])
    first = np.searchsorted(rows, sequence[rows[last]])
    units = np.array(list(headers), np.int64)[program[rows[last]]]
    at_rows = address[rows]
    return LineTable(
        at_rows,
        file[rows].astype(np.uint32),
        line[rows].astype(np.uint32),
        column[rows].astype(np.uint32),
        discriminator[rows].astype(np.uint32),
        units,
        at_rows[first],
        at_rows[last],
        first,
        last + 1,
    )


_DTYPES: dict[str, type[np.generic]] = {
    "address": np.uint64, "file": np.uint32, "line": np.uint32, "column": np.uint32, "discriminator": np.uint32,
    "sequence_unit": np.int64, "sequence_low": np.uint64, "sequence_high": np.uint64, "sequence_first": np.int64,
    "sequence_last": np.int64,
}  # fmt: skip
"""The columns of `LineTable`."""


def _join_tables(tables: list[LineTable]) -> LineTable:
    """All rows and the sequences that are not empty, by unit and end."""
    columns: dict[str, Any] = {
        name: np.concatenate([np.empty(0, dtype), *(getattr(table, name) for table in tables)])
        for name, dtype in _DTYPES.items()
    }
    base = np.cumsum([0, *(len(table.address) for table in tables)])[:-1]
    base = np.repeat(base, [len(table.sequence_unit) for table in tables])
    columns["sequence_first"] += base
    columns["sequence_last"] += base
    kept = np.flatnonzero(columns["sequence_low"] < columns["sequence_high"])
    order = kept[np.lexsort((columns["sequence_high"][kept], columns["sequence_unit"][kept]))]
    return LineTable(**{n: column[order] if n.startswith("sequence") else column for n, column in columns.items()})
