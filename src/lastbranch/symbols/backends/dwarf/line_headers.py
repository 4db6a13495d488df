"""Headers of line number programs: how instructions are coded, and the names of files (DWARF 5, 6.2.4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ....binaries.files import Space
from .abbreviations import uleb
from .constants import BLOCKS, FIXED, FORM, LEB, OFFSET

__all__ = ["LineHeader", "Texts", "read_header"]

Texts = Callable[[int, int], str]
"""The string of a form at an offset: ``.debug_str`` or ``.debug_line_str``."""

ENTRIES_LIMIT = 1 << 20

PATH, DIRECTORY = 1, 2  # DW_LNCT_path, DW_LNCT_directory_index


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
    """Parts of a path as LLVM joins them: with the separator that the first one has."""
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
    order = "little" if space.order == "<" else "big"
    raw, at = space.raw, start

    def number(width: int) -> int:
        nonlocal at
        at += width
        return int.from_bytes(raw[at - width : at], order)  # type: ignore[arg-type]

    if not 0 <= start < space.size:
        raise space.bad("no line table there", start, "DW_AT_stmt_list", start)
    length, offset_size = number(4), 4
    if length == 0xFFFFFFFF:
        length, offset_size = number(8), 8
    end = at + length
    if end > space.size:
        raise space.bad("a line table is past the end of the section", start, "unit_length", length)
    version = number(2)
    if not 2 <= version <= 5:
        return None
    if version >= 5:
        number(2)  # sizes of addresses and of segment selectors
    header_length = number(offset_size)
    program = at + header_length
    if program > end:
        raise space.bad("the program begins behind its end", start, "header_length", header_length)
    minimum = number(1)
    if version >= 4:
        number(1)  # maximum_operations_per_instruction: 1 but on VLIW processors
    number(1)  # default_is_stmt
    line_base = (number(1) ^ 0x80) - 0x80
    line_range, opcode_base = number(1), number(1)
    if line_range == 0 or opcode_base == 0:
        raise space.bad("a line table that cannot be decoded", start, "line_range", line_range)
    operands = tuple(raw[at : at + opcode_base - 1])
    at += opcode_base - 1
    header = LineHeader(version, program, end, minimum, line_base, line_range, operands)
    tables = _Tables(space, at, program, offset_size, text)
    if version >= 5:
        header.folders = [name for name, _ in tables.coded()]
        header.files = tables.coded()
    else:
        header.folders = [name for name, _ in tables.plain(numbers=0)]
        header.files = tables.plain(numbers=3)
    return header


class _Tables:
    """Reads the two tables of a header, one behind the other."""

    def __init__(self, space: Space, at: int, end: int, offset_size: int, text: Texts) -> None:
        self.space, self.at, self.end, self.offset_size, self.text = space, at, end, offset_size, text
        self.order = "little" if space.order == "<" else "big"

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
        count = self._word(1)
        formats = [(self._leb(), self._leb()) for _ in range(count)]
        rows = self._leb()
        if rows > min(ENTRIES_LIMIT, self.end - self.at):
            raise self.space.bad("more entries than bytes", self.at, "file_names_count", rows)
        found = []
        for _ in range(rows):
            name, place = "", 0
            for content, form in formats:
                value = self._value(form)
                if content == PATH and isinstance(value, str):
                    name = value
                elif content == DIRECTORY and isinstance(value, int):
                    place = value
            found.append((name, place))
        return found

    def _value(self, form: int) -> int | str:
        if form == FORM.STRING:
            return self._string()
        if form in BLOCKS:
            size = self._leb() if BLOCKS[form] == LEB else self._word(BLOCKS[form])
            self.at = min(self.end, self.at + size)
            return 0
        size = FIXED.get(form, -9)
        if size == LEB:
            return self._leb()
        size = self.offset_size if size == OFFSET else size
        if size < 0:
            raise self.space.bad("a form that is not known", self.at, "form", form)
        value = self._word(size)
        return self.text(form, value) if form in (FORM.STRP, FORM.LINE_STRP) else value

    def _word(self, size: int) -> int:
        self.at += size
        return int.from_bytes(self.space.raw[self.at - size : self.at], self.order)  # type: ignore[arg-type]

    def _leb(self) -> int:
        if self.at >= self.space.size:
            raise self.space.bad("the header ends within a table", self.at, "header_length", self.end)
        value, self.at = uleb(self.space.raw, self.at)
        return value

    def _string(self) -> str:
        end = self.space.raw.find(b"\0", self.at, self.end)
        text = self.space.raw[self.at : end if end >= 0 else self.end]
        self.at = (end if end >= 0 else self.end) + 1
        return text.decode("utf-8", "backslashreplace")
