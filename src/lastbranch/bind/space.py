"""The address space of one process, as it is now."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

__all__ = ["Row", "Space"]

Row = tuple[int, int, int, int]
"""(start, end, mapping, the moment it came)."""

_MOST = 1024
"""Intervals of a chunk: what a change moves is bounded by that, however many the space has."""


@dataclass(slots=True)
class _Chunk:
    """Neighbouring intervals as columns of equal length, 32 bytes each."""

    starts: array[int]
    ends: array[int]
    owners: array[int]
    since: array[int]

    def replace(self, i: int, j: int, rows: list[Row]) -> None:
        """Put ``rows`` where the intervals ``i:j`` are."""
        if len(rows) == 1 and j == i + 1:  # most mappings take the place of one
            self.starts[i], self.ends[i], self.owners[i], self.since[i] = rows[0]
            return
        self.starts[i:j] = array("Q", [row[0] for row in rows])
        self.ends[i:j] = array("Q", [row[1] for row in rows])
        self.owners[i:j] = array("q", [row[2] for row in rows])
        self.since[i:j] = array("q", [row[3] for row in rows])

    def part(self, i: int, j: int) -> _Chunk:
        return _Chunk(self.starts[i:j], self.ends[i:j], self.owners[i:j], self.since[i:j])


def _end(chunk: _Chunk) -> int:
    return chunk.ends[-1]


@dataclass(slots=True)
class Space:
    """Mapped intervals, sorted and disjoint, in chunks that are never empty."""

    number: int
    shared: bool = False
    """Whether a child still sees it as it was at the fork."""
    chunks: list[_Chunk] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(len(chunk.starts) for chunk in self.chunks)

    def copy(self) -> Space:
        return Space(self.number, chunks=[chunk.part(0, len(chunk.starts)) for chunk in self.chunks])

    def renew(self, number: int, moment: int) -> None:
        """Call it ``number``: all that is in it came at ``moment``."""
        self.number = number
        for chunk in self.chunks:
            chunk.since = array("q", [moment]) * len(chunk.starts)

    def holds(self, start: int, end: int, mapping: int) -> bool:
        """Whether exactly this interval already belongs to ``mapping``: rundown events repeat what is known."""
        at = bisect_right(self.chunks, start, key=_end)
        if at == len(self.chunks):
            return False
        chunk = self.chunks[at]
        i = bisect_right(chunk.ends, start)
        return (chunk.starts[i], chunk.ends[i], chunk.owners[i]) == (start, end, mapping)

    def put(self, moment: int, start: int, end: int, mapping: int) -> list[Row]:
        """Give ``start:end`` to ``mapping`` (-1: to nobody); what this takes away, cut to ``start:end``."""
        chunks = self.chunks
        first = bisect_right(chunks, start, key=_end)
        taken: list[Row] = []
        rows: list[Row] = []
        after: list[Row] = []
        past, i, j = first, 0, 0
        while past < len(chunks) and chunks[past].starts[0] < end:
            chunk = chunks[past]
            lo, j = bisect_right(chunk.ends, start), bisect_left(chunk.starts, end)
            i = lo if past == first else i
            for k in range(lo, j):
                a, b, owner, since = chunk.starts[k], chunk.ends[k], chunk.owners[k], chunk.since[k]
                taken.append((max(a, start), min(b, end), owner, since))
                if a < start:
                    rows.append((a, start, owner, since))
                if b > end:
                    after.append((end, b, owner, since))
            past += 1
        if mapping >= 0:
            rows.append((start, end, mapping, moment))
        rows += after
        if past <= first:  # nothing there: before the chunk that follows, or behind the last one
            if first == len(chunks):
                if not chunks:
                    chunks.append(_Chunk(array("Q"), array("Q"), array("q"), array("q")))
                first = len(chunks) - 1
                i = len(chunks[first].starts)
            j, past = i, first + 1
        if past == first + 1:
            chunks[first].replace(i, j, rows)
        else:  # from the middle of one chunk to the middle of another
            chunks[past - 1].replace(0, j, [])
            chunks[first].replace(i, len(chunks[first].starts), rows)
            del chunks[first + 1 : past - 1]
        self._tidy(first)
        return taken

    def _tidy(self, at: int) -> None:
        """Split the chunk ``at`` where it has grown too large; drop it, and the next, where nothing is left in them."""
        for i in (at + 1, at):
            if i < len(self.chunks) and not self.chunks[i].starts:
                del self.chunks[i]
        chunk = self.chunks[at] if at < len(self.chunks) else None
        if chunk and len(chunk.starts) > _MOST:
            half = len(chunk.starts) // 2
            self.chunks[at : at + 1] = [chunk.part(0, half), chunk.part(half, len(chunk.starts))]
