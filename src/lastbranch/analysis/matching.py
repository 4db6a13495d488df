"""The same code in two recordings, whose programs may have been built anew in between."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..model import Array, Module, ModuleKind, Profile
from .naming import Label, Namer

__all__ = ["Matching", "Spot", "Spots"]

_SHIFTING = re.compile(r"\.(llvm|lto_priv|__uniq)\.\d+")
"""Suffixes of linkage names that change from build to build."""


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in code: its ``function`` (empty where none is known) and the ``module``, as people know them, and
    ``where`` in it: an offset (``+0x12``), an address (``0x401136``), a source line, or nothing for all of it."""

    module: str
    function: str
    where: str = ""


class Spots:
    """Distinct addresses of a profile, each with a row: int64 ``process`` and ``module`` rows, uint64 ``address``."""

    def __init__(self, profile: Profile, process: Array, module: Array, address: Array) -> None:
        self.profile = profile
        # Memory of a process: what stands at an address differs between them.
        self._own = np.array([m.kind is ModuleKind.ANONYMOUS for m in profile.modules] + [True], bool)
        owner = self._owner(process, module)
        self._owners = np.unique(owner)
        code = self._code(owner, address)
        self.codes, first = np.unique(code, return_index=True)
        self.process, self.module, self.address = process[first], module[first], address[first]

    def __len__(self) -> int:
        return len(self.codes)

    def rows(self, process: Array, module: Array, address: Array) -> NDArray[np.int64]:
        """int64: the row of each, -1 where it has none."""
        if not len(self):
            return np.full(len(address), -1, np.int64)
        owner = self._owner(process, module)
        code = self._code(owner, address)
        row = np.minimum(np.searchsorted(self.codes, code), len(self) - 1)
        known = np.isin(owner, self._owners) & (self.codes[row] == code)
        return np.where(known, row, -1)

    def _owner(self, process: Array, module: Array) -> Array:
        return (np.where(self._own[module], process, -1) + 1) * (len(self.profile.modules) + 1) + module + 1

    def _code(self, owner: Array, address: Array) -> NDArray[np.uint64]:
        """Owner and address in one number, in this order: addresses have 48 bits that matter, one stays free."""
        rank = np.searchsorted(self._owners, owner).astype(np.uint64)
        return (rank << np.uint64(48)) | (address & np.uint64((1 << 48) - 1))


class Matching:
    """Finds what is the same in two profiles, by keys that are equal on both sides.

    A module is the same by its build identity, else by its last name; what is left on either side counts as one module,
    since programs get new names. A function is the same by its linkage name (by its address, too, in a module of the
    same build). A place in it is the same by address in the same build, by offset where the function has the same size,
    else by source line, else not told apart within the function.
    """

    def __init__(self, namers: Sequence[Namer]) -> None:
        self.namers = namers
        modules = [namer.profile.modules for namer in namers]
        self._same = set.intersection(*({_identity(m) for m in side} for side in modules)) - {None}
        self._named = set.intersection(*({m.short for m in side} for side in modules))
        self._sizes: list[dict[Hashable, set[int]]] = [{}, {}]

    def functions(self, side: int, spots: Spots) -> tuple[list[Hashable], list[Label]]:
        """(key, label) of the function at each spot."""
        namer = self.namers[side]
        rows = namer.rows(spots.process, spots.module, spots.address)
        keys = {row: self._function(side, namer.labels[row]) for row in np.unique(rows).tolist()}
        return [keys[row] for row in rows.tolist()], [namer.labels[row] for row in rows.tolist()]

    def measure(self, side: int, spots: Spots, keys: Sequence[Hashable]) -> None:
        """Learn the sizes of the functions at ``spots``, before `places` are asked for on either side."""
        sizes = self._sizes[side]
        for module in np.unique(spots.module).tolist():
            table, mine = self.namers[side].table(module), np.flatnonzero(spots.module == module)
            for i, row in zip(mine.tolist(), table.at(spots.address[mine]).tolist(), strict=True):
                if row >= 0:
                    sizes.setdefault(keys[i], set()).add(int(table.end[row] - table.start[row]))

    def places(self, side: int, spots: Spots) -> tuple[list[Hashable], list[Spot]]:
        """(key, what to call it) of each spot."""
        functions, labels = self.functions(side, spots)
        lines = self._lines(side, spots, functions, labels)
        modules, out = self.namers[side].profile.modules, list[tuple[Hashable, Spot]]()
        for i, (function, label, address) in enumerate(zip(functions, labels, spots.address.tolist(), strict=True)):
            module = modules[label.module].short if label.module >= 0 else ""
            where = f"+{address - label.start:#x}" if label.function else f"{address:#x}"
            key: Hashable = address - label.start
            if not self.alike(side, function, label):
                key, where = lines.get(i, (None, ""))
            out.append(((function, key), Spot(module, label.function, where)))
        return [key for key, _ in out], [spot for _, spot in out]

    def alike(self, side: int, function: Hashable, label: Label) -> bool:
        """Whether the function is the same code on both sides, so that offsets in it mean the same."""
        module = self.namers[side].profile.modules[label.module] if label.module >= 0 else None
        if module is None or _identity(module) in self._same:
            return True
        if not label.function:
            return _identity(module) is None  # nothing says that it is another build
        a, b = (sizes.get(function, set()) for sizes in self._sizes)
        return a == b and len(a) == 1

    def _function(self, side: int, label: Label) -> Hashable:
        module = self.namers[side].profile.modules[label.module] if label.module >= 0 else None
        name = _SHIFTING.sub("", label.name) or label.function
        if module is None:
            return None, name, 0
        identity = _identity(module)
        if identity in self._same:
            return identity, name, label.start
        return module.short if module.short in self._named else "", name, 0

    def _lines(
        self, side: int, spots: Spots, functions: Sequence[Hashable], labels: Sequence[Label]
    ) -> dict[int, tuple[Hashable, str]]:
        """Row -> (key, text) of the source line of the spots that have nothing better, where one is known."""
        each = enumerate(zip(functions, labels, strict=True))
        wanted = [i for i, (function, label) in each if label.function and not self.alike(side, function, label)]
        namer, rows = self.namers[side], np.array(wanted, np.int64)
        found, offsets = namer.chains("line", spots.process[rows], spots.module[rows], spots.address[rows])
        own = namer.rows(spots.process[rows], spots.module[rows], spots.address[rows])
        out: dict[int, tuple[Hashable, str]] = {}
        for i, row, function in zip(wanted, found[offsets[:-1]].tolist(), own.tolist(), strict=True):
            line, declared = namer.labels[row], namer.labels[function]
            if not line.line:
                continue
            file = line.file.replace("\\", "/").rpartition("/")[2]
            # Lines of the function itself count from its first one, which lines above it do not move.
            inside = line.name == declared.name and 0 < declared.line <= line.line
            out[i] = ((file, line.line - declared.line if inside else line.line, inside), f" {file}:{line.line}")
        return out


def _identity(module: Module) -> Hashable | None:
    if module.build_id:
        return module.build_id
    return (module.pdb_guid, module.pdb_age) if module.pdb_guid else None
