"""ptrace(2) and waitpid(2) by ctypes: requests, registers of another thread.

Numbers and layouts: Linux include/uapi/linux/ptrace.h, arch/x86/include/asm/user_64.h (x86-64). A thread that is gone,
or not stopped, is `Gone`; any other refusal is an `OSError`.
"""

from __future__ import annotations

import ctypes
import errno
import os

__all__ = [
    "CONT", "CS", "DEBUG_REGISTER", "EFLAGS", "EVENT_CLONE", "EVENT_EXEC", "EVENT_FORK", "EVENT_STOP",
    "EVENT_VFORK", "EXITKILL", "FOLLOW", "GENERAL", "GETREGS", "ORIG_RAX", "POKEUSER", "RESUME_FLAG", "RIP",
    "USER_CODE_64", "WALL", "Gone", "Interrupted", "Registers", "cont", "detach", "event_message", "interrupt",
    "listen", "poke_user", "refusal", "registers", "seize", "set_sigmask", "siginfo", "sigmask", "single_step",
    "wait",
]  # fmt: skip

POKEUSER, CONT, _SINGLESTEP, GETREGS, _DETACH = 6, 7, 9, 12, 17
_GETEVENTMSG, _GETSIGINFO, _SEIZE, _INTERRUPT, _LISTEN = 0x4201, 0x4202, 0x4206, 0x4207, 0x4208
_GETSIGMASK, _SETSIGMASK = 0x420A, 0x420B

EVENT_FORK, EVENT_VFORK, EVENT_CLONE, EVENT_EXEC, EVENT_STOP = 1, 2, 3, 4, 128
FOLLOW = 1 << EVENT_FORK | 1 << EVENT_VFORK | 1 << EVENT_CLONE | 1 << EVENT_EXEC
"""PTRACE_O_* that stop at forks, clones and execs; new tasks are traced from their first instruction."""
EXITKILL = 1 << 20
"""PTRACE_O_EXITKILL: the traced program ends with its tracer."""

WALL = 0x40000000
_SIGINFO_SIZE, _SIGMASK_SIZE = 128, 8

R15, R14, R13, R12, RBP, RBX, R11, R10, R9, R8, RAX, RCX, RDX, RSI, RDI = range(15)
ORIG_RAX, RIP, CS, EFLAGS, RSP, FS_BASE, GS_BASE = 15, 16, 17, 18, 19, 21, 22
"""Indexes into `Registers` (struct user_regs_struct)."""
GENERAL = (RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15)
"""The same by the numbers that machine code gives to registers (Intel SDM volume 2, table 2-2)."""
DEBUG_REGISTER = 848
"""Offset of u_debugreg[0] in struct user."""
RESUME_FLAG = 1 << 16
USER_CODE_64 = 0x33
"""CS of 64-bit user code; 32-bit code runs with 0x23."""

Registers = ctypes.c_uint64 * 27

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
    """The thread has ended, or is not stopped by us any more."""


class Interrupted(Exception):
    """A signal came while `wait` waited."""


def _call(request: int, tid: int, address: int = 0, data: int = 0) -> None:
    if _ptrace(request, tid, address, data) == -1:
        raise _refusal(tid)


def _refusal(tid: int) -> Exception:
    return refusal(tid, ctypes.get_errno())


def refusal(tid: int, code: int) -> Exception:
    """What a request for ``tid`` that failed with the errno ``code`` means."""
    return Gone(tid) if code == errno.ESRCH else OSError(code, f"ptrace: {os.strerror(code)}")


def seize(tid: int, options: int) -> None:
    """Begin to trace ``tid`` without stopping it. `PermissionError` where that is not allowed."""
    _call(_SEIZE, tid, 0, options)


def interrupt(tid: int) -> None:
    """Make a running thread stop (`EVENT_STOP`)."""
    _call(_INTERRUPT, tid)


def listen(tid: int) -> None:
    """Leave a thread in its group-stop, as job control wants it."""
    _call(_LISTEN, tid)


def cont(tid: int, signal: int = 0) -> None:
    """Let it run on, with ``signal`` delivered to it."""
    if _ptrace(CONT, tid, None, signal) == -1:
        raise _refusal(tid)


def single_step(tid: int, signal: int = 0) -> None:
    _call(_SINGLESTEP, tid, 0, signal)


def detach(tid: int, signal: int = 0) -> None:
    _call(_DETACH, tid, 0, signal)


def registers(tid: int, into: ctypes.Array[ctypes.c_uint64]) -> None:
    """Fill a `Registers`."""
    if _ptrace(GETREGS, tid, None, ctypes.byref(into)) == -1:
        raise Gone(tid)


def poke_user(tid: int, offset: int, value: int) -> None:
    """Set a word of struct user: a register at 8 times its index, or a debug register."""
    if _ptrace(POKEUSER, tid, offset, value) == -1:
        raise _refusal(tid)


def event_message(tid: int) -> int:
    """PTRACE_GETEVENTMSG: the new task of a fork or clone event, the former thread id at an exec."""
    word = (ctypes.c_uint64 * 1)()
    _call(_GETEVENTMSG, tid, 0, ctypes.addressof(word))
    return word[0]


def siginfo(tid: int) -> tuple[int, int, int]:
    """``(si_code, si_pid, si_fd)`` of the signal it is stopped at; the last two share words with other members."""
    _call(_GETSIGINFO, tid, 0, _siginfo_at)
    return _siginfo[2], _siginfo[4], _siginfo[6]


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

    `Interrupted` where a signal came first; `Gone` where there is nothing to wait for. Unlike `os.waitpid` this does
    not begin anew after a signal: a ticking timer makes every wait end.
    """
    found = _waitpid(tid, _status_at, WALL)
    if found == -1:
        if ctypes.get_errno() == errno.EINTR:
            raise Interrupted
        raise Gone(tid)
    return found, _status.value
