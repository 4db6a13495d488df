"""The perf.data writer of the tests against the real perf, and against numbers worked out by hand.

Reference output is that of `perf script` (Debian's linux-perf). What perf itself gets wrong is left out, and said:

* 6.1 refuses a *file* with an attr larger than 128 bytes ("incompatible file format"); demo_features.data is
  therefore cut to 128 (and loses its branch counters, which 6.1 does not know either).
* 6.1 turns the branch flags only up to `type` around; spec, new_type and priv of big-endian files end up in the
  reserved bits, so these three are cleared where perf is asked about big-endian files.
* no perf turns around sample_regs_intr of an attr, prot and flags of MMAP2, KSYMBOL and BPF_EVENT records, and
  the lost count of READ records.
* in pipes `-F ip` also prints the symbol, as perf parses -F before it has seen an attr; the reference asks for it.
* in big-endian pipes 6.1 does not turn branch flags around at all; only addresses are compared.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

import perfdata_writer as pw
from perf_script_oracle import OLD_FLAGS, changed, needs_perf, perf_script
from perfdata_writer import Builder, Capture, flags

FILES = ("demo_pie", "demo_2proc", "demo_hwidx", "demo_features", "lldlayout/demo_pie")


@pytest.fixture
def synthetic() -> Path:
    if "LASTBRANCH_DATA" not in os.environ:
        pytest.skip("LASTBRANCH_DATA is not set: the captures are not part of the project")
    return Path(os.environ["LASTBRANCH_DATA"]) / "perf" / "synthetic"


FORMS: dict[str, Callable[[Capture], bytes]] = {
    "file": pw.to_file,
    "big": pw.to_big_endian,
    "pipe": pw.to_pipe,
    "zstd": pw.to_compressed,
    "big zstd": lambda capture: pw.encode(capture, big=True, compress=81),
    "pipe zstd": lambda capture: pw.encode(capture, pipe=True, compress=81),
}


@needs_perf
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", FILES)
def test_perf_prints_the_same_stacks(name: str, form: str, synthetic: Path, tmp_path: Path) -> None:
    data = (synthetic / f"{name}.data").read_bytes()
    capture = pw.parse(data)
    if name == "demo_features":
        known = ~pw.BRANCH_COUNTERS
        capture = changed(capture, 128, known, OLD_FLAGS if "big" in form else -1)
        data = pw.to_file(capture)
    pipe = "pipe" in form
    fields = "ip,sym,brstack" if pipe else "ip,brstack"
    expected = perf_script(data, tmp_path, "-F", fields)
    assert expected.count("\n") == len(capture.named("SAMPLE"))
    assert perf_script(FORMS[form](capture), tmp_path, "-F", "ip,brstack", pipe=pipe) == expected


@needs_perf
@pytest.mark.parametrize("name", FILES[:3])
def test_perf_prints_the_same_addresses_from_a_big_endian_pipe(name: str, synthetic: Path, tmp_path: Path) -> None:
    data = (synthetic / f"{name}.data").read_bytes()
    addresses = re.compile(r"0x[0-9a-f]+/0x[0-9a-f]+(?=/)|^ +[0-9a-f]+", re.MULTILINE)
    expected = addresses.findall(perf_script(data, tmp_path, "-F", "ip,brstack"))
    big = pw.encode(pw.parse(data), big=True, pipe=True)
    assert addresses.findall(perf_script(big, tmp_path, "-F", "ip,brstack", pipe=True)) == expected


@pytest.mark.parametrize("name", FILES)
def test_rewriting_gives_the_same_bytes(name: str, synthetic: Path) -> None:
    data = (synthetic / f"{name}.data").read_bytes()
    assert pw.to_file(pw.parse(data)) == data


@pytest.mark.parametrize("name", ["amd_zen4_lbrextv2_spec", "arm_etm_inject_hwindex", "snb_raw_callchain_branch-3.4"])
def test_real_captures_survive(name: str, synthetic: Path) -> None:
    """Every record and feature of real files decodes, and packing the fields again gives the same samples."""
    capture = pw.parse((synthetic.parent / f"{name}.perf.data").read_bytes())
    again = pw.parse(pw.to_file(capture))
    assert (again.attrs, again.features) == (capture.attrs, capture.features)
    assert [(r.type, r.misc, r.body) for r in again.records] == [(r.type, r.misc, r.body) for r in capture.records]
    for number in set(capture.features) - {1, 25, 26}:
        assert pw.feature_bytes(capture, number, True) != b"" or not capture.features[number]
    for sample in capture.named("SAMPLE"):
        attr = pw.attr_of(capture.attrs, 9, sample.body)
        assert pw.pack(pw.sample_spec(attr), sample.fields) == sample.body


def everything() -> Builder:
    """A capture with every kernel record and every sample field."""
    kinds = (1 << 25) - 1 & ~pw.WEIGHT_STRUCT
    b = Builder(
        sample_type=kinds,
        branch_sample_type=pw.BRANCH_ANY | pw.BRANCH_HW_INDEX,
        read_format=pw.FORMAT_ENABLED | pw.FORMAT_RUNNING | pw.FORMAT_ID | pw.FORMAT_LOST,
        sample_regs_user=0b1011,
        sample_stack_user=16,
    )
    b.attr(
        sample_type=kinds,
        read_format=pw.FORMAT_GROUP | pw.FORMAT_ID,
        branch_sample_type=pw.BRANCH_ANY,
        config=1,
        sample_regs_user=0b11,
    )
    for name in ("HOSTNAME", "OSRELEASE", "VERSION", "ARCH"):
        b.feature(name, value="x86_64")
    b.feature("NRCPUS", available=4, online=4)
    b.feature("CMDLINE", args=["perf", "record", "-b"])
    b.build_id("/bin/prog", bytes(range(20)))
    b.kernel_map(0xFFFFFFFF81000000, 0x1000000, time=0)
    b.mmap(pid=7, addr=0x300000, length=0x1000, pgoff=0, name="/bin/old", time=1)
    b.comm(pid=7, name="prog", time=2, exec=True)
    b.mmap2(pid=7, addr=0x400000, length=0x1000, pgoff=0x2000, name="/bin/prog", maj=8, min=1, ino=77, time=3)
    b.mmap2(pid=7, addr=0x500000, length=0x1000, pgoff=0, name="/lib/b.so", build_id=bytes(range(20)), time=4)
    b.fork(pid=8, ppid=7, time=5)
    b.record("SWITCH", pid=7, time=6, cpu=1)
    b.record("SWITCH_CPU_WIDE", pw.MISC_SWITCH_OUT, next_prev_pid=7, next_prev_tid=8, pid=7, time=7)
    b.record("NAMESPACES", pid=7, links=[(3, 0xEFFFFFF0 + i) for i in range(7)], time=8)
    b.record("LOST", id=101, lost=3, time=9)
    b.record("LOST_SAMPLES", lost=4, time=10)
    b.record("THROTTLE", time=11, id=101, stream_id=9)
    b.record("UNTHROTTLE", time=12, id=101, stream_id=9)
    b.record("AUX", aux_offset=16, aux_size=32, flags=1, time=13)
    b.record("ITRACE_START", pid=7, time=14)
    b.record("READ", pid=7, value=5, time_enabled=6, time_running=7, read_id=101, read_lost=1, time=15)
    b.record("KSYMBOL", addr=0xFFFFFFFFC0000000, length=64, ksym_type=1, name="bpf_prog_1", time=16)
    b.record("BPF_EVENT", type=1, prog_id=5, tag=b"12345678", time=17)
    b.record("CGROUP", cgroup_id=12, name="/user.slice", time=18)
    b.record("TEXT_POKE", addr=0xFFFFFFFF81000010, old_len=5, new_len=5, code=b"\x90" * 5 + b"\xcc" * 7, time=19)
    b.record("AUX_OUTPUT_HW_ID", hw_id=2, time=20)
    b.record("FINISHED_ROUND")
    b.sample(
        ip=0x400100,
        pid=7,
        tid=8,
        time=100,
        addr=0x1234,
        stream_id=9,
        cpu=3,
        period=55,
        value=77,
        time_enabled=5,
        time_running=4,
        read_lost=2,
        read_id=101,
        callchain=[(1 << 64) - 512, 0x400100, 0x400200],
        raw=b"abcdefg",
        hw_idx=6,
        branches=[
            (0x400010, 0x400020, flags(predicted=1, cycles=9)),
            (0x400030, 0x400040, flags(mispred=1, type=4, in_tx=1, abort=1, cycles=0xFFFE)),
        ],
        regs_user=[1, 2, 3],
        stack=b"12345678abcdefgh",
        stack_dyn_size=8,
        weight=33,
        data_src=0x68100142,
        transaction=2,
        phys_addr=0xABC,
        cgroup=12,
        data_page_size=4096,
        code_page_size=2 << 20,
        aux=b"auxdata",
    )
    b.sample(event=1, ip=0x400101, pid=7, time=101, read_values=[(11, 101), (12, 102)], branches=[], regs_user=[8, 9])
    b.exit(pid=8, time=102)
    return b


def dump(data: bytes, where: Path, pipe: bool = False) -> list[str]:
    """perf's own decoding of every record: no hex dumps, no offsets, no protection, no self-description of pipes."""
    lines = perf_script(data, where, "-D", pipe=pipe, warnings=True).splitlines()
    decoded = (re.sub(r"^(-?\d+ )+0x[0-9a-f]+ \[0x[0-9a-f]+\]: |[r-][w-][x-][ps] ", "", line) for line in lines)
    kept = [line for line in decoded if re.match(r"PERF_RECORD|\.\.\.| \.\.? ", line)]
    return [line for line in kept if not re.match(r"PERF_RECORD_(ATTR|FEATURE|BUILD_ID|EVENT_UPDATE)", line)]


@needs_perf
@pytest.mark.parametrize("form", ["big", "zstd", "pipe"])
def test_perf_decodes_every_record_the_same(form: str, tmp_path: Path) -> None:
    b = everything()
    if form == "big":
        b.capture.records = [r for r in b.capture.records if r.name not in ("KSYMBOL", "BPF_EVENT", "READ")]
    lines = dump(b.build(), tmp_path)
    said = "\n".join(lines)
    for part in (
        "PERF_RECORD_MMAP -1/0: [0xffffffff81000000(0x1000000) @ 0xffffffff81000000]: x [kernel.kallsyms]_text",
        "PERF_RECORD_COMM exec: prog:7/7",
        "PERF_RECORD_MMAP2 7/7: [0x400000(0x1000) @ 0x2000 08:01 77 0]: /bin/prog",
        "PERF_RECORD_MMAP2 7/7: [0x500000(0x1000) @ 0 <000102030405060708090a0b0c0d0e0f10111213>]: /lib/b.so",
        "PERF_RECORD_FORK(8:8):(7:7)",
        "PERF_RECORD_EXIT(8:8):(8:8)",
        "PERF_RECORD_SAMPLE(IP, 0x2): 7/8: 0x400100 period: 55 addr: 0x1234",
        "0000000000400030 -> 0000000000400040 65534 cycles M AT 0 CALL",
        "phys_addr: 0xabc",
        "transaction: 2",
    ):
        assert part in said
    assert dump(FORMS[form](b.capture), tmp_path, pipe=form == "pipe") == lines


@needs_perf
@pytest.mark.parametrize("form", ["file", "big", "zstd", "pipe"])
@pytest.mark.parametrize("size", [64, 72, 80, 96, 104, 112, 120, 128])
def test_perf_takes_every_attr_size(size: int, form: str, tmp_path: Path) -> None:
    kinds = pw.IP | pw.TID | pw.TIME | (pw.BRANCH_STACK if size >= 80 else 0)
    b = Builder(size=size, sample_type=kinds)
    b.feature("HOSTNAME", value="host")
    b.comm(pid=5, name="a", time=1000)
    b.mmap2(pid=5, addr=0x1000, length=0x1000, pgoff=0, name="/bin/a", time=2000)
    b.fork(pid=6, ppid=5, time=3000)
    b.comm(pid=6, name="b", time=4000, exec=True)
    b.exit(pid=6, time=5000)
    b.sample(ip=0x1234, pid=5, time=6000)
    options = ("--show-mmap-events", "--show-task-events", "-F", "comm,pid,tid,time,ip", "--ns")
    text = perf_script(FORMS[form](b.capture), tmp_path, *options, pipe=form == "pipe")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert [re.sub(r" [r-][w-][x-][ps] ", " ", line) for line in lines[:5]] == [
        "a 5/5 0.000001000: PERF_RECORD_COMM: a:5/5",
        "a 5/5 0.000002000: PERF_RECORD_MMAP2 5/5: [0x1000(0x1000) @ 0 00:00 0 0]: /bin/a",
        "a 5/5 0.000003000: PERF_RECORD_FORK(6:6):(5:5)",
        "b 6/6 0.000004000: PERF_RECORD_COMM exec: b:6/6",
        "b 6/6 0.000005000: PERF_RECORD_EXIT(6:6):(6:6)",
    ]
    assert lines[5].startswith("a 5/5 0.000006000: 1234")


def test_builder_output_parses_back() -> None:
    capture = pw.parse(everything().build())
    records = {record.name: record for record in capture.records}
    assert set(records) == {pw.RECORDS[n][0] for n in range(1, 22)} | {"FINISHED_ROUND"}
    assert records["FORK"].fields["sample_id"]["pid"] == 7
    assert records["NAMESPACES"].fields["links"][1] == {"dev": 3, "inode": 0xEFFFFFF1}
    assert records["MMAP2"].fields["build_id"] == bytes(range(20))
    assert records["READ"].fields["read_lost"] == 1
    assert records["TEXT_POKE"].fields["code"][:10] == b"\x90" * 5 + b"\xcc" * 5
    assert capture.feature("CMDLINE")["args"] == ["perf", "record", "-b"]
    first, second = (record.fields for record in capture.named("SAMPLE"))
    assert first["raw"] == b"abcdefg" + bytes(5), "padded, so that size and bytes together are a multiple of 8"
    assert (first["stack"], first["stack_dyn_size"], first["aux"]) == (b"12345678abcdefgh", [8], b"auxdata\0")
    assert first["branches"][1]["flags"] == 0b1101 | 0xFFFE << 4 | 4 << 20
    assert (second["identifier"], second["read_values"]) == (
        102,
        [{"value": 11, "read_id": 101}, {"value": 12, "read_id": 102}],
    )
    assert (second["branches"], second["regs_user"], second["stack"]) == ([], [8, 9], b"")
    assert "hw_idx" not in second


def test_user_records_survive() -> None:
    b = Builder()
    b.record("HEADER_ATTR", attr=b.capture.attrs[0].raw, ids=[5, 6])
    b.record("ID_INDEX", entries=[(1, 2, 3, 4)])
    b.record("AUXTRACE", size=24, tid=-1, payload=bytes(24))
    b.record("THREAD_MAP", threads=[(7, b"x".ljust(16, b"\0"))])
    b.record("CPU_MAP", type=1, mask=[{"nr": 1, "long_size": 8, "pad": bytes(2), "mask64": [3]}])
    b.record("EVENT_UPDATE", type=2, id=101, data=b"cycles\0\0")
    b.record("TIME_CONV", shift=1, mult=2, zero=3, cycles=4, mask=5)
    b.record("HEADER_FEATURE", feat_id=7, data=struct.pack("<2I", 4, 3))
    b.capture.features[7] = struct.pack("<2I", 8, 8)
    capture = pw.parse(b.build())
    assert [record.type for record in capture.records] == [64, 69, 71, 73, 74, 78, 79, 80]
    assert capture.records[0].fields["attr"]["sample_period"] == 4000
    assert capture.records[4].fields["mask"][0]["mask64"] == [3]
    big = b.build(big=True)
    assert struct.pack(">2IQ", 80, 0x18, 7)[:4] in big
    assert struct.pack(">QII", 7, 4, 3) in big, "the payload of HEADER_FEATURE has its own layout"
    assert struct.pack(">QQIiiI", 0, 0, 0, -1, 0, 0) + bytes(24) in big


def test_files_can_lie() -> None:
    b = Builder()
    b.sample(ip=1, pid=1, time=1, branches=[(1, 2, 3)], branch_nr=1000)
    with pytest.raises(ValueError, match="structure ends"):
        pw.parse(b.build())
    with pytest.raises(AssertionError, match="have no"):
        b.sample(ip=1, branch=[])


def test_bit_fields_of_big_endian_machines() -> None:
    """By hand: the first declared field takes the highest bits, and each field keeps its own bit order."""
    cases = {
        "mispred": (1, 1 << 63),
        "predicted": (1, 1 << 62),
        "in_tx": (1, 1 << 61),
        "abort": (1, 1 << 60),
        "cycles": (0x1234, 0x1234 << 44),
        "type": (5, 5 << 40),
        "spec": (2, 2 << 38),
        "new_type": (6, 6 << 34),
        "priv": (3, 3 << 31),
        "reserved": (1, 1),
    }
    for name, (value, expected) in cases.items():
        assert pw.repack(flags(**{name: value}), pw.BITS["F"], 64) == expected, name
    assert pw.repack(1, pw.BITS["A"], 64) == 1 << 63, "disabled"
    assert pw.repack(2 << 15, pw.BITS["A"], 64) == 2 << 47, "precise_ip, the one field of two bits"
    assert pw.repack(1 << 18, pw.BITS["A"], 64) == 1 << 45, "sample_id_all"
    assert pw.repack(1 << 2, pw.BITS["a"], 32) == 1 << 29, "aux_resume"
    assert sum(pw.BITS["F"]) == sum(pw.BITS["A"]) == 64


def test_big_endian_layout() -> None:
    b = Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.CPU | pw.BRANCH_STACK, size=112, clockid=1, flags=1 << 16)
    b.feature("HOSTNAME", value="h")
    b.sample(ip=0x1122, pid=3, tid=4, time=5, cpu=6, branches=[(7, 8, flags(mispred=1, cycles=9))])
    data = b.build(big=True)
    assert data[:8] == b"2ELIFREP"
    size, attr_size, attrs_at, _, data_at, data_size, _, _, bitmap, *_ = struct.unpack_from(">12Q", data, 8)
    assert (size, attr_size, attrs_at, bitmap) == (104, 128, 104, 1 << 3)
    kind, length = struct.unpack_from(">2I", data, 104)
    (word,) = struct.unpack_from(">Q", data, 104 + 40)
    assert (kind, length, word) == (0, 112, 1 << 48 | 1 << 45)
    assert struct.unpack_from(">i", data, 104 + 92) == (1,)
    sample = struct.unpack_from(">IHH Q2i Q2I Q3Q", data, data_at)
    assert sample == (9, 2, data_size, 0x1122, 3, 4, 5, 6, 0, 1, 7, 8, 1 << 63 | 9 << 44)
    assert struct.unpack_from(">2QI", data, data_at + data_size) == (data_at + data_size + 16, 68, 64)
    assert data[-64:].rstrip(b"\0") == b"h"


@pytest.mark.parametrize("kind", [81, 83])
def test_compressed_records_hold_the_same_stream(kind: int) -> None:
    b = Builder()
    for time in range(400):
        b.sample(ip=time * 977, pid=1, time=time, branches=[(time * 31, time * 17, time)] * (time % 9))
        if time % 150 == 149:
            b.record("FINISHED_ROUND")
    plain = [record for record in pw.parse(b.build()).records if record.name == "SAMPLE"]
    capture = pw.parse(b.build(compress=kind, chunk=1009))
    names = [record.name for record in capture.records]
    assert names.count("FINISHED_ROUND") == 2
    assert set(names) == {"FINISHED_ROUND", pw.RECORDS[kind][0]}
    stream, out, at_border = zstandard.ZstdDecompressor().decompressobj(), b"", 0
    borders = {0}
    for record in plain:
        borders.add(max(borders) + 8 + len(record.body))
    for record in capture.records:
        if record.type == 68:
            continue
        body = record.fields["data"]
        if kind == 83:
            assert (8 + len(record.body)) % 8 == 0
            body = body[: record.fields["data_size"]]
        out += stream.decompress(body)
        at_border += len(out) in borders
    assert out == b"".join(
        pw.pack(("t:I", "m:H", "s:H"), {"t": 9, "m": 2, "s": 8 + len(r.body)}) + r.body for r in plain
    )
    assert at_border < len(names) - 2, "records straddle the borders of compressed records"
    assert capture.feature("COMPRESSED")["type"] == 1
    assert capture.feature("COMPRESSED")["mmap_len"] >= 1009


def test_a_pipe_describes_itself() -> None:
    b = Builder(sample_type=pw.IP | pw.IDENTIFIER)
    b.feature("HOSTNAME", value="h")
    b.feature("BRANCH_STACK")
    b.feature("EVENT_DESC", attr_size=128, events=[(b.capture.attrs[0].raw, 1, "cycles:u", [101])])
    b.build_id("/bin/a", bytes(20))
    b.sample(ip=1)
    data = b.build(pipe=True)
    assert data[:16] == b"PERFILE2" + struct.pack("<Q", 16)
    at, kinds = 16, []
    while at < len(data):
        kind, _, size = struct.unpack_from("<IHH", data, at)
        kinds.append((kind, struct.unpack_from("<Q", data, at + 8)[0]) if kind == 80 else kind)
        at += size
    assert kinds == [64, 67, (80, 3), (80, 12), 78, 9]
