"""Breakpad symbol files (docs/symbol_files.md of Breakpad): text with one record per line.

    MODULE linux x86_64 48DC540C8B76393804CA8088DBFA7D420 name
    FILE 0 /src/a.cc
    INLINE_ORIGIN 0 inner(int)
    FUNC [m] 1040 120 0 outer(int)             address, size, bytes of parameters, name
    INLINE 0 12 0 0 1044 10                    depth, line and file of the call, origin, then ranges
    1040 10 42 0                               address, size, line, file
    PUBLIC [m] 2000 0 name

Numbers of addresses and sizes are hexadecimal and count from the image's base; the others are decimal.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..binaries.files import whole_file
from .demangle import demangle
from .model import DebugFiles, Frame, Function, FunctionTable, Names, NamesBuilder
from .symbol_lists import lines_of, table_of

__all__ = ["Breakpad", "module_id"]

_FIRST_LINE = 4096
_NO_LINES = ("FUNC", "PUBLIC", "STACK", "FILE", "INLINE_ORIGIN", "MODULE", "INFO")


def module_id(path: str) -> str:
    """The identity in the MODULE record, in capitals; empty for another kind of file. Raises `OSError`."""
    fields = whole_file(path, _FIRST_LINE).decode("utf-8", "replace").split("\n")[0].split()
    return fields[3].upper() if len(fields) > 3 and fields[0] == "MODULE" else ""


@dataclass(slots=True)
class _File:
    lines: list[str]
    files: dict[int, str] = field(default_factory=dict)
    origins: dict[int, str] = field(default_factory=dict)
    symbols: list[tuple[int, int, str]] = field(default_factory=list)
    body: dict[int, int] = field(default_factory=dict)
    """Address of a function -> the first of ``lines`` with its records."""


class Breakpad:
    """A backend that reads the file anew for each request: the cache keeps the answers."""

    def functions(self, files: DebugFiles) -> FunctionTable:
        """FUNC and PUBLIC records. Raises `FormatError`, `OSError`."""
        return table_of(_read(files.binary).symbols)

    def symbolize(self, files: DebugFiles, address: NDArray[np.uint64]) -> Names:
        """Functions, lines and inline chains. Raises `FormatError`, `OSError`."""
        file = _read(files.binary)
        table = table_of(file.symbols)
        origins = dict(zip(file.origins, demangle(file.origins.values()), strict=True))
        builder, row, code = NamesBuilder(), -1, _Code()
        for a, wanted in zip(address.tolist(), table.at(address).tolist(), strict=True):
            if wanted < 0:
                builder.add([])
                continue
            if wanted != row:
                row, code = wanted, _code(file, table.functions[wanted].start)
            builder.add(code.chain(a, table.functions[row], origins, file.files))
        return builder.names()


def _read(path: str) -> _File:
    """All records outside of functions; damaged ones are left out."""
    out = _File(lines_of(path))
    publics: list[tuple[int, int, str]] = []
    for number, line in enumerate(out.lines):
        word, _, rest = line.partition(" ")
        if word not in _NO_LINES:
            continue
        try:
            match word:
                case "FILE" | "INLINE_ORIGIN":
                    row, _, name = rest.partition(" ")
                    (out.files if word == "FILE" else out.origins)[int(row)] = name.rstrip("\r")
                case "FUNC":
                    address, size, _, name = rest.removeprefix("m ").split(" ", 3)
                    out.symbols.append((int(address, 16), int(size, 16), name.rstrip("\r")))
                    out.body[int(address, 16)] = number + 1
                case "PUBLIC":
                    address, _, name = rest.removeprefix("m ").split(" ", 2)
                    publics.append((int(address, 16), 0, name.rstrip("\r")))
        except ValueError:
            continue
    out.symbols = [s for s in publics + out.symbols if 0 <= s[0] < 1 << 64 and 0 <= s[1] < 1 << 64]
    return out


@dataclass(slots=True)
class _Code:
    """The records of one function."""

    starts: list[int] = field(default_factory=list)
    lines: list[tuple[int, int, int]] = field(default_factory=list)
    """End, line and file of each of ``starts``."""
    inlines: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)
    """Start, end, depth, line and file of the call, origin."""

    def chain(self, address: int, function: Function, origins: dict[int, str], files: dict[int, str]) -> list[Frame]:
        """The frames at ``address``, innermost first."""
        at = bisect_right(self.starts, address) - 1
        end, line, file = self.lines[at] if at >= 0 else (0, 0, -1)
        if address >= end:
            line, file = 0, -1
        out: list[Frame] = []
        here = sorted((i for i in self.inlines if i[0] <= address < i[1]), key=lambda i: -i[2])
        for _, _, _, call_line, call_file, origin in here:
            name = origins.get(origin, "")
            out.append(Frame(Function(name, name), files.get(file, ""), line))
            line, file = call_line, call_file
        return [*out, Frame(function, files.get(file, ""), line)]


def _code(file: _File, start: int) -> _Code:
    out, number = _Code(), file.body.get(start)
    rows: list[tuple[int, int, int, int]] = []
    while number is not None and number < len(file.lines):
        fields = file.lines[number].split()
        number += 1
        if fields and fields[0] in _NO_LINES:
            break
        try:
            if fields and fields[0] == "INLINE":
                depth, call_line, call_file, origin = map(int, fields[1:5])
                for address, size in zip(fields[5::2], fields[6::2], strict=False):
                    first = int(address, 16)
                    out.inlines.append((first, first + int(size, 16), depth, call_line, call_file, origin))
            elif len(fields) == 4:
                first = int(fields[0], 16)
                rows.append((first, first + int(fields[1], 16), int(fields[2]), int(fields[3])))
        except ValueError:
            continue
    rows.sort()
    out.starts, out.lines = [r[0] for r in rows], [r[1:] for r in rows]
    return out
