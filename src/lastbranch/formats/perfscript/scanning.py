"""What can be told of a block of text alone: its entries, as columns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from ...model import Array
from .blocks import Block
from .entries import Entries, decode_flags, find_entries, hexadecimal
from .samples import Stacks, stacks_of

__all__ = ["Scanned", "scan", "scan_all", "scanned_ahead"]

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
