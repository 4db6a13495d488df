"""Which module was where in which process, from when to when: the replayed timeline as a list."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Load, Timeline
from .replay import FOREVER, Replay, replay

__all__ = ["loaded"]


def loaded(timeline: Timeline) -> Iterator[Load]:
    """Every mapping of ``timeline`` in every process that saw it; what a child has of its parent is its own."""
    done = replay(timeline, lambda module, start, end, offset: [(start, end, 0)])
    times, modules = done.times, done.mappings["module"]

    def row(pid: int, module: int, lo: int, hi: int, since: int, until: int) -> Iterator[Load]:
        first = int(times[since - 1]) if since else None
        last = None if until >= FOREVER else int(times[until - 1])
        if lo < hi and since < until and (first is None or last is None or first < last):
            yield Load(pid, modules[module], lo, hi, first, last)

    of_space: dict[int, list[tuple[int, int, int, int, int]]] = {}
    for space, lo, hi, since, until, mapping in zip(*done.pieces.columns.values(), strict=True):
        of_space.setdefault(space, []).append((lo, hi, since, until, mapping))
    for lo, hi, since, until, mapping in of_space.get(0, []):
        yield from row(-1, mapping, lo, hi, since, until)
    for pid, space, begin, end, frozen in _runs(done):
        for lo, hi, since, until, mapping in of_space.get(space, []):
            if frozen is None:
                yield from row(pid, mapping, lo, hi, max(since, begin), min(until, end))
            elif since <= frozen < until:
                yield from row(pid, mapping, lo, hi, max(since, begin), end)


def _runs(done: Replay) -> Iterator[tuple[int, int, int, int, int | None]]:
    """(pid, space, first moment, past, moment that it is seen as of, or ``None``: as it changes) of each process.

    A space changes with its owner, the process that it was made for; a child sees it as it was.
    """
    owner: dict[int, int] = {}
    e = done.epochs
    by_pid: dict[int, list[int]] = {}
    for row, (pid, process, space) in enumerate(zip(e["pid"], e["process"], e["space"], strict=True)):
        owner.setdefault(space, process)
        by_pid.setdefault(pid, []).append(row)
    for pid, epochs in by_pid.items():
        epochs.sort(key=e["first"].__getitem__)
        at = 0
        while at < len(epochs):
            one, following = epochs[at], at + 1
            process, space = e["process"][one], e["space"][one]
            own = owner[space] == process
            while own and following < len(epochs):
                other = epochs[following]
                if (e["process"][other], e["space"][other]) != (process, space):
                    break
                following += 1
            past = e["first"][epochs[following]] if following < len(epochs) else FOREVER
            yield pid, space, e["first"][one], past, None if own else e["moment"][one]
            at = following
