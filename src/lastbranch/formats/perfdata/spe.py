"""Arm SPE: the packets of an AUX area to columns, one row for each operation that the processor sampled.

An operation is a record of packets, a header byte and its payload each, closed by an end or a timestamp packet.
Source: Arm Architecture Reference Manual (DDI 0487), "Statistical Profiling Extension sample record specification".
The payloads are little-endian on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...arrays import Array
from ...lbr import FLAG_FIELDS, KIND, flags_of_kinds
from ...model import Mode

__all__ = ["CLASS", "EVENT", "LONGEST", "Operations", "decode", "entries_of", "modes_of"]


class EVENT:
    """Bits of the events packet that decide what a record means here."""

    RETIRED, NOT_TAKEN, MISPREDICTED = 1 << 1, 1 << 6, 1 << 7


class CLASS:
    """Class of an operation: the index of its operation type packet."""

    OTHER, MEMORY, BRANCH = range(3)


# -- Packets: what a header byte says
#
# A header of one byte, or an extension (0x20 to 0x23) and a header. Bits 5:4 are log2 of the payload's bytes.

_END, _TIMESTAMP = 0x01, 0x71
_ADDRESS, _COUNTER = 0xB0, 0x98  # and an index in bits 2:0
_EXTENDED = re.compile(rb"[\x20-\x23][\xb0-\xb7\x98-\x9f]")
_ALIGNMENT = re.compile(rb"[\x20-\x2f]\x00")
_DATA = re.compile(rb"[^\x00]")
_CLOSING = re.compile(rb"[\x01\x71]")
LONGEST = 4096
"""Bytes. A record has 2,048 at most (PMSIDR_EL1.MaxSize), and padding."""


def _length(head: int) -> int:
    """Bytes of the packet that ``head`` begins; 0 where that needs a closer look, or is no header."""
    if head == _END:
        return 1
    known = (
        head == _TIMESTAMP or head & 0xCF in (0x42, 0x43) or head & 0xFC in (0x64, 0x48) or head & 0xF8 in (0xB0, 0x98)
    )
    return 1 + (1 << (head >> 4 & 3)) if known else 0


_LENGTHS = [_length(head) for head in range(256)]

_ADDRESSES = {0: "pc", 1: "target", 2: "addr", 3: "phys_addr", 4: "previous"}
_COUNTERS = {0: "total", 1: "issue", 2: "translation"}


@dataclass(slots=True)
class Operations:
    """Sampled operations, equal-length arrays. A field that a record lacks is 0 here; ``has`` tells which fields a
    record has, by name, bool. ``position`` int64 is where the record begins in the bytes.

    ``pc``, ``target``, ``previous`` (target of the last taken branch before), ``addr``, ``phys_addr`` uint64 as in the
    packet; ``events`` uint64; ``operation`` uint16 (class << 8 | payload); ``source`` uint16; ``el1``, ``el2`` uint32
    (context packets); ``total``, ``issue``, ``translation`` uint16 cycles; ``time`` uint64 ticks of the system counter.
    """

    position: Array
    columns: dict[str, Array]
    has: dict[str, Array]

    def __len__(self) -> int:
        return len(self.position)

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def take(self, rows: Array) -> Operations:
        """The rows of a bool mask."""
        columns, has = ({name: c[rows] for name, c in part.items()} for part in (self.columns, self.has))
        return Operations(self.position[rows], columns, has)


_DTYPES = {
    "pc": np.uint64, "target": np.uint64, "previous": np.uint64, "addr": np.uint64, "phys_addr": np.uint64,
    "events": np.uint64, "operation": np.uint16, "source": np.uint16, "el1": np.uint32, "el2": np.uint32,
    "total": np.uint16, "issue": np.uint16, "translation": np.uint16, "time": np.uint64,
}  # fmt: skip


class DecodedTrace(NamedTuple):
    """The result of `decode`: the operations, the number of bytes in whole records, and the parts left out: ``damaged``
    bytes that are no packets, ``fragments`` records without a beginning or of two. ``first`` is where the first of
    these was, -1 where there is none."""

    operations: Operations
    used: int
    damaged: int
    fragments: int
    first: int


def decode(data: bytes, ring: int, *, last: bool) -> DecodedTrace:
    """The records in ``data``, which begins at byte ``ring`` of its AUX area (alignment packets count from there).

    A record that ``data`` ends in is left (``used``) for a call with more; ``last`` says that there is no next block,
    so the record is a fragment. Bytes that are no packets end the record that they are in, and the next one that is
    whole goes on.
    """
    at, used, damaged, first = _find_packets(data, ring)
    fragments, rest = 0, _DATA.search(data, used)
    used = len(data) if rest is None else rest.start()
    if rest is not None and last:
        fragments, first, used = 1, first if first >= 0 else used, len(data)
    operations, torn = _operations(np.frombuffer(data, np.uint8), np.array(at, np.int64))
    if torn.any():
        fragments += int(torn.sum())
        where = int(operations.position[torn.argmax()])
        first = min(first, where) if first >= 0 else where
        operations = operations.take(~torn)
    return DecodedTrace(operations, used, damaged, fragments, first)


def _find_packets(data: bytes, ring: int) -> tuple[list[int], int, int, int]:
    """(starts of the packets of whole records, without padding; their ends; the number of damaged bytes, the first
    damaged byte)."""
    at: list[int] = []
    append, lengths, end = at.append, _LENGTHS, len(data)
    p, damaged, first, chains = 0, 0, -1, _Chains(data, ring)
    while p < end:
        head = data[p]
        length = lengths[head]
        if length and p + length <= end:
            append(p)
            p += length
            continue
        if length:
            break  # cut off
        following = _unusual(data, p, ring, append)
        if following is None:
            break
        if following:
            p = following
            continue
        whole = _last_close(data, at)
        begin = at[whole] if whole < len(at) else p
        del at[whole:]
        again = chains.next_whole(p + 1)
        if again is None:  # nothing that follows is whole: what looks like a cut-off record is not one
            return at, end, damaged + end - begin, first if first >= 0 else begin
        damaged += again - begin
        first = first if first >= 0 else begin
        p = again
    whole = _last_close(data, at)
    del at[whole:]
    used = at[-1] + lengths[data[at[-1]]] if at else 0
    return at, max(used, 0), damaged, first


def _unusual(data: bytes, p: int, ring: int, append: Callable[[int], None]) -> int | None:
    """The offset after the padding, alignment or extended packet at ``p``; 0 if there is no such packet, ``None`` if
    the packet is cut."""
    if data[p] == 0:
        found = _DATA.search(data, p)
        return None if found is None else found.start()
    if data[p] & 0xF0 != 0x20:
        return 0
    if p + 1 == len(data):
        return None
    if _ALIGNMENT.match(data, p):
        unit = 2 << (data[p] & 0xF)
        following = p + unit - (ring + p) % unit
        return None if following > len(data) else following
    if not _EXTENDED.match(data, p):
        return 0
    following = p + 1 + _LENGTHS[data[p + 1]]
    if following > len(data):
        return None
    append(p)
    return following


def _last_close(data: bytes, at: list[int]) -> int:
    """How many of the packets ``at`` belong to records that are closed."""
    whole = len(at)
    while whole and data[at[whole - 1]] not in (_END, _TIMESTAMP):
        whole -= 1
    return whole


class _Chains:
    """The end of a packet for each possible start in ``data``. Each byte is looked at once: any byte of a payload can
    look like a closing packet, and the packets behind many of them are the same."""

    def __init__(self, data: bytes, ring: int) -> None:
        self._data, self._ring = data, ring
        self._ends: dict[int, tuple[int, bool]] = {}
        """Place -> the closing packet that the packets from there lead to (-1: none), whether one before it is the
        address of an instruction."""

    def next_whole(self, p: int) -> int | None:
        """The start of the first whole record, from ``p`` on, after a closing packet or bytes that look like a closing
        packet."""
        for close in _CLOSING.finditer(self._data, p):
            begin = close.start() + _LENGTHS[self._data[close.start()]]
            end, named = self._end(begin)
            if named and end - begin < LONGEST:
                return begin
        return None

    def _end(self, q: int) -> tuple[int, bool]:
        data, ends, path = self._data, self._ends, []
        end, named = -1, False
        while q < len(data):
            if q in ends:
                end, named = ends[q]
                break
            head, length = data[q], _LENGTHS[data[q]]
            path.append(q)
            if head in (_END, _TIMESTAMP) and q + length <= len(data):
                end = q
                break
            following = q + length if length else _unusual(data, q, self._ring, lambda _: None)
            if not following:
                break
            q = following
        for place in reversed(path):
            named = end >= 0 and (named or data[place] == _ADDRESS)
            ends[place] = end, named
        return end, named


def _operations(data: NDArray[np.uint8], at: NDArray[np.int64]) -> tuple[Operations, NDArray[np.bool_]]:
    """(the operations of the packets ``at``, all of whole records; which of them have no address of an instruction, or
    two: the beginning of one and the end of another)."""
    head = data[at]
    extension = np.where((head & 0xFC == 0x20), head & 3, 0).astype(np.int64)
    extended = head & 0xFC == 0x20
    body = at + 1 + extended
    kind = np.where(extended, data[np.minimum(at + 1, len(data) - 1)], head) if len(data) else head
    closing = (head == _END) | (head == _TIMESTAMP)
    record = np.cumsum(closing) - closing
    rows = int(closing.sum())
    begins = np.searchsorted(record, np.arange(rows))
    columns = {name: np.zeros(rows, dtype) for name, dtype in _DTYPES.items()}
    has = {name: np.zeros(rows, bool) for name in _DTYPES}

    def put(name: str, chosen: NDArray[np.bool_], size: int) -> None:
        where = np.flatnonzero(chosen)
        if len(where):
            columns[name][record[where]] = _load(data, body[where], size).astype(_DTYPES[name])
            has[name][record[where]] = True

    index = extension << 3 | (kind & 7)
    plain = ~extended
    for number, name in _ADDRESSES.items():
        put(name, (kind & 0xF8 == _ADDRESS) & (index == number), 8)
    for number, name in _COUNTERS.items():
        put(name, (kind & 0xF8 == _COUNTER) & (index == number), 2)
    for size in (1, 2, 4, 8):
        log = {1: 0, 2: 1, 4: 2, 8: 3}[size] << 4
        put("events", plain & (head == 0x42 | log), size)
        put("source", plain & (head == 0x43 | log), size)
    put("time", plain & (head == _TIMESTAMP), 8)
    put("el1", plain & (head == 0x64), 4)
    put("el2", plain & (head == 0x65), 4)
    of_type = np.flatnonzero(plain & (head & 0xFC == 0x48))
    columns["operation"][record[of_type]] = (head[of_type].astype(np.uint16) & 3) << 8 | data[body[of_type]]
    has["operation"][record[of_type]] = True
    named = np.bincount(record[(kind & 0xF8 == _ADDRESS) & (index == 0)], minlength=rows)
    return Operations(at[begins], columns, has), named[:rows] != 1


def _load(data: NDArray[np.uint8], at: NDArray[np.int64], size: int) -> NDArray[np.uint64]:
    """The little-endian numbers of ``size`` bytes at each place."""
    out = np.zeros(len(at), np.uint64)
    for byte in range(size):
        out |= data[at + byte].astype(np.uint64) << np.uint64(8 * byte)
    return out


# -- What an operation means

_LEVEL = np.array([Mode.USER, Mode.KERNEL, Mode.KERNEL, Mode.HYPERVISOR], np.uint8)
"""By exception level: 2 is the kernel's own on hosts with VHE, 3 the firmware's."""
_FARTHEST = 1 << 20
"""Bytes. No straight-line code is that long: what is farther apart belongs to different runs."""
_CALL, _RETURN, _JUMP = 1, 2, 3  # what bits 4:3 of a branch's payload report; 0 where they report nothing


def _level(word: Array) -> NDArray[np.int64]:
    return (word >> np.uint64(61)).astype(np.int64) & 3


def _address(word: Array) -> Array:
    """The address of an instruction packet: bits 55:0, and what is above them as bit 55."""
    return ((word << np.uint64(8)).view(np.int64) >> 8).view(np.uint64)


def modes_of(operations: Operations) -> NDArray[np.uint8]:
    """`model.Mode` of each operation, by the exception level of its address."""
    return _LEVEL[_level(operations["pc"])]


class Entries(NamedTuple):
    """``ip`` uint64 address of each operation; ``branch`` bool: those that make a branch entry, with its ``source``,
    ``target`` (uint64) and ``flags`` (uint64, `lbr.words`). ``previous`` uint64: where the straight line began that the
    operation ended, 0 where that is not known or not certain. ``addr`` uint64 data address."""

    ip: Array
    branch: Array
    target: Array
    flags: Array
    previous: Array
    addr: Array


def entries_of(operations: Operations) -> Entries:
    """The branch entries of the operations: retired branches whose target is known.

    A branch that was not taken goes to the next instruction, and its flag says so. Only conditional branches can do
    that: others carry the event by mistake.
    """
    has, events, operation = operations.has, operations["events"], operations["operation"]
    ip = _address(operations["pc"])
    detail = operation & 0xFF
    conditional, indirect, reported = detail & 1 != 0, detail & 2 != 0, detail >> 3 & 3
    branch = has["operation"] & (operation >> 8 == CLASS.BRANCH) & (events & np.uint64(EVENT.RETIRED) != 0)
    passed = conditional & (events & np.uint64(EVENT.NOT_TAKEN) != 0)
    branch &= has["target"] | passed
    kind = np.select(
        [conditional, reported == _CALL, reported == _RETURN, indirect, reported == _JUMP],
        [
            np.uint8(KIND["cond"]),
            np.where(indirect, KIND["ind_call"], KIND["call"]).astype(np.uint8),
            np.uint8(KIND["ret"]),
            np.where(reported == _JUMP, KIND["ind"], KIND["unknown"]).astype(np.uint8),
            np.uint8(KIND["uncond"]),
        ],
        np.uint8(KIND["unknown"]),
    ).astype(np.uint8)
    missed = events & np.uint64(EVENT.MISPREDICTED) != 0
    flags = flags_of_kinds(kind) | np.where(missed, np.uint64(1), np.uint64(2))
    flags |= passed.astype(np.uint64) << np.uint64(FLAG_FIELDS["not_taken"][0])
    target = np.where(passed, ip + np.uint64(4), _address(operations["target"]))
    previous = _address(operations["previous"])
    certain = has["previous"] & (previous != 0) & (previous <= ip) & (ip - previous < np.uint64(_FARTHEST))
    certain &= _level(operations["previous"]) == _level(operations["pc"])
    certain &= events & np.uint64(EVENT.RETIRED) != 0
    data = operations["addr"] & np.uint64((1 << 56) - 1)
    data |= np.where(data >> np.uint64(52) == 0xF, np.uint64(0xFF << 56), np.uint64(0))
    return Entries(ip, branch, target, flags, np.where(certain, previous, np.uint64(0)), data)
