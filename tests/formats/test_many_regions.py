"""Counting branches whose addresses are spread as far as addresses go: in bounded memory, and right."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastbranch import arrays
from lastbranch.arrays import group, group_unordered

PEAK_MB = 190
COUNT = """
import sys
import numpy as np
from lastbranch.analysis import count_stacks
from lastbranch.bind import bind
from lastbranch.model import BRANCH, Event, Mode, Profile, SampleBatch, SampleStream

DEEP, SAMPLES, DISTINCT, BATCHES = 32, 2048, 64, 60
bits, rng = int(sys.argv[1]), np.random.default_rng(1)
ends = rng.integers(0, 1 << (bits - 1), (2, DISTINCT * 1024), np.uint64) << np.uint64(1)

def batches(wanted):
    for _ in range(BATCHES):
        start = rng.integers(0, DISTINCT, SAMPLES * DEEP // 1024)
        which = (start[:, None] * 1024 + np.arange(1024)).ravel()
        zeros, ones = np.zeros(SAMPLES, np.int64), np.ones(SAMPLES, np.int32)
        columns = {
            "time": zeros, "ip": zeros.view(np.uint64), "pid": ones, "tid": ones, "cpu": ones * 0, "event": ones * 0,
            "period": zeros.view(np.uint64), "mode": np.full(SAMPLES, Mode.USER, np.uint8),
            "branch_from": ends[0, which], "branch_to": ends[1, which], "branch_flags": np.ones(len(which), np.uint64),
        }
        yield SampleBatch(columns, {BRANCH: np.arange(0, len(which) + 1, DEEP)}), 0

total = BATCHES * SAMPLES
profile = Profile("spread", "etl", events=[Event("LBR", branch_select=0, branch_select_kind="etw")])
names = ("branch_from", "branch_to", "branch_flags")
profile.streams = [SampleStream(0, names, (0,), total, total * DEEP, DEEP, batches)]
bind(profile)
found = count_stacks(profile, ranges=False, details=True).branches
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(len(found.a), int(found.count.sum()), int(found.mispredicted.sum()), peak >> 10)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/status")
@pytest.mark.parametrize("bits", [47, 64])
def test_memory_does_not_grow_with_what_is_counted(bits: int) -> None:
    """Four million branches between 65,536 pairs of places, each in a region of its own. Tables of huge pages and
    rows that were kept to be merged later took 370 MB."""
    done = subprocess.run([sys.executable, "-c", COUNT, str(bits)], capture_output=True, text=True, check=True)
    pairs, count, mispredicted, peak = map(int, done.stdout.split())
    assert (pairs, count, mispredicted) == (65536, 60 * 2048 * 32, 60 * 2048 * 32)
    assert peak < PEAK_MB


KEYS = st.lists(st.tuples(st.integers(-2, 2), st.sampled_from((0, 1, 2**63, 2**64 - 1))), max_size=60)


@settings(max_examples=100, deadline=None)
@given(KEYS, st.sampled_from((arrays._ODD, np.uint64(0))))
def test_merged_rows_are_the_distinct_ones(rows: list[tuple[int, int]], odd: np.uint64) -> None:
    """With a factor of 0 all hashes are equal."""
    keys = [np.array([a for a, _ in rows], np.int64), np.array([b for _, b in rows], np.uint64)]
    values = [np.ones(len(rows), np.int64), np.arange(len(rows))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "_ODD", odd)
        merged, (count, least) = group_unordered(keys, iter(values), [np.add, np.minimum])
    found = dict(zip(zip(*(key.tolist() for key in merged), strict=True), count.tolist(), strict=True))
    assert found == Counter(rows)
    assert len(found) == len(count)
    assert sorted(least.tolist()) == sorted(rows.index(row) for row in set(rows))
    assert group(merged, [count], [np.add])[1][0].tolist() == group(keys, values[:1], [np.add])[1][0].tolist()
