"""Perf maps: what a JIT says of its code (Linux, tools/perf/Documentation/jit-interface.txt).

Lines of ``START SIZE NAME``, numbers in hexadecimal without prefix, names with blanks in them. A later line that covers
earlier ones replaces them there: the memory of code that is thrown away is used again.
"""

from __future__ import annotations

import re

import numpy as np

from .demangle import demangle
from .model import DebugFiles, Function, FunctionTable
from .tables import lines_of

__all__ = ["painted", "read_perfmap"]

_LINE = re.compile(r"(?:0x)?([0-9a-fA-F]{1,16}) (?:0x)?([0-9a-fA-F]{1,16}) (.+)").fullmatch


def read_perfmap(files: DebugFiles) -> FunctionTable:
    """The functions of the perf map ``files.binary``, at absolute addresses. Lines that are none are left out."""
    entries = [(int(m[1], 16), int(m[2], 16), m[3]) for m in map(_LINE, lines_of(files.binary, links=False)) if m]
    names = [name.rstrip("\r") for *_, name in entries]
    start = np.array([a for a, *_ in entries], np.uint64)
    size = np.array([s for _, s, _ in entries], np.uint64)
    size = np.minimum(size, ~start)  # what would end past the last address
    functions = [
        Function(n, s, a, z) for n, s, a, z in zip(names, demangle(names), start.tolist(), size.tolist(), strict=True)
    ]
    return painted(start, start + size, functions)


def painted(start: np.ndarray, end: np.ndarray, functions: list[Function]) -> FunctionTable:
    """Disjoint pieces of ``start:end``, uint64[n] each, where a later row covers earlier ones; empty rows are left out.

    A function that was cut in two is there twice.
    """
    borders = np.unique(np.concatenate([start, end]))
    owner = np.full(max(len(borders) - 1, 0), -1, np.int64)
    first, last = np.searchsorted(borders, start).tolist(), np.searchsorted(borders, end).tolist()
    for row, (a, b) in enumerate(zip(first, last, strict=True)):
        owner[a:b] = row
    begins = np.flatnonzero(np.diff(owner, prepend=-2))  # pieces of one owner beside each other are one
    ends = np.append(begins[1:], len(owner))
    kept = owner[begins] >= 0
    rows = owner[begins[kept]].tolist()
    return FunctionTable(borders[begins[kept]], borders[ends[kept]], [functions[r] for r in rows])
