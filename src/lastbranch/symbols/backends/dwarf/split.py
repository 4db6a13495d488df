"""Split DWARF: units whose entries are in files of their own, or in a package (DWARF 5, 7.3)."""

from __future__ import annotations

import ntpath
from collections.abc import Iterator

import numpy as np

from ....binaries.dwarf import DW_AT, DW_SECT
from ....binaries.files import Space, below
from ....binaries.sections import Binary, open_binary
from ....errors import LastbranchError
from ...model import DebugFiles
from .entries import read_attributes
from .units import Info, Sections

__all__ = ["SplitUnits"]

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
