"""The walk from stop to stop in machine code (native/walk.c), as far as `tables` say what comes.

Between two stops Python takes as long as the kernel does for one. What the walk does is what `block_step` does by
itself, which goes on wherever the walk comes to something that is not in the tables.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple, Protocol

from .. import ptrace
from ..native import WALK, function
from ..ptrace import RCX
from .breakpoints import DebugRegisters
from .engines import Burst, Limits
from .forks import Edge
from .ways import Ahead, Ways

__all__ = ["Came", "Context", "Walked", "Walker", "but_counter"]

_SLOTS, _TOLD = 4, 3
_AT_END, _BEFORE, _CAME, _WAITING, _FAILED = range(5)
_ROOM = 512
"""Ends that one walk may pass."""


class _Shared(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("branch", "at", "was")]
    branch: int
    at: int
    was: int


class _Block(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("length", ctypes.c_int64), ("bytes", ctypes.c_uint8 * 512)]


class Context(ctypes.Structure):
    """`struct context` of walk.c, which tells what the fields are."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in (
            "tid", "memory", "struck", "alone", "burst", "counted_kinds", "registers", "nodes", "ends", "path", "lines",
            "stores", "page_lists", "pages", "entries", "mask", "stops", "wanted", "room", "passed", "node", "stack",
            "stack_known", "pending", "slots_used",
        )),
        ("slots", ctypes.c_uint64 * _SLOTS), ("shares", ctypes.c_uint64), ("shared", _Shared * _TOLD),
        *((name, ctypes.c_uint64) for name in ("ends_passed", "stops_made", "status", "error", "before", "again")),
        ("was", ptrace.Registers), ("blocks", ctypes.c_uint64), ("block", _Block * 4),
        ("scratch", ctypes.c_uint8 * 4096),
    ]  # fmt: skip


_TABLES = ("nodes", "ends", "path", "lines", "stores", "page_lists", "pages", "entries")


class Came(NamedTuple):
    """What came instead of a breakpoint at an end; all that is known of it."""

    status: int | None
    """``None``: a signal to us ended the wait, the thread still runs."""
    before: int
    """Where it ran from."""
    was: bytes
    """Registers there, if it stood at an end that it may come back to, `but_counter`."""


class Walked(NamedTuple):
    """Where the walk ended. Branches that were taken until then are in the burst."""

    ahead: Ahead
    chosen: Edge | None
    """The branch it stands before, or ran on from, if that is taken."""
    here: bool
    """It stopped at an end of ``ahead``, and nothing of that was looked at yet."""
    came: Came | None
    """It ran to ``ahead``, and this came. ``None`` and not ``here``: it did not run yet."""


class Walking(Protocol):
    tid: int


class Walker:
    """For one engine, whose ``registers`` and ``breakpoints`` it works on. `OSError` where no memory may be
    executed."""

    def __init__(self, registers: ctypes.Array[ctypes.c_uint64], breakpoints: DebugRegisters) -> None:
        self._run = function(WALK)
        self._breakpoints = breakpoints
        self._passed = (ctypes.c_uint64 * (2 * _ROOM))()
        self._context = Context()
        self._context.registers = ctypes.addressof(registers)
        self._context.passed, self._context.room = ctypes.addressof(self._passed), _ROOM
        self._context.struck = breakpoints.signal << 8 | 0x7F
        self._at = ctypes.c_void_p(ctypes.addressof(self._context))
        self._tables: object = None

    def walk(
        self, thread: Walking, ways: Ways, ahead: Ahead, chosen: Edge | None, burst: Burst, limits: Limits
    ) -> Walked | None:
        """Go on from before the run to an end of ``ahead``. ``None`` where the tables do not know that."""
        tables = ways.tables
        if tables is None or not ahead.fork.node:
            return None
        c = self._context
        if tables is not self._tables:
            self._tables = tables
            for name in _TABLES:
                setattr(c, name, tables.at[name])
            c.memory, c.mask = tables.fd, tables.mask
        c.tid, c.alone, c.burst, c.counted_kinds = thread.tid, ways.alone, ways.burst, limits.kinds
        c.stops, c.wanted = limits.stops - burst.stops, limits.missing(burst)
        c.node, c.stack, c.stack_known = ahead.fork.node, (ahead.stack or 0) & _ADDRESSES, ahead.stack is not None
        c.pending = chosen is not None and limits.kinds >> chosen[2] & 1
        slots = self._breakpoints.at
        c.slots_used, c.slots[: len(slots)] = len(slots), slots
        c.shares = len(ahead.shared)
        for index, shared in enumerate(ahead.shared):
            c.shared[index] = _Shared(*shared)
        c.ends_passed = c.stops_made = 0
        why = self._run(self._at)
        self._breakpoints.at = tuple(c.slots[: c.slots_used])
        burst.stops += c.stops_made
        if why == _FAILED:
            raise ptrace.refusal(thread.tid, c.error)
        passed, edges = self._passed, burst.edges
        for index in range(0, 2 * c.ends_passed, 2):
            word = passed[index]
            if chosen is not None:
                edges.append(chosen)
            end = tables.end(word >> 1)
            edges += end.path
            branch = end.branch
            burst.end = branch.address
            chosen = (branch.address, passed[index + 1], branch.kind) if word & 1 else None
        if c.ends_passed:
            believed = tuple((s.branch, s.at, s.was) for s in c.shared[: c.shares])
            ahead = Ahead(tables.forks[c.node], c.stack if c.stack_known else None, believed)
        if why == _AT_END and chosen is not None:
            edges.append(chosen)
            burst.end, chosen = chosen[1], None
        came = None
        if why in (_CAME, _WAITING):
            was = but_counter(c.was) if c.again else b""
            came = Came(None if why == _WAITING else c.status, c.before, was)
        return Walked(ahead, chosen, why == _AT_END, came)


_ADDRESSES = (1 << 64) - 1


def but_counter(registers: ctypes.Array[ctypes.c_uint64]) -> bytes:
    """All but RCX, which `Ways.after` sets to what LOOP will make of it."""
    found = bytes(registers)
    return found[: RCX * 8] + found[RCX * 8 + 8 :]
