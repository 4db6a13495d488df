"""Compares the binder with the brute-force oracle."""

from __future__ import annotations

import numpy as np

from binding_oracle import (
    END,
    Exec,
    Exit,
    Fork,
    GuestMap,
    History,
    KernelMap,
    Map,
    Unmap,
    bind,
)
from lastbranch.bind import Binder
from lastbranch.model import (
    Change,
    Module,
    ModuleKind,
    Profile,
    SampleBatch,
    Timeline,
    guest_kernel,
    guest_user,
)


def batch(rows: list[tuple[int, int, int]], mode: int | list[int] = 2) -> SampleBatch:
    """A batch of (pid, address, time), in one mode of the processor or with a mode for each."""
    pid, ip, time = zip(*rows, strict=True)
    n = len(rows)
    return SampleBatch(
        {
            "time": np.array(time, np.int64),
            "ip": np.array(ip, np.uint64),
            "pid": np.array(pid, np.int32),
            "tid": np.array(pid, np.int32),
            "cpu": np.zeros(n, np.int32),
            "event": np.zeros(n, np.int32),
            "period": np.ones(n, np.uint64),
            "mode": np.full(n, 0, np.uint8) + np.array(mode, np.uint8),
        }
    )


def bound(binder: Binder, rows: list[tuple[int, int, int]], mode: int = 2) -> list[int]:
    """Module row of each (pid, address, time)."""
    samples = batch(rows, mode)
    return binder.locate(binder.scopes(samples), samples.ip)[0].tolist()


def make(timeline: Timeline, modules: int = 0, kind: ModuleKind = ModuleKind.ANONYMOUS) -> Binder:
    profile = Profile("test", "test", modules=[Module(f"m{i}", kind) for i in range(modules)], timeline=timeline)
    return Binder(profile)


def timeline_of(history: History, highest: int) -> tuple[Timeline, int]:
    timeline = Timeline()
    for e in history.events:
        match e:
            case Map(time, pid, start, end, tag):
                timeline.add(Change.MAP, time, pid, module=tag, start=start, end=min(end, highest))
            case KernelMap(time, start, end, tag, guest):
                owner = -1 if guest is None else guest_kernel(guest)
                timeline.add(Change.MAP, time, owner, module=tag, start=start, end=min(end, END - 1))
            case GuestMap(time, pid, start, end, tag):
                timeline.add(Change.MAP, time, guest_user(pid), module=tag, start=start, end=min(end, highest))
            case Unmap(time, pid, start, end):
                timeline.add(Change.UNMAP, time, pid, start=start, end=min(end, highest))
            case Fork(time, parent, child):
                timeline.add(Change.FORK, time, child, tid=child, parent=parent)
            case Exec(time, pid):
                timeline.add(Change.EXEC, time, pid)
            case Exit(time, pid):
                timeline.add(Change.EXIT, time, pid, tid=pid)
    return timeline, 1 + max((getattr(e, "tag", 0) for e in history.events), default=0)


def assert_equals_brute_force(highest: int, history: History) -> None:
    timeline, tags = timeline_of(history, highest)
    binder = make(timeline, tags)
    if not history.queries:
        return
    samples = batch([(q.pid, q.addr, q.time) for q in history.queries], [q.mode for q in history.queries])
    scope = binder.scopes(samples)
    module = binder.locate(scope, samples.ip)[0].tolist()
    process = binder.process_of(scope).tolist()
    lives: dict[int, list[int]] = {}
    for row, p in enumerate(binder.processes):
        lives.setdefault(p.pid, []).append(row)
    for query, got, row in zip(history.queries, module, process, strict=True):
        want = bind(history.events, query)
        assert got == (-1 if want.tag is None else want.tag), query
        assert (lives[query.pid].index(row) if row >= 0 else 0) == want.life, query
