"""Pseudo probes: what ``clang -fpseudo-probe-for-profiling`` writes into a binary beside its code.

A probe is a basic block or a call of a function as the compiler first saw the function, with the final address of the
probe, and the calls through which the probe was inlined there. Two sections hold them
(llvm/include/llvm/MC/MCPseudoProbe.h):

- ``.pseudo_probe_desc``: for each function 8 bytes GUID, 8 bytes hash of its control flow graph, ULEB128 length, name.
- ``.pseudo_probe``: for each function whose code is here a tree of what is inlined in it: 8 bytes GUID, ULEB128 number
  of probes, ULEB128 number of inlined calls, the probes, then each inlined call as ULEB128 index of the probe of the
  call and such a tree. A probe is ULEB128 index, a byte (bits 0 to 3 kind, 4 to 6 attributes, 7: an SLEB128 distance
  from the probe before follows, else 8 bytes), and ULEB128 discriminator if an attribute says so.

The first probe of a function is at a distance from the function's start, which the symbol table knows. A function that
was split begins with a probe that only names the symbol of the part (its GUID: `guid`), the sentinel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import md5
from typing import NamedTuple

import numpy as np

from ..arrays import Array, Table
from ..errors import FormatError, LastbranchError
from ..model import counted
from .dwarf import TOO_LONG, sleb, uleb
from .files import Space
from .sections import Binary

__all__ = [
    "DESCRIPTORS",
    "PROBES",
    "Attribute",
    "Descriptor",
    "ProbeKind",
    "Probes",
    "guid",
    "read_descriptors",
    "read_probes",
]

DESCRIPTORS, PROBES = ".pseudo_probe_desc", ".pseudo_probe"
"""The names of the sections."""


class ProbeKind:
    """Values of `Probes.kind` (PseudoProbeType)."""

    BLOCK, INDIRECT_CALL, DIRECT_CALL = 0, 1, 2


class Attribute:
    """Bits of `Probes.attributes` (PseudoProbeAttributes)."""

    SENTINEL, DISCRIMINATOR = 2, 4


class Descriptor(NamedTuple):
    """The descriptor of a function: the ``name`` at compilation, and the ``hash`` of the control flow."""

    hash: int
    name: str


@dataclass(slots=True)
class Probes(Table):
    """All probes of a binary, in the order of the section.

    ``address`` uint64 is a link address, ``index`` uint32 counts from 1 (the function's entry), ``kind`` uint8 is one
    of `ProbeKind`, ``attributes`` uint8 has the bits of `Attribute`, ``discriminator`` uint32 is 0 where there is none.
    ``node`` int32 is a row of ``guids`` and its companions: one for each function, and each inlined copy.
    """

    address: Array
    index: Array
    kind: Array
    attributes: Array
    discriminator: Array
    node: Array
    guids: list[int] = field(default_factory=list)
    """By node: its function."""
    parents: list[int] = field(default_factory=list)
    """By node: the node that the function is inlined in, -1 for a function that is not inlined."""
    sites: list[int] = field(default_factory=list)
    """By node: the index of the probe of the inlined call."""
    descriptors: dict[int, Descriptor] = field(default_factory=dict)
    """By GUID."""
    unplaced: int = 0
    """Probes that were left out, as no symbol says where their function is."""
    undescribed: int = 0
    """Probes that were left out, as their function or one it is inlined in has no descriptor."""
    damage: list[str] = field(default_factory=list)
    """The places from which the sections could not be read; the probes before these places are here."""

    def take(self, rows: Array | slice) -> Probes:
        """The probes of a bool mask, a slice or of indices; all nodes stay."""
        columns = {name: c[rows] for name, c in self.arrays().items()}
        return Probes(
            **columns,
            guids=self.guids,
            parents=self.parents,
            sites=self.sites,
            descriptors=self.descriptors,
            unplaced=self.unplaced,
            undescribed=self.undescribed,
            damage=self.damage,
        )

    @property
    def notes(self) -> list[str]:
        """Notes about missing probes, for the user."""
        found = [f"pseudo probes: {what}" for what in self.damage]
        for left, why in (
            (self.unplaced, "their functions are not in the symbol table"),
            (self.undescribed, "their functions have no descriptor"),
        ):
            if left:
                found.append(f"{counted(left, 'pseudo probe')} left out: {why}")
        return found


def guid(name: str) -> int:
    """The number of the function ``name``: 64 bits of its MD5 (llvm/Support/MD5.h, MD5Hash)."""
    return int.from_bytes(md5(name.encode("utf-8", "surrogateescape"), usedforsecurity=False).digest()[:8], "little")


def read_probes(binary: Binary, starts: Mapping[int, int]) -> Probes | None:
    """The probes of ``binary``; ``None`` where it lacks one of the two sections.

    ``starts`` has the link address of each function symbol by the `guid` of its name. Sections that are damaged or cut
    off are read up to there (`Probes.damage`).
    """
    if not (binary.has(DESCRIPTORS) and binary.has(PROBES)):
        return None
    descriptors, damage = read_descriptors(binary)
    walk = _ProbeWalk(_Bytes(_section(binary, PROBES, damage)), starts)
    try:
        walk.all()
    except FormatError as error:
        damage.append(str(error))
    return walk.probes(descriptors, damage)


def read_descriptors(binary: Binary) -> tuple[dict[int, Descriptor], list[str]]:
    """(the functions that ``binary`` had before anything was inlined, by GUID; where the section could not be read
    on)."""
    found: dict[int, Descriptor] = {}
    damage: list[str] = []
    data = _Bytes(_section(binary, DESCRIPTORS, damage))
    try:
        while data.at < data.end:
            function, checksum, size = (
                data.read_fixed(8, "GUID"),
                data.read_fixed(8, "hash"),
                data.count("length of a name", 1),
            )
            name = bytes(data.raw[data.at : data.at + size]).decode("utf-8", "surrogateescape")
            data.at += size
            found.setdefault(function, Descriptor(checksum, name))
    except FormatError as error:
        damage.append(str(error))
    return found, damage


def _section(binary: Binary, name: str, damage: list[str]) -> Space:
    """A section, or as much of it as the file has."""
    try:
        return binary.section(name)
    except LastbranchError as error:
        damage.append(str(error))
        section = next((s for s in binary.image.sections if s.name == name and not s.compressed), None)
        if section is None or section.offset >= binary.source.size:
            return Space.of(b"", "<", name, binary.name)
        return Space.part(binary.source, section.offset, binary.source.size - section.offset, "<", name)


class _Bytes:
    """A section that is read from its start; numbers that reach past its end raise `FormatError`."""

    def __init__(self, space: Space) -> None:
        self.bad, self.raw, self.end, self.at = space.bad, space.raw, space.size, 0

    def read_fixed(self, size: int, what: str) -> int:
        at = self.at
        self.at = past = at + size
        if past > self.end:
            raise self.bad("ends in the middle", at, what, self.end - at)
        return int.from_bytes(self.raw[at:past], "little")

    def uleb(self, what: str) -> int:
        return self._check(uleb(self.raw, self.at, self.end), what)

    def sleb(self, what: str) -> int:
        return self._check(sleb(self.raw, self.at, self.end), what)

    def _check(self, read: tuple[int, int], what: str) -> int:
        value, after = read
        if after > self.end:
            raise self.bad("ends in the middle", self.at, what, value)
        if value >= TOO_LONG >> 1:
            raise self.bad("a number of more than 64 bits", self.at, what, value % (TOO_LONG >> 1))
        self.at = after
        return value

    def count(self, what: str, least: int) -> int:
        """A number of things of at least ``least`` bytes each."""
        begin, value = self.at, self.uleb(what)
        if value * least > self.end - self.at:
            raise self.bad(f"{self.end - self.at} bytes are left", begin, what, value)
        return value


_PROBE_BYTES, _TREE_BYTES = 3, 11
"""The least that a probe takes (index, kind, distance) and an inlined tree (site, GUID, two numbers)."""
_ADDRESS = (1 << 64) - 1
_BY_DISTANCE = 0x80
_UNLIKE = _BY_DISTANCE | (Attribute.SENTINEL | Attribute.DISCRIMINATOR) << 4
_PLAIN_BYTES = 4
"""The most that a probe without discriminator takes whose index is below 128 and whose distance is below 8192."""


class _ProbeWalk:
    """Reads trees of probes, one after the other."""

    def __init__(self, data: _Bytes, starts: Mapping[int, int]) -> None:
        self._data, self._starts = data, starts
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._nodes: list[int] = []
        self._placed: list[bool] = []
        self._guids, self._parents, self._sites = list[int](), list[int](), list[int]()
        self._last, self._known = 0, False
        self._by_address = False
        """Whether first probes have addresses, as LLVM before 17 wrote."""

    def all(self) -> None:
        data = self._data
        while data.at < data.end:
            open_nodes = [self._tree(-1, 0)]  # (node, trees left to read in it)
            while open_nodes:
                node, left = open_nodes.pop()
                if left:
                    open_nodes.append((node, left - 1))
                    open_nodes.append(self._tree(node, data.uleb("index of a call")))

    def _tree(self, parent: int, site: int) -> tuple[int, int]:
        data, rows, nodes, placed = self._data, self._rows, self._nodes, self._placed
        function = data.read_fixed(8, "GUID")
        node = len(self._guids)
        self._guids.append(function)
        self._parents.append(parent)
        self._sites.append(site)
        if parent < 0 and not self._by_address:
            start = self._starts.get(function)
            self._last, self._known = (self._last, False) if start is None else (start, True)
        count, inlined = data.count("number of probes", _PROBE_BYTES), data.uleb("number of inlined calls")
        last, known = self._last, self._known
        raw, at, until = data.raw, data.at, data.end - _PLAIN_BYTES
        for _ in range(count):
            # Nearly all are so: a small index, no discriminator, and a distance of one or two bytes.
            if at <= until and (index := raw[at]) < 0x80 and (word := raw[at + 1]) & _UNLIKE == _BY_DISTANCE:
                low, high = raw[at + 2], raw[at + 3]
                if low < 0x80 or high < 0x80:
                    if low < 0x80:
                        distance, at = low - ((low & 0x40) << 1), at + 3
                    else:
                        distance, at = (low & 0x7F | high << 7) - ((high & 0x40) << 8), at + 4
                    last = last + distance & _ADDRESS
                    rows.append((last, index, word & 15, word >> 4 & 7, 0))
                    nodes.append(node)
                    placed.append(known)
                    continue
            data.at = at
            last, known = self._probe(node, last, known)
            at = data.at
        data.at = at
        self._last, self._known = last, known
        if inlined * _TREE_BYTES > data.end - data.at:
            raise data.bad(f"{data.end - data.at} bytes are left", data.at, "number of inlined calls", inlined)
        return node, inlined

    def _probe(self, node: int, last: int, known: bool) -> tuple[int, bool]:
        """Read any probe: its address, or that of the sentinel's function, and whether it is known."""
        data = self._data
        index, word = data.uleb("index"), data.read_fixed(1, "kind")
        attributes = word >> 4 & 7
        if word & _BY_DISTANCE:
            last = last + data.sleb("distance") & _ADDRESS
        else:
            last = data.read_fixed(8, "address")
            if attributes & Attribute.SENTINEL:
                start = self._starts.get(last)
                last, known = (last, False) if start is None else (start, True)
            else:
                self._by_address = known = True
        discriminator = data.uleb("discriminator") if attributes & Attribute.DISCRIMINATOR else 0
        if not attributes & Attribute.SENTINEL:
            self._rows.append((last, index & 0xFFFFFFFF, word & 15, attributes, discriminator & 0xFFFFFFFF))
            self._nodes.append(node)
            self._placed.append(known)
        return last, known

    def probes(self, descriptors: dict[int, Descriptor], damage: list[str]) -> Probes:
        """The probes that were read so far."""
        kinds = (np.uint64, np.uint32, np.uint8, np.uint8, np.uint32)
        columns = zip(*self._rows, strict=True) if self._rows else ((),) * len(kinds)
        address, index, kind, attributes, discriminator = (
            np.array(c, dtype) for c, dtype in zip(columns, kinds, strict=True)
        )
        node, placed = np.array(self._nodes, np.int32), np.array(self._placed, bool)
        known = np.zeros(len(self._guids), bool)
        for row, (function, parent) in enumerate(zip(self._guids, self._parents, strict=True)):
            known[row] = function in descriptors and (parent < 0 or known[parent])
        found = Probes(
            address,
            index,
            kind,
            attributes,
            discriminator,
            node,
            self._guids,
            self._parents,
            self._sites,
            descriptors,
            int((~placed).sum()),
            int((placed & ~known[node]).sum()),
            damage,
        )
        return found if placed.all() and known.all() else found.take(placed & known[node])
