"""Engines: each follows the taken branches of one thread for a short burst.

`BlockStep` runs from branch to branch with breakpoints. `SingleStep` executes one instruction at a time; it is slower
and needs no model of a branch. Both end before a system call: a thread that blocks in one while others wait in a stop
would hang them all.
"""

from __future__ import annotations

import ctypes
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from signal import SIGTRAP
from typing import NamedTuple

from ...formats.perfdata.layout import TYPE
from .. import ptrace
from ..perf_events import syscall
from ..procfs import Stat
from ..ptrace import FLAGS, PC, RCX, RESUME_FLAG, STACK, Poke, Resumer, event_of, next_stop, signal_of, stopped
from .bursts import Burst, BurstLimits
from .control_flow import Edge, End, Fork, Placed
from .instructions import ADDRESSES, NOT_TAKEN, Branch
from .quiet_signals import handled_signal, quiet_signal
from .successors import Expectation, Successors
from .walk_tables import SLOTS, Context, SharedWord

__all__ = [
    "BlockStep",
    "Breakpoints",
    "DebugRegisters",
    "Engine",
    "HardwareBreakpoints",
    "PerfBlocks",
    "PerfBreakpoints",
    "SingleStep",
    "SteppedBlocks",
    "Target",
    "Walked",
]


@dataclass(frozen=True, slots=True)
class Target:
    """The thread of a burst, which is stopped when the burst begins."""

    tid: int
    is_trigger: Callable[[int], bool]
    """Whether a wait status means that its trigger fired, which has no effect within a burst."""


class Engine(ABC):
    """Runs bursts."""

    name: str
    signal = int(SIGTRAP)
    """The signal of its stops. It must not be blocked."""
    ends = 1
    """The most ends of a fork."""
    walks = False
    """Whether it takes forks from `walk_tables`."""

    @abstractmethod
    def burst(self, thread: Target, successors: Successors, limits: BurstLimits) -> Burst:
        """Run ``thread`` until ``limits`` are reached; `Burst.dropped` if it is not stopped again then. ``successors``
        are of its address space. Raises `ptrace.Gone` where it ended meanwhile."""

    def suit(self, thread: Stat) -> None:  # noqa: B027  most have one signal
        """Choose `signal` for the thread of the next burst, as it is now."""

    def clean(self, tid: int) -> None:  # noqa: B027  most leave nothing
        """Undo what a dropped burst left in a thread, which is stopped again."""


class SingleStep(Engine):
    """Executes one instruction at a time. A burst ends at one that must not be stepped (`Successors.step_refusal`)."""

    name = "single stepping"

    def __init__(self) -> None:
        self._registers = ptrace.Registers()

    def burst(self, thread: Target, successors: Successors, limits: BurstLimits) -> Burst:
        registers, read, tid = self._registers, successors.read, thread.tid
        ptrace.registers(tid, registers)
        burst = Burst(registers[PC], registers[PC])
        lines: dict[int, tuple[Branch | None, str]] = {}
        while not limits.full(burst):
            place = registers[PC]
            burst.end = place
            if place not in lines:
                lines[place] = successors.line(place), successors.step_refusal(place)
            branch, refusal = lines[place]
            if branch is None:
                burst.why = "unreadable code"
            elif branch.goes is None and branch.address == place:
                burst.why = "system call"
            elif refusal:
                burst.why = refusal
            elif burst.stops == limits.stops * 8:
                burst.why = "stops"
            elif limits.late(burst):
                burst.why = "time"
            if burst.why != "full" or branch is None:
                break
            taken = branch.goes(registers, branch, read) if branch.goes and branch.address == place else NOT_TAKEN
            burst.stops += 1
            burst.why = self._step(thread, burst, limits)
            read.moved()
            if burst.why != "full":
                break
            if branch.address == place and taken != NOT_TAKEN:
                burst.edges.append((place, registers[PC], branch.kind))
                burst.end = registers[PC]
        return burst

    def _step(self, thread: Target, burst: Burst, limits: BurstLimits) -> str:
        while True:
            ptrace.single_step(thread.tid)
            status = next_stop(thread.tid, limits.seconds, patient=False)
            if status is None:
                return "deadline"
            if stopped(status) and not event_of(status) and signal_of(status) == SIGTRAP:
                code, _, _ = ptrace.siginfo(thread.tid)
                if code == _TRAP_TRACE:
                    ptrace.registers(thread.tid, self._registers)
                    return "full"
            if not thread.is_trigger(status):
                burst.status = status
                return "signal" if stopped(status) else "gone"


_TRAP_TRACE = 2


# -- block stepping: from branch to branch with breakpoints
#
# `BlockStep` decodes ahead and stops at a branch further on. The end at which it stops reveals the branches before, and
# the registers there where this one goes. `Walker` does the same in C for code that was decoded before; `BlockStep`
# continues where the walk cannot, and tests compare the two.


# -- breakpoints of one thread, in debug registers or perf events
#
# Debug registers are faster, but they stop the thread with SIGTRAP, which kills it if the collector crashes at that
# moment. The perf event sends a signal that programs ignore, and vanishes with the collector.


_DR = tuple(ptrace.DEBUG_REGISTER + slot * 8 for slot in range(SLOTS))
_DR7 = ptrace.DEBUG_REGISTER + 7 * 8
_ENABLE = (0x00, 0x01, 0x05, 0x15, 0x55)
"""DR7 with the first so many debug registers on, for execution, length 1 (Intel SDM volume 3, 18.2.4)."""
_TRAP_HWBKPT, _POLL_IN = 4, 1

_EXECUTION, _LENGTH = 4, 8
"""HW_BREAKPOINT_X, which wants the length sizeof(long)."""


class Breakpoints(ABC):
    """Up to four execution breakpoints in one thread, which is stopped when a method is called, except `abandon`."""

    name: str
    signal: int
    """The signal of their stops. It must not be blocked."""

    def __init__(self) -> None:
        self._tid = -1
        self.at: tuple[int, ...] = ()
        """Their addresses."""

    def suit(self, thread: Stat) -> None:  # noqa: B027  most have one signal
        """Choose the signal by the present state of ``thread``."""

    def arm(self, tid: int) -> None:
        self._tid, self.at = tid, ()

    @abstractmethod
    def place(self, fork: Fork) -> Sequence[Poke]:
        """Stop at the ends of ``fork`` and nowhere before, once these words of struct user are set."""

    def before_walk(self, context: Context) -> None:
        """Tell the compiled walk how to move them, and how they stop the thread."""
        context.struck = self.signal << 8 | 0x7F
        context.slots_used, context.slots[: len(self.at)] = len(self.at), self.at

    @abstractmethod
    def struck(self) -> bool:
        """Whether the stop, which is by ``signal``, is at a breakpoint."""

    @abstractmethod
    def disarm(self) -> None: ...

    @abstractmethod
    def abandon(self) -> None:
        """`disarm` for a running thread: `clear` must follow when it stops."""

    def clear(self, tid: int) -> None:  # noqa: B027  closed events leave nothing
        """Remove what is left in ``tid``."""


def moves(before: tuple[int, ...], fork: Fork) -> Placed:
    """How to move breakpoints from the addresses ``before`` to the ends of ``fork``.

    One that is elsewhere may stay if no path passes it. Each answer is kept in the fork.
    """
    if found := fork.placed.get(before):
        return found
    at, done = list(before), []
    wanted = [address for address in fork.ends if address not in at]
    free = [slot for slot, address in enumerate(at) if address not in fork.ends or address in at[:slot]]
    free.sort(key=lambda slot: not fork.passes(at[slot]))  # first those that must not stay
    for slot in free:
        if wanted:
            at[slot] = wanted.pop()
        elif fork.passes(at[slot]):
            at[slot] = next(iter(fork.ends))
        else:
            continue
        done.append((slot, at[slot]))
    done += enumerate(wanted, len(at))
    found = fork.placed[before] = tuple(done), (*at, *wanted)
    return found


class _OfProcessor(Breakpoints):
    """Breakpoints in registers of the processor, which stay until they are cleared."""

    def struck(self) -> bool:
        return ptrace.siginfo(self._tid)[0] == _TRAP_HWBKPT

    def disarm(self) -> None:
        if self.at:
            self.clear(self._tid)

    def abandon(self) -> None:
        self.at = ()


class DebugRegisters(_OfProcessor):
    """DR0 to DR3, set by ptrace. For threads that may end with us."""

    name = "debug registers"
    signal = int(SIGTRAP)

    def place(self, fork: Fork) -> Sequence[Poke]:
        before = self.at
        moved, self.at = moves(before, fork)
        pokes = [(_DR[slot], address) for slot, address in moved]
        if len(self.at) != len(before):
            pokes.append((_DR7, _ENABLE[len(self.at)]))
        return pokes

    def clear(self, tid: int) -> None:
        ptrace.poke_user(tid, _DR7, 0)


class HardwareBreakpoints(_OfProcessor):
    """Breakpoints of AArch64, set by ptrace. For threads that may end with us."""

    signal = int(SIGTRAP)

    def __init__(self, slots: int) -> None:
        """``slots``: how many are used. Processors have 2 to 16."""
        super().__init__()
        self.slots, self.name = slots, f"{slots} hardware breakpoints"

    def place(self, fork: Fork) -> Sequence[Poke]:
        self._set(tuple(fork.ends))  # and nowhere else: the thread may be on an old one, which would strike again
        return ()

    def lift(self) -> None:
        """Remove all breakpoints, for one step of the instruction that has a breakpoint."""
        self._set(())

    def _set(self, addresses: tuple[int, ...]) -> None:
        if addresses != self.at:
            slots = max(len(self.at), len(addresses))
            ptrace.set_register_set(self._tid, ptrace.HW_BREAK, _hardware(addresses, slots))
            self.at = addresses

    def clear(self, tid: int) -> None:
        ptrace.set_register_set(tid, ptrace.HW_BREAK, _hardware((), self.slots))


def _hardware(addresses: Sequence[int], slots: int) -> ctypes.Array[ctypes.c_uint64]:
    """struct user_hwdebug_state: a word about the processor, then address and control of each breakpoint."""
    words = [0]
    for slot in range(slots):
        words += (addresses[slot], _ON_4_BYTES) if slot < len(addresses) else (0, 0)
    return (ctypes.c_uint64 * len(words))(*words)


_ON_4_BYTES = 0xF << 5 | 2 << 1 | 1
"""Bytes of the address, user code, enabled (DBGBCR_EL1)."""


class PerfBreakpoints(Breakpoints):
    """PERF_TYPE_BREAKPOINT events, moved by PERF_EVENT_IOC_MODIFY_ATTRIBUTES. They vanish with the collector."""

    name = "perf breakpoints"
    signal = quiet_signal(None)

    def __init__(self) -> None:
        super().__init__()
        self._fds: list[int] = []
        self._attribute = ctypes.create_string_buffer(_BREAKPOINT, len(_BREAKPOINT))
        """The fields that the walk modifies."""

    def suit(self, thread: Stat) -> None:
        unblocked = thread._replace(blocked=0)
        choices = (choose(seen) for seen in (thread, unblocked) for choose in (quiet_signal, handled_signal))
        self.signal = next(filter(None, choices))

    def place(self, fork: Fork) -> Sequence[Poke]:
        moved, self.at = moves(self.at, fork)
        for slot, address in moved:
            if slot < len(self._fds):
                syscall.modify(self._fds[slot], _attribute(address))
            else:
                self._open(_attribute(address))
        return ()

    def _open(self, attribute: bytes) -> None:
        fd = syscall.open_event(attribute, self._tid)
        self._fds.append(fd)
        syscall.signal_thread(fd, self._tid, self.signal)

    def before_walk(self, context: Context) -> None:
        super().before_walk(context)
        while len(self._fds) < SLOTS:  # the walk moves them to where they are needed
            self._open(_DISABLED)
        context.events[:], context.attribute = self._fds, ctypes.addressof(self._attribute)

    def struck(self) -> bool:
        code, _, fd = ptrace.siginfo(self._tid)
        return code == _POLL_IN and fd in self._fds

    def disarm(self) -> None:
        while self._fds:
            os.close(self._fds.pop())

    abandon = disarm


_BREAKPOINT = syscall.attribute(
    syscall.USER_ONLY, type=TYPE.BREAKPOINT, sample_period=1, bp_type=_EXECUTION, config2=_LENGTH, wakeup_events=1
)
_DISABLED = syscall.attribute(
    syscall.USER_ONLY | syscall.FLAG["disabled"],
    type=TYPE.BREAKPOINT,
    sample_period=1,
    bp_type=_EXECUTION,
    config2=_LENGTH,
    wakeup_events=1,
)
_BP_ADDR = 56
"""Offset of config1, which is bp_addr."""


def _attribute(address: int) -> bytes:
    return _BREAKPOINT[:_BP_ADDR] + address.to_bytes(8, "little") + _BREAKPOINT[_BP_ADDR + 8 :]


# -- the walk from stop to stop in C (native/branch_walk.c), as far as `walk_tables` reach
#
# Between two stops Python takes as long as the kernel does for one. The walk does the same as `BlockStep`, which
# continues where the tables end.


_AT_END, _BEFORE, _OTHER_STOP, _WAITING, _FAILED = range(5)
_ROOM = 512
"""Most ends of one walk."""


class PendingStop(NamedTuple):
    """A stop of the walk that may not be a breakpoint at an end."""

    status: int | None
    """``None``: a signal to us ended the wait, and the thread still runs."""
    before: int
    """The address it ran from."""
    was: bytes
    """`without_counter` there, if that address is an end to which it may return."""


class Walked(NamedTuple):
    """The state in which the walk ended. The branches taken until then are in the burst."""

    expected: Expectation
    chosen: Edge | None
    """The branch at which it is, or from which it resumed, if that is taken."""
    here: bool
    """It stopped at an end of ``expected``, which is yet to be processed."""
    pending: PendingStop | None
    """It ran towards ``expected``, and stopped. ``None`` and not ``here``: it did not run yet."""


class Walker:
    """Calls the walk of the compiled ``library`` for one engine, on its ``registers`` and ``breakpoints``."""

    def __init__(
        self, library: ctypes.CDLL, registers: ctypes.Array[ctypes.c_uint64], breakpoints: Breakpoints
    ) -> None:
        self._run = library.lb_branch_walk
        self._breakpoints = breakpoints
        self._passed = (ctypes.c_uint64 * (2 * _ROOM))()
        self._context = Context()
        self._context.registers = ctypes.addressof(registers)
        self._context.passed, self._context.room = ctypes.addressof(self._passed), _ROOM
        self._at = ctypes.c_void_p(ctypes.addressof(self._context))
        self._tables: object = None

    def walk(
        self,
        thread: Target,
        successors: Successors,
        expected: Expectation,
        chosen: Edge | None,
        burst: Burst,
        limits: BurstLimits,
    ) -> Walked | None:
        """Run to an end of ``expected`` and on. ``None`` where the tables lack its fork."""
        tables = successors.tables
        if tables is None or not expected.fork.node:
            return None
        c = self._context
        if tables is not self._tables:
            self._tables = tables
            c.use(tables)
        c.memory = tables.fd  # which changes with the process
        c.tid, c.alone, c.burst, c.counted_kinds = thread.tid, successors.alone, successors.burst, limits.kinds
        c.stops, c.wanted = limits.stops - burst.stops, limits.missing(burst)
        c.until = int(min(limits.end(burst), limits.until) * 1e9)
        c.node = expected.fork.node
        c.stack, c.stack_known = (expected.stack or 0) & ADDRESSES, expected.stack is not None
        c.pending = chosen is not None and limits.kinds >> chosen[2] & 1
        self._breakpoints.before_walk(c)
        c.shares = len(expected.shared)
        for index, shared in enumerate(expected.shared):
            c.shared[index] = SharedWord(*shared)
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
            assumed = tuple((s.branch, s.at, s.was) for s in c.shared[: c.shares])
            expected = Expectation(tables.forks[c.node], c.stack if c.stack_known else None, assumed)
        if why == _AT_END and chosen is not None:
            edges.append(chosen)
            burst.end, chosen = chosen[1], None
        pending = None
        if why in (_OTHER_STOP, _WAITING):
            was = without_counter(c.was) if c.again else b""
            pending = PendingStop(None if why == _WAITING else c.status, c.before, was)
        return Walked(expected, chosen, why == _AT_END, pending)


def _limit(burst: Burst, limits: BurstLimits) -> str:
    """Why ``burst`` may not run to another stop; empty: it may."""
    return "stops" if burst.stops == limits.stops else "time" if limits.late(burst) else ""


def without_counter(registers: ctypes.Array[ctypes.c_uint64]) -> bytes:
    """All but RCX, which `Successors.after` decrements for LOOP."""
    found = bytes(registers)
    return found[: RCX * 8] + found[RCX * 8 + 8 :]


class BlockStep(Engine):
    """From branch to branch with ``breakpoints``, at the ends of the forks of `successors`."""

    def __init__(self, breakpoints: Breakpoints, *, walks: bool = True) -> None:
        """``walks``: with the compiled walk, where there is one."""
        self.breakpoints = breakpoints
        self.signal, self.ends = breakpoints.signal, SLOTS
        self._registers = ptrace.Registers()
        self._resumer = Resumer(self._registers)
        self._walker: Walker | None = None
        library = ptrace.compiled()
        if walks and library is not None:
            self._walker = Walker(library, self._registers, breakpoints)
        self.walks = self._walker is not None
        self.name = f"block stepping, {breakpoints.name}{', compiled walk' * self.walks}"

    def suit(self, thread: Stat) -> None:
        self.breakpoints.suit(thread)
        self.signal = self.breakpoints.signal

    def burst(self, thread: Target, successors: Successors, limits: BurstLimits) -> Burst:
        registers = self._registers
        ptrace.registers(thread.tid, registers)
        burst = Burst(registers[PC], registers[PC])
        first = successors.line(burst.start)
        if first is not None and first.address == burst.start:  # it is at its first branch
            expected, here = Expectation(Fork({first.address: End(first, ())}, frozenset()), None), True
        else:
            expected, here = successors.of(burst.start, registers, registers[STACK]), False
        chosen: Edge | None = None  # the branch at which it is, if that will be taken: not in the burst yet
        self.breakpoints.arm(thread.tid)
        try:
            while True:
                if not expected.fork.ends:
                    burst.why = expected.fork.why
                    break
                pending: PendingStop | None = None
                if self._walker and not here:
                    if limit := _limit(burst, limits):
                        burst.why = limit
                        break
                    walked = self._walker.walk(thread, successors, expected, chosen, burst, limits)
                    if walked is not None:
                        expected, chosen, here, pending = walked
                        successors.read.moved()
                fork = expected.fork
                if not here:
                    burst.why = self._run(thread, fork, burst, limits, pending)
                    successors.read.moved()
                    if chosen and (burst.why == "full" or registers[PC] != chosen[0]):
                        burst.edges.append(chosen)
                        burst.end = chosen[1]
                    if burst.why != "full":
                        break
                end = fork.ends[registers[PC]]
                branch = end.branch
                if successors.diverged(expected, end, registers[STACK]):
                    burst.why = "unexpected path"
                    break
                burst.edges += end.path
                burst.end = branch.address
                if branch.goes is None:
                    burst.why = "system call"
                    break
                goes = branch.goes(registers, branch, successors.read)
                if goes is None:
                    burst.why = "unreadable code"
                    break
                if limits.full(burst):
                    break
                chosen = None if goes == NOT_TAKEN else (branch.address, goes, branch.kind)
                expected = successors.after(branch, goes, registers)
                # From a marker it goes on where it is, and that may be a branch at which the next fork ends.
                here = not branch.length and registers[PC] in expected.fork.ends
        finally:
            if burst.dropped:
                self.breakpoints.abandon()
            else:
                self.breakpoints.disarm()
        return burst

    def clean(self, tid: int) -> None:
        self.breakpoints.clear(tid)

    def _run(
        self, thread: Target, fork: Fork, burst: Burst, limits: BurstLimits, pending: PendingStop | None = None
    ) -> str:
        """Run to one of the ends of ``fork``; ``full`` when it is there. ``pending``: it runs already."""
        registers, pokes = self._registers, tuple[Poke, ...]()
        if pending is None:
            if limit := _limit(burst, limits):
                return limit
            burst.stops += 1
            before, was = registers[PC], b""  # registers at an address to which it may return at once
            pokes = (*self.breakpoints.place(fork),)
            if before in fork.ends:
                if registers[FLAGS] & RESUME_FLAG:
                    was = without_counter(registers)
                else:  # this instruction must run once before a breakpoint on it counts
                    pokes = (*pokes, (FLAGS * 8, registers[FLAGS] | RESUME_FLAG))
            status = self._resumer.go(thread.tid, pokes, limits.seconds)
        else:
            status, before, was = pending
            if status is None:
                status = self._resumer.wait(thread.tid, limits.seconds)
        struck = self.signal << 8 | 0x7F
        while True:
            if status is None:
                return "deadline"
            if status == struck and (at := registers[PC]) in fork.ends:
                # The kernel sets the resume flag at a breakpoint, and the next executed instruction clears it. It may
                # be left from the last stop, too, if nothing was executed since.
                ran = at != before or (was and without_counter(registers) != was)
                if (ran and registers[FLAGS] & RESUME_FLAG) or self.breakpoints.struck():
                    return "full"
            if status == struck and registers[PC] in self.breakpoints.at and self.breakpoints.struck():
                return "unexpected path"  # at one of another fork: for the program that signal would be deadly
            if not thread.is_trigger(status):
                burst.status = status
                return "signal" if stopped(status) else "gone"
            before, was = registers[PC], b""
            status = self._resumer.go(thread.tid, (), limits.seconds)


class SteppedBlocks(BlockStep):
    """`BlockStep` on AArch64: a breakpoint would strike again when the thread is resumed on it, so all are lifted for
    one step."""

    def __init__(self, breakpoints: HardwareBreakpoints) -> None:
        super().__init__(breakpoints, walks=False)
        self._lifted, self.ends = breakpoints, breakpoints.slots

    def _run(
        self, thread: Target, fork: Fork, burst: Burst, limits: BurstLimits, pending: PendingStop | None = None
    ) -> str:
        if limit := _limit(burst, limits):
            return limit
        burst.stops += 1
        registers, resumer, tid = self._registers, self._resumer, thread.tid
        steps = registers[PC] in fork.ends
        if steps:
            self._lifted.lift()
        else:
            self._lifted.place(fork)
        while True:
            status = resumer.go(tid, (), limits.seconds, step=steps)
            if status is None:
                return "deadline"
            why = ptrace.siginfo(tid)[0] if status == SIGTRAP << 8 | 0x7F else 0
            if why == (_TRAP_TRACE if steps else _TRAP_HWBKPT):
                if registers[PC] in fork.ends:
                    return "full"
                if not steps:
                    return "unexpected path"
                steps = False
                self._lifted.place(fork)
            elif not thread.is_trigger(status):
                burst.status = status
                return "signal" if stopped(status) else "gone"


class PerfBlocks(BlockStep):
    """`BlockStep` with perf breakpoints on AArch64.

    At a breakpoint the kernel turns all of the thread's off for one step, after which it turns them on again and lets
    the thread run on (breakpoint_handler in arch/arm64/kernel/hw_breakpoint.c). PTRACE_CONT takes that step away, and
    they would stay off: so the thread is resumed by PTRACE_SINGLESTEP, which gives it back.
    """

    def __init__(self, breakpoints: PerfBreakpoints) -> None:
        super().__init__(breakpoints, walks=False)
        self._off = set[int]()
        """Threads whose breakpoints are off until they are stepped."""

    def _run(
        self, thread: Target, fork: Fork, burst: Burst, limits: BurstLimits, pending: PendingStop | None = None
    ) -> str:
        if limit := _limit(burst, limits):
            return limit
        burst.stops += 1
        registers, resumer, tid = self._registers, self._resumer, thread.tid
        before, struck = registers[PC], self.signal << 8 | 0x7F
        ran = tid in self._off
        self.breakpoints.place(fork)
        while True:
            steps = tid in self._off
            self._off.discard(tid)
            status = resumer.go(tid, (), limits.seconds, step=steps)
            if status is None:
                return "deadline"
            if status == struck and self.breakpoints.struck():
                self._off.add(tid)
                if registers[PC] not in fork.ends:
                    return "unexpected path"
                if ran or registers[PC] != before:
                    return "full"
                ran = True  # it stood on a breakpoint that is new: from now on it has run when it comes there again
            elif status == SIGTRAP << 8 | 0x7F and steps and ptrace.siginfo(tid)[0] == _TRAP_TRACE:
                if registers[PC] in fork.ends:  # they were not off: a mere step
                    return "full"
                ran = True
            elif not thread.is_trigger(status):
                burst.status = status
                return "signal" if stopped(status) else "gone"
