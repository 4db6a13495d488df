"""The call chain of each record of a burst: the stacks at its two ends, and the calls and returns between them.

A thread's stack is unwound where a burst begins and where it ends. The records in between end at branches of the burst:
from its end back, each call that is undone leaves the innermost caller, and each return makes one. If that leads to the
stack of the beginning, all of it is so; if not (a jump out of several functions, another stack), only the last record
has its chain.
"""

from __future__ import annotations

import ctypes
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from ...errors import LastbranchError
from .. import ptrace
from ..procfs import program_of
from ..ptrace import FS_BASE, PC
from ..traceable import program_contains
from .bursts import Burst
from .control_flow import CALLS, RETURN, Edge
from .instructions import ADDRESSES, LONGEST, WORD
from .run_ahead import Foreseen, chain_in
from .tree import Process, Thread
from .unwinder import ENDS, MOST_COPIED, UNREADABLE, AddressSpace, Stack, StackCopy, Unwinder

__all__ = ["CallChains", "rewound"]

_ELSEWHERE = "of a thread that had gone on"
"""A burst whose thread is not at the end that is known: it may have made or left frames since."""
_JUMPED_AHEAD = "known at the beginning of the burst only"
_JUMPED = "known at the end of the burst only"
_AT_ONCE = 0.001
_PREPARED = 2
"""Processes of a program after which others hardly map files that are not open yet, and to look takes a millisecond."""
_SPLIT = "of a program of -fsplit-stack"
"""Its stack continues elsewhere in the middle of any function, which call frame information does not describe."""
_SPLIT_ENDS = 0x70
"""Offset from FS of the end of the present piece of a split stack (__private_ss of glibc's thread control block), 0 in
threads of most other programs."""
_SPLIT_CODE = (bytes.fromhex("64483b242570000000"), bytes.fromhex("644c3b1c2570000000"))
"""``cmp rsp, fs:[0x70]`` and ``cmp r11, fs:[0x70]``, with which functions of such a program begin."""


class CallChains:
    """Takes the call stacks of bursts. ``counts`` is the number of bursts by how their stacks ended."""

    def __init__(self, unwinder: Unwinder | None) -> None:
        """``unwinder`` ``None``: no call chains are recorded."""
        self._unwinder = unwinder
        self._registers = ptrace.Registers()
        self._then, self._copied = StackCopy(), False
        """The thread as it was when the burst began, and whether `_unwind_copy` has still to unwind this copy."""
        self._now, self._copied_now = StackCopy(), False
        """The same when a burst ended that was followed."""
        self._before: Stack | None = None
        self._after: Stack | None = None
        self._mapped, self._due = set[Process](), set[Process]()
        self._prepared = defaultdict[str, set[int]](set)
        """By program, the processes that stacks were prepared for."""
        self._preparing = deque[tuple[Process, AddressSpace, Iterator[None]]]()
        self.counts = Counter[str]()
        self._refused = set[str]()
        """Programs whose stacks are split."""

    def mapped(self, process: Process) -> None:
        """``process`` mapped code."""
        process.mapped()
        self._mapped.add(process)

    def prepare(self) -> None:
        """Get ready for stacks through code that was mapped before the last call, as many programs end sooner: for
        `_AT_ONCE` seconds, since on a busy machine the program waits meanwhile."""
        due, self._due, self._mapped = self._due, self._mapped, set()
        for process in due:
            prepared = self._prepared[process.name]
            if self._unwinder is None or not process.threads:
                continue
            if process.pid in prepared or len(prepared) < _PREPARED:
                prepared.add(process.pid)
                with suppress(OSError):
                    self._preparing.append((process, process.space, self._unwinder.prepare(process.space)))
        end = time.monotonic() + _AT_ONCE
        while self._preparing and time.monotonic() < end:
            process, space, steps = self._preparing[0]
            with suppress(OSError, LastbranchError):
                if process.threads and process.space is space and next(steps, steps) is not steps:
                    continue
            self._preparing.popleft()

    def begin(self, thread: Thread) -> None:
        """A burst of the stopped ``thread`` begins. Its stack is copied, since to unwind it may take longer than the
        burst; of one that is deeper than the copy not, as far as is known."""
        self._before, self._copied = None, False
        if self._unwinder is None:
            return
        if not thread.stack_copied:
            self._before = self._stack(thread)
            return
        with suppress(OSError):
            self._then.take(thread.tid, thread.process.descriptor, thread.stack_copied)
            self._copied = not self._is_split(thread.process, self._then.registers)

    def _unwind_copy(self, thread: Thread) -> None:
        """Unwind what `begin` has copied."""
        if not self._copied:
            return
        self._copied = False
        self._before = self._unwound(thread, self._then)
        if self._before is not None and self._before.end == UNREADABLE:
            thread.stack_copied = MOST_COPIED if thread.stack_copied < MOST_COPIED else 0

    def _unwound(self, thread: Thread, copy: StackCopy) -> Stack | None:
        if self._unwinder is None:
            return None
        try:
            return self._unwinder.stack(thread.process.space, copy.registers, copy)
        except (OSError, LastbranchError):
            return None

    def end(self, thread: Thread, burst: Burst) -> None:
        """It has ended, and the thread is still stopped."""
        self._after, self._copied_now = None, False
        if burst.dropped or not len(burst):
            return
        if thread.process.splits_stack and self._unwinder is not None:
            self.counts[_SPLIT] += 1
        if isinstance(burst, Foreseen):
            return  # `records` finds its chains
        if self._copied:
            with suppress(OSError):
                self._now.take(thread.tid, thread.process.descriptor, thread.stack_copied)
                self._copied_now = True
        elif self._before is not None:
            self._reach(self._stack(thread), self._registers[PC], burst)

    def _reach(self, after: Stack | None, at: int, burst: Burst) -> None:
        """Take ``after`` as the stack at the end of ``burst`` if the thread was at the burst's end: it was at
        ``at``."""
        if after is None or at != burst.end:
            self.counts[_ELSEWHERE] += 1
        else:
            self._after = after
            self.counts[ENDS[after.end]] += 1

    def unwind(self, thread: Thread, burst: Burst) -> None:
        """Find both stacks of a burst of ``thread`` that was followed, and that `end` was called for, for `of`."""
        self._unwind_copy(thread)
        if self._copied_now and self._before is not None:
            self._reach(self._unwound(thread, self._now), self._now.registers[PC], burst)
        self._copied_now = False

    def _stack(self, thread: Thread) -> Stack | None:
        if self._unwinder is None:
            return None
        try:
            ptrace.registers(thread.tid, self._registers)
            if self._is_split(thread.process, self._registers):
                return None
            return self._unwinder.stack(thread.process.space, self._registers)
        except (OSError, LastbranchError):
            return None

    def _is_split(self, process: Process, registers: ctypes.Array[ctypes.c_uint64]) -> bool:
        """Whether the program was built with -fsplit-stack. Its file is searched only where a thread looks like it."""
        if process.splits_stack is None:
            word = process.memory(registers[FS_BASE] + _SPLIT_ENDS & ADDRESSES, WORD)
            if not int.from_bytes(word, "little"):
                return False
            process.splits_stack = program_contains(process.pid, _SPLIT_CODE)
            if process.splits_stack:
                self._refused.add(program_of(process.pid))
        return process.splits_stack

    def notes(self) -> tuple[str, ...]:
        """Notes for readers on missing stacks."""
        return tuple(
            f"no call stacks of {program}: built with -fsplit-stack, its stacks are in pieces that cannot be followed"
            for program in sorted(self._refused)
        )

    def records(self, thread: Thread, burst: Foreseen, depth: int) -> list[tuple[int, bytes]]:
        """`Foreseen.records` of the burst of ``thread`` that `end` was called for."""
        self._unwind_copy(thread)
        before, chains = self._before, self._unwinder is not None
        callers = None if before is None else list(zip(before.frames[1:], before.bases, strict=True))
        records, fit = burst.records(depth, chains, callers)
        if before is not None:
            self.counts[ENDS[before.end] if fit else _JUMPED_AHEAD] += 1
        return records

    def follow(self, thread: Thread, burst: Foreseen) -> None:
        """Find the stack at the end of the burst of ``thread`` that `end` was called for, for `of`."""
        ((_, stacks),) = self.records(thread, burst, len(burst))
        if self._before is None:
            return
        if frames := chain_in(stacks):
            self._after = Stack(frames, self._before.end)

    def of(self, edges: Sequence[Edge], places: Iterable[int]) -> list[Sequence[int]]:
        """The chain of each record of the burst that `end` was called for, whose branches were ``edges``, oldest first.
        A record ends after so many of them: ``places``, ascending. A chain is empty where it is not known."""
        *earlier, _ = ends = list(places)
        if self._after is None or self._before is None:
            return [()] * len(ends)
        found: list[Sequence[int]] | None = None
        if earlier:
            found = rewound(edges, earlier, self._before, self._after)
            if found is None:
                self.counts[_JUMPED] += 1
        return [*(found or [()] * len(earlier)), self._after.frames]


def rewound(edges: Sequence[Edge], places: Sequence[int], before: Stack, after: Stack) -> list[Sequence[int]] | None:
    """The frames after the first so many of ``edges``, for each of the ascending ``places``; ``None`` if the calls and
    returns do not lead from the stack ``before`` all edges to the stack ``after`` all edges."""
    callers = after.frames[:0:-1]
    found: list[Sequence[int]] = []
    wanted = list(places)
    for index in range(len(edges) - 1, -1, -1):
        source, target, kind = edges[index]
        if wanted and wanted[-1] == index + 1:
            wanted.pop()
            found.append((target, *reversed(callers)))
        if kind in CALLS:
            if not callers or not 0 < callers.pop() - source <= LONGEST:
                return None
        elif kind == RETURN:
            callers.append(target)
    same = all(0 <= known - made <= 1 for known, made in zip(before.frames[1:], reversed(callers), strict=False))
    whole = before.end == after.end == 0
    return found[::-1] if same and (not whole or len(callers) == len(before.frames) - 1) else None
