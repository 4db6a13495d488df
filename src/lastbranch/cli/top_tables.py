"""What `top` shows, whatever shows it: facts about the recording, functions and branches as rows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..analysis import Label
    from ..analysis.running.counts import LiveFunctions, Order, Snapshot
    from ..answers.table import Table
    from ..model import Array
    from ..recording.live import LiveCapture, LiveRecorder, RecorderState, StreamCopy

__all__ = ["ORDERS", "Session", "View", "branch_table", "chosen_functions", "facts", "function_table", "header"]

ORDERS: tuple[Order, ...] = ("samples", "now", "change", "branches", "mispredicted", "cycles")


@dataclass(slots=True)
class View:
    """What was seen until a moment."""

    snapshot: Snapshot | None
    """``None`` before the first samples."""
    state: RecorderState | None
    """``None`` where somebody else records."""
    seconds: float
    """Of the recording."""
    interval: float
    """Seconds since the view before."""
    own: float
    """The share of a CPU that reading, counting and naming took in the interval."""
    recorder: float | None
    """The share of a CPU that the recorder took in the interval; ``None`` where somebody else records."""

    @property
    def samples(self) -> int:
        return int(self.snapshot.samples.sum()) if self.snapshot else 0

    @property
    def lost(self) -> dict[str, int]:
        """By the name of the counter."""
        lost = dict(self.snapshot.lost) if self.snapshot else {}
        if self.state is not None and self.state.skipped:
            lost["triggers without a burst"] = self.state.skipped
        if self.state is not None and self.state.unrecorded:
            lost["threads not recorded"] = self.state.unrecorded
        return lost

    def per_second(self, whole: bool) -> tuple[float, float]:
        """(samples, branches) a second: of the ``whole`` recording, or of the interval."""
        if self.snapshot is None:
            return 0.0, 0.0
        if whole:
            return self.samples / max(self.seconds, 1e-9), self.snapshot.entries / max(self.seconds, 1e-9)
        return (
            int(self.snapshot.recent.sum()) / max(self.interval, 1e-9),
            self.snapshot.recent_entries / max(self.interval, 1e-9),
        )


class Session:
    """A live capture, and its recorder where that is ours, or the stream that it comes through."""

    def __init__(
        self, live: LiveCapture, recorder: LiveRecorder | None = None, stream: StreamCopy | None = None
    ) -> None:
        self.live, self.recorder, self._stream = live, recorder, stream
        self._began = None if stream is None else time.monotonic()
        self._end: float | None = None
        self._looked, self._cpu, self._recorders = time.monotonic(), time.process_time(), 0.0
        self._wanted: tuple[str, list[bool]] = "", []
        """Part of a name, and for each label that was looked at whether it has that."""

    def read(self) -> None:
        """Count what came."""
        if self.recorder is not None:
            self.recorder.poll()
        self.live.read(last=self._stream is not None and self._stream.ended)
        if self._began is None and (self.recorder is None or self.recorder.state.engine):
            self._began = self._looked = time.monotonic()
            self._cpu = time.process_time()

    def hold(self) -> None:
        """What is read until the next `look` is not seen before that."""
        self.live.hold()

    def wait(self, seconds: float) -> None:
        """Wait, ``seconds`` at most, for a message of the recorder. Nobody says when another program's file grows."""
        if self.recorder is not None:
            self.recorder.wait(seconds)
        else:
            time.sleep(seconds)  # a file can only be looked at again

    @property
    def seconds(self) -> float:
        """How long it has been recorded."""
        if self._end is None and self.ended:
            self._end = time.monotonic()
        return 0.0 if self._began is None else (self._end or time.monotonic()) - self._began

    @property
    def ended(self) -> bool:
        if self._stream is not None:
            return self._stream.ended
        return self.recorder is not None and self.recorder.state.ended

    def look(self) -> View:
        """What was seen until now."""
        now, cpu = time.monotonic(), time.process_time()
        interval = max(now - self._looked, 1e-6)
        recorder, state = None, None
        if self.recorder is not None:
            state, recorders = self.recorder.state, self.recorder.seconds_of_cpu()
            recorder = max(0.0, recorders - self._recorders) / interval
            self._recorders = recorders
        snapshot = self.live.turn()  # finding names may take seconds: what comes meanwhile is of the next interval
        view = View(snapshot, state, self.seconds, interval, (cpu - self._cpu) / interval, recorder)
        self._looked, self._cpu = now, cpu
        return view

    def names_with(self, part: str, labels: list[Label]) -> Array:
        """bool: which of the ``labels``, a list that grows, have this part in their name or that of their module."""
        import numpy as np

        from ..answers.names import module_of

        profile, text = self.live.profile, part.casefold()
        assert profile is not None
        if self._wanted[0] != text:
            self._wanted = text, []
        known = self._wanted[1]
        for label in labels[len(known) :]:
            known.append(text in f"{label.shown(profile)} {module_of(profile, label) or ''}".casefold())
        return np.array(known, bool)

    def save(self, output: str) -> None:
        """Write what was seen (`LiveCapture.save`)."""
        self.live.save(output, self.recorder.describe if self.recorder is not None else lambda profile: None)


def facts(view: View) -> dict[str, Any]:
    """The recording as a whole, for programs; rates are those of all of it."""
    samples, branches = view.per_second(whole=True)
    state = view.state
    return {
        "engine": state.engine if state else None,
        "why": (state.why or None) if state else None,
        "seconds": round(view.seconds, 3),
        "samples": view.samples,
        "samples_per_second": round(samples, 1),
        "branches": view.snapshot.entries if view.snapshot else 0,
        "branches_per_second": round(branches, 1),
        "lost": view.lost,
        "own_cpu_percent": round(100 * view.own, 2),
        "recorder_cpu_percent": None if view.recorder is None else round(100 * view.recorder, 2),
        "bursts_percent": None if state is None or state.share is None else round(100 * state.share, 2),
        "notes": list(state.notes) if state else [],
    }


_SHORTEST = 0.01
"""Seconds: in a shorter interval, as that of the first look is, nothing can be measured."""


def header(view: View) -> list[str]:
    """Lines about the recording, for people; rates are those since the last look."""
    samples, branches = view.per_second(whole=False)
    lines = []
    if view.state is not None:
        why = f" ({view.state.why})" if view.state.why else ""
        lines.append(f"engine: {view.state.engine or 'starting'}{why}")
    lost = ", ".join(f"{count:,} {name}" for name, count in view.lost.items() if count)
    known = view.interval >= _SHORTEST
    cost = f"top {view.own:.1%} of a CPU" if known else "not known yet"
    if view.recorder is not None and known:
        cost += f", recorder {view.recorder:.1%}"
    if view.state is not None and view.state.share is not None:
        cost += f", bursts {view.state.share:.1%} of the time"
    rates = f"{samples:,.0f} samples/s, {branches:,.0f} branches/s" if known else "- samples/s, - branches/s"
    return [*lines, f"{view.seconds:.0f} s: {rates}; lost: {lost or 'nothing'}; cost: {cost}"]


def chosen_functions(
    session: Session,
    view: View,
    limit: int = 0,
    *,
    event: int | None = None,
    order: Order = "samples",
    wanted: str = "",
) -> LiveFunctions:
    """The first functions of ``view``, most samples first within their event; ``limit`` 0 gives all.

    ``event`` (row of the events table) and ``wanted`` (a part of the name or of its module, in any case) choose some,
    ``order``, one of `ORDERS`, sorts them.
    """
    from ..analysis.running.counts import LiveFunctions

    if view.snapshot is None or session.live.profile is None:
        return LiveFunctions.none()
    names = session.names_with(wanted, view.snapshot.labels) if wanted else None
    return view.snapshot.hottest_functions(limit, order, event=event, names=names)


def function_table(session: Session, view: View, found: LiveFunctions) -> Table:
    """Some of the functions of ``view``."""
    from ..answers.live_functions import live_functions

    return live_functions(session.live.profile, view.snapshot, found)


def branch_table(session: Session, view: View, limit: int) -> Table:
    """The branches, hottest first, as they are now."""
    from ..answers.branches import BRANCHES, BranchRows
    from ..answers.branches import branch_table as table_of
    from ..answers.table import table_of_cells

    if view.snapshot is None:
        return table_of_cells(BRANCHES, [])
    shown, total = session.live.hottest_branches(limit)
    return table_of(BranchRows(session.live.namer, shown, total)).without("bursts", "noise")
