"""The tables that all threads of a Firefox Profiler profile share, made from the stacks of a pass.

Columns and their meaning: ``RawProfileSharedData`` in src/types/profile.ts of github.com/firefox-devtools/profiler.
"""

from __future__ import annotations

from uuid import UUID

import numpy as np

from ..model import Module, ModuleKind, Profile, visible
from ..symbols import Function, Names
from .stack_names import StackTree
from .stack_pass import Frames, StackPass

__all__ = ["CATEGORIES", "SharedTables"]

CATEGORIES = [
    {"name": "Other", "color": "grey", "subcategories": ["Other"]},
    {"name": "User", "color": "yellow", "subcategories": ["Other"]},
    {"name": "Kernel", "color": "orange", "subcategories": ["Other"]},
]
_USER, _KERNEL = 1, 2

_COLUMNS = {
    "stackTable": ("prefixOffset", "frame"),
    "frameTable": (
        "address", "lib", "inlineDepth", "category", "subcategory", "func", "nativeSymbol", "innerWindowID", "line",
        "column", "originalLocation",
    ),
    "funcTable": (
        "name", "isJS", "relevantForJS", "resource", "source", "lineNumber", "columnNumber", "originalLocation",
    ),
    "resourceTable": ("name", "host", "type"),
    "nativeSymbols": ("libIndex", "address", "name", "functionSize"),
    "sources": ("id", "filename", "startLine", "startColumn", "sourceMapURL", "content"),
    "sourceLocationTable": ("source", "line", "column"),
}  # fmt: skip
_LIBRARY = 1
"""``ResourceType.Library``."""

Row = tuple[object, ...]


class SharedTables:
    """Rows are met in the order of the stacks. ``stacks`` has the row of the stack table for each stack of the pass,
    ``None`` for the empty one; ``libs`` is the profile's list of libraries."""

    def __init__(self, done: StackPass, names: Names) -> None:
        self._profile, self._names = done.profile, names
        self._rows: dict[str, dict[Row, int]] = {table: {} for table in _COLUMNS}
        self._strings: dict[str, int] = {}
        self._libs: dict[int, int] = {}
        frames = done.frames
        rows = [self._frames_of(frames, f) for f in range(len(frames))]
        tree = StackTree()
        nodes = [tree.add([row for f in reversed(stack) for row in rows[f]]) for stack in done.stacks]
        self.stacks = np.array([None if node < 0 else node for node in nodes], object)
        for i, (parent, frame) in enumerate(tree.nodes):
            self._rows["stackTable"][i - parent if parent >= 0 else 0, frame, i] = i
        self.libs = [_library(self._profile, self._profile.modules[module]) for module in self._libs]

    def tables(self) -> dict[str, object]:
        """``Profile.shared``."""
        out: dict[str, object] = {}
        for table, columns in _COLUMNS.items():
            rows = list(self._rows[table])
            out[table] = {"length": len(rows), **{c: [row[i] for row in rows] for i, c in enumerate(columns)}}
        return {**out, "stringArray": list(self._strings)}

    def _row(self, table: str, *row: object) -> int:
        """The row of ``table``, new or known."""
        rows = self._rows[table]
        return rows.setdefault(row, len(rows))

    def _string(self, text: str) -> int:
        return self._strings.setdefault(visible(text), len(self._strings))

    def _frames_of(self, frames: Frames, f: int) -> list[int]:
        """Rows of the frame table for a frame of the pass: its inlined functions behind the one they are in."""
        names, module = self._names, int(frames.module[f])
        in_file = module >= 0 and self._profile.modules[module].kind is not ModuleKind.ANONYMOUS
        lib = self._libs.setdefault(module, len(self._libs)) if in_file else -1
        base = _base(self._profile.modules[module]) if in_file else 0
        address = int(frames.address[f]) - base if in_file else -1
        category = _KERNEL if frames.kernel[f] else _USER
        owner = int(names.function[f])
        symbol = self._symbol(lib, base, names.functions[owner]) if in_file and owner >= 0 else None
        chain = names.frames(f)[::-1]
        if not chain:
            func = self._func(f"[{self._short(module)}]", module, lib, "", 0)
            return [self._frame(address, lib, 0, category, func, None, 0, 0)]
        rows = []
        for depth, (function, file, line, column, _) in enumerate(chain):
            func = self._func(function.shown, module, lib, file or function.file, function.line)
            rows.append(self._frame(address, lib, depth, category, func, symbol, line, column))
        return rows

    def _frame(
        self, address: int, lib: int, depth: int, category: int, func: int, symbol: int | None, line: int, column: int
    ) -> int:
        return self._row(
            "frameTable", address, lib, depth, category, 0, func, symbol, None, line or None, column or None, None
        )

    def _func(self, name: str, module: int, lib: int, file: str, line: int) -> int:
        resource, source = -1, None
        if lib >= 0:
            resource = self._row("resourceTable", self._string(self._short(module)), None, _LIBRARY)
        if file:
            source = self._row("sources", None, self._string(file), 1, 1, None, None)
        return self._row(
            "funcTable", self._string(name), False, False, resource, source, line or None, None, None
        )  # fmt: skip

    def _symbol(self, lib: int, base: int, function: Function) -> int:
        start = function.start - base
        return self._row("nativeSymbols", lib, start, self._string(function.shown), function.size or None)

    def _short(self, module: int) -> str:
        return self._profile.modules[module].short.strip("[]") if module >= 0 else "unknown"


def _base(module: Module) -> int:
    """What the first byte of a library's image has for a module address: frames have addresses relative to it."""
    lowest = min((s.address for s in module.segments), default=0)
    # The headers of a PE file come before its first section; images begin at multiples of 64 KiB.
    return lowest & (~0xFFFF if module.is_pe else ~0xFFF)


def _library(profile: Profile, module: Module) -> dict[str, object]:
    name, path = visible(module.short), visible(module.name)
    debug = visible(module.pdb_name) or path
    code_id = module.build_id.hex() or (f"{module.timestamp:08X}{module.size:x}" if module.timestamp else None)
    return {
        "arch": profile.machine.arch, "name": name, "path": path,
        "debugName": debug.replace("\\", "/").rpartition("/")[2] or name, "debugPath": debug,
        "breakpadId": _breakpad_id(module), "codeId": code_id,
    }  # fmt: skip


def _breakpad_id(module: Module) -> str:
    """GUID and age; an ELF file's GUID is made of its build id (Breakpad, docs/symbol_files.md)."""
    guid = module.pdb_guid or UUID(bytes_le=module.build_id[:16].ljust(16, b"\0"))
    return f"{guid.hex}{module.pdb_age:x}".upper()
