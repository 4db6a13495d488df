"""Frames as columns, and the `Names` that they come to: chains of entries with the rows of line tables in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ...model import Function, Names
from ..symbols import Symbols
from .attributes import read_attributes
from .chains import Chains, Origins, numbers, origins_of
from .constants import AT
from .entries import Tree
from .units import Info

__all__ = ["Frames", "Path", "Places", "described", "named"]

CALL = AT.CALL_FILE, AT.CALL_LINE, AT.CALL_COLUMN, AT.GNU_DISCRIMINATOR

Path = Callable[[int, int], str]
"""(unit, number in its line table) -> the path of a file; empty where there is none."""


@dataclass(slots=True)
class Frames:
    """Frames of some addresses: the columns of `Names`, files as (unit, number) of line tables."""

    owner: NDArray[np.int64]
    step: NDArray[np.int64]
    origin: NDArray[np.int64]
    unit: NDArray[np.int64]
    file: NDArray[np.int64]
    line: NDArray[np.int64]
    column: NDArray[np.int64]
    discriminator: NDArray[np.int64]

    def columns(self) -> list[NDArray[np.int64]]:
        return [getattr(self, f.name) for f in fields(self)]


@dataclass(slots=True)
class Places:
    """What line tables say of n addresses: a row each."""

    there: NDArray[np.bool_]
    file: NDArray[np.uint32]
    line: NDArray[np.uint32]
    column: NDArray[np.uint32]
    discriminator: NDArray[np.uint32]


def described(info: Info, tree: Tree, chains: Chains) -> tuple[Frames, Origins]:
    """``chains`` as frames, and the origins that these refer to."""
    used, inverse = np.unique(chains.entry, return_inverse=True)
    origin, origins = origins_of(info, tree.offset[used], tree.inlined[used])
    call = np.flatnonzero(chains.caller >= 0)
    callers, back = np.unique(chains.caller[call], return_inverse=True)
    calls = read_attributes(info, tree.offset[callers], CALL, tree.unit[callers])
    columns = []
    for name, unknown in zip(CALL, (-1, 0, 0, 0), strict=True):
        column = np.full(len(chains.owner), unknown, np.int64)
        value = np.where(calls[name].there, numbers(calls[name]), unknown)
        column[call] = value[back]
        columns.append(column)
    return Frames(chains.owner, chains.step, origin[inverse], tree.unit[chains.entry], *columns), origins


def named(
    unit: NDArray[np.int64],
    symbol: NDArray[np.int64],
    places: Places,
    parts: list[tuple[Frames, Origins]],
    symbols: Symbols,
    path: Path,
) -> Names:
    """The names of addresses in ``unit`` that have ``symbol`` and lines at ``places`` (-1, or not there: none).

    The innermost frame is where the line table says; the outermost function is called as the symbol.
    """
    frames = _together(parts, len(unit), (symbol >= 0) | places.there)
    owner = frames.owner
    inner = np.flatnonzero((frames.step == 0) & places.there[owner])
    row = owner[inner]
    frames.unit[inner] = unit[row]
    for name in ("file", "line", "column", "discriminator"):
        getattr(frames, name)[inner] = getattr(places, name)[row]
    files = _Files(path)
    count = np.bincount(owner, minlength=len(unit))
    offsets = np.concatenate([[0], np.cumsum(count)])
    outermost = offsets[1:][owner] - 1 == np.arange(len(owner))
    called = np.where(outermost, symbol[owner], -1)
    functions, frame_function = _functions(parts, frames.origin, called, symbols, files)
    frame_file = files.rows(frames.unit, frames.file)
    function = np.where(count > 0, np.append(frame_function, -1)[offsets[1:] - 1], -1)
    return Names(
        function.astype(np.int32), offsets.astype(np.int64), frame_function.astype(np.int32),
        frame_file.astype(np.int32), frames.line.astype(np.uint32), frames.column.astype(np.uint32),
        frames.discriminator.astype(np.uint32), functions, list(files.known),
    )  # fmt: skip


def _together(parts: list[tuple[Frames, Origins]], count: int, known: NDArray[np.bool_]) -> Frames:
    """All frames by address and step, origins numbered through; ``known`` addresses without a chain have one frame."""
    chained = np.zeros(count, bool)
    columns, base = [], 0
    for frames, origins in parts:
        chained[frames.owner] = True
        frames.origin = np.where(frames.origin >= 0, frames.origin + base, -1)
        columns.append(frames.columns())
        base += len(origins.name)
    alone = np.flatnonzero(~chained & known)
    zero = np.zeros(len(alone), np.int64)
    columns.append(Frames(alone, zero, zero - 1, zero, zero - 1, zero, zero, zero).columns())
    joined = [np.concatenate(c) for c in zip(*columns, strict=True)]
    order = np.lexsort((joined[1], joined[0]))
    return Frames(*(c[order] for c in joined))


def _functions(
    parts: list[tuple[Frames, Origins]],
    origin: NDArray[np.int64],
    symbol: NDArray[np.int64],
    symbols: Symbols,
    files: _Files,
) -> tuple[list[Function], NDArray[np.int64]]:
    """The functions of frames: each pair of origin and symbol (-1: inlined, or none) once. (functions, row of each)."""
    names = [name for _, origins in parts for name in origins.name]
    unit, file, line = (
        np.concatenate([*(getattr(o, n) for _, o in parts), [-1]]).astype(np.int64) for n in ("unit", "file", "line")
    )
    wide = len(symbols) + 1
    pairs, row = np.unique((origin + 1) * wide + symbol + 1, return_inverse=True)
    of, at = pairs // wide - 1, pairs % wide - 1
    declared = files.rows(unit[of], file[of]).tolist()
    known = [*files.known, ""]
    there = np.flatnonzero(at >= 0)
    called = [names[i] if i >= 0 else "" for i in of.tolist()]
    for i, name in zip(there.tolist(), symbols.names(at[there]), strict=True):
        called[i] = name
    start, size = (
        np.where(at >= 0, np.append(c, np.uint64(0))[at], np.uint64(0)).tolist() for c in (symbols.start, symbols.size)
    )
    lines = np.where(of >= 0, line[of], 0).tolist()
    given = zip(called, called, start, size, [known[d] for d in declared], lines, (of >= 0).tolist(), strict=True)
    return list(map(Function._make, given)), row


class _Files:
    """Paths, each once, by (unit, number in its line table)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.known: dict[str, int] = {}

    def rows(self, unit: NDArray[np.int64], number: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of each file in ``known``; -1 unknown."""
        there = np.flatnonzero((number >= 0) & (unit >= 0))
        pairs, back = np.unique(unit[there] << 32 | number[there], return_inverse=True)
        rows = np.array([self._row(pair >> 32, pair & 0xFFFFFFFF) for pair in pairs.tolist()], np.int64)
        found = np.full(len(unit), -1, np.int64)
        found[there] = rows[back] if len(there) else -1
        return found

    def _row(self, unit: int, number: int) -> int:
        path = self._path(unit, number)
        return self.known.setdefault(path, len(self.known)) if path else -1
