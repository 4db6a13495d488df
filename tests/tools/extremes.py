"""Captures in which one number is as large, as small or as odd as its field allows; all else is plain.

`perfdata()` yields (what, bytes): every integer of every record, feature section and attribute of a small capture that
has one of each, from the declarations of `perfdata_writer`.
"""

from __future__ import annotations

from collections.abc import Iterator

import perfdata_writer as pw

SAMPLE = (
    pw.IP
    | pw.TID
    | pw.TIME
    | pw.ADDR
    | pw.CALLCHAIN
    | pw.ID
    | pw.CPU
    | pw.PERIOD
    | pw.STREAM_ID
    | pw.BRANCH_STACK
    | pw.WEIGHT
    | pw.DATA_SRC
    | pw.IDENTIFIER
    | pw.TRANSACTION
    | pw.PHYS_ADDR
    | pw.CGROUP
    | pw.DATA_PAGE_SIZE
    | pw.CODE_PAGE_SIZE
)


def base() -> pw.Builder:
    """A capture with one of each record and feature that says something."""
    flags = 1 << 8 | 1 << 9 | 1 << 13 | 1 << 23 | 1 << 24 | 1 << 25  # mmap comm task mmap2 comm_exec use_clockid
    b = pw.Builder(sample_type=SAMPLE, flags=flags, clockid=1)
    b.kernel_map(0xFFFFFFFF81000000, 0x1000000)
    b.comm(pid=10, name="it", time=1, exec=True)
    b.mmap2(pid=10, addr=0x400000, length=0x10000, pgoff=0, name="/bin/it", time=2)
    b.mmap(pid=10, addr=0x500000, length=0x10000, pgoff=0, name="/bin/lib", time=2)
    b.fork(pid=11, ppid=10, time=3)
    for time in (4, 5, 6):
        b.sample(
            ip=0x400100,
            pid=10,
            tid=10,
            time=time,
            cpu=1,
            period=1000,
            addr=0x400200,
            callchain=[0x400100, 0x400120],
            branches=[(0x400110, 0x400100, pw.flags(predicted=1, cycles=7)), (0x400140, 0x400104, 0)],
            weight=3,
            data_src=1,
            phys_addr=1,
            cgroup=2,
            data_page_size=4096,
            code_page_size=4096,
        )
    b.record("LOST", id=101, lost=3, time=7)
    b.record("LOST_SAMPLES", lost=3, time=7)
    b.record("THROTTLE", id=101, stream_id=1)
    b.record("SWITCH_CPU_WIDE", next_prev_pid=10, next_prev_tid=10, time=8)
    b.record("NAMESPACES", pid=10, tid=10, nr=1, links=[{"dev": 1, "inode": 2}], time=8)
    b.record("KSYMBOL", addr=0xFFFFFFFFC0000000, length=100, ksym_type=1, name="bpf_prog", time=8)
    b.record("CGROUP", cgroup_id=2, name="/a", time=8)
    b.record("TEXT_POKE", addr=0xFFFFFFFF81000100, old_len=2, new_len=2, code=b"abcd", time=8)
    b.record("THREAD_MAP", nr=1, threads=[{"pid": 10, "name": b"it".ljust(16, b"\0")}])
    b.record("STAT", id=101, cpu=0, thread=10, value=5, enabled=1, running=1)
    b.record("STAT_ROUND", type=0, time=9)
    b.record("TIME_CONV", shift=1, mult=1, zero=1, cycles=1, mask=1, pad=bytes(6))
    b.exit(pid=11, time=10)
    b.feature("HOSTNAME", value="host")
    b.feature("NRCPUS", available=2, online=2)
    b.feature("TOTAL_MEM", value=1 << 20)
    b.feature("NUMA_TOPOLOGY", nr=1, nodes=[{"node": 0, "mem_total": 1 << 20, "mem_free": 1, "cpus": "0-1"}])
    b.feature("SAMPLE_TIME", first=4, last=6)
    b.feature("CLOCKID", resolution=1)
    b.feature("CLOCK_DATA", version=1, clockid=1, wall=1_700_000_000_000_000_000, clock=5)
    b.feature(
        "MEM_TOPOLOGY",
        version=1,
        block_size=1 << 27,
        nr=1,
        nodes=[{"node": 0, "size": 1 << 30, "bits": 64, "set": [1]}],
    )
    b.feature(
        "CACHE",
        version=1,
        nr=1,
        caches=[{"level": 1, "line_size": 64, "sets": 64, "ways": 8, "type": "Data", "size": "32K", "map": "0-1"}],
    )
    b.feature(
        "CPU_TOPOLOGY",
        nr_cores=1,
        cores=["0-1"],
        nr_threads=1,
        threads=["0-1"],
        cpus=[{"core": 0, "socket": 0}] * 2,
        nr_dies=1,
        dies=["0-1"],
        die_ids=[0, 0],
    )
    b.build_id("/bin/it", bytes(range(20)))
    return b


def _values(width: int) -> Iterator[int]:
    top = 1 << 8 * width
    yield from (top // 2 - 1, top // 2, top - 1)


def _patched(data: bytes, at: int, width: int, value: int) -> bytes:
    return data[:at] + value.to_bytes(width, "little") + data[at + width :]


def perfdata() -> Iterator[tuple[str, bytes]]:
    b = base()
    capture = b.capture
    for number, body in list(capture.features.items()):
        for at, kind in pw._feature_walk(capture, number)[1]:
            for value in _values(pw.WIDTH[kind]):
                capture.features[number] = _patched(body, at, pw.WIDTH[kind], value)
                yield f"{pw.FEATURES[number][0]} at {at} = {value:#x}", b.build()
        capture.features[number] = body
    for record in capture.records:
        body = record.body
        for at, kind in pw.record_walk(capture.attrs, record)[1]:
            for value in _values(pw.WIDTH[kind]):
                record.body = _patched(body, at, pw.WIDTH[kind], value)
                yield f"{record.name} at {at} = {value:#x}", b.build()
        record.body = body
    attr = capture.attrs[0]
    walk = pw.Walk(attr.raw)
    walk.read(pw.ATTR, len(attr.raw), short=True)
    for at, kind in walk.spans:
        for value in _values(pw.WIDTH[kind]):
            capture.attrs[0] = pw.Attr(_patched(attr.raw, at, pw.WIDTH[kind], value), attr.ids)
            yield f"attr at {at} = {value:#x}", b.build()
    capture.attrs[0] = attr
