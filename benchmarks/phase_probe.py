"""Runs lastbranch in this process and reports the CPU time of each part of the package, for bench_phases.py.

    python phase_probe.py REPORT VERB ...     as `lastbranch VERB ...`; REPORT becomes a JSON object of seconds by phase

A timer interrupts the main thread every millisecond. The CPU time since the last interruption goes to the phase of the
innermost frame that `PHASES` knows; a call into compiled code is interrupted when it returns, and gets its whole time.
CPU time of other threads goes to the phases that they are in. Nothing is imported here that a verb would import later.
"""

import atexit
import os
import signal
import sys
import time
from types import FrameType

PHASES = (
    ("start", ()),
    ("import", ()),
    ("read", ("formats/readahead", "model/source", "opening")),
    ("walk", ("formats/", "model/stream", "model/batch")),
    (
        "count",
        (
            "analysis/counting/count_stacks",
            "analysis/counting/bound_pairs",
            "analysis/counting/pair_counter",
            "analysis/counting/compact",
        ),
    ),
    ("bind", ("bind/", "tbrw/binding")),
    ("stacks", ("analysis/stacks/call_stacks", "analysis/counting/branch_kinds", "analysis/stacks/callgraph", "lbr/")),
    ("decode", ("isa", "analysis/counting/executed", "analysis/function/flow")),
    ("name", ("symbols/", "binaries/", "analysis/naming", "analysis/stacks/functions", "analysis/sources")),
    ("sql", ("sql/",)),
    ("output", ("export/", "cli/output", "cli/table", "model/atomic_output", "analysis/counting/count_tables")),
    ("rest", ("",)),
)
"""Phase -> modules of the package whose time it is; the longest match counts. start: the interpreter's, and its end."""
REST, IMPORT = "rest", "import"
_INTERVAL = 0.001
_MACHINERY = "<frozen importlib._bootstrap>"
_PACKAGE = os.path.join("lastbranch", "")

spent = dict.fromkeys((name for name, _ in PHASES), 0.0)
_places = sorted(((place, name) for name, places in PHASES for place in places), key=lambda pair: -len(pair[0]))
_known: dict[str, str] = {}


def _of_file(path: str) -> str:
    """The phase of a file; empty for a file outside of the package or for all phases."""
    _, found, inside = path.rpartition(_PACKAGE)
    return next(name for place, name in _places if inside.startswith(place)) if found else ""


def phase_of(frame: FrameType | None) -> str:
    """The phase of a stack; empty where no frame of the package is in it."""
    best = ""
    while frame is not None:
        path = frame.f_code.co_filename
        if path == _MACHINERY:
            return IMPORT
        if best in ("", REST):
            if path not in _known:
                _known[path] = _of_file(path)
            best = _known[path] or best
        frame = frame.f_back
    return best


class Clock:
    """Distributes CPU time, of the main thread and of the others."""

    def __init__(self) -> None:
        self.own, self.all = time.thread_time(), time.process_time()

    def tick(self, _number: int, frame: FrameType | None) -> None:
        own, everything = time.thread_time(), time.process_time()
        mine, others = own - self.own, everything - self.all - (own - self.own)
        self.own, self.all = own, everything
        spent[phase_of(frame) or REST] += mine
        if others > 0:
            busy = [phase_of(f) for f in sys._current_frames().values() if f is not frame]
            named = [phase for phase in busy if phase not in ("", REST, IMPORT)] or [REST]
            for phase in named:
                spent[phase] += others / len(named)


def main() -> None:
    report, sys.argv = sys.argv[1], ["lastbranch", *sys.argv[2:]]
    spent["start"] = time.process_time()
    clock, process = Clock(), os.getpid()
    signal.signal(signal.SIGALRM, clock.tick)
    signal.setitimer(signal.ITIMER_REAL, _INTERVAL, _INTERVAL)

    def write() -> None:
        if os.getpid() == process:  # not in what was forked
            signal.setitimer(signal.ITIMER_REAL, 0)
            import json
            import resource

            children = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent[REST] += children.ru_utime + children.ru_stime
            with open(report, "w") as file:
                json.dump(spent, file)

    atexit.register(write)
    sys.path.pop(0)  # the folder of the benchmarks
    from lastbranch.cli import main as run

    run()


if __name__ == "__main__":
    main()
