"""``--to gcov``: the profile that gcc 12 to 15 read with ``-fauto-profile``.

The file has the counts that create_gcov would write. create_gcov 0.19 writes the length of a name in words, which gcc
reads up to version 11; since gcc 12 the length is in bytes.

The file is 32-bit little-endian words: header, names, functions, and an empty list of modules. Source: gcc's
auto-profile.cc ("function instance profile format") and gcov-io.cc.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import IO

from .interface import ExportOptions, ExportResult
from .line_samples import tree_of
from .modules import ModuleCounts, ModuleFormat
from .sample_tree import FunctionSamples, Location, source_name

__all__ = ["FORMAT", "FUNCTIONS", "MAGIC", "NAMES"]

MAGIC, _VERSION = 0x67636461, 2
NAMES, FUNCTIONS, _MODULES = 0xAA000000, 0xAC000000, 0xAE000000
_INDIRECT_CALL = 5
"""Kind of a target; gcc has no other and does not look at it."""


def write(counts: ModuleCounts, out: IO[bytes], options: ExportOptions) -> ExportResult:
    """Write the counts of a module. Raises as `line_samples.tree_of`."""
    tree, exported = tree_of(counts, options, plain=True)
    functions: dict[str, FunctionSamples] = {}
    for name, samples in tree.functions.items():
        functions.setdefault(source_name(name), FunctionSamples()).add(samples)
    # gcc takes the name with number 0 for none.
    names = {name: i for i, name in enumerate(["", *sorted(set(_names(functions)))])}
    out.write(struct.pack("<3I", MAGIC, _VERSION, 0))
    _section(out, NAMES, len(names), b"".join(map(_string, names)))
    body = b"".join(struct.pack("<Q", s.head) + _function(n, s, names) for n, s in sorted(functions.items()))
    _section(out, FUNCTIONS, len(functions), body)
    _section(out, _MODULES, 0, b"")
    return exported


def _names(functions: dict[str, FunctionSamples]) -> Iterator[str]:
    for name, samples in functions.items():
        yield source_name(name)
        for targets in samples.calls.values():
            yield from map(source_name, targets)
        for callees in samples.inlined.values():
            yield from _names(callees)


def _section(out: IO[bytes], tag: int, number: int, body: bytes) -> None:
    """A section; every reader skips its length in words."""
    out.write(struct.pack("<3I", tag, 1 + -(-len(body) // 4), number) + body)


def _string(name: str) -> bytes:
    text = name.encode("utf-8", "surrogateescape") + b"\0"
    return struct.pack("<I", len(text)) + text


def _function(name: str, samples: FunctionSamples, names: dict[str, int]) -> bytes:
    """Lines with the targets of their calls, and what is inlined."""
    inlined = list(samples.callees())
    parts = [struct.pack("<3I", names[source_name(name)], len(samples.lines), len(inlined))]
    for where, count in sorted(samples.lines.items()):
        targets = samples.calls.get(where, {})
        parts.append(struct.pack("<2IQ", _offset(where), len(targets), count))
        parts += (struct.pack("<I2Q", _INDIRECT_CALL, names[source_name(t)], n) for t, n in sorted(targets.items()))
    parts += (struct.pack("<I", _offset(where)) + _function(n, s, names) for where, n, s in inlined)
    return b"".join(parts)


def _offset(where: Location) -> int:
    line, discriminator = where
    return line << 16 | discriminator


FORMAT = ModuleFormat("gcov", write)
