"""``--to chrome``: the Trace Event Format of chrome://tracing, which Perfetto and speedscope also read.

Processes and threads are metadata events. The sampled stacks are there in both forms that the format has: ``samples``
with ``stackFrames`` (Trace Event Format, "Global Samples" and "Stack Frames"), which chrome://tracing shows, and V8's
``Profile`` and ``ProfileChunk`` events (phase ``P``), which Perfetto reads (src/trace_processor/importers/json).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import numpy as np

from ..model import Array, Profile, visible
from .interface import ExportOptions, ExportResult
from .stack_pass import (
    Lane,
    NamedStacks,
    RowSpool,
    StackPass,
    StackTree,
    elapsed_time,
    json_text,
    process_name,
    spooled,
    thread_name,
    write_joined,
)

__all__ = ["export"]

_PID_BITS = 22
"""Of process ids on Linux at most (PID_MAX_LIMIT)."""
_NS_PER_US = 1000


def export(profile: Profile, out: IO[bytes], options: ExportOptions) -> ExportResult:
    """Write the samples of ``profile``.

    Raises `NotRecordedError` where there are no samples.
    """
    with spooled(profile, options) as (done, spool, symbols):
        writer = _TraceWriter(profile, done, NamedStacks(done, symbols), spool)
        out.write(b'{"displayTimeUnit":"ns","traceEvents":[')
        write_joined(out, writer.events(), b"\n")
        out.write(b'],"stackFrames":{')
        write_joined(out, writer.frames(), b"\n")
        out.write(b'},"samples":[')
        write_joined(out, writer.samples(), b"\n")
        out.write(b"]}")
        return done.exported(symbols.notes)


class _TraceWriter:
    def __init__(self, profile: Profile, done: StackPass, named: NamedStacks, spool: RowSpool) -> None:
        self._profile, self._named, self._spool = profile, named, spool
        self._lanes = done.lanes
        tree = StackTree()
        # Frame 0 would be no frame to some readers.
        self._node = np.array([tree.add(stack) + 1 for stack in named.stacks()] or [0], np.int64)
        self._nodes = [(parent + 1, named.labels[row]) for parent, row in tree.nodes]

    def events(self) -> Iterator[bytes]:
        """Names of processes and threads, then the samples of one thread after the other."""
        named: set[int] = set()
        for number in self._spool.lanes():
            lane = self._lanes[number]
            if (pid := self._pid(lane)) not in named:
                named.add(pid)
                yield _metadata(pid, pid, "process_name", process_name(self._profile, lane))
            yield _metadata(pid, lane.tid, "thread_name", thread_name(self._profile, lane))
        for number in self._spool.lanes():
            yield from self._profile_events(number, self._lanes[number])

    def frames(self) -> Iterator[bytes]:
        for number, (parent, label) in enumerate(self._nodes, 1):
            frame: dict[str, object] = {"category": self._module(label.module), "name": self._named.shown(label)}
            if parent:
                frame["parent"] = parent
            yield b'"%d":' % number + json_text(frame)

    def samples(self) -> Iterator[bytes]:
        """Thread by thread, some thousand at once: a dict for each would take most of the time."""
        names = [json_text(visible(event.name)).decode() for event in self._profile.events]
        frames = [f',"sf":{node}' if node else "" for node in range(len(self._nodes) + 1)]
        for number in self._spool.lanes():
            ids = f'"pid":{self._pid(self._lanes[number])},"tid":{self._lanes[number].tid}'
            for rows in self._spool.of(number):
                columns = (rows["cpu"], self._us(rows["time"]), rows["event"], self._node[rows["stack"]])
                lines = [
                    f'{{"cpu":{cpu},{ids},"ts":{ts!r},"name":{names[event]}{frames[node]},"weight":1}}'
                    for cpu, ts, event, node in zip(*(c.tolist() for c in columns), strict=True)
                ]
                yield ",\n".join(lines).encode()

    def _profile_events(self, number: int, lane: Lane) -> Iterator[bytes]:
        """A V8 profile of a thread: each chunk has the frames that no earlier one has."""
        base = {"ph": "P", "cat": "disabled-by-default-v8.cpu_profiler", "pid": self._pid(lane), "tid": lane.tid}
        base["id"] = f"0x{number + 1:x}"
        written: set[int] = set()
        last = 0
        for i, rows in enumerate(self._spool.of(number)):
            stacked = rows[self._node[rows["stack"]] > 0]
            time = self._us(stacked["time"]).astype(np.int64).tolist()
            if i == 0:
                last = time[0] if time else 0
                yield json_text({**base, "name": "Profile", "ts": last, "args": {"data": {"startTime": last}}})
            nodes = self._node[stacked["stack"]].tolist()
            chunk = {
                "cpuProfile": {"nodes": list(self._new(nodes, written)), "samples": nodes},
                "timeDeltas": np.diff(np.array([last, *time], np.int64)).tolist(),
            }
            last = time[-1] if time else last
            yield json_text({**base, "name": "ProfileChunk", "ts": last, "args": {"data": chunk}})

    def _new(self, nodes: list[int], written: set[int]) -> Iterator[dict[str, object]]:
        """The frames of ``nodes`` that are not in ``written``, callers first."""
        for node in dict.fromkeys(nodes):
            path = []
            while node and node not in written:
                written.add(node)
                path.append(node)
                node = self._nodes[node - 1][0]
            for new in reversed(path):
                parent, label = self._nodes[new - 1]
                frame = {
                    "functionName": self._named.shown(label),
                    "url": visible(label.file) or self._module(label.module),
                    "scriptId": 0,
                    "lineNumber": label.line - 1,
                    "columnNumber": -1,
                }
                yield {"id": new, "callFrame": frame, **({"parent": parent} if parent else {})}

    def _pid(self, lane: Lane) -> int:
        """The process id; of captures that were opened together, each has numbers of its own."""
        capture = self._profile.processes[lane.process].capture if lane.process >= 0 else 0
        return lane.pid + (capture << _PID_BITS)

    def _module(self, row: int) -> str:
        return visible(self._profile.modules[row].short) if row >= 0 else "[unknown]"

    def _us(self, ticks: Array) -> Array:
        return elapsed_time(self._profile, ticks, _NS_PER_US)


def _metadata(pid: int, tid: int, name: str, value: str) -> bytes:
    return json_text({"ph": "M", "pid": pid, "tid": tid, "ts": 0, "name": name, "args": {"name": value}})
