"""An .etl file that is larger than the memory to read it with: samples in pieces, stacks in temporary files."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etl_builder as eb
from lastbranch.errors import Damage
from lastbranch.formats.etl import TraceLog, read_etl
from lastbranch.formats.etl.profile.stacks import StackSpool
from lastbranch.model import MAX_ENTRIES, MAX_SAMPLES, BytesSource, Profile, concatenate
from lastbranch.opening import open_source

SAMPLE, PMC, LBR, STACK = 0x0F2E, 0x0F2F, 0x0C20, 0x1820
KERNEL_KEY, USER_KEY = 0x1825, 0x1826
PEAK_MB = 200


def sample(time: int, tid: int) -> bytes:
    return eb.perfinfo(SAMPLE, time, struct.pack("<QIHBB", 0x1000, tid, 1, 0, 0))


def lbr(time: int, entries: bytes) -> bytes:
    return eb.perfinfo(LBR, time, struct.pack("<QIIII", time, 42, 420, 0, 0) + entries)


def stack(time: int, tid: int, frames: list[int]) -> bytes:
    return eb.perfinfo(STACK, time, struct.pack(f"<QII{len(frames)}Q", time, 42, tid, *frames))


def chains(profile: Profile) -> list[list[int]]:
    """Of all samples in file order."""
    batches = list(profile.batches(["frame", "position"]))
    if not batches or "frame" not in batches[0]:
        return []
    whole = concatenate(batches)
    return [whole.chain(int(i)).tolist() for i in np.argsort(whole["position"])]


# -- samples


def test_batches_are_no_larger_than_promised_and_have_the_wanted_columns_only() -> None:
    entries = np.arange(3 * 300, dtype=np.uint64).tobytes()
    trace = eb.Trace(size=65536)
    for i in range(600):
        trace.add(i % 2, eb.perfinfo(PMC, 200 + i, struct.pack("<QIHH", i, 420, 6, 0)))
        trace.add(i % 2, lbr(200 + i, entries))
    for i in range(2 * MAX_SAMPLES):
        trace.add(0, sample(1000 + i, 420))
    profile = read_etl(BytesSource(bytes(trace)))
    batches = list(profile.batches())
    assert sum(map(len, batches)) == profile.samples == 600 + 2 * MAX_SAMPLES
    assert sum(b.entries for b in batches) == profile.entries == 600 * 300
    assert max(map(len, batches)) <= MAX_SAMPLES
    assert max(b.entries for b in batches) <= MAX_ENTRIES < profile.entries
    for batch in batches:
        for name, first in (("branch_from", 0), ("branch_to", 1), ("branch_info", 2)):
            wanted = np.tile(np.arange(first, 900, 3, np.uint64), int((batch.depth > 0).sum()))
            assert (batch[name] == wanted).all()
    (bare, *_) = profile.batches(())
    assert not [name for name in bare.columns if name.startswith("branch_")]


# -- stacks


def naive(stacks: list[tuple[str, int, int, int, list[int]]], time: int, tid: int) -> list[int]:
    """The chain of a sample, by the rules alone: parts in order, keys by the next definition, else by the last."""
    found: list[tuple[int, list[int]]] = []
    for kind, when, who, key, frames in stacks:
        if kind == "define" or (when, who) != (time, tid):
            continue
        if kind == "direct":
            found.append((1, frames))
            continue
        known = [(t, f) for k, t, _, other, f in stacks if k == "define" and other == key]
        later = [d for d in known if d[0] >= when]
        earlier = [d for d in known if d[0] < when]
        if later:
            found.append((0 if kind == "kernel" else 2, min(later, key=lambda d: d[0])[1]))
        elif earlier:
            found.append((0 if kind == "kernel" else 2, max(earlier, key=lambda d: d[0])[1]))
    return [frame for _, frames in sorted(found, key=lambda part: part[0]) for frame in frames]


def event_of(kind: str, time: int, tid: int, key: int, frames: list[int]) -> bytes:
    if kind == "direct":
        return stack(time, tid, frames)
    if kind == "define":
        return eb.perfinfo(0x1824, time, struct.pack(f"<Q{len(frames)}Q", key, *frames))
    return eb.perfinfo(KERNEL_KEY if kind == "kernel" else USER_KEY, time, struct.pack("<QIIQ", time, 42, tid, key))


PARTS = st.tuples(
    st.sampled_from(("direct", "kernel", "user", "define")),
    st.integers(1, 40),
    st.integers(1, 3),
    st.integers(1, 4),
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(PARTS, max_size=60), st.sampled_from((1, 100, 700, 1 << 20)))
def test_stacks_are_joined_by_the_rules_whatever_the_limit(
    stacks: list[tuple[str, int, int, int, list[int]]], limit: int
) -> None:
    one_time = {("define", key, when) for kind, when, _, key, _ in stacks if kind == "define"}
    if len(one_time) < sum(kind == "define" for kind, *_ in stacks):
        stacks = [
            s
            for i, s in enumerate(stacks)
            if s[0] != "define" or (s[1], s[3]) not in {(t[1], t[3]) for t in stacks[:i] if t[0] == "define"}
        ]
    trace = eb.Trace(size=1024)
    asked = [(time, tid) for time in range(1, 41, 3) for tid in (1, 2)]
    for time, tid in asked:
        trace.add(0, sample(trace.begin + time, tid))
    for kind, time, tid, key, frames in stacks:  # any order: they are found by their own times
        # What is of one thread and time is of one processor, too: between processors these have no order.
        trace.add(1 + tid % 2, event_of(kind, trace.begin + time, tid, key, frames))
    profile = read_etl(BytesSource(bytes(trace)), stack_bytes=limit)
    wanted = [naive(stacks, time, tid) for time, tid in asked]
    found = chains(profile)
    assert found == (wanted if found else [])
    assert found or not any(wanted)


def test_a_real_log_has_the_same_stacks_with_little_memory() -> None:
    folder = os.environ.get("LASTBRANCH_DATA")
    if not folder:
        pytest.skip("LASTBRANCH_DATA is not set: no real captures")
    path = Path(folder) / "etl" / "net.4.5.2.x64.etl"
    profiles = [read_etl(open_source(str(path)), stack_bytes=size) for size in (1 << 40, 1 << 16)]
    whole, little = (concatenate(list(profile.batches(["frame"]))) for profile in profiles)
    assert len(whole) == 79528
    assert (whole.offsets["frame"] == little.offsets["frame"]).all()
    assert (whole["frame"] == little["frame"]).all()
    spools = profiles[1].streams[0].reader.__self__.stacks  # type: ignore[attr-defined]
    assert spools._references.spool._file is not None
    assert spools._frames.spool._file is not None


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 255), max_size=30), min_size=1, max_size=10),
    st.integers(0, 200),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 40)), max_size=20),
)
def test_a_spool_is_an_array(parts: list[list[int]], limit: int, asked: list[tuple[int, int]]) -> None:
    spool, items = StackSpool(np.uint16, limit), [i for part in parts for i in part]
    for part in parts:
        assert spool.append(np.array(part, np.uint16)) + len(part) == len(spool)
    ends = [(min(first, len(items)), min(first + count, len(items))) for first, count in asked]
    taken = spool.take(np.array([a for a, _ in ends], np.int64), np.array([b - a for a, b in ends], np.int64))
    assert taken.tolist() == [i for a, b in ends for i in items[a:b]]
    for first, past in ends:
        spool.replace(first, np.arange(past - first, dtype=np.uint16))
        items[first:past] = range(past - first)
        assert spool.read(first, past).tolist() == items[first:past]
    assert spool.read(0, len(items)).tolist() == items


# -- all of it


def large_file(path: Path, events: list[tuple[bytes, int]], buffers: int) -> None:
    """Buffers of these ``events``, over and over, of two processors in turn, with times that go on.

    With each event, how many words from the second on are its time.
    """
    times, at = [], 9
    for event, words in events:
        times += range(at + 1, at + 1 + words)
        at += len(event) + 7 >> 3
    first = np.frombuffer(eb.buffer([event for event, _ in events], size=65536), np.int64)
    with path.open("wb") as file:
        file.write(bytes(eb.Trace(size=65536))[:65536])
        for number in range(buffers):
            buffer = first.copy()
            buffer[times] += number << 20
            buffer[3] = number + 1
            buffer.view(np.uint16)[20] = number & 1
            file.write(buffer.tobytes())


READ = """
import sys
from lastbranch.formats.etl import read_etl
from lastbranch.opening import open_source
profile = read_etl(open_source(sys.argv[1]))
samples = joined = entries = 0
for batch in profile.batches():
    samples += len(batch)
    entries += batch.entries
    joined += int((batch.offsets["frame"][1:] > batch.offsets["frame"][:-1]).sum()) if "frame" in batch else 0
# Not getrusage: ru_maxrss begins with that of the process which started this one.
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(profile.samples, samples, entries, joined, peak >> 10)
"""


@pytest.mark.parametrize("kind", ["records", "stacks"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, kind: str) -> None:
    """More than 200 MB of branch entries or of frames."""
    rng, begin = np.random.default_rng(1), eb.Trace().begin
    events = []
    for time in range(begin, begin + 740, 10):
        body = rng.integers(1 << 40, 1 << 47, 96, np.uint64)
        other = lbr(time, body.tobytes()) if kind == "records" else stack(time, 420, body.tolist())
        events += [(sample(time, 420), 1), (other, 2)]
    path, buffers = tmp_path / "large.etl", 3400
    large_file(path, events, buffers)
    done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
    indexed, samples, entries, joined, peak = map(int, done.stdout.split())
    assert indexed == samples == 74 * buffers
    assert (entries, joined) == ((32 * samples, 0) if kind == "records" else (0, samples))
    assert peak < PEAK_MB


# -- the index of buffers, which reads headers only


@pytest.mark.parametrize("at", [65536, 65536 + 80, 3 * 65536 + 8])
@pytest.mark.parametrize("change", ["cut", "insert"])
def test_ordered_events_are_all_events_where_buffers_are_out_of_step(at: int, change: str) -> None:
    trace = eb.Trace(size=65536)
    for i in range(9000):
        trace.add(i % 2, sample(trace.begin + i, 420))
    data = bytearray(bytes(trace))
    data[at:at] = b"\xff" * 34 if change == "insert" else b""
    if change == "cut":
        del data[at : at + 34]
    log = TraceLog(BytesSource(bytes(data)))
    number = sum(len(block) for block in log.blocks())
    damage: list[Damage] = log.damage
    assert damage
    assert number > 4000
    assert len(list(log.events(ordered=True))) == number
    assert log.damage == damage
