"""Functions, function tables, and names of addresses: function, inline chain and source lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import translate
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..arrays import interval_of, offsets_of, ranges

__all__ = ["Backend", "NamesBuilder", "DebugFiles", "Frame", "Function", "FunctionTable", "Names", "plain"]


class DebugFiles(NamedTuple):
    """Checked files of one module: all regular, and of the identity that the capture recorded.

    A backend opens these with `open_regular`, and no others but files `below` the folders of ``dwo``. Addresses are
    link addresses in ELF. In PE they count from the image's base (RVA), as a PDB alone does not have the base.
    """

    kind: Literal["elf", "pe", "breakpad", "kallsyms", "perfmap", "jitdump"]
    binary: str = ""
    """The ELF or PE file (empty where only the debug file was found), or the one file of another kind."""
    debug: str | None = None
    """ELF: the separate debug file. PE: the PDB."""
    dwp: str | None = None
    """ELF: the DWARF package beside the binary or its debug file."""
    dwo: tuple[str, ...] = ()
    """Folders below which split DWARF files (``DW_AT_dwo_name``) may be opened, in the order of search."""
    member: str = ""
    """kallsyms: the kernel module whose names are wanted; empty for the kernel itself."""


class Function(NamedTuple):
    """One function. A tuple, because tables of a hundred thousand of them are made at once."""

    name: str
    """The linkage name (mangled)."""
    shown: str
    """Demangled. Both names are as in the file: `lastbranch.model.visible` makes them safe to print."""
    start: int = 0
    """Link address of the code; 0 if it is only inlined here."""
    size: int = 0
    """Bytes of code, 0 unknown."""
    file: str = ""
    line: int = 0
    """Place of its declaration (``StartLine`` of llvm-symbolizer); 0 unknown."""
    described: bool = False
    """Whether DWARF has an entry for it. If so, ``line`` 0 means that it has no line, as lambdas of g++."""
    compiled: str = ""
    """The linkage name that DWARF has for it, where that is not ``name``: it can be another symbol of the address."""


class Frame(NamedTuple):
    """One frame of an inline chain: the source position in ``function``; 0 and empty where unknown."""

    function: Function
    file: str
    line: int
    column: int = 0
    discriminator: int = 0


NAME_COLUMNS: dict[str, type[np.generic]] = {
    "function": np.int32,
    "offsets": np.int64,
    "frame_function": np.int32,
    "frame_file": np.int32,
    "frame_line": np.uint32,
    "frame_column": np.uint32,
    "frame_discriminator": np.uint32,
}
"""The columns of `Names`, in their order."""
_FRAME_COLUMNS = tuple(NAME_COLUMNS)[2:]


@dataclass(slots=True, eq=False)
class Names:
    """The names of ``n`` addresses of one module, in the order of the request.

    ``functions`` and ``files`` are tables that the columns refer to by row.
    """

    function: NDArray[np.int32]
    """int32[n]: the function (symbol) whose code it is; -1 unknown."""
    offsets: NDArray[np.int64]
    """int64[n + 1]: the inline chain of address ``i`` is frames ``offsets[i]:offsets[i + 1]``, innermost first; the
    last one is the function itself. Empty where nothing is known."""
    frame_function: NDArray[np.int32]
    """int32[m]: row of ``functions``."""
    frame_file: NDArray[np.int32]
    """int32[m]: row of ``files``; -1 unknown."""
    frame_line: NDArray[np.uint32]
    """uint32[m]: 0 unknown."""
    frame_column: NDArray[np.uint32]
    frame_discriminator: NDArray[np.uint32]
    functions: Sequence[Function] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """For the user: which parts of the symbol files are damaged or missing."""

    @classmethod
    def unknown(cls, count: int) -> Names:
        """``count`` addresses without any names."""
        return cls.of_functions(np.full(count, -1), [])

    @classmethod
    def of_functions(cls, row: NDArray[np.integer], functions: Sequence[Function]) -> Names:
        """Names without lines: each address has one frame, the function in ``row`` of ``functions`` (-1: unknown)."""
        function = row.astype(np.int32)
        frames = function[row >= 0]
        zero, no_file = np.zeros(len(frames), np.uint32), np.full(len(frames), -1, np.int32)
        offsets = offsets_of((row >= 0).astype(np.int64))
        return cls(function, offsets, frames, no_file, zero, zero, zero, functions)

    def __len__(self) -> int:
        return len(self.function)

    def frames(self, row: int) -> list[Frame]:
        """The inline chain of the address in ``row``, innermost first."""
        chain = slice(self.offsets[row], self.offsets[row + 1])
        columns = (getattr(self, name)[chain].tolist() for name in _FRAME_COLUMNS)
        return [
            Frame(self.functions[function], self.files[file] if file >= 0 else "", *place)
            for function, file, *place in zip(*columns, strict=True)
        ]

    def take(self, rows: NDArray[np.integer]) -> Names:
        """The names of the addresses in ``rows``, in that order, repeated if wanted; -1 is an unknown address."""
        function = np.append(self.function, np.int32(-1))[rows]
        first, count = self.offsets[rows], np.append(np.diff(self.offsets), 0)[rows]
        frames = ranges(first, count)
        columns: dict[str, Any] = {name: getattr(self, name)[frames] for name in _FRAME_COLUMNS}
        return replace(self, function=function, offsets=offsets_of(count), **columns)

    @classmethod
    def join(cls, parts: list[Names]) -> Names:
        """``parts`` one after the other; equal functions and files share a row."""
        if len(parts) == 1:
            return parts[0]
        parts = parts or [cls.unknown(0)]
        functions: dict[Function, int] = {}
        files: dict[str, int] = {}
        function_rows = [_rows(part.functions, functions) for part in parts]
        file_rows = [_rows(part.files, files) for part in parts]
        rows = {"function": function_rows, "frame_function": function_rows, "frame_file": file_rows}
        columns: dict[str, Any] = {
            name: np.concatenate(
                [rows[name][i][getattr(p, name)] if name in rows else getattr(p, name) for i, p in enumerate(parts)]
            )
            for name in NAME_COLUMNS
        }
        columns["offsets"] = offsets_of(np.concatenate([np.diff(part.offsets) for part in parts]))
        notes = list(dict.fromkeys(note for part in parts for note in part.notes))
        return cls(**columns, functions=list(functions), files=list(files), notes=notes)

    def check(self, count: int) -> Names:
        """These names, if they are sound and of ``count`` addresses: rows within their tables, offsets in order.

        Raises `ValueError` that says what is not.
        """
        frames = [getattr(self, name) for name in _FRAME_COLUMNS]
        if len(self.function) != count or len(self.offsets) != count + 1:
            raise ValueError(f"{len(self.function)} functions and {len(self.offsets)} offsets for {count} addresses")
        if len({len(c) for c in frames}) != 1:
            raise ValueError("the columns of frames differ in length")
        if self.offsets[0] != 0 or self.offsets[-1] != len(frames[0]) or (np.diff(self.offsets) < 0).any():
            raise ValueError("offsets do not partition the frames")
        for what, table, least in (
            ("function", len(self.functions), -1),
            ("frame_function", len(self.functions), 0),
            ("frame_file", len(self.files), -1),
        ):
            rows = getattr(self, what)
            if len(rows) and not least <= rows.min() <= rows.max() < table:
                raise ValueError(f"{what} points outside its table of {table}")
        return self


@dataclass(slots=True, eq=False)
class FunctionTable:
    """All functions (code symbols) of a module, by address."""

    start: NDArray[np.uint64]
    """uint64[k]: link addresses, ascending."""
    end: NDArray[np.uint64]
    """uint64[k]: exclusive."""
    functions: Sequence[Function]
    """k functions; the name is the global one of its address, or else the first."""
    aliases: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Row -> the other linkage names of that address."""
    complete: bool = True
    """Whether that is all; else they are still looked for."""

    @classmethod
    def empty(cls) -> FunctionTable:
        return cls(np.empty(0, np.uint64), np.empty(0, np.uint64), [])

    @classmethod
    def unknown_yet(cls) -> FunctionTable:
        """`empty`, and not complete."""
        return cls(np.empty(0, np.uint64), np.empty(0, np.uint64), [], complete=False)

    def __len__(self) -> int:
        return len(self.functions)

    def take(self, rows: NDArray[np.int64]) -> FunctionTable:
        """The functions in ``rows``, which ascend by address."""
        kept = rows.tolist()
        aliases = {new: self.aliases[old] for new, old in enumerate(kept) if old in self.aliases}
        return FunctionTable(self.start[rows], self.end[rows], [self.functions[row] for row in kept], aliases)

    def at(self, address: NDArray[np.uint64]) -> NDArray[np.int64]:
        """int64[n]: the row of the function that each address lies in, or -1."""
        return interval_of(self.start, self.end, address)

    def find(self, pattern: str) -> list[int]:
        """Rows of the functions that ``pattern`` matches (`match`), by address."""
        return self.match(pattern)[1]

    def match(self, pattern: str) -> tuple[int, list[int]]:
        """(rank, rows of the functions that ``pattern`` means, by address), for the first rank that finds any.

        0: the linkage name or shown name, or the shown name without arguments. 1: the end of the `short_name`. 2: a
        pattern with ``*``, ``?`` and ``[...]`` that fits one of the names. Parts and variants that a compiler made of a
        function (``f (.cold)``) are left out where the function is found.
        """
        for rank, rows in self._matches(pattern):
            if found := list(rows):
                return rank, found if rank == 2 else self._whole(found)
        return 2, []

    def _matches(self, pattern: str) -> Iterator[tuple[int, Iterator[int]]]:
        table, aliases = self.functions, self.aliases
        yield 0, (i for i, f in enumerate(table) if pattern in (f.name, f.shown) or pattern in aliases.get(i, ()))
        yield 0, (i for i, f in enumerate(table) if f.shown.startswith(pattern) and plain(f.shown) == pattern)
        if last := pattern.rpartition("::")[2]:
            end = f"::{pattern}"
            yield 1, (i for i, f in enumerate(table) if last in f.shown and f"::{short_name(f.shown)}".endswith(end))
        if any(c in pattern for c in "*?["):
            like = re.compile(translate(pattern)).match
            yield (
                2,
                (
                    i
                    for i, f in enumerate(table)
                    if like(f.shown) or like(f.name) or like(plain(f.shown)) or any(map(like, aliases.get(i, ())))
                ),
            )

    def _whole(self, rows: list[int]) -> list[int]:
        """``rows`` without cold parts (``.cold``), and without variants of functions in ``rows``."""
        base, suffix = zip(*(_split_compiler_suffix(self.functions[row].shown) for row in rows), strict=True)
        whole = {b for b, s in zip(base, suffix, strict=True) if not s}
        hot = [i for i, s in enumerate(suffix) if ".cold" not in s] or range(len(rows))
        return [rows[i] for i in hot if not suffix[i] or base[i] not in whole]


_COMPILER_SUFFIX = re.compile(
    r" \((\.[^()]*)\)$|((?:\.(?:cold|isra|constprop|part|lto_priv|llvm|clone|localalias|__uniq)(?:\.\d+)?)+)$"
)
"""The suffix of a part or a variant of a function, as demanglers show it and as compilers write it."""


def _split_compiler_suffix(shown: str) -> tuple[str, str]:
    """(name, suffix of a compiler)."""
    found = _COMPILER_SUFFIX.search(shown)
    return (shown[: found.start()], found[1] or found[2]) if found else (shown, "")


def short_name(shown: str) -> str:
    """A demangled name as people say it: without arguments, template arguments, return type and suffixes of compilers;
    ``void ns::Box<int>::f<char>(char)`` -> ``ns::Box::f``. The type in Rust's ``<Type as Trait>::f``."""
    text = plain(_split_compiler_suffix(shown)[0])
    safe = _OPERATOR.sub(lambda found: "x" * len(found[0]), text)
    if safe.startswith("<"):
        depth, end, cut = 0, 0, 0
        for end, c in enumerate(safe):
            depth += (c == "<") - (c == ">" and safe[end - 1] != "-")
            if depth == 1 and safe.startswith(" as ", end):
                cut = cut or end
            if depth == 0:
                break
        text = text[1 : cut or end] + text[end + 1 :]
        safe = safe[1 : cut or end] + safe[end + 1 :]
    out, depth, begin = "", 0, 0
    for c, real in zip(safe, text, strict=True):
        depth -= c == ">" and depth > 0
        if depth == 0 and c != ">":
            out += real if c != "<" else ""
        depth += c == "<"
    depth = 0
    for i, c in enumerate(out):
        depth += (c in "({[") - (c in ")}]")
        if c == " " and depth == 0 and "operator" not in out[:i]:
            begin = i + 1
    return out[begin:].lstrip("&*")


def plain(shown: str) -> str:
    """A demangled name without arguments and all after them: ``ns::f<int>(int) const`` -> ``ns::f<int>``.

    The return type of a template stays: its end is ambiguous.
    """
    text = _OPERATOR.sub(lambda found: "x" * len(found[0]), shown)  # their brackets are part of the name
    depth = start = 0
    for i, c in enumerate(text):
        if c in "<[{(":
            start = i if depth == 0 else start
            depth += 1
        elif c in ">]})" and depth:
            depth -= 1
            if depth == 0 and c == ")" and start and text[start] == "(" and not _GOES_ON(text, i + 1):
                return shown[:start]
    return shown


_GOES_ON = re.compile(r"(?: (?:const|volatile)| ?&&?)*::").match
"""The text after the arguments of an enclosing function: ``f(int) const::Inner::g(int)``."""

_OPERATOR = re.compile(r"\boperator(\(\)|\[\]|->\*?|<=>|<<=?|>>=?|[<>]=?)")

_Row = TypeVar("_Row", Function, str)


def _rows(values: Sequence[_Row], known: dict[_Row, int]) -> NDArray[np.int32]:
    """The row in ``known``, which grows, of each value; then -1, so that index -1 (unknown) stays -1."""
    return np.array([*(known.setdefault(v, len(known)) for v in values), -1], np.int32)


# -- `Names` from single inline chains


_LAST_LINE = (1 << 32) - 1


def used_rows(row: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(the distinct values of ``row`` that are not -1, ``row`` as rows of these): no table is larger than needed."""
    used, back = np.unique(row[row >= 0], return_inverse=True)
    rows = np.full(len(row), -1, np.int64)
    rows[row >= 0] = back
    return used, rows


class NamesBuilder:
    """Collects one chain for each address, in the order of the addresses."""

    def __init__(self) -> None:
        self._functions: dict[Function, int] = {}
        self._files: dict[str, int] = {}
        self._function: list[int] = []
        self._count: list[int] = []
        self._frames: list[tuple[int, int, int, int, int]] = []

    def __len__(self) -> int:
        return len(self._function)

    def add(self, chain: Sequence[Frame]) -> None:
        """The frames of the next address, innermost first; none where nothing is known."""
        row = -1
        for function, file, line, column, discriminator in chain:
            row = self._functions.setdefault(function, len(self._functions))
            file_row = self._files.setdefault(file, len(self._files)) if file else -1
            self._frames.append((row, file_row, min(max(line, 0), _LAST_LINE), column, discriminator))
        self._function.append(row)
        self._count.append(len(chain))

    def names(self) -> Names:
        """The names of all addresses so far."""
        columns = np.array(self._frames, np.int64).reshape(-1, len(_FRAME_COLUMNS)).T
        frames: dict[str, Any] = {n: c.astype(NAME_COLUMNS[n]) for n, c in zip(_FRAME_COLUMNS, columns, strict=True)}
        function, offsets = np.array(self._function, np.int32), offsets_of(np.array(self._count, np.int64))
        return Names(function, offsets, **frames, functions=list(self._functions), files=list(self._files))


class Backend(Protocol):
    """A reader of symbol files. Raises `LastbranchError` or `OSError` for files that it cannot read."""

    def symbolize(self, files: DebugFiles, address: NDArray[np.uint64]) -> Names:
        """The names of ``address`` (ascending, distinct; link addresses, in PE from the image's base)."""

    def functions(self, files: DebugFiles) -> FunctionTable:
        """Every function of the module."""
