"""Branches and ranges of a recording that still runs, counted by module address as they come: `BoundCounter`.

The compiled library does it (``native/count_bound.c``), for branch stacks in pages of modules whose names do not depend
on the process. `counts.RunningCounts` counts all others, and without the library all, which is the oracle.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from ... import native
from ...arrays import Ints
from ...model import Array, SampleBatch
from ..counting.count_stacks import entry_places
from ..counting.early_pass import Spaces

if TYPE_CHECKING:
    from ctypes import CDLL

__all__ = ["SEVERAL", "SUMS", "BoundCounter", "PagedSpaces", "CounterTables"]

SUMS = ("count", "mispredicted", "predicted", "cycles", "timed")
"""The sums of each branch."""
_SUMS = [(name, np.int64) for name in SUMS]
_NOTES = [("type_low", np.uint8), ("type_high", np.uint8), ("process", np.uint16)]
_FROM = np.dtype([("from", np.uint32), ("to", np.uint32), ("start", np.uint32), *_NOTES, *_SUMS, ("lines", np.int64)])
_PAIR = np.dtype([("from", np.uint32), ("to", np.uint32), ("row", np.uint32), *_NOTES, *_SUMS, ("unused", np.int64)])
_LINE = np.dtype([("start", np.uint32), ("end", np.uint32), ("count", np.int64)])
_PAGE = np.dtype([("key", np.uint64), ("number", np.int32), ("used", np.int32)])
"""Rows of the tables, as count_bound.c declares them. ``process`` is 1 more than a number."""
_ROWS = (_FROM, _PAIR, _LINE)
_FROMS, _PAIRS, _LINES = range(3)
_COUNTER = np.dtype(
    [("seed", np.uint64), ("pages", np.int64), ("page_mask", np.int64), ("pages_used", np.int64),
     ("with_lines", np.int64), ("stopped", np.int64),
     ("tables", [("rows", np.int64), ("slots", np.int64), ("mask", np.int64), ("used", np.int64),
                 ("room", np.int64)], len(_ROWS))]
)  # fmt: skip
_ALL, _UNKNOWN_PAGE = 0, 1
"""Why counting stopped; else there is no room."""
SEVERAL = 0xFFFF
"""As ``process`` of a row: more than one."""
_BLOCK = 1024
"""Entries that the kernel counts at once, each of which can have a new row in each table."""
_LEAST_ROOM = 1 << 13
_LEAST_PAGES, _MOST_PAGES = 1 << 11, 1 << 18
"""The least size of the table of pages; and the most pages of modules: stacks with further pages are not counted
here."""
_BITS = 12
_LOW = np.uint64((1 << _BITS) - 1)
_SHIFT = np.uint64(_BITS)
_END = (1 << 64) - 1
_KEY_BITS = np.uint64(36)
"""The low bits of a page's key, below 1 + scope: the page's address without the bits that all its addresses share."""


class PagedSpaces(Spaces, Protocol):
    """Address spaces that say where their mappings end."""

    def cut_pages(self, bits: int) -> NDArray[np.uint64]: ...


@dataclass(slots=True)
class CounterTables:
    """Counts up to a moment: views, or copies. Rows of ``froms``, ``pairs`` and ``lines`` are those of count_bound.c;
    ``module`` int64 and ``base`` uint64 are of pages by their numbers. ``name`` int64 are the rows of labels of the
    first rows of ``froms``, ``gone`` int64[`SUMS`, labels] the sums of branches that were let go."""

    froms: Array
    pairs: Array
    lines: Array
    module: Ints
    base: NDArray[np.uint64]
    name: Ints
    gone: Ints

    def copy(self) -> CounterTables:
        return CounterTables(*(getattr(self, field.name).copy() for field in fields(self)))

    def bound(self, compact: Array) -> tuple[Ints, NDArray[np.uint64]]:
        """(module, module address) of addresses as they are in rows."""
        page = compact >> np.uint32(_BITS)
        return self.module[page], self.base[page] + (compact & np.uint32(_LOW))

    def total(self) -> int:
        """How often all branches were taken."""
        return int(self.froms["count"].sum())

    def of_first_targets(self, name: str) -> Ints:
        """The sums of the branches to their first targets."""
        found: Ints = self.froms[name].copy()
        np.subtract.at(found, self.pairs["row"], self.pairs[name])
        return found

    def hottest(self, limit: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(bool by row of ``froms``, bool by row of ``pairs``): the ``limit`` branches that were taken most often, and
        all others that were taken as often as the last of them."""
        first, other = self.of_first_targets("count"), self.pairs["count"]
        every = np.concatenate([first, other])
        least = np.partition(every, len(every) - limit)[len(every) - limit] if limit < len(every) else 0
        return first >= max(least, 1), other >= max(least, 1)

    def branches(self, froms: Array, pairs: Array) -> tuple[list[Array], list[Array]]:
        """Branches to first targets of some rows (bool) of ``froms``, and those of some (bool) of ``pairs``.

        (module and address of both ends; `SUMS` and then ``type_low``, ``type_high``, ``process``: int64)
        """
        chosen = np.flatnonzero(froms)
        mine = self.froms[chosen]
        place = np.zeros(len(self.froms), np.int64)
        place[chosen] = np.arange(len(chosen))
        beside = self.pairs[froms[self.pairs["row"]]] if len(chosen) else self.pairs[:0]
        others, values = self.pairs[pairs], []
        for name in SUMS:
            first = mine[name].copy()
            np.subtract.at(first, place[beside["row"]], beside[name])
            values.append(np.concatenate([first, others[name]]))
        notes = [np.concatenate([mine[name], others[name]]).astype(np.int64) for name, _ in _NOTES]
        ends = (self.bound(np.concatenate([mine[name], others[name]])) for name in ("from", "to"))
        return [column for end in ends for column in end], values + notes

    def near(self, module: int, start: int, end: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """As `hottest`, the branches that begin or end between these addresses of a module."""
        within = self._pages(module, start, end)
        first, other = (
            within[rows["from"] >> _BITS] | within[rows["to"] >> _BITS] for rows in (self.froms, self.pairs)
        )
        return first, other

    def ranges(self, module: int, start: int, end: int) -> tuple[list[Array], Ints]:
        """(module and address of both ends, count) of the ranges that may have code between these addresses of a
        module."""
        begins, ends = self._pages(module, 0, end), self._pages(module, start, _END)
        mine, others = (
            rows[begins[rows["start"] >> _BITS] & ends[rows[last] >> _BITS]]
            for rows, last in ((self.froms, "from"), (self.lines, "end"))
        )
        bounds = (np.concatenate(c) for c in ((mine["start"], others["start"]), (mine["from"], others["end"])))
        keys = [column for bound in bounds for column in self.bound(bound)]
        return keys, np.concatenate([mine["lines"], others["count"]])

    def _pages(self, module: int, start: int, end: int) -> NDArray[np.bool_]:
        """bool by number: pages of a module with addresses from ``start`` on and before ``end``. The element of no page
        is false."""
        found = (self.module == module) & (self.base >= np.uint64(start) & ~_LOW) & (self.base < np.uint64(end))
        found[0] = False
        return np.asarray(found)

    def by_name(self, labels: Ints) -> Ints:
        """int64[`SUMS`, labels]: sums of the branches that begin in functions with these labels; each branch counts
        once."""
        place = np.full(max(int(labels.max(initial=0)), int(self.name.max(initial=0))) + 1, -1, np.int64)
        place[labels] = np.arange(len(labels))
        mine = place[self.name]
        rows = np.flatnonzero(mine >= 0)
        mine, froms = mine[rows], self.froms[: len(self.name)][rows]
        out = np.zeros((len(SUMS), len(labels)), np.int64)
        known = labels < self.gone.shape[1]
        out[:, known] = self.gone[:, labels[known]]
        for total, column in zip(out, SUMS, strict=True):
            np.add.at(total, mine, froms[column])
        return out


class BoundCounter:
    """Counts the stacks of batches, with at most ``most`` rows a table: a full table drops the rarer half of its rows.

    ``name_of(module, address)`` (int64, uint64) are rows of labels, by which `CounterTables.by_name` adds up.
    """

    def __init__(self, library: CDLL, spaces: PagedSpaces, most: int, name_of: Callable[[Array, Array], Ints]) -> None:
        self._library, self._spaces, self._most, self._name_of = library, spaces, most, name_of
        self._numbers: dict[tuple[int, int], int] = {}
        self._module, self._base = np.full(1, -1, np.int64), np.zeros(1, np.uint64)
        self._state = np.zeros((), _COUNTER)
        self._state["seed"] = int.from_bytes(os.urandom(8))
        self._rows = [np.empty(0, kind) for kind in _ROWS]
        self._slots = [np.empty(0, np.uint32) for _ in _ROWS]
        for which in range(len(_ROWS)):
            self._resize(which, _LEAST_ROOM)
        self._name = np.empty(0, np.int64)
        """Rows of labels of the first rows of ``froms``."""
        self._gone = np.zeros((len(SUMS), 0), np.int64)
        """By row of the labels: sums of branches that were let go."""
        self._held: CounterTables | None = None
        self.left_out = 0
        """How often the branches were taken that there was no room for."""

    @classmethod
    def available(cls, spaces: PagedSpaces, most: int, name_of: Callable[[Array, Array], Ints]) -> BoundCounter | None:
        """A counter, or ``None`` without the library. `bind` it before the first batch."""
        library = native.library()
        return None if library is None else cls(library, spaces, most, name_of)

    def bind(self, own: NDArray[np.bool_], ranges: bool) -> None:
        """The spaces have changed. ``own`` (bool, by row of the modules table and one more for none) is true of memory
        whose names depend on the process. ``ranges`` are counted, too."""
        self._own = own
        self._state["with_lines"] = ranges
        self._cut: NDArray[np.uint64] | None = None
        self._new_pages(_LEAST_PAGES)

    def add(self, scope: Ints, process: Ints, batch: SampleBatch) -> NDArray[np.bool_] | None:
        """Count a batch of samples of these scopes, and of processes with these numbers (int64, -1 unknown).

        Which of the samples are not counted here; ``None``: all are.
        """
        if "previous_target" in batch:  # straight lines are counted otherwise
            return np.ones(len(batch), bool)
        scope, process = np.ascontiguousarray(scope, np.int64), np.ascontiguousarray(process, np.int64)
        first, columns = entry_places(batch)
        first, depth = np.ascontiguousarray(first, np.int64), np.ascontiguousarray(batch.depth)
        left, done, state = np.zeros(len(batch), np.uint8), 0, native.address(self._state)
        samples = [native.address(column) for column in (scope, first, depth)]
        while done < len(batch):
            done = self._library.lb_bound_count(
                state, done, *samples, native.address(process), len(batch), *columns, native.address(left)
            )
            if self._state["stopped"] == _ALL:
                break
            if self._state["stopped"] == _UNKNOWN_PAGE:
                self._find_pages(done, samples, columns[:6], len(batch))
            else:
                self._make_room()
        return left.view(bool) if left.any() else None

    # -- pages

    def _new_pages(self, number: int) -> None:
        self._pages = np.zeros(number, _PAGE)
        self._state["pages"], self._state["page_mask"] = native.address(self._pages), number - 1
        self._state["pages_used"] = 0

    def _find_pages(self, begin: int, samples: list[int], columns: list[int], number: int) -> None:
        """Number the pages of the stacks from ``begin`` on."""
        place = np.empty(len(self._pages), np.int64)
        found = self._library.lb_bound_pages(
            native.address(self._state), begin, *samples, number, *columns, native.address(place)
        )
        if not found:  # which begins anew: those of processes that have ended do no harm then
            self._new_pages(min(2 * len(self._pages), 1 << 20))
            return
        key = self._pages["key"][place[:found]]
        scope, start = (key >> _KEY_BITS).view(np.int64) - 1, _address_of(key)
        if self._cut is None:
            self._cut = self._spaces.cut_pages(_BITS)
        module, address = self._spaces.locate(scope, start)
        last_module, last = self._spaces.locate(scope, start | _LOW)
        good = (module == last_module) & (last - address == _LOW) & (address & _LOW == 0) & ~self._own[module]
        good &= ~np.isin(start & np.uint64((1 << 48) - 1), self._cut << _SHIFT) & ((module >= 0) | (start > 0))
        numbers = np.zeros(found, np.int32)
        for i in np.flatnonzero(good).tolist():
            numbers[i] = self._number(int(module[i]), int(address[i]))
        self._pages["number"][place[:found]] = numbers

    def _number(self, module: int, address: int) -> int:
        number = self._numbers.get((module, address))
        if number is None:
            number = len(self._numbers) + 1
            if number >= _MOST_PAGES:
                return 0
            self._numbers[module, address] = number
            if number >= len(self._module):
                more = len(self._module)
                self._module = np.append(self._module, np.full(more, -1, np.int64))
                self._base = np.append(self._base, np.zeros(more, np.uint64))
            self._module[number], self._base[number] = module, address
        return number

    # -- rows

    def _used_rows(self, which: int) -> Array:
        rows: Array = self._rows[which][: int(self._state["tables"][which]["used"])]
        return rows

    def _live(self) -> CounterTables:
        froms, pairs, lines = map(self._used_rows, range(len(_ROWS)))
        return CounterTables(froms, pairs, lines, self._module, self._base, self._name, self._gone)

    def _resize(self, which: int, room: int) -> None:
        self._set(which, self._used_rows(which), room)

    def _set(self, which: int, rows: Array, room: int) -> None:
        """Let a table have these rows, and room for so many."""
        if room != len(self._rows[which]):
            space = np.empty((room + 1) * rows.itemsize, np.uint8)  # rows are as long as cache lines, or divide them
            at = -native.address(space) % 64
            whole = space[at : at + room * rows.itemsize].view(rows.dtype)
            self._slots[which] = np.empty(1 << (2 * room).bit_length() - 1, np.uint32)
        else:
            whole, rows = self._rows[which], rows.copy()
        whole[: len(rows)] = rows
        self._rows[which] = whole
        table = self._state["tables"][which]
        table["rows"], table["slots"] = native.address(whole), native.address(self._slots[which])
        table["mask"], table["used"], table["room"] = len(self._slots[which]) - 1, len(rows), room
        self._library.lb_bound_index(native.address(self._state), which)

    def _make_room(self) -> None:
        """Let tables that are full grow, up to the limit, or let rows go."""
        for which in range(len(_ROWS)):
            room = len(self._rows[which])
            if len(self._used_rows(which)) + _BLOCK > room:
                if room < self._most:
                    self._resize(which, min(2 * room, self._most + 2 * _BLOCK))
                else:
                    self._drop(which)

    def _drop(self, which: int) -> None:
        """Let the rarer rows go."""
        if which == _FROMS:
            self._drop_froms()
        elif which == _PAIRS:
            self._drop_pairs()
        else:
            self._set(which, self._used_rows(which)[self._hotter(which)], len(self._rows[which]))

    def _hotter(self, which: int) -> NDArray[np.bool_]:
        """bool: the hotter half of the limit."""
        count = self._used_rows(which)["count"]
        kept = np.zeros(len(count), bool)
        kept[np.argpartition(-count, self._most // 2 - 1)[: self._most // 2]] = True
        return kept

    def _drop_froms(self) -> None:
        """Let the rarer branch instructions go, with all of their targets."""
        self._name_new()
        froms, pairs, kept = self._used_rows(_FROMS), self._used_rows(_PAIRS), self._hotter(_FROMS)
        self._let_go(self._name[~kept], froms[~kept])
        row = np.cumsum(kept) - 1
        staying = pairs[kept[pairs["row"]]]
        staying["row"] = row[staying["row"]]
        self._name = self._name[kept]
        self._set(_PAIRS, staying, len(self._rows[_PAIRS]))
        self._set(_FROMS, froms[kept], len(self._rows[_FROMS]))

    def _drop_pairs(self) -> None:
        """Let the rarer other targets go, and take them out of the sums of their branch instructions."""
        self._name_new()
        froms, pairs, kept = self._used_rows(_FROMS), self._used_rows(_PAIRS), self._hotter(_PAIRS)
        gone = pairs[~kept]
        self._let_go(self._name[gone["row"]], gone)
        for name in SUMS:
            np.subtract.at(froms[name], gone["row"], gone[name])
        self._set(_PAIRS, pairs[kept], len(self._rows[_PAIRS]))

    def _let_go(self, name: Ints, rows: Array) -> None:
        if len(name) and name.max() >= self._gone.shape[1]:
            more = np.zeros((len(SUMS), int(name.max()) + 1), np.int64)
            more[:, : self._gone.shape[1]] = self._gone
            self._gone = more
        for total, column in zip(self._gone, SUMS, strict=True):
            np.add.at(total, name, rows[column])
        self.left_out += int(rows["count"].sum())

    # -- what was counted

    def _name_new(self) -> None:
        froms = self._used_rows(_FROMS)[len(self._name) :]
        if len(froms):
            self._name = np.append(self._name, self._name_of(*self._live().bound(froms["from"])))

    def hold(self) -> None:
        """Keep the counts of this moment as the answer of `tables`, until `turn`."""
        if self._held is None:
            self._held = self._live().copy()

    def turn(self) -> None:
        """Keep the limit, name new rows, and let `tables` give the counts until now."""
        self._held = None
        for which in range(len(_ROWS)):  # while blocks are counted there can be more rows
            if len(self._used_rows(which)) > self._most:
                self._drop(which)
        self._name_new()

    def tables(self) -> CounterTables:
        return self._live() if self._held is None else self._held


def _address_of(key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The first address of the pages with these keys: uint64, of which bit 47 goes up to bit 63."""
    high = key << (np.uint64(64) - _KEY_BITS)
    return (high.view(np.int64) >> (64 - int(_KEY_BITS) - _BITS)).view(np.uint64)
