"""ptrace(2) and waitpid(2) through ctypes: requests, registers of another thread, and running it from stop to stop.

Numbers and layouts: Linux include/uapi/linux/ptrace.h; what differs between processors is in `architectures`. Requests
raise `Gone` for a thread that has ended or is not stopped, and `OSError` for any other failure.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .. import native
from .architectures import HERE

__all__ = [
    "SyscallBatch",
    "CS",
    "DEBUG_REGISTER",
    "EFLAGS",
    "EVENT_CLONE",
    "EVENT_EXEC",
    "EVENT_FORK",
    "EVENT_STOP",
    "EVENT_VFORK",
    "EXITKILL",
    "FLAGS",
    "FOLLOW",
    "GENERAL",
    "Gone",
    "HW_BREAK",
    "Interrupted",
    "NEW_TASK",
    "ORIG_RAX",
    "PC",
    "PassingSignals",
    "Resumer",
    "Poke",
    "RESUME_FLAG",
    "RIP",
    "Registers",
    "STACK",
    "THREADS",
    "TICK",
    "TRACE_CALLS",
    "WORDS",
    "at_call",
    "compiled",
    "cont",
    "cont_to_call",
    "detach",
    "event_message",
    "event_of",
    "go_on_at",
    "interrupt",
    "is_64_bit",
    "is_fault",
    "listen",
    "next_stop",
    "poke_user",
    "refusal",
    "register_set",
    "registers",
    "reports",
    "restarts",
    "seize",
    "set_register_set",
    "set_sigmask",
    "siginfo",
    "sigmask",
    "signal_of",
    "single_step",
    "stopped",
    "ticking",
    "wait",
]


POKEUSER, CONT, _SINGLESTEP, _DETACH = 6, 7, 9, 17
_SETOPTIONS, _SYSCALL = 0x4200, 24
_GETEVENTMSG, _GETSIGINFO, _SEIZE, _INTERRUPT, _LISTEN = 0x4201, 0x4202, 0x4206, 0x4207, 0x4208
_GETSIGMASK, _SETSIGMASK = 0x420A, 0x420B
_GETREGSET, _SETREGSET = 0x4204, 0x4205
_PRSTATUS, HW_BREAK, _SYSTEM_CALL = 1, 0x402, 0x404
"""NT_PRSTATUS, NT_ARM_HW_BREAK and NT_ARM_SYSTEM_CALL: sets of registers."""

EVENT_FORK, EVENT_VFORK, EVENT_CLONE, EVENT_EXEC, EVENT_STOP = 1, 2, 3, 4, 128
NEW_TASK = (EVENT_FORK, EVENT_VFORK, EVENT_CLONE)
FOLLOW = 1 << EVENT_FORK | 1 << EVENT_VFORK | 1 << EVENT_CLONE | 1 << EVENT_EXEC
"""PTRACE_O_* for stops at forks, clones and execs; new tasks are traced from their first instruction."""
THREADS = 1 << EVENT_CLONE
"""The part of `FOLLOW` that is for new threads."""
TRACE_CALLS = 1
"""PTRACE_O_TRACESYSGOOD: stops at system calls have a signal number of their own (`at_call`)."""
EXITKILL = 1 << 20
"""PTRACE_O_EXITKILL: the traced program is killed when its tracer ends."""

_AT_CALL = (signal.SIGTRAP | 0x80) << 8 | 0x7F
WALL = 0x40000000
_SIGINFO_SIZE, _SIGMASK_SIZE = 128, 8

R15, R14, R13, R12, RBP, RBX, R11, R10, R9, R8, RAX, RCX, RDX, RSI, RDI = range(15)
ORIG_RAX, RIP, CS, EFLAGS, RSP, FS_BASE, GS_BASE = 15, 16, 17, 18, 19, 21, 22
"""Indexes into `Registers` of x86-64 (struct user_regs_struct)."""
PC, STACK, FLAGS, RESUME_FLAG = HERE.pc, HERE.stack, HERE.flags, HERE.resume_flag
"""The register indexes of this machine, and its resume flag (0: none)."""
GENERAL = (RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15)
"""Indexes by the register numbers of machine code (Intel SDM volume 2, table 2-2)."""
DEBUG_REGISTER = 848
"""Offset of u_debugreg[0] in struct user."""

Registers = ctypes.c_uint64 * HERE.words

_libc = ctypes.CDLL(None, use_errno=True)
_ptrace = _libc.ptrace
_ptrace.restype = ctypes.c_long
_ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_waitpid = _libc.waitpid
_waitpid.restype = ctypes.c_int
_status = ctypes.c_int()
_status_at = ctypes.byref(_status)
_siginfo = (ctypes.c_int32 * (_SIGINFO_SIZE // 4))()
_siginfo_at = ctypes.addressof(_siginfo)


class Gone(Exception):
    """The thread has ended, or is no longer stopped by us."""


class Interrupted(Exception):
    """A signal ended `wait`."""


def _call(request: int, tid: int, address: int = 0, data: int = 0) -> None:
    if _ptrace(request, tid, address, data) == -1:
        raise refusal(tid, ctypes.get_errno())


def refusal(tid: int, code: int) -> Exception:
    """The exception for a request for ``tid`` that failed with the errno ``code``."""
    return Gone(tid) if code == errno.ESRCH else OSError(code, f"ptrace: {os.strerror(code)}")


def seize(tid: int, options: int) -> None:
    """Start to trace ``tid`` without stopping it. Raises `PermissionError` if tracing is not allowed."""
    _call(_SEIZE, tid, 0, options)


def set_options(tid: int, options: int) -> None:
    """Change the PTRACE_O_* of a stopped thread."""
    _call(_SETOPTIONS, tid, 0, options)


def interrupt(tid: int) -> None:
    """Make a running thread stop (`EVENT_STOP`)."""
    _call(_INTERRUPT, tid)


def listen(tid: int) -> None:
    """Leave a thread in its group-stop until job control resumes it."""
    _call(_LISTEN, tid)


def cont(tid: int, signal: int = 0) -> None:
    """Resume it, with ``signal`` delivered."""
    _call(CONT, tid, 0, signal)


def cont_to_call(tid: int) -> None:
    """Resume the thread until its next entry into a system call or exit from one (`at_call`), or another stop."""
    _call(_SYSCALL, tid)


def single_step(tid: int, signal: int = 0) -> None:
    _call(_SINGLESTEP, tid, 0, signal)


def detach(tid: int, signal: int = 0) -> None:
    _call(_DETACH, tid, 0, signal)


def registers(tid: int, into: ctypes.Array[ctypes.c_uint64]) -> None:
    """Fill a `Registers`."""
    _call(HERE.get_registers, tid, 0, ctypes.addressof(into))


def register_set(tid: int, number: int, into: ctypes.Array[Any]) -> int:
    """Fill ``into`` with the registers of the set ``number`` (NT_*); the bytes that there are."""
    vector = _Vector(ctypes.addressof(into), ctypes.sizeof(into))
    _call(_GETREGSET, tid, number, ctypes.addressof(vector))
    return int(vector.length)


def set_register_set(tid: int, number: int, values: ctypes.Array[Any]) -> None:
    """Set the first registers of the set ``number`` to ``values``."""
    vector = _Vector(ctypes.addressof(values), ctypes.sizeof(values))
    _call(_SETREGSET, tid, number, ctypes.addressof(vector))


class _Vector(ctypes.Structure):
    """struct iovec."""

    _fields_ = [("base", ctypes.c_uint64), ("length", ctypes.c_uint64)]


def _registers_of_set(tid: int, into: ctypes.Array[ctypes.c_uint64]) -> None:
    register_set(tid, _PRSTATUS, into)


if not HERE.get_registers:
    registers = _registers_of_set


def is_64_bit(registers: ctypes.Array[ctypes.c_uint64]) -> bool:
    """Whether a thread with these executes 64-bit code."""
    register, mask, value = HERE.mode
    return registers[register] & mask == value


def restarts(registers: ctypes.Array[ctypes.c_uint64]) -> bool:
    """Whether a stopped thread goes on with a system call that the stop has interrupted: the kernel changes its
    registers first (ERESTARTSYS to ERESTART_RESTARTBLOCK, include/linux/errno.h)."""
    return registers[ORIG_RAX] != _NO_CALL and -516 <= ctypes.c_int64(registers[RAX]).value <= -512


def go_on_at(tid: int, address: int) -> None:
    """Let the thread continue at ``address``; an interrupted system call is not restarted."""
    if HERE.call_number >= 0:
        poke_user(tid, HERE.call_number * 8, _NO_CALL)
        poke_user(tid, PC * 8, address)
        return
    set_register_set(tid, _SYSTEM_CALL, (ctypes.c_int32 * 1)(-1))
    values = Registers()
    registers(tid, values)
    values[PC] = address
    set_register_set(tid, _PRSTATUS, values)


_NO_CALL = (1 << 64) - 1


def poke_user(tid: int, offset: int, value: int) -> None:
    """Set a word of struct user: a register at 8 times its index, or a debug register. On x86-64 only."""
    _call(POKEUSER, tid, offset, value)


def event_message(tid: int) -> int:
    """PTRACE_GETEVENTMSG: the new task at a fork or clone, the former thread id at an exec."""
    word = (ctypes.c_uint64 * 1)()
    _call(_GETEVENTMSG, tid, 0, ctypes.addressof(word))
    return word[0]


def siginfo(tid: int) -> tuple[int, int, int]:
    """``(si_code, si_pid, si_fd)`` of the signal it is stopped at; the last two share words with other members."""
    _call(_GETSIGINFO, tid, 0, _siginfo_at)
    return _siginfo[2], _siginfo[4], _siginfo[6]


_FAULTS = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS))
_OF_OTHERS = frozenset(((signal.SIGTRAP, 6), (signal.SIGBUS, 5)))
"""TRAP_PERF and BUS_MCEERR_AO: an event, and memory that fails elsewhere."""


def is_fault(tid: int, status: int) -> bool:
    """Whether the thread stopped with ``status`` at a signal that its own instruction raised (positive si_code of
    sigaction(2))."""
    number = signal_of(status)
    if not stopped(status) or event_of(status) or number not in _FAULTS:
        return False
    code = siginfo(tid)[0]
    return code > 0 and (number, code) not in _OF_OTHERS


def sigmask(tid: int) -> int:
    """Blocked signals, bit n - 1 for signal n."""
    word = (ctypes.c_uint64 * 1)()
    _call(_GETSIGMASK, tid, _SIGMASK_SIZE, ctypes.addressof(word))
    return word[0]


def set_sigmask(tid: int, mask: int) -> None:
    word = (ctypes.c_uint64 * 1)(mask)
    _call(_SETSIGMASK, tid, _SIGMASK_SIZE, ctypes.addressof(word))


def wait(tid: int = -1) -> tuple[int, int]:
    """``(tid, wait status)`` of the next event of ``tid``, or of any task.

    Raises `Interrupted` where a signal came first, `Gone` without a task to wait for. Unlike `os.waitpid` it does not
    resume after a signal: with a ticking timer every wait ends.
    """
    found = _waitpid(tid, _status_at, WALL)
    if found == -1:
        if ctypes.get_errno() == errno.EINTR:
            raise Interrupted
        raise Gone(tid)
    return found, _status.value


class PassingSignals:
    """Waits as `wait` does for any task, and passes signals on at whose stops there is nothing to do: in the compiled
    library, where there is one."""

    def __init__(self) -> None:
        self._library = native.library()
        self._stops = ctypes.c_uint64()
        self._stops_at = ctypes.c_void_p(ctypes.addressof(self._stops))
        self._status_at = ctypes.c_void_p(ctypes.addressof(_status))

    def wait(self, passes: int) -> tuple[int, int]:
        """``passes``: those signals, bit n - 1 for signal n. `Interrupted` also after hundreds of them."""
        if self._library is None or not passes:
            return wait()
        found: int = self._library.lb_wait_passing(self._status_at, passes, self._stops_at)
        if found == -errno.EINTR:
            raise Interrupted
        if found < 0:
            raise Gone(-1)
        return found, _status.value

    def passed(self) -> int:
        """How many were passed on since this was last asked."""
        stops, self._stops.value = self._stops.value, 0
        return stops


def reports(tid: int) -> bool:
    """Whether `wait` would return an event of ``tid`` at once."""
    try:
        return os.waitid(os.P_PID, tid, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT | WALL) is not None
    except OSError:
        return False


def compiled() -> ctypes.CDLL | None:
    """The compiled library, where it knows how threads of this architecture are led."""
    return native.library() if HERE.compiled else None


# -- a batch of system calls by one call from Python, on x86-64
#
# Between two stops of a thread a tracer makes a handful of system calls. A call from Python costs as much as the
# kernel's part of it, and more just after a stop, when the interpreter is no longer in the processor's caches. The
# compiled library makes them from a table (native/branch_walk.c).


WORDS = 6
"""Words of a row: number, four arguments, result."""
_RESULT = 5


class SyscallBatch:
    """A table of ``rows`` system calls, made by the compiled ``library``."""

    def __init__(self, library: ctypes.CDLL, rows: int) -> None:
        self.words = (ctypes.c_uint64 * (rows * WORDS))()
        """All rows, `WORDS` each."""
        at, size = ctypes.addressof(self.words), WORDS * 8
        self._rows = rows
        self._calls = [(ctypes.c_void_p(at + row * size), ctypes.c_int(rows - row)) for row in range(rows)]
        self._run = library.lb_system_calls

    def set(self, row: int, number: int, *arguments: int) -> None:
        """Make ``row`` the call ``number`` with up to four ``arguments``."""
        start = row * WORDS
        self.words[start : start + 1 + len(arguments)] = [number, *arguments]

    def run(self, first: int) -> int:
        """Make the calls from row ``first`` on; the row of the one that failed, or the number of rows."""
        start, rows = self._calls[first]
        left: int = self._run(start, rows)
        return self._rows - left

    def error(self, row: int) -> int:
        """The errno of the call that failed."""
        return -ctypes.c_int64(self.words[row * WORDS + _RESULT]).value


# -- wait statuses of traced threads, and waiting for one with a deadline


TICK = 0.02
"""Seconds between two ticks: no wait exceeds its deadline by more than one of these."""

Poke = tuple[int, int]
"""Offset of a word of struct user, and its new value."""
_POKES = 6
"""Four debug registers, their control, and the flags."""
_CONT, _WAIT, _REGISTERS = range(_POKES, _POKES + 3)
"""Rows of the table, after the pokes."""
_OFFSET, _VALUE = 3, 4


@contextmanager
def ticking() -> Iterator[None]:
    """Interrupt every wait of this process each `TICK`."""
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, TICK, TICK)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


_ENDING = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP))


def _is_to_end() -> bool:
    """Whether a signal that is to end us waits, blocked."""
    return not _ENDING.isdisjoint(signal.sigpending())


def next_stop(tid: int, seconds: float, *, patient: bool = True) -> int | None:
    """Wait status of the next event of ``tid``; ``None`` after ``seconds``, or where we are to end, unless ``patient``.
    Needs `ticking`."""
    end = 0.0
    while True:
        try:
            return wait(tid)[1]
        except Interrupted:
            now = time.monotonic()
            end = end or now - TICK + seconds  # the clock is read only if a tick comes first
            if now >= end or (not patient and _is_to_end()):
                return None


class Resumer:
    """Resumes a thread until its next stop: sets words of its struct user, PTRACE_CONT, waits, and reads its registers,
    in one call where there is the compiled library. It does not wait on where we are to end."""

    def __init__(self, registers: ctypes.Array[ctypes.c_uint64]) -> None:
        """``registers`` are read at each stop."""
        self._registers = registers
        self._status = ctypes.c_int()
        library = compiled()
        self._batch = None if library is None else SyscallBatch(library, _POKES + 3)
        self._tid = -1

    def go(self, tid: int, pokes: Sequence[Poke], seconds: float, *, step: bool = False) -> int | None:
        """Resume it, and return as `next_stop` does; at most `_POKES` words. ``step``: for one instruction."""
        batch = None if step else self._aim(tid)
        if batch is None:
            for offset, value in pokes:
                poke_user(tid, offset, value)
            if step:
                single_step(tid)
            else:
                cont(tid)
            return self.wait(tid, seconds)
        first = _POKES - len(pokes)
        words, at = batch.words, first * WORDS
        for offset, value in pokes:
            words[at + _OFFSET], words[at + _VALUE] = offset, value
            at += WORDS
        return self._finish_wait(tid, batch, batch.run(first), seconds)

    def wait(self, tid: int, seconds: float) -> int | None:
        """The same for a running thread."""
        batch = self._aim(tid)
        if batch is not None:
            return self._finish_wait(tid, batch, batch.run(_WAIT), seconds)
        status = next_stop(tid, seconds, patient=False)
        if status is not None and stopped(status):
            registers(tid, self._registers)
        return status

    def _finish_wait(self, tid: int, batch: SyscallBatch, failed: int, seconds: float) -> int | None:
        end = 0.0
        while failed == _WAIT and batch.error(_WAIT) == errno.EINTR:
            now = time.monotonic()
            end = end or now - TICK + seconds
            if now >= end or _is_to_end():
                return None
            failed = batch.run(_WAIT)
        status = self._status.value
        if failed <= _WAIT or (failed == _REGISTERS and stopped(status)):
            raise refusal(tid, batch.error(failed))
        return status

    def _aim(self, tid: int) -> SyscallBatch | None:
        """The batch, set up for ``tid``."""
        batch = self._batch
        if batch is None or tid == self._tid:
            return batch
        for row in range(_POKES):
            batch.set(row, HERE.ptrace, POKEUSER, tid)
        batch.set(_CONT, HERE.ptrace, CONT, tid)
        batch.set(_WAIT, HERE.wait4, tid, ctypes.addressof(self._status), WALL)
        batch.set(_REGISTERS, HERE.ptrace, HERE.get_registers, tid, 0, ctypes.addressof(self._registers))
        self._tid = tid
        return batch


def stopped(status: int) -> bool:
    """Whether the thread is stopped, and has not ended."""
    return status & 0xFF == 0x7F


def at_call(status: int) -> bool:
    """Whether the stop is an entry into a system call or an exit, after `cont_to_call`, under `TRACE_CALLS`."""
    return status == _AT_CALL


def signal_of(status: int) -> int:
    """The signal at which it stopped."""
    return status >> 8 & 0xFF


def event_of(status: int) -> int:
    """The PTRACE_EVENT at which it stopped, 0 for a signal."""
    return status >> 16
