"""Branch records before system calls, and the events that they are joined to."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from lastbranch.errors import FormatError
from lastbranch.etw.portable.sources.call_branches import (
    CSWITCH,
    ENTER,
    PATIENCE,
    CallBranches,
    CallRecords,
    records_of,
)
from lastbranch.etw.portable.sources.event_words import Events
from lastbranch.model import BRANCH, SampleBatch

SLEEPS, STOPPED, PREEMPTED = 1, 8, 0x100
NONE = np.empty(0, np.uint64)


def batch(times: list[int], tids: list[int], depth: list[int] | None = None) -> SampleBatch:
    """Samples; with ``depth`` branches each, from 16 * number on."""
    count = len(times)
    columns = {
        "time": np.array(times, np.int64),
        "ip": np.zeros(count, np.uint64),
        "pid": np.full(count, 7, np.int32),
        "tid": np.array(tids, np.int32),
        "cpu": np.zeros(count, np.int32),
        "event": np.zeros(count, np.int32),
        "period": np.zeros(count, np.uint64),
        "mode": np.zeros(count, np.uint8),
    }
    if depth is None:
        return SampleBatch(columns)
    entries = 16 * np.arange(1, sum(depth) + 1, dtype=np.uint64)
    columns |= {"branch_from": entries, "branch_to": entries + np.uint64(8), "branch_flags": np.zeros_like(entries)}
    return SampleBatch(columns, {BRANCH: np.concatenate([[0], np.cumsum(depth)]).astype(np.int64)})


def waiting(hooks: tuple[int, ...], *records: SampleBatch, until: int = 1 << 40) -> CallBranches:
    """What waits after ``records`` have come, all from before ``until``."""
    made = CallBranches()
    made.use(hooks)
    for one in records_of(records, until, 0x4):
        made.take(one.encode(), until)
    return made


def joined(made: CallBranches, hook: int, times: list[int], tids: list[int], state: list[int] | None = None) -> Events:
    ns = np.array(times, np.int64)
    states = None if state is None else np.array(state, np.int64)
    return made.following(hook, batch(times, tids), ns, ns + 1000, states)


def records(events: Events) -> list[tuple[int, int, int]]:
    """(time, thread, address of the newest branch) of each record."""
    ends = np.cumsum(events.size)
    found = []
    for time, size, end in zip(events.time.tolist(), events.size.tolist(), ends.tolist(), strict=True):
        data = events.words[end - size : end].tobytes()
        assert data[6:8] == b"\x20\x0c"
        stamp, own, pid, tid, options = struct.unpack_from("<qqIII", data, 8)
        assert (stamp, own, pid, options) == (time, time, 7, 0x4)
        found.append((time, tid, struct.unpack_from("<Q" if size > 8 else "<I", data, 40)[0]))
    return found


def test_the_event_of_the_call_is_the_first_of_its_thread() -> None:
    made = waiting((ENTER,), batch([100, 200, 300], [1, 2, 1], [2, 1, 1]))
    events = joined(made, ENTER, [90, 110, 150, 205, 310], [1, 1, 1, 2, 1])
    assert sorted(records(events)) == [(1110, 1, 16), (1205, 2, 48), (1310, 1, 64)]
    assert not len(joined(made, ENTER, [400], [1])), "each has one"


def test_a_wait_is_one_in_the_call() -> None:
    """After its begin and before its end, in a state that waits: not preempted, and not stopped by the tracer."""
    calls = batch([100, 150, 200, 250, 300], [1, 1, 1, 1, 1], [1, 0, 1, 0, 1])
    made = waiting((CSWITCH,), calls)
    times, states = [110, 120, 160, 210, 260], [PREEMPTED, STOPPED, SLEEPS, SLEEPS, SLEEPS]
    assert records(joined(made, CSWITCH, times, [1] * 5, states)) == [(1210, 1, 32)]
    assert records(joined(made, CSWITCH, [5000], [1], [SLEEPS])) == [(6000, 1, 48)], "it may begin late"


def test_a_call_whose_event_was_lost_gives_its_record_to_no_other() -> None:
    made = waiting((ENTER,), batch([100, 200], [1, 1], [1, 1]))
    assert records(joined(made, ENTER, [210, 220], [1, 1])) == [(1210, 1, 32)]
    made = waiting((ENTER,), batch([100], [1], [1]), until=PATIENCE + 200)
    assert not len(joined(made, ENTER, [50], [1]))
    assert not len(joined(made, ENTER, [PATIENCE], [1])), "too late"


def test_events_wait_for_their_records() -> None:
    made = waiting((ENTER,), until=1000)
    assert made.limit(5000) == 1000
    assert made.limit(1000 + PATIENCE) == 1000 + PATIENCE
    made.use(())
    assert made.limit(5000) == 5000


@pytest.mark.parametrize("cut", [0, 10, 16, 40, 47])
def test_damaged_messages(cut: int) -> None:
    (body, _) = (one.encode() for one in records_of([batch([1], [1], [1])], 9, 0))
    with pytest.raises(FormatError):
        CallRecords.decode(body[:cut])
    with pytest.raises(FormatError):
        CallRecords.decode(body + b"x")
