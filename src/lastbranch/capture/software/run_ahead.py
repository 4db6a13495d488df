"""Running ahead: the branches that a stopped thread is about to take, while it stays where it is.

native/run_ahead.c executes the thread's code on copies of its registers and of the memory that it reads. So a burst
costs one stop of the thread, however many branches it has. What cannot be known without the thread (clocks, random
numbers, a fault) ends the run, and an engine follows the thread instead, from branch to branch. Now and then both are
done: `Comparison` counts whether the thread took the branches that were foreseen.
"""

from __future__ import annotations

import ctypes
import os
import struct
import weakref
from collections.abc import Sequence

from ... import native
from ...model import counted
from ..architectures import HERE
from ..ptrace import PC, STACK, Registers
from .bursts import Burst, BurstLimits
from .kept_file import MemoryFiles

__all__ = ["Comparison", "Foreseen", "RunAhead", "chain_in"]

NAME = "running ahead"
WHY = (
    "full", "system call", "unreadable code", "not modelled", "fault", "instructions", "repeats itself",
    "memory changed", "time",
)  # fmt: skip
"""Why a run ends, as run_ahead.c counts."""
_NOT_SEEN = frozenset(("unreadable code", "not modelled", "fault"))
"""Ends after which the burst is followed by an engine: the thread may go on where the run does not."""
_EARLY = frozenset(("instructions", "memory changed", "time"))
"""Ends after which it is followed if there was no branch: in the midst of many repetitions, for example."""
CPUID, _CPUID = "cpuid", b"\x0f\xa2"
"""Ends a burst as a system call does: a virtual machine's monitor gets control. Each program executes some as it
begins, where to follow it takes longest: all of its code is new."""
_ROOM = 1 << 14
"""Most branches of a run."""
_INSTRUCTIONS, _FOR_EACH = 1 << 14, 64
"""The work of a run: so many instructions, and so many more for each branch. Moved bytes are work, too."""
_LONGEST = 1_200_000
"""ns of our own processor time that a run may take: what the thread loses. Most take a fifth of it."""
_EDGE, _KIND, _LENGTH_SHIFT, _LENGTH = 4, 0xFF, 8, 0xF
_MOST_CALLERS = 1 << 12
_RECORDS = 1 << 20
"""Words for the records of a burst, with their call chains."""


class _Run(ctypes.Structure):
    """`struct run` of run_ahead.c."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "memory",
            "maps",
            "pagemap",
            "thread",
            "space",
            "alone",
            "kinds",
            "wanted",
            "depth",
            "most",
            "time",
            "room",
            "registers",
            "edges",
            "count",
            "executed",
            "why",
            "address",
            "pages",
            "work",
        )
    ]


class Foreseen(Burst):
    """A burst that was foreseen: the thread need not have moved. It is valid until the next run."""

    def __init__(self, ahead: RunAhead, start: int, end: int, why: str) -> None:
        self._ahead, self._count = ahead, int(ahead.asked.count)
        super().__init__(start, end, why=why, stops=1)
        self.lengths: list[int] = []
        """Bytes of each branch instruction."""

    def __len__(self) -> int:
        return self._count

    def read_edges(self) -> None:
        """Fill in `edges` and `lengths`, which `records` does not need."""
        words = self._ahead.words[: _EDGE * self._count]
        kinds = [kind & _KIND for kind in words[2::_EDGE]]
        self.edges = list(zip(words[::_EDGE], words[1::_EDGE], kinds, strict=True))
        self.lengths = [kind >> _LENGTH_SHIFT & _LENGTH for kind in words[2::_EDGE]]

    def records(
        self, depth: int, chains: bool, callers: Sequence[tuple[int, int]] | None
    ) -> tuple[list[tuple[int, bytes]], bool]:
        """Records of ``depth`` branches, oldest first: where each ends, and what `RecordWriter.packed` takes. Also
        whether the last call chain is known. ``callers`` at the begin, innermost first: return addresses, and the stack
        pointer after each return; ``None`` if not known. ``chains``: records have call chains."""
        stacks, fit = self._ahead.records(self._count, depth, chains, callers, self.end)
        newest = (self._count - 1 - depth * n for n in range(len(stacks) - 1, 0, -1))
        ends = [self._ahead.words[_EDGE * index + 1] for index in newest]
        return list(zip([*ends, self.end], stacks, strict=True)), fit


def _is_cpuid(memory: int, address: int) -> bool:
    try:
        return os.pread(memory, len(_CPUID), address) == _CPUID
    except OSError:
        return False


class RunAhead:
    """Runs bursts without moving the thread. Raises `OSError` where the machine grants no memory for code."""

    name = NAME

    def __init__(self, library: ctypes.CDLL) -> None:
        self._run, self._ahead = library.lb_run_ahead, ctypes.c_void_p(library.lb_ahead_new())
        if not self._ahead:
            raise OSError("no memory for code is granted")
        weakref.finalize(self, library.lb_ahead_free, self._ahead)
        self.registers = Registers()
        """The registers of the thread; after a run, as they were at the run's end."""
        self.words = (ctypes.c_uint64 * (_EDGE * _ROOM))()
        """The branches of the last run, oldest first: source, target, perf's branch type with the length of the
        instruction from bit 8 on, and the stack pointer."""
        self.asked = _Run(room=_ROOM, registers=ctypes.addressof(self.registers), edges=ctypes.addressof(self.words))
        self._at = ctypes.c_void_p(ctypes.addressof(self.asked))
        self._stack = 0
        """The stack pointer before the last run."""
        self._make_records = library.lb_burst_records
        self._callers = (ctypes.c_uint64 * (2 * (_ROOM + _MOST_CALLERS)))()
        self._records = (ctypes.c_uint64 * _RECORDS)()
        self._begins, self._fits = (ctypes.c_int64 * (_ROOM + 1))(), ctypes.c_int()

    @classmethod
    def here(cls) -> RunAhead | None:
        """One for this machine; ``None`` where the compiled library or the machine has none."""
        library = native.library() if HERE.name == "x86_64" else None
        try:
            return None if library is None else cls(library)
        except OSError:
            return None

    @property
    def met_fault(self) -> bool:
        """Whether the last run ended at a fault."""
        return WHY[self.asked.why] == "fault"

    def burst(
        self,
        tid: int,
        memory: MemoryFiles,
        limits: BurstLimits,
        *,
        alone: bool,
        space: int = 0,
        partly: bool = False,
    ) -> Foreseen | None:
        """The burst of the stopped thread ``tid`` with `registers`; ``None`` where the run cannot see it.

        ``alone``: no other thread writes to its ``memory``. ``space``: a number of its address space, under which its
        code is kept. ``partly``: the burst may end where the run cannot see more.
        """
        asked, start, self._stack = self.asked, self.registers[PC], self.registers[STACK]
        asked.memory, asked.maps, asked.pagemap = memory
        asked.thread, asked.space, asked.alone = tid, space, alone
        asked.kinds, asked.wanted, asked.depth = limits.kinds, limits.depth, limits.depth
        asked.most, asked.time = _INSTRUCTIONS + _FOR_EACH * limits.depth, _LONGEST
        if self._run(self._ahead, self._at):
            return None
        why = WHY[asked.why]
        if why == "not modelled" and (asked.count or partly) and _is_cpuid(asked.memory, asked.address):
            why = CPUID
        if (why in _NOT_SEEN and not (partly and asked.count)) or (why in _EARLY and not asked.count):
            return None
        end = self.words[_EDGE * asked.count - 3] if why == "memory changed" else asked.address
        return Foreseen(self, start, end, why)

    def records(
        self, count: int, depth: int, chains: bool, callers: Sequence[tuple[int, int]] | None, end: int
    ) -> tuple[list[bytes], bool]:
        """`Foreseen.records` of the last run."""
        known = -1 if callers is None or len(callers) > _MOST_CALLERS else len(callers)
        if callers is not None and known > 0:
            self._callers[: 2 * known] = [word for caller in reversed(callers) for word in caller]
        begins, out = self._begins, self._records
        while True:
            made = self._make_records(
                self.words,
                count,
                depth,
                chains,
                self._callers,
                known,
                self._stack,
                end,
                out,
                _RECORDS,
                begins,
                ctypes.byref(self._fits),
            )
            if made >= 0:
                break
            known = -1  # deep stacks, many records: without their chains there is room
        words = memoryview(out).cast("B")
        return [bytes(words[8 * begins[n] : 8 * begins[n + 1]]) for n in range(made)], bool(self._fits.value)


def chain_in(stacks: bytes) -> list[int]:
    """The call chain of a record with one, innermost first."""
    (count,) = struct.unpack_from("=Q", stacks)
    return list(struct.unpack_from(f"=8x{count}Q", stacks))[1:]


class Comparison:
    """Which bursts are to be followed, too, and what came of it.

    As many as ``share`` of the time in bursts allows. The first one takes ``first`` seconds, since the engine does not
    know the code yet: programs that soon end do without.
    """

    def __init__(self, share: float = 0.1, first: float = 0.01) -> None:
        self._share, self._owed = share, first
        self.foreseen = 0
        self.same = self.different = 0
        """Bursts by whether the thread took the branches that were foreseen, as `add` says."""

    def due(self) -> bool:
        """Whether the next burst is to be compared."""
        return self._owed <= 0

    def spent(self, seconds: float, *, compared: bool) -> None:
        """A burst took ``seconds``."""
        self._owed += seconds if compared else -self._share * seconds

    def add(self, foreseen: Foreseen, taken: Burst) -> bool:
        """Whether the thread took the branches that were ``foreseen``, as far as both go: none of them may go on where
        an instruction of the thread ended the other. A signal from outside may come anywhere."""
        foreseen.read_edges()
        both = min(len(foreseen), len(taken))
        same = foreseen.edges[:both] == taken.edges[:both]
        longer = max(len(foreseen), len(taken))
        same = same and not any(one.ends_itself and len(one) < longer for one in (foreseen, taken))
        self.same += same
        self.different += not same
        return same

    @property
    def fails(self) -> bool:
        """Whether running ahead is not to be trusted here."""
        return self.different > _MOST_DIFFERENT and self.different * 4 > self.same

    def __str__(self) -> str:
        both = self.same + self.different
        checked = f"; {both} checked with breakpoints, {self.same} of these as foreseen" if both else ""
        return f"{counted(self.foreseen, 'burst')}{checked}"


_MOST_DIFFERENT = 3
