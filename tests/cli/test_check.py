"""`lastbranch check`: each finding on a capture that has just that, and nothing on one that has nothing."""

from __future__ import annotations

import json
import os
import re
import struct
from pathlib import Path

import pytest

import etl_builder as build
import perfdata_writer as pw
import spe_writer
from captures import Data
from command_line import run_cli
from etl_event_logs import BEGIN, BIND, PMC, lbr, masks, pmc, process, rundown, sampled, session, trace, write
from lastbranch.analysis.checks.etl import check_log
from lastbranch.analysis.checks.findings import FINDINGS, Severity, make_finding
from lastbranch.analysis.counting.availability import Origin, origin_of
from lastbranch.formats.etl import TraceLog
from lastbranch.model import BytesSource, Machine, Profile
from perfdata_writer import Builder
from spe_writer import Area, Operation

NO_LBR, OFF = "no branch stacks", "pmc off"


def ran(*args):
    done = run_cli("check", *args)
    return done.code, done.out, done.err


SMALL = ("few samples", "no names", "sampling noise")
"""Findings of nearly all of these captures, since the captures are small and made up, and the findings of noise."""
BY_TIME = "counts follow time"
"""Findings of captures that cycles sampled."""


def checked(path, *options, small=False):
    """{name: (severity, what was seen)} of the findings, those of `SMALL` only if asked for; the exit code is what it
    should be."""
    code, out, _ = ran(path, "--format", "json", *options)
    rows = json.loads(out)
    assert code == any(row["severity"] == "error" for row in rows)
    assert all(len(row["remedy"]) > 20 and row["seen"] and row["means"] for row in rows)
    order = [list(Severity).index(row["severity"]) for row in rows]
    assert order == sorted(order)
    return {
        row["finding"]: (row["severity"], row["seen"])
        for row in rows
        if small or row["finding"] not in (*SMALL, BY_TIME)
    }


# -- .etl


def test_nothing_to_find(tmp_path):
    path = write(tmp_path, session(*sampled(10), *sampled(20, cpu=1), *sampled(30)))
    assert checked(path) == {}
    assert list(checked(path, small=True)) == ["few samples", "no names"]
    code, _, err = ran(path)
    assert code == 0
    assert err == "0 errors, 2 warnings, 0 info\n"


def test_pmc_group_off(tmp_path):
    assert checked(write(tmp_path, session(start=(BIND, 0))))[OFF] == ("info", "Masks[0] = 0x7, Masks[1] = 0x0")
    interval = build.system(0x0F49, BEGIN + 5, struct.pack("<III", 6, 65536, 65536) + b"B\0\0\0", version=3)
    found = checked(write(tmp_path, session((0, interval), start=(BIND, 2))))
    assert found[OFF] == ("error", "Masks[0] = 0x7, Masks[1] = 0x2; an interval of profile source 6")
    timer = build.system(0x0F49, BEGIN + 5, struct.pack("<III", 0, 10000, 10000) + b"T\0\0\0", version=3)
    assert checked(write(tmp_path, session((0, timer), start=(BIND, 2))))[OFF][0] == "info"
    assert OFF not in checked(write(tmp_path, trace(*rundown())))  # no kernel session


@pytest.mark.parametrize("end", [(BIND, 0), (BIND, 2), (0, 0)])
def test_pmc_group_lost(end, tmp_path):
    found = checked(write(tmp_path, session(*sampled(10), end=end)))
    assert found["pmc lost"][0] == "error"
    assert "first Masks[0] = 0x7, Masks[1] = 0x400" in found["pmc lost"][1]
    assert found["pmc lost"][1].endswith(f"later Masks[0] = {end[0]:#x}, Masks[1] = {end[1]:#x}")


def test_pmc_group_that_comes_late_and_stays_is_not_lost(tmp_path):
    change = [(0, masks(0x0020, 5, BIND, 0)), (0, masks(0x0005, 6, BIND, PMC))]
    assert checked(write(tmp_path, session(*change, *sampled(10), start=(BIND, 0), end=(BIND, PMC)))) == {}


def test_masks_overwritten(tmp_path):
    """As the documentation's example does: Masks[0] = 0, Masks[1] = 0x400 over the groups of EnableFlags."""
    change = [(0, masks(0x0020, 5, BIND, 0)), (0, masks(0x0005, 6, 0, PMC))]
    found = checked(write(tmp_path, session(*change, *sampled(10), start=(BIND, 0), end=(0, PMC))))
    assert set(found) == {"masks overwritten"}
    assert found["masks overwritten"][1] == (
        "first Masks[0] = 0x7, Masks[1] = 0x0; later Masks[0] = 0x0, Masks[1] = 0x400"
    )
    made = trace((0, masks(0x0005, 0, 0, PMC)), *sampled(10), (0, masks(0x0020, 20, 0, PMC)))
    found = checked(write(tmp_path, made))
    assert found["masks overwritten"] == ("error", "Masks[0] = 0x0, Masks[1] = 0x400, and no image or process event")


def test_masks_overwritten_before_the_first_state(tmp_path):
    """The lists of what runs are there, so the groups were on when the session began."""
    found = checked(write(tmp_path, session(*sampled(10), start=(0, PMC))))
    seen = "Masks[0] = 0x0, Masks[1] = 0x400, and lists of what existed before"
    assert found == {"masks overwritten": ("error", seen)}
    assert checked(write(tmp_path, session(*sampled(10), start=(4, PMC)))) == {}


def test_pmc_group_off_in_the_only_state(tmp_path):
    made = trace(*rundown(), *sampled(10), *sampled(20), (0, masks(0x0020, 900, BIND, 0)))
    found = checked(write(tmp_path, made))
    assert found == {"pmc lost": ("error", "2 PMC interrupts; later Masks[0] = 0x7, Masks[1] = 0x0")}


EXT, END = 0x0005, 0x0020
OFF_MASKS, ON_MASKS = (0, 0), (BIND, PMC)


@pytest.mark.parametrize(
    "changes",
    [
        # The lists are written with the groups off, and then these are on again.
        [
            (EXT, 0, ON_MASKS),
            (END, 50, ON_MASKS),
            (EXT, 51, OFF_MASKS),
            (END, 60, OFF_MASKS),
            (EXT, 61, ON_MASKS),
            (END, 900, ON_MASKS),
            (EXT, 901, OFF_MASKS),
        ],
        # Another session's zeros between the begin and the end of this one's masks; the end says that they have held.
        [(EXT, 0, ON_MASKS), (EXT, 51, OFF_MASKS), (END, 900, ON_MASKS)],
        # Masks without an end, and the state before of a session that begins later.
        [(EXT, 0, ON_MASKS), (END, 51, OFF_MASKS), (EXT, 52, ON_MASKS), (END, 900, ON_MASKS)],
        # Two sessions, merged: one has the processes, the other samples.
        [(EXT, 0, (BIND, 0)), (EXT, 2, (0, PMC)), (END, 800, (0, PMC)), (EXT, 801, OFF_MASKS), (END, 900, (BIND, 0))],
        [
            (EXT, 0, (BIND, 0)),
            (END, 2, OFF_MASKS),
            (EXT, 3, (0, PMC)),
            (END, 900, (0, PMC)),
            (EXT, 901, OFF_MASKS),
            (END, 902, (BIND, 0)),
            (EXT, 903, OFF_MASKS),
        ],
        # The first one has ended, and another one begins.
        [(EXT, 0, ON_MASKS), (END, 900, ON_MASKS), (END, 901, OFF_MASKS)],
    ],
)
def test_masks_that_are_back_or_of_other_sessions_are_not_overwritten(changes, tmp_path):
    states = [(0, masks(hook, time, *words)) for hook, time, words in changes]
    lists = [(0, build.system(0x0008, BEGIN + 55, b""))]
    made = trace(*states[:1], *rundown(), *sampled(10), *lists, *sampled(70, cpu=1), *states[1:])
    assert checked(write(tmp_path, made)) == {}


def test_masks_that_were_off_for_a_time_without_lists(tmp_path):
    changes = [(END, 50, ON_MASKS), (EXT, 51, OFF_MASKS), (END, 60, OFF_MASKS), (EXT, 61, ON_MASKS)]
    change = [(0, masks(hook, time, *words)) for hook, time, words in changes]
    found = checked(write(tmp_path, session(*sampled(10), *change, *sampled(70))))
    seen = f"from tick {BEGIN + 50} to {BEGIN + 61}, and no rundown was written then"
    assert found == {"groups paused": ("warning", seen)}


def test_masks_of_one_of_two_sessions_overwritten(tmp_path):
    """Groups of other sessions do not hide that the process groups went off."""
    changes = [(EXT, 0, (BIND, 0)), (EXT, 2, (0, PMC)), (END, 40, (BIND, 0)), (EXT, 41, (2, 0)), (END, 900, (0, PMC))]
    states = [(0, masks(hook, time, *words)) for hook, time, words in changes]
    found = checked(write(tmp_path, trace(*states[:1], *rundown(), *sampled(50), *states[1:])))
    assert set(found) == {"masks overwritten"}


def test_pmc_without_lbr_is_a_possibility(tmp_path):
    found = checked(write(tmp_path, session((0, pmc(BEGIN + 10, 0x400010, 71)))))
    assert found == {"pmc without lbr": ("warning", "1 PMC interrupts, no branch record")}
    assert "perhaps" in FINDINGS["pmc without lbr"].means


@pytest.mark.parametrize("kind", ["later", "other processor", "after", "stack only", "none"])
def test_lbr_without_trigger(kind, tmp_path):
    record = lbr(BEGIN + 50, 7, 71, (1, 2, 0))
    stack = build.perfinfo(0x1820, BEGIN + 50, struct.pack("<QIIQ", BEGIN + 50, 7, 71, 1))
    events = {
        "later": [(0, pmc(BEGIN + 49, 0x400010, 71)), (0, record)],
        "other processor": [(1, pmc(BEGIN + 50, 0x400010, 71)), (0, record)],
        "after": [(0, record), (0, pmc(BEGIN + 50, 0x400010, 71))],
        "stack only": [(0, stack), (0, record)],
        "none": [(0, record)],
    }[kind]
    found = checked(write(tmp_path, session(*sampled(10), *events, *sampled(60))))
    assert found == {"lbr without trigger": ("warning", "1 of 3 branch records")}
    found = checked(write(tmp_path, session((0, record))))
    assert found["lbr without trigger"] == ("error", "1 of 1 branch records")


def test_a_trigger_at_the_end_of_the_buffer_before(tmp_path):
    events = [one for i in range(200) for one in sampled(2 * i, cpu=i % 2)]
    for first in range(4):  # so that in one of them each event begins a buffer
        filler = [(cpu, build.perfinfo(0x0F7F, BEGIN, bytes(8 * first))) for cpu in (0, 1)]
        assert checked(write(tmp_path, session(*filler, *events))) == {}


def test_a_trigger_in_the_window_before():
    class OneByOne(TraceLog):
        def blocks(self):
            for block in super().blocks():
                yield from (block.take(slice(i, i + 1)) for i in range(len(block)))

    data = bytes(session(*(one for i in range(50) for one in sampled(2 * i, cpu=i % 2))))
    assert list(check_log(OneByOne(BytesSource(data)))) == []


def test_a_stack_between_trigger_and_record(tmp_path):
    stack = (0, build.perfinfo(0x1820, BEGIN + 10, struct.pack("<QIIQ", BEGIN + 10, 7, 71, 1)))
    trigger, record = sampled(10)
    assert checked(write(tmp_path, session(trigger, stack, record, record))) == {}


def test_unknown_trigger(tmp_path):
    strange = (0, build.perfinfo(0x0FEE, BEGIN + 50))
    found = checked(write(tmp_path, session(*sampled(10), strange, (0, lbr(BEGIN + 50, 7, 71, (1, 2, 0))))))
    assert found == {
        "unknown trigger": ("warning", "1 records after hook 0x0fee (Windows Kernel/PerfInfo/Opcode(238))")
    }
    switch = (0, build.perfinfo(0x0524, BEGIN + 50, bytes(24)))
    assert checked(write(tmp_path, session(*sampled(10), switch, (0, lbr(BEGIN + 50, 7, 71, (1, 2, 0)))))) == {}


def test_filters_that_exclude_ranges(tmp_path):
    found = checked(write(tmp_path, session(*sampled(10), *sampled(20, options=0x4))))
    assert found["no ranges"] == (
        "warning",
        "1 of 2 branch records: near branch classes were filtered out (ETW LBR options 0x4)",
    )
    assert "call-stack mode" in checked(write(tmp_path, session(*sampled(10, options=0x3C5))))["no ranges"][1]
    assert checked(write(tmp_path, session(*sampled(10, options=1)))) == {}


def test_losses(tmp_path):
    made = session(*(one for i in range(300) for one in sampled(i)))
    made.header = {"lost": 3, "buffers_lost": 2}
    found = checked(write(tmp_path, made))
    assert found["lost events"] == ("warning", "the header counts 3; the log has 607")
    assert found["lost buffers"] == ("error", "the header counts 2")
    made.header = {"lost": 30}
    assert checked(write(tmp_path, made))["lost events"][0] == "error"


def test_no_rundown(tmp_path):
    found = checked(write(tmp_path, trace((0, masks(0x0005, 0, BIND, PMC)), *sampled(10))))
    assert found["no rundown"] == ("error", "no process and no image events DCStart or DCEnd")
    made = trace((0, masks(0x0005, 0, BIND, PMC)), *rundown()[1:], *sampled(10))
    assert checked(write(tmp_path, made))["no rundown"] == ("warning", "no process events DCStart or DCEnd")
    assert "no rundown" not in checked(write(tmp_path, trace()))


def test_samples_outside_of_images(tmp_path):
    found = checked(write(tmp_path, session(*sampled(10), *sampled(20, ip=0x900000), *sampled(30, ip=1 << 63))))
    assert found == {
        "no kernel mapping": ("error", "1 of 3 samples (33.33 %, standard error 27 points)"),
        "outside": ("error", "1 of 3 samples (33.33 %, standard error 27 points), 0 of them in the kernel"),
    }
    many = [one for i in range(40) for one in sampled(i)]
    found = checked(write(tmp_path, session(*many, *sampled(50, ip=0x900000))))
    assert found == {
        "outside": ("warning", "1 of 41 samples (2.44 %, standard error 2.4 points), 0 of them in the kernel")
    }


def test_damage(tmp_path):
    data = bytes(session(*(one for i in range(100) for one in sampled(i))))
    found = checked(write(tmp_path, data[:-3000]))
    assert found["damage"][0] == "error"
    assert "offset" in found["damage"][1]


# -- perf.data


def capture(**attr):
    b = Builder(sample_type=attr.pop("sample_type", pw.IP | pw.TID | pw.TIME | pw.BRANCH_STACK), **attr)
    b.mmap2(pid=7, addr=0x400000, length=0x10000, pgoff=0, name="/bin/prog", time=1, build_id=b"\1" * 20)
    return b


def samples(b, number=20, ip=0x400010, **values):
    stacked = b.capture.attrs[0]["sample_type"] & pw.BRANCH_STACK
    values = {"branches": [(0x400000, 0x400004, 1)], **values} if stacked else values
    for i in range(number):
        b.sample(ip=ip, pid=7, time=1000 + i, **values)
    return b


def judged(tmp_path, b, **form):
    return checked(write(tmp_path, b.build(**form)))


@pytest.mark.parametrize("form", [{}, {"big": True}, {"pipe": True}, {"compress": 83}], ids=str)
def test_nothing_to_find_in_perf(form, tmp_path):
    assert judged(tmp_path, samples(capture()), **form) == {}


def test_perf_losses(tmp_path):
    b = samples(capture(), 300)
    b.record("LOST", id=1, lost=2, time=5000)
    assert judged(tmp_path, b) == {"lost samples": ("warning", "2 records; the capture has 300 samples")}
    b.record("LOST_SAMPLES", lost=40, time=5000)
    assert judged(tmp_path, b)["lost samples"] == ("error", "2 records, 40 samples; the capture has 300 samples")


def test_perf_throttling(tmp_path):
    b = samples(capture())
    b.record("THROTTLE", time=5000)
    b.record("UNTHROTTLE", time=5001)
    assert judged(tmp_path, b) == {"throttled": ("warning", "1 throttles; the capture has 20 samples")}


def test_perf_without_branch_stacks(tmp_path):
    found = judged(tmp_path, samples(capture(sample_type=pw.IP | pw.TID | pw.TIME)))
    assert found == {NO_LBR: ("warning", "none of 1 events requested them")}
    found = judged(tmp_path, samples(capture(), branches=[]))
    assert found == {NO_LBR: ("error", "requested, but 20 samples have none")}
    assert judged(tmp_path, capture()) == {"no samples": ("warning", "0 samples")}


@pytest.mark.parametrize(
    ("select", "said"), [(1 | 1 << 4, "any_call"), (1 << 11 | 1 << 3, "call-stack"), (1 << 8, "in_tx")]
)
def test_perf_filters(select, said, tmp_path):
    found = judged(tmp_path, samples(capture(branch_sample_type=select)))
    assert list(found) == ["no ranges"]
    assert said in found["no ranges"][1]


def test_perf_without_mappings(tmp_path):
    b = samples(samples(capture(), 40), 2, ip=0x900000)
    found = judged(tmp_path, b)
    assert found == {
        "outside": ("warning", "2 of 42 samples (4.76 %, standard error 3.3 points), 0 of them in the kernel")
    }
    samples(b, 10, ip=0xFFFFFFFF81000000, misc=pw.MISC_KERNEL)
    assert judged(tmp_path, b) == {
        "no kernel mapping": ("error", "10 of 52 samples (19.23 %, standard error 5.5 points)"),
        "outside": ("warning", "2 of 52 samples (3.85 %, standard error 2.7 points), 0 of them in the kernel"),
    }
    kernel = {"addr": 0xFFFFFFFF80000000, "length": 0x1000, "pgoff": 0, "name": "[kernel.kallsyms]_text"}
    b.mmap2(pid=-1, time=3, misc=pw.MISC_KERNEL, **kernel)
    assert judged(tmp_path, b) == {
        "outside": ("error", "12 of 52 samples (23.08 %, standard error 5.8 points), 10 of them in the kernel")
    }


def test_hints_are_those_of_the_system(tmp_path, run):
    path = write(tmp_path, session((0, pmc(BEGIN + 10, 0x400010, 71))))
    for verb in (["branches"], ["export", "--to", "counts"], ["export", "--to", "brstack"]):
        done = run(*verb, path)
        assert done.code == 4
        assert "TraceConfigureLastBranchRecord" in done.err
        assert "perf record" not in done.err


@pytest.mark.parametrize("name", [name for name, kind in FINDINGS.items() if kind.windows])
def test_remedies_are_those_of_the_system(name):
    """None of perf where Windows recorded, none of Windows where perf did."""
    of_perf, of_windows = make_finding(name, "").remedy, make_finding(name, "", origin=Origin.WINDOWS).remedy
    assert re.search(r"perf|record|--symfs", of_perf)
    assert not re.search(r"EVENT_TRACE|TraceConfigure|IMAGE_LOAD", of_perf)
    assert not re.search(r"perf record|perf inject|--no-mmap", of_windows)


def test_where_names_are_missing_the_binaries_can_be_given():
    """A recording of ours is no exception: its program may be gone, or the recording may be read elsewhere."""
    assert "--symfs" in make_finding("no names", "", origin=Origin.LASTBRANCH).remedy


@pytest.mark.parametrize("name", FINDINGS)
def test_remedies_of_our_recordings_name_our_options(name):
    assert "perf record" not in make_finding(name, "", origin=Origin.LASTBRANCH).remedy or FINDINGS[name].means.count(
        "PMC"
    )


def test_few_samples(tmp_path):
    """The standard error of a share p of n samples is the square root of p (1 - p) / n."""
    found = checked(write(tmp_path, samples(capture(), 16).build()), small=True)
    assert found["few samples"] == ("warning", "16 branch stacks; the standard error of a share of 10 % is 7.5 points")
    assert "sampling noise" not in found
    assert "few samples" in checked(write(tmp_path, samples(capture(), 99).build()), small=True)
    found = checked(write(tmp_path, samples(capture(), 100).build()), small=True)
    assert "few samples" not in found
    assert found["sampling noise"] == ("info", "100 branch stacks; the standard error of a share of 10 % is 3 points")
    found = checked(write(tmp_path, samples(capture(), 2500).build()), small=True)
    assert found["sampling noise"][1].startswith("2500 branch stacks; the standard error of a share of 10 % is 0.6 ")
    plain = samples(capture(sample_type=pw.IP | pw.TID | pw.TIME), 9)
    found = checked(write(tmp_path, plain.build()), small=True)
    assert found["few samples"][1].startswith("9 samples; the standard error of a share of 10 % is 10 points")


def test_a_binary_that_was_deleted(tmp_path):
    b = capture()
    b.mmap2(pid=7, addr=0x600000, length=0x1000, pgoff=0, name="/opt/server (deleted)", time=2, build_id=b"\2" * 20)
    b.mmap2(pid=7, addr=0x700000, length=0x1000, pgoff=0, name="/opt/unused (deleted)", time=2, build_id=b"\3" * 20)
    b.mmap2(pid=7, addr=0x800000, length=0x1000, pgoff=0, name="/memfd:code (deleted)", time=2, build_id=b"\4" * 20)
    found = judged(tmp_path, samples(samples(b, ip=0x600010), ip=0x800010))
    assert found == {"deleted binary": ("warning", "/opt/server (deleted)")}


def test_samples_without_names(tmp_path, data: Data, symfs):
    """Findings of a capture with its binaries, and of the same capture without them."""
    path = data.path("demo_pie")
    assert "no names" not in checked(path, "--symfs", symfs("demo_pie"), small=True)
    found = checked(write(tmp_path, samples(capture(), 30).build()), small=True)
    assert found["no names"] == ("warning", "30 of 30 samples (100.00 %): prog (not found)")


def test_perf_without_build_ids(tmp_path):
    b = capture()
    b.mmap2(pid=7, addr=0x600000, length=0x1000, pgoff=0, name="/lib/bare.so", time=2)
    b.mmap2(pid=7, addr=0x700000, length=0x1000, pgoff=0, name="/lib/unused.so", time=2)
    found = judged(tmp_path, samples(samples(b), ip=0x600010))
    assert found == {"no build ids": ("warning", "1 of 2 binaries with samples: /lib/bare.so")}


def test_perf_damage(tmp_path):
    whole = samples(capture()).build()
    found = checked(write(tmp_path, whole[:-100]))
    assert found["damage"][0] == "error"


# -- both


@pytest.mark.parametrize("data", [b"", b"no capture at all" * 20])
def test_what_is_no_capture(data, tmp_path):
    code, out, err = ran(write(tmp_path, data))
    assert (code, out) == (3, "")
    assert re.search(r"not a capture|empty", err)


@pytest.mark.parametrize(
    ("attr", "said"),
    [
        ({}, True),
        ({"type": 4, "config": 0x20C4}, False),
        ({"config": 1}, False),
        ({"branch_sample_type": 0x11}, False),
    ],
)
def test_counts_by_time(attr, said, tmp_path):
    """What cycles sample; not taken branches, nor what other events or a part of the branches."""
    found = checked(write(tmp_path, samples(capture(**attr)).build()), small=True)
    assert found.get(BY_TIME) == (("info", "event cycles") if said else None)
    assert "br_inst_retired.near_taken" in FINDINGS[BY_TIME].remedy


def test_what_is_printed(tmp_path):
    b = capture()
    b.mmap2(pid=7, addr=0x600000, length=0x1000, pgoff=0, name="/lib/\x1b[31m.so", time=2)
    path = write(tmp_path, samples(samples(b), ip=0x600010).build())
    code, out, err = ran(path)
    lines = out.splitlines()
    assert (code, err) == (0, "0 errors, 3 warnings, 1 info\n")
    lines = lines[[line.startswith("warning: no build ids") for line in lines].index(True) :]
    assert lines[0].startswith("warning: no build ids: ")
    assert lines[1] == r"  seen:   1 of 2 binaries with samples: /lib/\x1b[31m.so"
    assert lines[2] == f"  remedy: {FINDINGS['no build ids'].remedy}"
    assert "\x1b" not in ran(path, "--format", "csv")[1]
    assert ran(path, "--format", "csv")[1].splitlines()[0] == "severity,finding,means,seen,remedy"


def etl(name):
    root = os.environ.get("LASTBRANCH_DATA")
    if not root:
        pytest.skip("LASTBRANCH_DATA is not set: the captures are not part of the project")
    return Path(root) / "etl" / name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param(
            "net.4.5.2.x64.etl", {"outside": "warning", OFF: "info", NO_LBR: "info"}, marks=pytest.mark.thorough
        ),
        ("ShutdownPerfDiagLogger.etl", {OFF: "info", NO_LBR: "info"}),
        ("diaghub.kernel.1.etl", {OFF: "info", NO_LBR: "info"}),
        ("AMSITrace.etl", {"lost events": "error", NO_LBR: "info"}),
        ("primitive-types.etl", {NO_LBR: "info"}),
    ],
)
def test_real_traces(name, expected):
    assert {name: severity for name, (severity, _) in checked(etl(name)).items()} == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("demo_pie", {}),
        ("demo_features", {}),
        ("simpleperf_16deep_mmap1", {"lost samples": "error", "outside": "warning"}),
        ("wsm_x5660_16deep", {"no build ids": "warning"}),
        ("cfl_9700_callgraph_lbr", {"no kernel mapping": "error", "no ranges": "warning"}),
    ],
)
def test_real_captures(name, expected, data: Data):
    assert {name: severity for name, (severity, _) in checked(data.path(name)).items()} == expected


@pytest.mark.parametrize(
    ("about", "origin"),
    [
        ({"recorder": "lastbranch software LBR"}, Origin.LASTBRANCH),
        ({"recorder": "perf 6.1", "header": {"command line": "lastbranch record -- ./a"}}, Origin.LASTBRANCH),
        ({"recorder": "perf 6.1", "header": {"command line": "perf record -b lastbranch"}}, Origin.PERF),
        ({"recorder": "ETW", "machine": Machine(os="Windows 10")}, Origin.WINDOWS),
    ],
)
def test_what_made_a_capture(about, origin):
    assert origin_of(Profile("x", "any", **about)) is origin


def image(bits, base=0x0001_4000_0000):
    word = "I" if bits == 32 else "Q"
    head = struct.pack(
        f"<{word}{word}IIII{word}IIII", base & (1 << bits) - 1, 0x19_A000, 100, 0, 0x5E00_0000, 0, 0, 0, 0, 0, 0
    )
    return head + "\\Windows\\a.exe\0".encode("utf-16-le")


KINDS = {
    "process": (0x0301, process, (100,)),
    "image": (0x030A, image, ()),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("said", "real"), [(32, 64), (64, 32), (32, 32), (64, 64)])
def test_pointers_of_another_size_than_the_headers_say(tmp_path, name, said, real):
    hook, payload, args = KINDS[name]
    version = {"process": 4, "image": 3}[name]
    log = build.Trace(bits=said)
    for i in range(3):
        log.add(0, build.system(hook, BEGIN + i, payload(real, *args), bits=said, version=version))
    path = write(tmp_path, log)
    found = checked(path)
    assert ("pointer size" in found) == (said != real)
    assert "odd payloads" not in found
    if said != real:
        severity, seen = found["pointer size"]
        assert (severity, seen.partition(":")[0]) == (
            "error",
            f"3 of 3 events examined fit {real}-bit pointers, not {said}-bit",
        )
        _, out, _ = ran(path, "--pointer-size", real, "--format", "json")
        assert "pointer size" not in {row["finding"] for row in json.loads(out)}
        _, out, _ = ran(path, "--pointer-size", said, "--format", "json")
        assert "pointer size" in {row["finding"] for row in json.loads(out)}


def test_ids_that_no_process_has_and_bytes_left_over(tmp_path):
    """Neither size fits: the ids are impossible, or the payload is longer than any known version."""
    body = process(64, 100)
    odd = body[:8] + struct.pack("<I", 0xFFFF_FA80) + body[12:]
    for payload, expected in ((odd, "warning"), (process(64, 100) + b"more", "info")):
        found = checked(write(tmp_path, trace(*rundown(), (0, build.system(0x0301, BEGIN + 2, payload, version=4)))))
        assert found["odd payloads"][0] == expected
        assert "Process/Start version 4" in found["odd payloads"][1]


def test_a_real_log_of_the_wrong_pointer_size():
    found = checked(etl("syzygy.process_data_64_v3.etl"))
    assert found["pointer size"][0] == "error"
    assert "fit 64-bit pointers, not 32-bit: Process/" in found["pointer size"][1]


# -- hardware traces


def test_parts_of_a_trace_are_missing(tmp_path):
    whole = Operation(0x1000, target=0x2000).bytes()
    areas = [Area(whole, flags=flag, offset=64 * i) for i, flag in enumerate((0, 1, 1 | 4, 8))]
    found = checked(spe_writer.write(tmp_path / "x.data", *areas))
    severity, seen = found["trace cut short"]
    assert severity == "warning"
    assert seen.startswith("2 stretches of the AUX area that were cut short, 1 stretches of the AUX area with gaps;")
    assert found["operations dropped"][0] == "info"


@pytest.mark.parametrize(
    ("kind", "name", "itrace"), [(1, "Intel PT", "i100usl"), (3, "CoreSight ETM", "i100000il64"), (2, "Intel BTS", "")]
)
def test_a_trace_that_is_not_decoded(tmp_path, kind, name, itrace):
    """It is named with perf's command that makes branch stacks of it, wherever these are missing."""
    path = spe_writer.write(tmp_path / "x.data", Area(bytes(64)), kind=kind)
    command = f"perf inject -i perf.data -o branches.data --itrace={itrace} --strip"
    text = f"{name}, 64 bytes, not decoded" + (f"; for branch stacks: {command}" if itrace else "")
    assert checked(path) == {"trace not decoded": ("warning", text)}
    assert json.loads(run_cli("info", path, "--format", "json").out)["header"]["hardware trace"] == text
    done = run_cli("branches", path)
    assert done.code
    assert (command in done.err) == bool(itrace)
