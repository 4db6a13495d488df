"""Lines to samples: what belongs together, line by line; the entries themselves are columns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import Damage
from ...model import Array
from .text import NOTHING, RECORD, Block, Entries, Header, decode_flags, find_entries, header_of, hexadecimal

__all__ = ["Found", "Lines", "Scanned", "scan", "scan_all", "scanned_ahead"]


_LONGEST_HEADER = 512
_LONGEST_PLAIN = 20
_COMMENTS = (b"/", b";", b"#")
"""First letters of lines that people and perf write beside the data."""
_ADDRESS = 0xFFFFFFFFFFFFFFFF
MOST_REPEATED = 1 << 20
"""A stack that was aggregated stands for as many samples as its count says, up to this."""


@dataclass(slots=True)
class Stacks:
    """Lines of a block that hold entries, as columns; what can be told of a block alone.

    ``line`` its number, ``begin`` and ``entry`` where it and its first entry stand in the text, ``first`` and ``depth``
    its entries; ``plain``: nothing but an address, ``ip``, stands before them. ``records``: numbers of lines that hold
    `RECORD`.
    """

    line: NDArray[np.int64]
    begin: NDArray[np.int64]
    entry: NDArray[np.int64]
    first: NDArray[np.int64]
    depth: NDArray[np.int64]
    plain: NDArray[np.bool_]
    ip: NDArray[np.uint64]
    records: frozenset[int]


def stacks_of(block: Block, entries: Entries) -> Stacks:
    """The lines of ``block`` that ``entries`` stand in."""
    first = np.searchsorted(entries.start, block.starts)
    depth = np.searchsorted(entries.start, block.ends) - first
    line = np.flatnonzero(depth)
    begin, first, depth = block.starts[line], first[line], depth[line]
    entry = entries.start[first]
    plain, ip = _addresses(block.text, begin, entry)
    records = _record_lines(block)
    if records:
        plain &= ~np.isin(line, list(records))
    return Stacks(line, begin, entry, first, depth, plain, ip, records)


def _addresses(
    text: NDArray[np.uint8], begin: NDArray[np.int64], entry: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
    """(whether the line has a number and no more before its first entry, the number) of each line."""
    end, digits = entry - 1, np.zeros(len(entry), np.int64)
    inside, letters = np.ones(len(entry), bool), np.zeros(len(entry), np.int64)
    for back in range(1, min(_LONGEST_PLAIN, int((end - begin).max(initial=0)) + 1)):
        mark = (text[np.maximum(end - back, begin)] > ord(" ")) & (end - back >= begin)
        letters += mark
        inside &= mark
        digits += inside
    plain = (digits > 0) & (digits <= 16) & (letters == digits) & (end - begin < _LONGEST_PLAIN) & (text[end] == 32)
    ip, read = hexadecimal(text, end - np.where(plain, digits, 1), end)
    return plain & read, ip


def _record_lines(block: Block) -> frozenset[int]:
    data, places, at = block.text.tobytes(), [], -1
    while (at := data.find(RECORD, at + 1)) >= 0:
        places.append(at)
    if not places:
        return frozenset()
    return frozenset(np.searchsorted(block.ends, np.array(places, np.int64)).tolist())


@dataclass(slots=True)
class Found:
    """Samples of a block; ``headers`` and ``frames`` by their number, where they have any."""

    position: list[int] = field(default_factory=list)
    ip: list[int] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    """How often each is there."""
    headers: dict[int, Header] = field(default_factory=dict)
    frames: dict[int, list[int]] = field(default_factory=dict)
    dropped: list[tuple[int, int]] = field(default_factory=list)
    """(first, number) of entries that are in lines of another kind."""


class Lines:
    """Puts samples together from lines; keeps what goes on in the next block.

    ``on_record`` gets the text and the file offset of each line with a record; ``on_damage`` what cannot be.
    """

    def __init__(self, on_record: Callable[[bytes, int, Header], None], on_damage: Callable[[Damage], None]) -> None:
        self._on_record, self._on_damage = on_record, on_damage
        self._header: Header | None = None
        self._frames: list[tuple[int, int]] = []
        """(address, position) of lines that are only a number: frames of a call chain, or samples without entries."""
        self._count = 1
        self._with_ip = False
        """Whether samples have their address in the line of their entries, so that such lines are no frames."""

    def of_block(self, block: Block, stacks: Stacks) -> Found:
        """The samples of ``block``."""
        found = Found()
        # A line is special if it is not plain, or other lines stand before it, which may belong to it.
        apart = np.diff(stacks.line, prepend=-1) != 1
        special = np.flatnonzero(~stacks.plain | apart).tolist()
        done = 0
        for i in special:
            self._run(found, block, stacks, done, i)
            line, begin = int(stacks.line[i]), int(stacks.begin[i])
            before = int(stacks.line[i - 1]) + 1 if i else 0
            if line > before:
                self._between(block, before, line, found)
            first, depth = int(stacks.first[i]), int(stacks.depth[i])
            prefix = block.text[begin : int(stacks.entry[i])].tobytes()
            if line in stacks.records:
                found.dropped.append((first, depth))
                self._other(block, line, found)
            elif prefix.lstrip()[:1] in _COMMENTS:
                found.dropped.append((first, depth))
            else:
                self._stack(found, prefix, block.position(begin), depth)
            done = i + 1
        self._run(found, block, stacks, done, len(stacks.line))
        self._between(block, int(stacks.line[-1]) + 1 if len(stacks.line) else 0, len(block.starts), found)
        return found

    def end(self, found: Found) -> None:
        """The file is over: what waits is a sample without entries."""
        self._without_stack(found)

    def _run(self, found: Found, block: Block, stacks: Stacks, lo: int, hi: int) -> None:
        """Plain lines one after the other."""
        if lo < hi and (self._frames or self._header or self._count != 1):
            self._stack(found, b"%x" % int(stacks.ip[lo]), block.position(int(stacks.begin[lo])), int(stacks.depth[lo]))
            lo += 1
        if lo < hi:
            self._with_ip = True
            found.position += block.position(stacks.begin[lo:hi]).tolist()
            found.ip += stacks.ip[lo:hi].tolist()
            found.depth += stacks.depth[lo:hi].tolist()
            found.times += [1] * (hi - lo)

    def _stack(self, found: Found, prefix: bytes, position: int, depth: int) -> None:
        """A line with entries, behind ``prefix``."""
        header, ip = self._header, None
        try:
            ip = int(prefix, 16) & _ADDRESS
        except ValueError:
            own = header_of(prefix[:_LONGEST_HEADER]) if prefix and not prefix.isspace() else None
            if own is not None:
                header, ip = own, own.ip
        if ip is not None:
            self._with_ip = True
            if self._frames:
                self._without_stack(found)
        chain = [address for address, _ in self._frames]
        self._add(found, header, ip if ip is not None else (chain or [0])[0], chain, depth, position)

    def _add(self, found: Found, header: Header | None, ip: int, chain: list[int], depth: int, position: int) -> None:
        number = len(found.ip)
        if header is not None:
            found.headers[number] = header
        if chain:
            found.frames[number] = chain
        found.ip.append(ip)
        found.depth.append(depth)
        found.position.append(position)
        found.times.append(self._count)
        self._header, self._frames, self._count = None, [], 1

    def _without_stack(self, found: Found) -> None:
        """Lines of numbers that no entries follow: samples with an empty stack, or one with a call chain."""
        frames, header = self._frames, self._header
        if frames and self._with_ip:
            for address, position in frames:
                self._add(found, header, address, [], 0, position)
        elif frames:
            chain = [address for address, _ in frames]
            self._add(found, header, chain[0], chain, 0, frames[0][1])
        self._header, self._frames = None, []

    def _between(self, block: Block, first: int, past: int, found: Found) -> None:
        for i in range(first, past):
            self._other(block, i, found)

    def _other(self, block: Block, i: int, found: Found) -> None:
        """A line without entries of a sample."""
        line, at = block.line(i), block.position(int(block.starts[i]))
        if not line or line.isspace():
            self._without_stack(found)
        elif (mark := line.find(RECORD)) >= 0:
            self._on_record(line[mark + len(RECORD) :].rstrip(b"\r"), at, header_of(line[:mark]) or NOTHING)
        elif line[:1].isspace() and (address := _number(line.split(None, 1)[0])) is not None:
            self._frames.append((address, at))
        elif line.rstrip().isdigit():
            self._counted(int(line[:_LONGEST_PLAIN]), at)
        else:
            header = header_of(line[:_LONGEST_HEADER].rstrip())
            if header is not None and (header.time, header.tid, header.event) != (None, None, None):
                self._without_stack(found)
                self._header = header
                if header.ip is not None:  # perf prints nothing behind it where the stack is empty
                    self._add(found, header, header.ip, [], 0, at)

    def _counted(self, count: int, at: int) -> None:
        """A line that says how often the stack behind it was seen."""
        if count > MOST_REPEATED:
            self._on_damage(Damage(f"more than {MOST_REPEATED} times the same stack", at, "count", count))
        self._count = min(count, MOST_REPEATED)


def _number(text: bytes) -> int | None:
    try:
        return int(text, 16) & _ADDRESS
    except ValueError:
        return None


# -- What can be told of a block of text alone: its entries, as columns


_THREADS, _AHEAD = 2, 3
_NONE = np.empty(0, np.int64)


class Scanned(NamedTuple):
    """What can be told of a block alone; ``columns`` (from, to, flags), where they were asked for."""

    block: Block
    entries: Entries
    stacks: Stacks
    columns: tuple[Array, ...] = ()
    broken: Array = _NONE
    """Entries that cannot be read: zeros in the columns."""


def scan(block: Block) -> Scanned:
    """Where the entries of ``block`` stand."""
    entries = find_entries(block.text)
    return Scanned(block, entries, stacks_of(block, entries))


def scan_all(block: Block) -> Scanned:
    """The entries of ``block``, decoded."""
    entries = find_entries(block.text)
    stacks, good = stacks_of(block, entries), entries.only(entries.good)
    source, source_read = hexadecimal(block.text, good.start + 2, good.high - 3)
    target, target_read = hexadecimal(block.text, good.high, good.end)
    flags, flags_read = decode_flags(block.text, good)
    columns = (source, target, flags)
    read = source_read & target_read & flags_read
    if len(good) == len(entries) and read.all():
        return Scanned(block, entries, stacks, columns)
    where = np.flatnonzero(entries.good)[read]
    spread = tuple(np.zeros(len(entries), np.uint64) for _ in columns)
    for column, values in zip(spread, columns, strict=True):
        column[where] = values[read]
    return Scanned(block, entries, stacks, spread, np.setdiff1d(np.arange(len(entries)), where))


def scanned_ahead(look: Callable[[Block], Scanned], blocks: Iterable[Block]) -> Iterator[Scanned]:
    """Each of ``blocks`` as ``look`` sees it, in order; the next ones are looked at on other threads."""
    pool = ThreadPoolExecutor(_THREADS, "lastbranch-text")
    waiting: deque[Future[Scanned]] = deque()
    try:
        for block in blocks:
            waiting.append(pool.submit(look, block))
            if len(waiting) > _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
