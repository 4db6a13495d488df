"""The map of machine basic blocks that clang writes with ``-fbasic-block-address-map``: ``.llvm_bb_addr_map``.

Versions 1 to 5, those of clang 16 and later. An entry a function (LLVM's docs/Extensions.rst, "SHT_LLVM_BB_ADDR_MAP";
BBAddrMap.cpp): version, features (a byte, two from version 5 on), the number of ranges where the function has several,
and for each range its address, the number of blocks and the blocks. A block is LEB128 numbers: its id (from version 2
on; else its place), its distance from the end of the block before it, its size, and its metadata. From version 3 on the
ends of its calls can come before the size, which then counts from the last of them, and from version 4 on a hash of
eight bytes can follow. The reader skips the fields of the compiler's own profile (counts, probabilities).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import IntFlag

import numpy as np

from ..arrays import Ints, distinct, offsets_of, ranges
from ..errors import FormatError
from ..model import Array, Source, counted
from .dwarf import uleb
from .files import Space
from .image import SegmentFlags
from .sections import Binary

__all__ = ["BlockFlags", "BlockMap", "read_block_map"]

SECTION = ".llvm_bb_addr_map"
VERSIONS = range(1, 6)


class Features(IntFlag):
    """The features of an entry."""

    FUNCTION_ENTRY_COUNT = 1
    BLOCK_FREQUENCY = 2
    BRANCH_PROBABILITY = 4
    MULTIPLE_RANGES = 8
    NO_BLOCKS = 16
    CALLS = 32
    """Blocks have the ends of their calls (version 3)."""
    HASHES = 64
    """Blocks have hashes (version 4)."""
    LINKED_COUNTS = 128
    """The compiler's profile has counts of the linked program, too (version 5)."""


_SINCE = {Features.CALLS: 3, Features.HASHES: 4, Features.LINKED_COUNTS: 5}
"""The first version that has a feature; it is 1 for the others."""
_HASH = 8
_MOST = 1 << 31
"""The largest distance or size of a block: the sums of that many stay within 64 bits."""


class BlockFlags(IntFlag):
    """The metadata of a block."""

    RETURN = 1
    TAIL_CALL = 2
    LANDING_PAD = 4
    FALL_THROUGH = 8
    """Whether execution can run on into the block after it."""
    INDIRECT_BRANCH = 16


@dataclass(slots=True)
class BlockMap:
    """The blocks of the functions of a binary, by address.

    Equal-length arrays: ``start`` and ``end`` (uint64 link addresses, the end exclusive; a block can be empty), ``id``
    (int64, 0 for the entry) and ``flags`` (uint8, `BlockFlags`), ``function`` (int64: row of ``entry``) and ``range``
    (int64, a number for each range of addresses). ``entry`` (uint64) is the address of each function. The blocks of a
    range are one after the other.
    """

    start: Array
    end: Array
    id: Ints
    flags: Array
    function: Ints
    range: Ints
    entry: Array
    notes: list[str] = field(default_factory=list)
    """For the user: which functions were left out."""

    def __len__(self) -> int:
        return len(self.start)

    def at(self, address: Array) -> Ints:
        """int64: the block that each address (uint64) lies in, -1 where there is none."""
        if not len(self):
            return np.full(len(address), -1, np.int64)
        # If several blocks begin at one address, the last block has the bytes.
        row = np.searchsorted(self.start, address, side="right").astype(np.int64) - 1
        return np.where((row >= 0) & (address < self.end[np.maximum(row, 0)]), row, -1)


def read_block_map(source: Source) -> BlockMap | None:
    """The map of the ELF file in ``source``; ``None`` where it has none.

    An entry of another version ends the map, since its length is not known; a note says where. Functions outside the
    code of the file, and functions that overlap another, are left out with a note. Raises `FormatError` where the file
    or an entry is damaged.
    """
    binary = Binary(source)
    if binary.image.format != "elf" or not binary.has(SECTION):
        return None
    section = next(s for s in binary.image.sections if s.name == SECTION)
    walk = _MapWalk(
        binary.section(SECTION), section.offset, binary.image.bits // 8, binary.image.byte_order == "little"
    )
    walk.run()
    return _sort_blocks(walk, binary)


class _MapWalk:
    """The entries of a section, in its order. Their blocks are decoded afterwards, for all entries at once."""

    def __init__(self, space: Space, offset: int, word: int, little: bool) -> None:
        self.space, self.offset, self.word = space, offset, word
        self.little = little
        last = space.data[: space.size] < 0x80
        self.ends = np.flatnonzero(last)
        """The possible ends of LEB128 numbers in the section; bytes of addresses are among these, too, and do not
        matter."""
        self.rank = np.cumsum(last, dtype=np.int64)
        self.at = 0
        self.entry, self.notes = list[int](), list[str]()
        self.function, self.base, self.first, self.count = list[int](), list[int](), list[int](), list[int]()
        self.width = list[int]()
        self.varied = array("Q")
        """Four words of each block with calls or a hash: its id, which number its distance is, how many calls it has,
        and which number its metadata is."""

    def bad(self, at: int, what: str, name: str, value: object) -> FormatError:
        return FormatError(f"{SECTION}: {what}", file=self.space.file, offset=self.offset + at, field=name, value=value)

    def read_fixed(self, size: int, name: str) -> int:
        at, self.at = self.at, self.at + size
        if self.at > self.space.size:
            raise self.bad(at, "ends within an entry", name, self.space.size)
        return int.from_bytes(self.space.raw[at : self.at], "little" if self.little else "big")

    def number(self, name: str) -> int:
        """A LEB128 number of at most 64 bits."""
        at = self.at
        value, self.at = uleb(self.space.raw, at, self.space.size)
        if self.at > self.space.size:
            raise self.bad(self.space.size, "ends within an entry", name, self.space.size)
        if value >> 64:
            raise self.bad(at, "a number of more than 64 bits", name, value)
        return value

    def skip(self, numbers: int, name: str) -> None:
        """Step over as many LEB128 numbers."""
        if not numbers:
            return
        before = int(self.rank[self.at - 1]) if self.at else 0
        if numbers > len(self.ends) - before:
            raise self.bad(self.at, "ends within an entry", name, numbers)
        self.at = int(self.ends[before + numbers - 1]) + 1

    def run(self) -> None:
        while self.at < self.space.size:
            begin = self.at
            version = self.read_fixed(1, "version")
            if version not in VERSIONS:
                where = f"offset {self.offset + begin:#x} of {self.space.file}"
                self.notes.append(
                    f"{SECTION}: version {version} at {where} is not known, the functions from there on are left out"
                    if self.entry
                    else f"{SECTION}: version {version} at {where} is not known"
                )
                return
            features = self.read_fixed(1 if version < 5 else 2, "features")
            if features & ~sum(one for one in Features if version >= _SINCE.get(one, 1)):
                raise self.bad(begin + 1, "features that are not known", "features", features)
            self.function_entry(version, Features(features))

    def function_entry(self, version: int, features: Features) -> None:
        at = self.at
        parts = self.number("ranges") if features & Features.MULTIPLE_RANGES else 1
        if not 0 < parts <= self.space.size - self.at:
            raise self.bad(at, "a function with that many ranges", "ranges", parts)
        blocks = 0
        for part in range(parts):
            base = self.read_fixed(self.word, "address")
            if not part:
                self.entry.append(base)
            at = self.at
            count = self.number("blocks")
            if features & Features.NO_BLOCKS:
                continue
            width = 4 if version >= 2 else 3
            if count * width > self.space.size - self.at:
                raise self.bad(at, "more blocks than there are bytes", "blocks", count)
            self.function.append(len(self.entry) - 1)
            self.base.append(base)
            self.first.append(int(self.rank[self.at - 1]))
            self.count.append(count)
            if features & (Features.CALLS | Features.HASHES):
                self.width.append(0)
                self.varied_blocks(count, features)
            else:
                self.width.append(width)
                self.skip(count * width, "blocks")
            blocks += count
        if features & Features.FUNCTION_ENTRY_COUNT:
            self.skip(1, "entry count")
        linked = bool(features & Features.LINKED_COUNTS)
        frequencies = bool(features & Features.BLOCK_FREQUENCY) + linked
        if features & Features.BRANCH_PROBABILITY:
            for _ in range(blocks):
                self.skip(frequencies, "frequency")
                at, successors = self.at, self.number("successors")
                if (2 + linked) * successors > self.space.size - self.at:
                    raise self.bad(at, "more successors than there are bytes", "successors", successors)
                self.skip((2 + linked) * successors, "probabilities")
        elif features & Features.BLOCK_FREQUENCY:
            self.skip(blocks * frequencies, "frequencies")

    def varied_blocks(self, count: int, features: Features) -> None:
        """Blocks of different lengths, singly."""
        for _ in range(count):
            number = self.number("id")  # after a hash, of which any byte can look like the end of a number
            distance = int(self.rank[self.at - 1])
            self.skip(1, "offset")
            calls, last = 0, distance + 2
            if features & Features.CALLS:
                at, calls = self.at, self.number("calls")
                if calls > self.space.size - self.at:
                    raise self.bad(at, "more calls than there are bytes", "calls", calls)
                last += 1 + calls
            self.varied.extend((number, distance, calls, last))
            self.skip(calls + 2, "blocks")
            if features & Features.HASHES:
                self.read_fixed(_HASH, "hash")

    def numbers(self, index: Ints) -> Array:
        """uint64: the LEB128 numbers that end at ``ends[index]``. Raises `FormatError` for one of more than 64 bits."""
        end = self.ends[index]
        size = end - np.where(index > 0, self.ends[index - 1], -1)
        if size.max(initial=0) > 10:
            row = int(np.argmax(size))
            raise self.bad(int(end[row]), "a number of more than 64 bits", "block", int(size[row]))
        return self.space.uleb(end - size + 1)[0]


def _sort_blocks(walk: _MapWalk, binary: Binary) -> BlockMap:
    """The blocks of a walk by address, without those that cannot be in the file."""
    count, width = np.array(walk.count, np.int64), np.array(walk.width, np.int64)
    part = np.repeat(np.arange(len(count)), count)
    place = np.arange(len(part)) - np.repeat(offsets_of(count)[:-1], count)
    wide = width[part]
    # Blocks of one range follow each other; of the numbers of a block the last three are always there.
    head = ranges(np.array(walk.first, np.int64), count) + place * (wide - 1)
    distance, last = head + wide - 3, head + wide - 1
    varied = np.flatnonzero(wide == 0)
    ids, distance[varied], calls, last[varied] = np.frombuffer(walk.varied, np.int64).reshape(-1, 4).T
    head[varied] = distance[varied]
    number = np.where(wide == 4, walk.numbers(head), place.astype(np.uint64)) if len(part) else np.empty(0, np.uint64)
    number[varied] = ids.view(np.uint64)
    gap, size, flags = (walk.numbers(which) for which in (distance, last - 1, last))
    ends = walk.numbers(ranges(distance[varied] + 2, calls))
    until = np.append(np.uint64(0), np.cumsum(np.minimum(ends, np.uint64(_MOST))))
    size[varied] += np.diff(until[offsets_of(calls)])
    for name, column in (("id", number), ("offset", gap), ("size", size), ("metadata", flags)):
        most = np.uint64(0xFF if name == "metadata" else _MOST)
        if (column > most).any():
            row = int(np.argmax(column > most))
            raise walk.bad(int(walk.ends[head[row]]), "a block that cannot be", name, int(column[row]))
    steps = np.cumsum(gap + size)
    begins = offsets_of(count)[:-1]
    before = np.append(np.uint64(0), steps)[begins] if len(part) else np.empty(0, np.uint64)
    end = np.array(walk.base, np.uint64)[part] + (steps - before[part])
    start = end - size
    function = np.array(walk.function, np.int64)[part]
    code = [(s.vaddr, s.vaddr + s.size) for s in binary.image.sections if s.flags & SegmentFlags.EXECUTE and s.size]
    low, high = np.array(sorted(code), np.uint64).reshape(-1, 2).T
    row = np.searchsorted(low, start, side="right") - 1
    inside = (row >= 0) & (end <= high[np.maximum(row, 0)]) if len(low) else np.zeros(len(start), bool)
    notes = walk.notes + _omission_note(function, ~inside, "not in the code of the file")
    order = np.lexsort((place, part, end, start))
    order = order[_whole(function, ~inside)[order]]
    reach = np.maximum.accumulate(end[order]) if len(order) else end[order]
    overlaps = np.append(False, start[order][1:] < reach[:-1]) if len(order) else np.empty(0, bool)
    notes += _omission_note(function[order], overlaps, "at addresses of another one")
    order = order[_whole(function[order], overlaps)]
    return BlockMap(
        start[order],
        end[order],
        number[order].astype(np.int64),
        flags[order].astype(np.uint8),
        function[order],
        part[order],
        np.array(walk.entry, np.uint64),
        notes,
    )


def _whole(function: Ints, wrong: Array) -> Array:
    """Which rows are of functions without a ``wrong`` row."""
    bad = np.zeros(int(function.max(initial=-1)) + 1, bool)
    bad[function[wrong]] = True
    return ~bad[function]


def _omission_note(function: Ints, wrong: Array, why: str) -> list[str]:
    number = len(distinct(function[wrong]))
    if not number:
        return []
    return [f"{SECTION}: {counted(number, 'function')} left out: {why}; is the map of another build?"]
