"""Damaged .etl files: what stands beside the damage is delivered, and any bytes give events or a clear error."""

import struct

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import etl_builder as build
from etl_oracle import GUID, log_of, real, sample, slow, some_trace, times
from lastbranch.errors import FormatError
from lastbranch.formats.etl import compress, read_header
from lastbranch.model import BytesSource

# -- damage


def damaged(change, events=200, cpus=2, **options):
    """A log of buffers of 1 KiB whose bytes ``change`` altered, its times, and those of each undamaged buffer."""
    trace = some_trace(events, cpus, size=1024, **options)
    data = bytearray(bytes(trace))
    per_buffer = {}
    for row in slow(bytes(data)):
        per_buffer.setdefault(row[0], []).append(row[5])
    data = change(data) or data
    log = log_of(data)
    return log, times(log), per_buffer


def put(form, offset, value):
    return lambda data: struct.pack_into(form, data, offset, value)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (put("<I", 2048, 0x77777777), "BufferSize"),
        (put("<I", 2048, 3), "BufferSize"),
        (put("<I", 2048, 2048), "BufferSize"),
        (put("<I", 2048 + 0x30, 71), "Offset"),
        (put("<I", 2048 + 0x30, 1025), "Offset"),
        (put("<I", 2048 + 0x30, 1 << 31), "Offset"),
    ],
)
def test_a_damaged_buffer_is_skipped_and_named(change, field):
    log, got, buffers = damaged(change)
    assert got == [t for at, part in buffers.items() if at != 2048 for t in part]
    assert [(d.offset, d.field, d.lost) for d in log.damage] == [(2048, field, 1024)]
    assert log.skipped == 1
    assert sorted(times(log, ordered=True)) == sorted(got)
    assert len(log.damage) == 1


@pytest.mark.parametrize("mode", [0, 1, 2, 0x21])
@pytest.mark.parametrize("zeroed", [(1024,), (2048,), (2048, 3072), (1024, 4096)])
@pytest.mark.parametrize("window", [1024, 2048, 1 << 20])
def test_zeros_before_a_later_buffer_are_damage(mode, zeroed, window):
    def change(data):
        for at in zeroed:
            data[at : at + 1024] = bytes(1024)

    log, got, buffers = damaged(change, header={"mode": mode})
    assert got == [t for at, part in buffers.items() if at not in zeroed for t in part]
    log._reader._window = window
    assert times(log) == got
    runs = [(2048, 2048)] if zeroed == (2048, 3072) else [(at, 1024) for at in zeroed]
    assert [(d.offset, d.field, d.value, d.lost) for d in log.damage] == [(at, "BufferSize", 0, n) for at, n in runs]
    assert (log.skipped, log.unwritten) == (len(zeroed), 0)
    assert sorted(times(log, ordered=True)) == sorted(got)
    assert len(log.damage) == len(runs)


@pytest.mark.parametrize("mode", [0, 1])
def test_zeros_at_the_end_of_a_file_that_reserves_no_room_are_damage(mode):
    trace = bytes(some_trace(header={"mode": mode}))
    log = log_of(trace + bytes(4096 * 5 + 100))
    assert len(times(log)) == 301
    assert [(d.offset, d.reason, d.lost) for d in log.damage] == [
        (len(trace), "zeros where a buffer should be", 4096 * 5 + 100)
    ]
    assert (log.skipped, log.unwritten) == (6, 0)


def test_a_zeroed_buffer_of_a_real_file():
    data = bytearray(real("ShutdownPerfDiagLogger.etl"))
    expected = [row[5] for row in slow(bytes(data)) if row[0] != 3 << 16]
    data[3 << 16 : 4 << 16] = bytes(1 << 16)
    log = log_of(data)
    index = [at for _, rows in log._reader.index() for at in rows.offset.tolist()]  # headers only
    assert 3 << 16 not in index
    assert [(d.offset, d.lost) for d in log.damage] == [(3 << 16, 1 << 16)]
    assert times(log) == expected
    assert len(expected) == 17_078 - 401
    assert log.skipped == 1


WRONG = [0, 3, 4096, 2048, 512, 1 << 20, 1 << 31]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("zeroed", [False, True])
def test_a_header_buffer_of_a_wrong_size_costs_nothing(wrong, zeroed):
    """Nor when the buffer after it, which shows what is right, is damaged, too."""

    def change(data):
        struct.pack_into("<I", data, 0, wrong)
        if zeroed:
            data[1024:2048] = bytes(1024)

    log, got, buffers = damaged(change)
    assert got == [t for at, part in buffers.items() if not (zeroed and at == 1024) for t in part]
    found = [(d.offset, d.field, d.value) for d in log.damage]
    assert found == [(0, "BufferSize", wrong)] + [(1024, "BufferSize", 0)] * zeroed
    assert log.skipped == zeroed
    assert log.header.stride == 1024
    assert sorted(times(log, ordered=True)) == sorted(got)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_size_in_the_log_file_header_costs_nothing(wrong):
    log, got, buffers = damaged(put("<I", 72 + 0x20, wrong))
    assert got == [t for part in buffers.values() for t in part]
    assert [(d.offset, d.field, d.value) for d in log.damage] == [(72 + 0x20, "BufferSize", wrong)]
    assert (log.skipped, log.header.stride) == (0, 1024)


@pytest.mark.parametrize("at", [0, 72 + 0x20])
def test_a_wrong_size_where_only_the_header_buffer_is_left(at):
    data = bytearray(bytes(build.Trace(size=1024)))
    struct.pack_into("<I", data, at, 4096)
    log = log_of(data)
    assert times(log) == [1_000_000]
    assert [(d.offset, d.value) for d in log.damage] == [(at, 4096)]


def test_a_wrong_size_in_the_second_header_buffer():
    first, second = some_trace(30, size=1024), some_trace(30, size=1024, begin=2_000_000)
    data = bytearray(bytes(first) + bytes(second))
    expected = [row[5] for row in slow(bytes(data))]
    struct.pack_into("<I", data, len(bytes(first)), 4096)
    log = log_of(data)
    assert times(log) == expected
    assert [(d.offset, d.field, d.value) for d in log.damage] == [(len(bytes(first)), "BufferSize", 4096)]


@pytest.mark.parametrize("wrong", [4096, 1 << 20])
def test_a_wrong_size_in_the_header_buffer_of_a_real_file(wrong):
    data = bytearray(real("ShutdownPerfDiagLogger.etl"))
    expected = [row[5] for row in slow(bytes(data))]
    struct.pack_into("<I", data, 0, wrong)
    log = log_of(data)
    assert times(log) == expected
    assert [(d.offset, d.value, d.lost) for d in log.damage] == [(0, wrong, 0)]


@pytest.mark.parametrize("wrong", [0, 3, 700, 2049, 4096, 6000, 1 << 20, 1 << 31])
def test_a_wrong_size_in_the_header_buffer_of_a_compressed_file(wrong):
    """Only what fills the header buffer up may be taken for a gap."""
    data = bytearray(bytes(some_trace(400, 2, compress=compress)))
    expected = [row[5] for row in slow(bytes(data))]
    struct.pack_into("<I", data, 0, wrong)
    log = log_of(data)
    assert times(log) == expected
    gap = [(700, None, 2048 - 700)] if wrong == 700 else [(0, wrong, 0)]
    assert [(d.offset, d.value if d.offset == 0 else None, d.lost) for d in log.damage] == gap
    assert sorted(times(log, ordered=True)) == sorted(expected)


def test_a_damaged_buffer_behind_the_header_buffer_of_a_compressed_file():
    data = bytearray(bytes(some_trace(400, 2, compress=compress)))
    rows = slow(bytes(data))
    data[2048 : 2048 + 72] = b"\xff" * 72
    log = log_of(data)
    assert times(log) == [row[5] for row in rows if row[0] != 2048]
    assert [d.offset for d in log.damage] == [2048]


def test_two_damaged_buffers_and_lost_bytes():
    def change(data):
        struct.pack_into("<I", data, 2048, 5)
        struct.pack_into("<I", data, 3072, 5)

    log, got, buffers = damaged(change)
    assert got == [t for at, part in buffers.items() if at not in (2048, 3072) for t in part]
    assert log.skipped == 2
    log, got, buffers = damaged(lambda data: data[:2500] + data[2601:])
    assert {t for at, part in buffers.items() if at not in (2048, 3072) for t in part} <= set(got)
    assert [d.offset for d in log.damage][1] == 3072


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (put("<H", 2048 + 72 + 4, 0), "event smaller than its header"),
        (put("<H", 2048 + 72 + 4, 15), "event smaller than its header"),
        (put("<H", 2048 + 72 + 4, 2000), "event runs over the end of its buffer"),
        (put("<B", 2048 + 72 + 2, 99), "unknown event header"),
        (put("<I", 2048 + 72, 0), "unknown event header"),
        (put("<B", 2048 + 72 + 3, 0xB0), "unknown event header"),
    ],
)
def test_a_broken_chain_of_events_is_named(change, reason):
    log, got, buffers = damaged(change)
    assert got == [t for at, part in buffers.items() if at != 2048 for t in part]
    assert [(d.offset, d.reason) for d in log.damage] == [(2048 + 72, reason)]


def test_counters_longer_than_their_event():
    trace = build.Trace()
    trace.add(0, build.perfinfo(0x0F2F, 5, b"", version=2 | 7 << 8))
    trace.add(0, build.manifest(GUID, 1, 6, bytes(8), items=[(5, bytes(8))]))
    trace.add(0, sample(7))
    data = bytearray(bytes(trace))
    struct.pack_into("<H", data, 4096 + 72 + 16 + 80, 4000)  # size of the extended item
    log = log_of(data)
    events = list(log.events())[1:]
    assert [e.payload for e in events[:2]] == [b"", b""]
    assert events[2].time == 7
    assert [d.offset for d in log.damage] == [4096 + 72, 4096 + 72 + 16]


@pytest.mark.parametrize("windows7", [False, True])
def test_truncation_everywhere(windows7):
    trace = some_trace(40, 2, size=1024, windows7=windows7)
    data = bytes(trace)
    rows = slow(data)
    for cut in [*range(0, 1200, 7), *range(1200, len(data), 13)]:
        try:
            log = log_of(data[:cut])
        except FormatError:
            assert cut < 72 + 0x20 + 0x118 + 100
            continue
        got = times(log)
        assert got == [row[5] for row in rows if row[0] + row[1] + row[3] <= cut]
        assert sorted(times(log, ordered=True)) == sorted(got)
        last = cut // 1024 * 1024
        assert bool(log.damage) == (cut != last), cut


def test_compressed_truncation_and_damage():
    trace = some_trace(400, 2, compress=compress)
    data = bytes(trace)
    rows = slow(data)
    starts = sorted({row[0] for row in rows})
    lengths = dict(zip(starts, [*starts[1:], len(data)], strict=True))
    for cut in range(2048, len(data), 37):
        log = log_of(data[:cut])
        assert times(log) == [row[5] for row in rows if lengths[row[0]] <= cut]
        assert bool(log.damage) == (cut not in lengths.values()), cut
    victim = starts[2]
    for offset, value in ((0, b"\0\0\0\0"), (0, b"\xff\xff\xff\x7f"), (0x30, b"\1\0\0\0"), (72 + 4, b"\xff" * 40)):
        broken = bytearray(data)
        broken[victim + offset : victim + offset + len(value)] = value
        log = log_of(broken)
        assert times(log) == [row[5] for row in rows if row[0] != victim]
        assert log.skipped == 1
        assert victim <= log.damage[0].offset < lengths[victim]
        ordered = times(log, ordered=True)
        assert ordered == sorted(ordered)
        assert len(ordered) == len(times(log))


# -- properties

event_strategy = st.one_of(
    st.builds(lambda t, n: ("perfinfo", t, n), st.integers(0, 50), st.integers(0, 300)),
    st.builds(lambda t, n: ("system", t, n), st.integers(0, 50), st.integers(0, 300)),
    st.builds(lambda t, n: ("full", t, n), st.integers(0, 50), st.integers(0, 300)),
    st.builds(lambda t, n: ("manifest", t, n), st.integers(0, 50), st.integers(0, 300)),
    st.builds(lambda t, n: ("message", t, n), st.integers(0, 50), st.integers(0, 300)),
)


def make(kind, time, size, bits=64):
    body = bytes(i & 0xFF for i in range(size))
    if kind == "perfinfo":
        return build.perfinfo(0x0F2E, time, body, bits=bits, counters=range(size % 4))
    if kind == "system":
        return build.system(0x0501, time, body, bits=bits, compact=bool(size & 1))
    if kind == "full":
        return build.full(GUID, 1, time, body, bits=bits)
    if kind == "manifest":
        return build.manifest(GUID, 7, time, body, bits=bits, items=[(1, bytes(16))] * (size % 3))
    return build.message(3, body, time=time, guid=GUID if size & 1 else None)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(st.integers(0, 4), event_strategy), max_size=120),
    st.sampled_from([1024, 4096, 65536]),
    st.booleans(),
    st.sampled_from([None, compress]),
)
def test_built_traces_come_back(events, size, windows7, codec):
    trace = build.Trace(size=size, windows7=windows7, compress=codec, begin=0)
    now = [0] * 5
    for cpu, (kind, step, length) in events:
        now[cpu] += step
        trace.add(cpu, make(kind, now[cpu], length))
    log = log_of(bytes(trace))
    per_cpu = {}
    for event in list(log.events())[1:]:
        per_cpu.setdefault(event.cpu, []).append((event.time, event.payload))
    expected = {}
    for cpu, (time, length) in zip((c for c, _ in trace.log), _expected(events), strict=True):
        expected.setdefault(cpu, []).append((time, bytes(i & 0xFF for i in range(length))))
    assert per_cpu == expected
    ordered = times(log, ordered=True)
    assert ordered == sorted(ordered)
    assert len(ordered) == len(events) + 1
    assert log.damage == []


def _expected(events):
    now = [0] * 5
    for cpu, (_, step, length) in events:
        now[cpu] += step
        yield now[cpu], length


SEEDS = [bytes(some_trace(80, 3, size=1024)), bytes(some_trace(200, 3, compress=compress)),
         bytes(some_trace(80, 3, size=1024, windows7=True, bits=32))]  # fmt: skip
_rich = build.Trace(size=2048)
for _i in range(60):
    _rich.add(_i % 2, make(["perfinfo", "system", "full", "manifest", "message"][_i % 5], _i, _i * 3))
SEEDS.append(bytes(_rich))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8)), max_size=6),
    st.floats(0, 1),
    st.integers(-40, 40),
)
@example(SEEDS[0], [], 0.5, 1)
def test_mutations_never_raise_anything_else(seed, changes, where, shift):
    data = bytearray(seed)
    for place, value in changes:
        at = int(place * (len(data) - 1))
        data[at : at + len(value)] = value
    at = int(where * len(data))
    if shift < 0:
        del data[at : at - shift]
    else:
        data[at:at] = bytes(shift)
    try:
        log = log_of(data)
    except FormatError:
        return
    events = list(log.events())
    assert len(list(log.events(ordered=True))) == len(events) == sum(log.counts.values())
    again = len(log.damage)
    assert len(list(log.events())) == len(events)
    assert len(log.damage) == again


def test_the_size_of_a_header_event_bounds_its_names():
    data = bytearray(bytes(build.Trace()))
    struct.pack_into("<H", data, 72 + 4, 0x20 + 0x118 + 5)
    assert read_header(BytesSource(bytes(data))).file_name == ""


def test_a_compressed_flag_in_a_file_that_is_not():
    trace = some_trace(60, 2, size=1024, state=9)
    data = bytearray(bytes(trace))
    data[2048 + 0x34] |= 0x40
    log = log_of(data)
    assert times(log) == [row[5] for row in slow(bytes(trace)) if row[0] != 2048]
    assert log.skipped == 1


def test_an_unknown_compression_format_is_taken_for_xpress():
    log = log_of(bytes(some_trace(60, 2, compress=compress, state=77)))
    assert len(times(log)) == 61
    assert log.damage[0].field == "State"
