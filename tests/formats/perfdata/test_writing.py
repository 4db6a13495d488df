"""What recorders write: records against the independent parser, and what header features say of the machine."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import perfdata_writer as pw
from lastbranch.capture.procfs import Mapping, cpu_list, mappings
from lastbranch.formats.perfdata.layout import SAMPLE
from lastbranch.formats.perfdata.writer import Described, MappedCode, PerfFile, SideRecords
from lastbranch.model import BytesSource, Profile
from lastbranch.opening import open_profile, read_profile

ID = SAMPLE.IDENTIFIER | SAMPLE.TID | SAMPLE.TIME | SAMPLE.CPU


def attribute(sample_type: int) -> bytes:
    """perf_event_attr of 128 bytes: a software clock with sample_id_all (bit 18)."""
    head = (1, 128, 0, 1000, sample_type, 0, 1 << 18)
    return b"".join(n.to_bytes(4 if i < 2 else 8, sys.byteorder) for i, n in enumerate(head)).ljust(128, b"\0")


@pytest.mark.parametrize("more", [0, SAMPLE.ID, SAMPLE.STREAM_ID | SAMPLE.ID])
def test_records_are_those_of_the_kernels_header(more: int, tmp_path: Path) -> None:
    sample_type = ID | SAMPLE.IP | more
    records = SideRecords(sample_type, 7)
    long = "/" + "x" * 5000
    file = PerfFile(str(tmp_path / "x"), [Described("clock", attribute(sample_type), [7])])
    for made in (
        records.fork(40, 1, 40, 1, alone=True),
        records.fork(40, 40, 41, 40, 500),
        records.comm(40, 41, "name", 600),
        records.comm(40, 40, "other", 700, exec=True),
        records.exit(40, 41, 800),
        records.kernel_mmap(0xFFFFFFFF81000000, 0x1000, 0x10, "[kernel.kallsyms]_text"),
        records.mmap2(40, MappedCode(0x1000, 0x3000, 0x200, "/bin/a", 5, 2, inode=(8, 1, 77)), time=900),
        records.mmap2(40, MappedCode(0x5000, 0x6000, 0, "/bin/b", 7, 1), build_id=bytes(range(20)), time=901),
        records.mmap2(40, MappedCode(0x7000, 0x8000, 0, long, 5, 2), build_id=bytes(range(64))),
    ):
        file.write(made)
    file.finish({})
    found = pw.parse((tmp_path / "x").read_bytes())
    said = [(r.name, r.misc, {k: v for k, v in r.fields.items() if k != "sample_id"}) for r in found.records]
    fork = {"pid": 40, "ppid": 1, "tid": 40, "ptid": 1, "time": 0}
    assert [(name, misc) for name, misc, _ in said] == [
        ("FORK", 1 << 13),
        ("FORK", 0),
        ("COMM", 0),
        ("COMM", 1 << 13),
        ("EXIT", 0),
        ("MMAP", 1),
        ("MMAP2", 2),
        ("MMAP2", 2 | 1 << 14),
        ("MMAP2", 2 | 1 << 14),
    ]
    assert said[0][2] == fork
    assert said[1][2] == {"pid": 40, "ppid": 40, "tid": 41, "ptid": 40, "time": 500}
    assert [f["time"] for _, _, f in said[4:5]] == [800]
    plain, known, cut = (f for name, _, f in said if name == "MMAP2")
    assert (plain["addr"], plain["length"], plain["pgoff"]) == (0x1000, 0x2000, 0x200)
    assert (plain["maj"], plain["min"], plain["ino"], plain["prot"], plain["flags"]) == (8, 1, 77, 5, 2)
    assert (known["build_id"], known["prot"], known["flags"]) == (bytes(range(20)), 7, 1)
    assert cut["build_id"] == bytes(range(20)), "a record has room for 20 bytes"
    assert cut["name"] == long[:4095]
    times = [r.fields["sample_id"]["time"] for r in found.records]
    assert times == [0, 500, 600, 700, 800, 0, 900, 901, 0]
    assert {r.fields["sample_id"].get("identifier") for r in found.records} == {7}


# -- what recorders say of the machine


def _software(command: Sequence[str] = ("lastbranch", "record", "a b")) -> Profile:
    from lastbranch.capture.options import DEFAULT_SELECT
    from lastbranch.capture.software import RecordWriter

    out = io.BytesIO()
    RecordWriter(out, DEFAULT_SELECT, 20_000_000, 1_000_000).begin([1], command)
    return read_profile(BytesSource(out.getvalue(), "software"))


def _hardware(folder: Path) -> Profile:
    from lastbranch.capture.perf_events.host import read_host
    from lastbranch.capture.perf_events.linux_kernel import Kernel
    from lastbranch.capture.perf_events.synthesis import features_of

    kernel, events = Kernel(), [Described("clock", attribute(ID), [1])]
    file = PerfFile(str(folder / "hardware"), events)
    file.write(SideRecords(ID, 1).comm(1, 1, "a"))
    file.finish(features_of(kernel, read_host(kernel), events, ["lastbranch", "record", "a b"], branches=True))
    return open_profile(folder / "hardware")


@pytest.mark.skipif(sys.platform != "linux", reason="records on Linux")
def test_both_recorders_say_of_the_machine_what_it_says(tmp_path: Path) -> None:
    """Also where the recorder itself may use fewer processors than there are."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(mine)})
    try:
        software, hardware = _software(), _hardware(tmp_path)
    finally:
        os.sched_setaffinity(0, mine)
    machine = software.machine
    assert machine.cpus_online == os.sysconf("SC_NPROCESSORS_ONLN")
    assert machine.cpus_available == os.sysconf("SC_NPROCESSORS_CONF")
    names = os.uname()
    assert (machine.host, machine.os_release, machine.arch) == (names.nodename, names.release, names.machine)
    assert machine.memory == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 1024 * 1024
    assert software.header["command line"] == hardware.header["command line"] == "lastbranch record a b"
    fields = ("host", "os_release", "arch", "cpus_online", "cpus_available", "memory", "cpu_description", "cpuid")
    assert [getattr(machine, f) for f in fields] == [getattr(hardware.machine, f) for f in fields]
    assert software.clock.wall is not None
    assert hardware.clock.wall is not None


@pytest.mark.skipif(sys.platform != "linux", reason="records on Linux")
@pytest.mark.parametrize("number", [100, 20_000])
def test_a_long_command_line_is_cut(number: int) -> None:
    """A record has at most 64 KiB."""
    words = ["lastbranch", *(f"file{i}" for i in range(number))]
    shown = _software(words).header["command line"].split(" ")
    cut = shown[-1] == "..."
    assert cut == (number > 1000)
    assert shown[: len(shown) - cut] == words[: len(shown) - cut]
    assert len(shown) > 100


# -- /proc


def test_lines_of_maps() -> None:
    text = (
        "00400000-00401000 r-xp 00001000 08:01 123      /bin/a b (deleted)\n"
        "00600000-00601000 rw-p 00000000 00:00 0        [heap]\n"
        "7f0000000000-7f0000001000 rwxs 00000000 fd:1f 18446744073709551615  /dev/x\x0cy\n"
        "7f1000000000-7f1000001000 --xp 00000000 00:00 0 \n"
        "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n"
        "no such line\n\n00400000-"
    )
    assert mappings(text) == [
        Mapping(0x400000, 0x401000, 5, 2, 0x1000, 8, 1, 123, "/bin/a b (deleted)"),
        Mapping(0x7F0000000000, 0x7F0000001000, 7, 1, 0, 0xFD, 0x1F, (1 << 64) - 1, "/dev/x\x0cy"),
        Mapping(0x7F1000000000, 0x7F1000001000, 4, 2, 0, 0, 0, 0, "//anon"),
        Mapping(0xFFFFFFFFFF600000, 0xFFFFFFFFFF601000, 4, 2, 0, 0, 0, 0, "[vsyscall]"),
    ]


def test_lists_of_processors() -> None:
    assert cpu_list("0-3,8\n") == (0, 1, 2, 3, 8)
    assert cpu_list("\n") == ()
