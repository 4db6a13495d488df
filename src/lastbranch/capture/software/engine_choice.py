"""Which engine and which trigger a recording has: the best that this machine passes the start-up test of."""

from __future__ import annotations

import os
from collections.abc import Callable

from ...errors import UnavailableError
from ..architectures import HERE
from ..options import Summary
from ..perf_events.syscall import CPU_CLOCK, FLAG, USER_ONLY, attribute, open_event
from ..traceable import describe_launch
from .engines import (
    BlockStep,
    Breakpoints,
    DebugRegisters,
    Engine,
    HardwareBreakpoints,
    PerfBlocks,
    PerfBreakpoints,
    SingleStep,
    SteppedBlocks,
)
from .run_ahead import RunAhead
from .schedule import ClockTrigger, PollTrigger, Trigger
from .self_check import OK, test_ahead, test_engines

__all__ = ["FIRST_PERIOD", "choose_ahead", "choose_engine", "choose_trigger"]

FIRST_PERIOD = 20_000_000


def choose_engine(launched: bool, allow_risk: bool, summary: Summary, *, needed: bool = True) -> Engine | None:
    """The first engine that passes the start-up test, of those that may be used. ``None`` if there is none and none is
    ``needed``."""
    safe, risky = _ENGINES[HERE.name]()
    tested = risky if launched else safe + risky
    try:
        summary.self_test |= test_engines(tested)
    except OSError as error:
        raise describe_launch(error) from error
    good = next((engine for engine in tested if summary.self_test.get(engine.name) == OK), None)
    if good is None and not needed:
        return None
    if good is None:
        said = "; ".join(f"{name}: {what}" for name, what in summary.self_test.items())
        raise UnavailableError(f"no engine passes the start-up test on this machine ({said})")
    if not launched and good not in safe and not allow_risk:
        if not needed:
            return None
        said = summary.self_test[safe[-1].name] if safe else f"not on {HERE.title}"
        raise UnavailableError(
            f"perf breakpoints cannot be used here ({said}); with the other engines the process would be killed if the "
            "collector were killed in the middle of a burst",
            hint="--allow-risk accepts that risk; or launch the program with `lastbranch record COMMAND`",
        )
    summary.engine = good.name
    return good


def choose_ahead(summary: Summary) -> RunAhead | None:
    """The component that foresees bursts, if it passes its start-up test on this machine."""
    ahead = RunAhead.here()
    if ahead is None:
        return None
    summary.self_test[ahead.name] = said = test_ahead(ahead)
    if said != OK:
        return None
    return ahead


def _engines_x86() -> tuple[list[Engine], list[Engine]]:
    return _block_steps(PerfBreakpoints), [*_block_steps(DebugRegisters), SingleStep()]


def _engines_a64() -> tuple[list[Engine], list[Engine]]:
    return [PerfBlocks(PerfBreakpoints())], [
        SteppedBlocks(HardwareBreakpoints(4)),
        SteppedBlocks(HardwareBreakpoints(2)),
        SingleStep(),
    ]


_ENGINES = {"x86_64": _engines_x86, "aarch64": _engines_a64}
"""Engines whose threads survive our death in a burst, and those whose threads do not, best first."""


def _block_steps(breakpoints: Callable[[], Breakpoints]) -> list[Engine]:
    """With the compiled walk where there is one, and without."""
    walking, plain = BlockStep(breakpoints()), BlockStep(breakpoints(), walks=False)
    return [walking, plain] if walking.walks else [plain]


def choose_trigger(launched: bool) -> Trigger:
    """Perf events if they are allowed."""
    try:
        os.close(open_event(attribute(USER_ONLY | FLAG["disabled"], sample_period=FIRST_PERIOD, **CPU_CLOCK), 0))
    except OSError:
        return PollTrigger()
    return ClockTrigger(ends_with_us=launched)
