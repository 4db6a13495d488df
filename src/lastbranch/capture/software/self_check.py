"""The start-up test: each engine runs known code in a child, and must record exactly its branches.

Debug registers and trap flags depend on the hypervisor (in some, BTF stepping silently does not work), so no engine is
used that was not seen to work on this machine.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from ...lbr import KIND
from .. import ptrace
from ..architectures import HERE
from ..launch import end_with_parent
from ..ptrace import PC, STACK, next_stop, stopped
from .burst_runner import BurstRunner, NoBurst, SharedProcessor
from .bursts import Burst, BurstLimits
from .engines import Engine
from .run_ahead import RunAhead
from .tree import Process, Thread

__all__ = ["OK", "report_time", "test_ahead", "test_engines"]

OK = "ok"
_SECONDS = 2.0
_REPORTS, _PAUSE, _MOST_REPORT = 12, 0.0005, 0.001
"""Most reports that are measured, seconds before each, and the longest that is believed: others may run before us."""
_QUICK = 0.0001
"""Seconds of a report before which nothing else ran."""


class Known(NamedTuple):
    """Code whose branches are known, by offsets of their source and target: a loop of a counter from 7 down, with a
    condition taken for even numbers, a call and a return, and an indirect jump."""

    code: bytes
    skip: Offsets
    call: Offsets
    jump: Offsets
    back: Offsets
    """The return."""
    again: Offsets
    restart: Offsets

    def edges(self, base: int, count: int) -> list[tuple[int, int, int]]:
        """The first ``count`` taken branches from the start of the code at ``base``."""
        seen: list[tuple[Offsets, int]] = []
        while len(seen) < count:
            for counter in range(7, 0, -1):
                if not counter & 1:
                    seen.append((self.skip, KIND["cond"]))
                seen += [(self.call, KIND["call"]), (self.jump, KIND["ind"]), (self.back, KIND["ret"])]
                seen.append((self.again, KIND["cond"]) if counter > 1 else (self.restart, KIND["uncond"]))
        return [(base + source, base + target, kind) for (source, target), kind in seen[:count]]


Offsets = tuple[int, int]

KNOWN = {
    #   0: mov ecx, 7        5: test cl, 1      8: jz 0xc       a: nop  b: nop
    #   c: call 0x18        11: dec ecx        13: jnz 5       15: jmp 0     17: nop
    #  18: lea rax, [rip+1] (0x20)             1f: nop
    #  20: push rax  21: pop rdx               22: lea rax, [rip+4] (0x2d)   29: jmp rax   2b: nop  2c: nop
    #  2d: ret
    "x86_64": Known(
        bytes.fromhex(
            "b907000000" "f6c101" "7402" "9090" "e807000000" "ffc9" "75f0" "ebe9" "90" "488d0501000000" "90"
            "505a" "488d0504000000" "ffe0" "9090" "c3"
        ),
        skip=(0x8, 0xC), call=(0xC, 0x18), jump=(0x29, 0x2D), back=(0x2D, 0x11), again=(0x13, 0x5), restart=(0x15, 0),
    ),
    "aarch64": Known(
        bytes.fromhex(
            "e9008052"  #  0: mov w9, #7
            "69000036"  #  4: tbz w9, #0, 0x10
            "1f2003d5"  #  8: nop
            "1f2003d5"  #  c: nop
            "04000094"  # 10: bl 0x20
            "29050071"  # 14: subs w9, w9, #1
            "61ffff54"  # 18: b.ne 0x4
            "f9ffff17"  # 1c: b 0
            "8a000010"  # 20: adr x10, 0x30
            "40011fd6"  # 24: br x10
            "1f2003d5"  # 28: nop
            "1f2003d5"  # 2c: nop
            "c0035fd6"  # 30: ret
        ),
        skip=(0x4, 0x10), call=(0x10, 0x20), jump=(0x24, 0x30), back=(0x30, 0x14), again=(0x18, 0x4), restart=(0x1C, 0),
    ),
}  # fmt: skip
"""By architecture."""
_HERE = KNOWN[HERE.name]
_DEPTH = 48


def test_engines(engines: Iterable[Engine]) -> dict[str, str]:
    """Engine name -> what was wrong, or `OK`, up to the first engine that passes. Needs `ptrace.ticking`. Raises
    `OSError` where ptrace is refused."""
    with _running_code() as (pid, base):
        results: dict[str, str] = {}
        for engine in engines:
            results[engine.name] = _test(engine, pid, base)
            if results[engine.name] == OK:
                break
        return results


def test_ahead(ahead: RunAhead) -> str:
    """The fault in running ahead of code that never runs, in this process, or `OK`."""
    process = Process(os.getpid())
    try:
        with _known_code() as base:
            stack = (ctypes.c_uint64 * 16)()
            ahead.registers[PC], ahead.registers[STACK] = base, ctypes.addressof(stack) + 64
            burst = ahead.burst(process.pid, process.files, BurstLimits(_DEPTH), alone=True)
            if burst is None:
                return "it cannot see the code"
            burst.read_edges()
            return _compared(burst, base)
    except OSError as error:
        return str(error)
    finally:
        process.forget()


def report_time() -> float:
    """Seconds that this machine takes to report that a running thread has stopped: the thread loses them at each stop
    that we do not wait for. Needs `ptrace.ticking`."""
    took = [_MOST_REPORT, _MOST_REPORT]
    with suppress(OSError, ptrace.Gone), _running_code() as (pid, _):
        for n in range(_REPORTS):
            time.sleep(_PAUSE)  # it must run by then: stopped before, it is reported sooner
            begun = time.perf_counter()
            ptrace.interrupt(pid)
            if next_stop(pid, _SECONDS) is None:
                break
            took = sorted((*took, time.perf_counter() - begun))
            ptrace.cont(pid)
            if n >= 2 and took[1] < _QUICK:
                break
    return took[1]


@contextmanager
def _running_code() -> Iterator[tuple[int, int]]:
    """A traced child that runs `_CODE`, and the address of it. Raises `OSError` where ptrace is refused."""
    with _known_code() as base:
        pid = os.fork()
        if pid == 0:
            try:
                end_with_parent()
                ctypes.CFUNCTYPE(None)(base)()
            finally:
                os._exit(1)
        try:
            ptrace.seize(pid, ptrace.EXITKILL)
            yield pid, base
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ptrace.Gone, ptrace.Interrupted):
                next_stop(pid, _SECONDS)


@contextmanager
def _known_code() -> Iterator[int]:
    """The address of a page with `_HERE.code`. Raises `OSError` where no code may be made."""
    code = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE)
    code.write(_HERE.code)
    base = ctypes.addressof(ctypes.c_char.from_buffer(code))
    # Only now executable: so the kernel makes what was written visible to the processor's instruction fetch (AArch64).
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(base), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "no memory for code")
    yield base


def _test(engine: Engine, pid: int, base: int) -> str:
    thread = Thread(pid, Process(pid))
    bursts = BurstRunner(engine, BurstLimits(_DEPTH, seconds=_SECONDS / 2), SharedProcessor())
    try:
        ptrace.interrupt(pid)
        status = next_stop(pid, _SECONDS)
        if status is None or not stopped(status):
            return "the test program did not stop"
        said = OK
        for _ in range(2 if engine.walks else 1):  # the walk needs code that was decoded before
            ptrace.go_on_at(pid, base)
            burst, _ = bursts.run(thread, lambda status: False)
            if said == OK:
                said = "a stop did not arrive in time" if burst.dropped else _compared(burst, base)
            if burst.dropped:
                return said
            if thread.process.successors is not None:
                thread.process.successors.widen()
        ptrace.cont(pid)
        return said
    except NoBurst as reason:
        return str(reason)
    except (OSError, ptrace.Gone) as error:
        return str(error) or "the test program ended"
    finally:
        thread.process.forget()


def _compared(burst: Burst, base: int) -> str:
    seen = burst.edges
    if len(seen) < _DEPTH:
        return f"ended after {len(seen)} of {_DEPTH} branches: {burst.why}"
    wanted = _HERE.edges(base, len(seen))
    wrong = next((i for i, (a, b) in enumerate(zip(seen, wanted, strict=True)) if a != b), None)
    return OK if wrong is None else f"branch {wrong} is wrong"
