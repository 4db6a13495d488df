"""Running ahead: the branches that a stopped thread is about to take, while it stays where it is.

native/run_ahead.c executes the thread's code on copies of its registers and of the memory that it reads. So a burst costs
one stop of the thread, however many branches it has. What cannot be known without the thread (clocks, random numbers, a
fault) ends the run, and the burst is followed by an engine instead, from branch to branch. Now and then a burst is both:
`Comparison` counts whether the thread then took the branches that were foreseen.
"""

from __future__ import annotations

import ctypes
import weakref

from ... import native
from ..architectures import HERE
from ..ptrace import PC, Registers
from .bursts import Burst, BurstLimits

__all__ = ["Comparison", "RunAhead"]

NAME = "running ahead"
WHY = (
    "full", "system call", "unreadable code", "not modelled", "fault", "instructions", "repeats itself", "memory changed",
)  # fmt: skip
"""Why a run ends, as run_ahead.c counts."""
_NOT_SEEN = frozenset(("unreadable code", "not modelled", "fault"))
"""Ends after which the burst is followed by an engine: the thread may go on where the run does not."""
_ROOM = 1 << 14
"""Most branches of a run."""
_INSTRUCTIONS, _FOR_EACH = 1 << 14, 64
"""Most instructions of a run: so many, and so many more for each branch."""
_KIND_BITS = 8


class _Run(ctypes.Structure):
    """`struct run` of run_ahead.c."""

    _fields_ = [
        (name, ctypes.c_uint64) for name in (
            "memory", "thread", "space", "alone", "kinds", "wanted", "depth", "most", "room", "registers", "edges",
            "count", "executed", "why", "address", "pages",
        )
    ]  # fmt: skip


class RunAhead:
    """Runs bursts without moving the thread. Raises `OSError` where the machine grants no memory for code."""

    name = NAME

    def __init__(self, library: ctypes.CDLL) -> None:
        self._run, self._ahead = library.lb_run_ahead, ctypes.c_void_p(library.lb_ahead_new())
        if not self._ahead:
            raise OSError("no memory for code is granted")
        weakref.finalize(self, library.lb_ahead_free, self._ahead)
        self.registers = Registers()
        """Those of the thread; after a run, as they were at its end."""
        self._edges = (ctypes.c_uint64 * (3 * _ROOM))()
        self._asked = _Run(room=_ROOM, registers=ctypes.addressof(self.registers), edges=ctypes.addressof(self._edges))
        self._at = ctypes.c_void_p(ctypes.addressof(self._asked))

    @classmethod
    def here(cls) -> RunAhead | None:
        """One for this machine; ``None`` where the compiled library or the machine has none."""
        library = native.library() if HERE.name == "x86_64" else None
        try:
            return None if library is None else cls(library)
        except OSError:
            return None

    def burst(self, tid: int, memory: int, limits: BurstLimits, *, alone: bool, space: int = 0) -> Burst | None:
        """The burst of the stopped thread ``tid`` with `registers`; ``None`` where the run cannot see it.

        ``memory``: the file descriptor of its memory. ``alone``: no other thread writes there. ``space``: a number of
        its address space, under which its code is kept.
        """
        asked, start = self._asked, self.registers[PC]
        asked.thread, asked.memory, asked.space, asked.alone = tid, memory, space, alone
        asked.kinds, asked.wanted, asked.depth = limits.kinds, limits.depth, limits.depth
        asked.most = _INSTRUCTIONS + _FOR_EACH * limits.depth
        if self._run(self._ahead, self._at):
            return None
        why = WHY[asked.why]
        if why in _NOT_SEEN or (why == "memory changed" and not asked.count):
            return None
        burst = Burst(start, why=why, stops=1, ahead=True)
        words = self._edges[: 3 * asked.count]
        sources, targets, kinds = words[::3], words[1::3], words[2::3]
        mask = (1 << _KIND_BITS) - 1
        burst.edges = list(zip(sources, targets, [kind & mask for kind in kinds], strict=True))
        burst.lengths = [kind >> _KIND_BITS for kind in kinds]
        burst.end = burst.edges[-1][1] if why == "memory changed" else asked.address
        return burst


class Comparison:
    """Which bursts are to be followed, too, and what came of it.

    The first one is, and as many later ones as a share of the time in bursts allows.
    """

    def __init__(self, share: float = 0.2) -> None:
        self._share = share
        self._owed = 0.0
        self.same = self.different = 0
        """Bursts by whether the thread took the branches that were foreseen, as far as both go."""

    def due(self) -> bool:
        """Whether the next burst is to be compared."""
        return self._owed <= 0

    def spent(self, seconds: float, *, compared: bool) -> None:
        """A burst took ``seconds``."""
        self._owed += seconds if compared else -self._share * seconds

    def add(self, foreseen: Burst, taken: Burst) -> None:
        """What was foreseen, and what the thread did."""
        both = min(len(foreseen.edges), len(taken.edges))
        if foreseen.edges[:both] == taken.edges[:both]:
            self.same += 1
        else:
            self.different += 1

    @property
    def fails(self) -> bool:
        """Whether running ahead is not to be trusted here."""
        return self.different > _MOST_DIFFERENT and self.different * 4 > self.same

    def __str__(self) -> str:
        return f"{self.same} of {self.same + self.different} followed bursts were as foreseen"


_MOST_DIFFERENT = 3
