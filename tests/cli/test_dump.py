"""`lastbranch dump`: every event in time order, against what Microsoft's reader printed and against built files.

Oracle: the ``*.baseline.txt`` beside the captures; for built files the arguments that they were built from.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import struct
from contextlib import redirect_stderr, redirect_stdout
from decimal import Decimal
from functools import cache
from pathlib import Path
from uuid import UUID

import pytest

import etl_builder as build
import perfdata_writer as pw
from captures import REAL, SYNTHETIC, Data
from etl_event_logs import lbr, pmc, thread, trace, write
from etl_oracle import LINE, largest_thorough
from etl_payload_truth import RENAMED
from lastbranch.cli.dump import dump as command
from lastbranch.errors import FormatError
from lastbranch.formats.dump import milliseconds
from lastbranch.formats.perfdata import dump as perf_dump
from lastbranch.model import Clock
from perfdata_writer import Builder

GUID = UUID("12345678-1234-5678-1234-567812345678")


def ran(*args):
    """(exit code, standard output, standard error)"""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="\n"), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = command.main([str(a) for a in args], standalone_mode=False)
    out.flush()
    return code, out.buffer.getvalue().decode(), err.getvalue()


def table(*args, code=0):
    """The rows of a csv dump."""
    ended, out, err = ran(*args, "--format", "csv")
    assert ended == code, err
    return list(csv.DictReader(io.StringIO(out)))


def objects(*args, code=0):
    ended, out, err = ran(*args, "--format", "json")
    assert ended == code, err
    return json.loads(out, parse_float=Decimal)


# -- real .etl files


def etl(name):
    root = os.environ.get("LASTBRANCH_DATA")
    if not root:
        pytest.skip("LASTBRANCH_DATA is not set: the captures are not part of the project")
    return Path(root) / "etl" / name


@cache
def dumped(name):
    return table(etl(name))


CAPTURES = {
    "net.4.5.2.x64": "net.4.5.2.x64.etl",
    "gcevents": "gcevents.PerfViewData.etl",
    "gcrundownevents": "gcrundownevents.PerfViewData.clrRundown.etl",
    "primitive-types": "primitive-types.etl",
}
NOT_IDS = {"Windows Kernel/DiskIO/FlushBuffers"}  # that reader prints the response time in ticks as TID


@pytest.mark.parametrize("name", largest_thorough(CAPTURES))
def test_lines_of_microsofts_reader(name):
    """Time, PID, TID, CPU, DataLen of every line; and names, where that reader does not have its own."""
    rows = {}
    for row in dumped(CAPTURES[name]):
        micros = int((Decimal(row["time_ms"]) * 1000 + Decimal("0.5")) // 1)
        rows.setdefault((micros, int(row["cpu"]), int(row["size"])), []).append(row)
    text = etl(f"{name}.baseline.txt").read_text("utf-8-sig")
    lines = LINE.findall(text)
    assert len(lines) == len(re.findall("^EVENT ", text, re.M)) > 5
    for time, title, pid, tid, cpu, size in lines:
        key = (round(Decimal(time.replace(",", "")) * 1000), int(cpu), int(size.replace(",", "")))
        title = RENAMED.get(title, title)
        found = rows[key]
        if title.startswith("Windows Kernel/"):
            found = [row for row in found if row["event"] == title]
        assert found, (time, title)
        assert title in NOT_IDS or (pid, tid) in {(row["pid"], row["tid"]) for row in found}, (time, title, found)


@pytest.mark.parametrize("name", [*CAPTURES.values(), "ShutdownPerfDiagLogger.etl", "diaghub.kernel.1.etl"])
def test_time_order_and_every_event(name):
    from lastbranch.formats.etl import TraceLog
    from lastbranch.opening import open_source

    rows = dumped(name)
    times = [Decimal(row["time_ms"]) for row in rows]
    assert times == sorted(times)
    assert times[0] == 0
    assert len(rows) == sum(TraceLog(open_source(str(etl(name)))).counts.values())


def test_selections_are_what_the_whole_has():
    path, every = etl("ShutdownPerfDiagLogger.etl"), dumped("ShutdownPerfDiagLogger.etl")
    task = [row["event"].split("/")[1] for row in every]
    chosen = table(path, "--event", "process,IMAGE")
    assert chosen == [row for row, name in zip(every, task, strict=True) if name in ("Process", "Image")]
    assert len(chosen) > 3000
    stop = [row for row in every if row["event"] == "Windows Kernel/Process/DCStop"]
    assert table(path, "--event", "windows kernel/process/dcstop") == stop
    image = [row for row in every if row["event"].startswith("Windows Kernel/Image/")]
    assert table(path, "--provider", "{2cb15d1d-5fc1-11d2-abe1-00a0c911f518}") == image
    middle = int(Decimal(every[len(every) // 2]["time_ms"]))
    between = [row for row in every if middle <= Decimal(row["time_ms"]) < middle + 1]
    assert 0 < len(between) < len(every) // 2
    assert table(path, "--time", f"{middle / 1000}..{(middle + 1) / 1000}") == between


# -- built .etl files


def test_branch_records_and_whom_they_are_about(tmp_path):
    begin = 1_000_000
    made = trace(
        (0, thread(0x0501, begin + 10, 70, 71)),
        (1, pmc(begin + 20, 0xFFFF800000001000, 71, counters=(5, 6))),
        (1, lbr(begin + 20, 70, 71, (0x10, 0x20, 1 << 63), (0x30, 0x40, 7))),
        (0, thread(0x0501, begin + 30, 90, 71)),  # the id is used again
        (1, pmc(begin + 40, 0x1000, 71)),
        (1, pmc(begin + 41, 0x1000, 99)),
    )
    rows = objects(write(tmp_path, made))
    assert [row["event"].partition("/")[2] for row in rows] == [
        "EventTrace",
        "Thread/Start",
        "PerfInfo/PMCSample",
        "LastBranchRecording/Sample",
        "Thread/Start",
        "PerfInfo/PMCSample",
        "PerfInfo/PMCSample",
    ]
    assert [(row["pid"], row["tid"]) for row in rows] == [
        (100, 101),
        (70, 71),
        (70, 71),
        (70, 71),
        (90, 71),
        (90, 71),
        (-1, 99),
    ]
    assert [row["time_ms"] for row in rows] == [Decimal(n) / 10000 for n in (0, 10, 20, 20, 30, 40, 41)]
    assert [row["size"] for row in rows[2:4]] == [16, 24 + 48]
    assert rows[2]["fields"] == {
        "InstructionPointer": "0xffff800000001000",
        "ThreadID": 71,
        "ProfileSource": 6,
        "Reserved": 0,
        "Counters": [5, 6],
    }
    entries = {name: rows[3]["fields"][name] for name in ("FromAddress", "ToAddress", "Information")}
    assert entries == {
        "FromAddress": ["0x10", "0x30"],
        "ToAddress": ["0x20", "0x40"],
        "Information": ["0x8000000000000000", "0x7"],
    }
    assert [row["tid"] for row in objects(tmp_path / "capture", "--event", "LASTBRANCHRECORDING")] == [71]
    assert len(objects(tmp_path / "capture", "--pid", 90)) == 2
    assert len(objects(tmp_path / "capture", "--limit", 3)) == 3
    assert objects(tmp_path / "capture", "--event", "pmcsample") == []
    assert objects(tmp_path / "capture", "--event", "PerfInfo/PMCsample") == [rows[2], *rows[5:]]
    assert objects(tmp_path / "capture", "--time", "0.000002..0.000004") == rows[2:5]
    assert objects(tmp_path / "capture", "--pid", 90, "--event", "PerfInfo") == [rows[5]]


def test_forms_say_the_same(tmp_path):
    path = write(tmp_path, trace((0, pmc(1_000_005, 0x1000, 71))))
    rows, cells, (_, out, _) = objects(path), table(path), ran(path)
    assert [row["event"] for row in rows] == [row["event"] for row in cells]
    assert cells[1]["fields"] == "InstructionPointer=0x1000; ThreadID=71; ProfileSource=6; Reserved=0"
    assert cells[1]["time_ms"] == "0.0005"
    lines = out.splitlines()
    assert lines[0].split() == ["time", "ms", "pid", "tid", "cpu", "event", "size", "fields"]
    assert len(lines) == 3
    assert all(value in lines[2] for value in cells[1].values())
    _, out, _ = ran(path, "--format", "json")
    assert [line[0] for line in out.splitlines()] == ["[", "{", "{", "]"]  # one object a line
    assert objects(path, "--event", "nothing") == []
    assert table(path, "--event", "nothing") == []


def test_what_a_terminal_would_obey_is_escaped(tmp_path):
    name = "evil\x1b[31m\n"
    payload = struct.pack("<QQIIIIQIIII", 0x1000, 16, 7, 0, 0, 0, 0, 0, 0, 0, 0) + name.encode("utf-16-le") + b"\0\0"
    path = write(tmp_path, trace((0, build.system(0x030A, 1_000_001, payload, version=3))))
    for form in ("table", "csv", "json"):
        _, out, _ = ran(path, "--format", form, "--event", "Image")
        assert "\x1b" not in out
        assert "evil" in out
        assert len(out.splitlines()) == {"table": 2, "csv": 2, "json": 3}[form]


def test_raw_events_keep_their_payload(tmp_path):
    path = write(tmp_path, trace((0, build.manifest(GUID.bytes_le, 7, 1_000_001, b"\1\xff"))))
    (row,) = objects(path, "--provider", str(GUID).upper())
    assert (row["event"], row["fields"]) == (f"{GUID}/EventID(7)", {"payload": "01ff"})
    assert objects(path, "--event", f"{GUID}") == [row]


def test_long_values_are_cut_where_readers_of_csv_would_give_up(tmp_path):
    path = write(tmp_path, trace((0, build.manifest(GUID.bytes_le, 7, 1_000_001, bytes(60_000))), size=1 << 16))
    assert table(path)[1]["fields"] == "payload=" + "0" * 32768 + "...(87232 more)"
    assert objects(path)[1]["fields"] == {"payload": "00" * 60_000}


def test_damage_is_told_and_ends_with_1(tmp_path):
    made = trace(*((0, pmc(1_000_000 + i, 0x1000, 71)) for i in range(400)))
    data = bytearray(bytes(made))
    struct.pack_into("<H", data, 2 * 4096 + 72 + 4, 0)  # an event without size
    code, out, err = ran(write(tmp_path, data), "--format", "csv")
    assert code == 1
    assert "warning:" in err
    assert 100 < len(out.splitlines()) < 402


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--provider", "nobody"], "GUID"),
        (["--time", "1"], "FROM..TO"),
        (["--time", "a..b"], "seconds"),
        (["--time", "nan..1"], "FROM..TO"),
        (["--event", " , "], "no name"),
        (["--limit", "-1"], "-1"),
    ],
)
def test_usage(args, said, tmp_path):
    import click

    with pytest.raises(click.UsageError, match=re.escape(said)):
        ran(write(tmp_path, trace()), *args)


@pytest.mark.parametrize("data", [b"", b"no capture at all" * 20])
def test_what_is_no_capture(data, tmp_path):
    with pytest.raises(FormatError, match=r"not a capture|empty"):
        ran(write(tmp_path, data))


@pytest.mark.parametrize(
    ("frequency", "ticks", "text"),
    [
        (10_000_000, 12345, "1.2345"),
        (10_000_000, -5, "-0.0005"),
        (1_000_000_000, 1, "0.000001"),
        (1000, 7, "7"),
        (2_337_949, 1, "0.000428"),
        (3, 2, "666.666667"),
        (10_000_000, 1 << 62, "461168601842738.7904"),
        (0, 42, "42"),
    ],
)
def test_milliseconds_are_exact(frequency, ticks, text):
    assert milliseconds(Clock("c", frequency))(ticks) == text


# -- perf.data


def capture(**attr):
    b = Builder(sample_type=pw.IP | pw.TID | pw.TIME | pw.CPU | pw.PERIOD | pw.BRANCH_STACK, **attr)
    b.kernel_map(0xFFFFFFFF81000000, 0x1000000)  # made by perf: time 0
    b.comm(pid=7, name="prog", time=1000, exec=True, cpu=3)
    b.sample(ip=0x400010, pid=7, time=3000, cpu=1, period=5, branches=[(0x10, 0x20, 1), (0x30, 0x40, 2)])
    b.mmap2(pid=7, addr=0x400000, length=0x1000, pgoff=0, name="/bin/a b", time=2000, cpu=3)  # out of order
    b.record("LOST_SAMPLES", lost=9, time=2500, pid=7)
    b.record("FINISHED_ROUND")
    b.sample(ip=0x400020, pid=8, time=4000, cpu=2, period=6, branches=[])
    b.fork(pid=9, ppid=8, time=5000)
    return b


FORMS = [{}, {"big": True}, {"pipe": True}, {"compress": 81}, {"compress": 83, "pipe": True}]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_records_of_perf(form, tmp_path):
    rows = objects(write(tmp_path, capture().build(**form)))
    own = {"HEADER_ATTR", "HEADER_FEATURE", "EVENT_UPDATE", "COMPRESSED", "COMPRESSED2"}
    rows = [row for row in rows if row["event"] not in own]
    assert [row["event"] for row in rows] == [
        "MMAP",
        "COMM",
        "MMAP2",
        "LOST_SAMPLES",
        "SAMPLE",
        "FINISHED_ROUND",
        "SAMPLE",
        "FORK",
    ]
    times = [None, *(Decimal(n) / 1_000_000 for n in (0, 1000, 1500, 2000))]
    assert [row["time_ms"] for row in rows] == [*times, None, Decimal("0.003"), Decimal("0.004")]
    assert [row["pid"] for row in rows] == [-1, 7, 7, 7, 7, -1, 8, 9]
    assert [row["cpu"] for row in rows] == [0, 3, 3, 0, 1, -1, 2, 0]
    assert rows[1]["fields"] == {"misc": "0x2000", "pid": 7, "tid": 7, "comm": "prog"}
    assert rows[2]["fields"]["filename"] == "/bin/a b"
    assert (rows[2]["fields"]["addr"], rows[2]["fields"]["prot"]) == ("0x400000", "0x5")
    assert rows[3]["fields"] == {"lost": 9}
    assert rows[4]["fields"] == {
        "event": "cycles",
        "cpumode": "user",
        "ip": "0x400010",
        "period": 5,
        "lbr.from": ["0x10", "0x30"],
        "lbr.to": ["0x20", "0x40"],
        "lbr.flags": ["0x1", "0x2"],
    }
    assert rows[6]["fields"]["lbr.from"] == []
    assert {name: rows[7]["fields"][name] for name in ("pid", "ppid", "time")} == {"pid": 9, "ppid": 8, "time": 5000}


def test_fields_end_before_the_trailer(tmp_path):
    b = Builder(sample_type=pw.IP | pw.TID | pw.TIME)
    b.record("NAMESPACES", pid=7, links=[(1, 2), (3, 4)], nr=2, time=5)
    b.record("ID_INDEX", nr=1, entries=[(1, 2, -1, 3)])
    b.append(999, body=b"new kind")
    namespaces, index, unknown = objects(write(tmp_path, b.build()))
    assert namespaces["fields"]["link_info"] == [{"dev": 1, "inode": 2}, {"dev": 3, "inode": 4}]
    assert index["fields"]["entries"] == [{"id": 1, "idx": 2, "cpu": -1, "tid": 3}]
    assert (unknown["event"], unknown["fields"]) == ("TYPE_999", {"payload": b"new kind".hex()})


def test_selections_of_perf(tmp_path):
    path = write(tmp_path, capture().build())
    every = objects(path)
    for name in ("sample", "SAMPLE", "cycles", "SAMPLE/cycles"):
        assert objects(path, "--event", name) == [row for row in every if row["event"] == "SAMPLE"]
    assert objects(path, "--event", "mmap2, COMM") == [row for row in every if row["event"] in ("MMAP2", "COMM")]
    assert objects(path, "--pid", 7) == [row for row in every if row["pid"] == 7]
    found = objects(path, "--time", "0.000001..0.000003")
    assert [row["event"] for row in found] == ["MMAP2", "LOST_SAMPLES", "SAMPLE", "FINISHED_ROUND"]
    import click

    with pytest.raises(click.UsageError, match="no provider"):
        ran(path, "--provider", str(GUID))


def test_without_time_stamps_records_stay_in_the_order_of_the_file(tmp_path):
    b = Builder(sample_type=pw.IP | pw.TID)
    b.comm(pid=7, name="one")
    b.sample(ip=1, pid=7)
    b.comm(pid=7, name="two")
    b.sample(ip=2, pid=7)
    rows = objects(write(tmp_path, b.build()))
    assert [row["event"] for row in rows] == ["COMM", "SAMPLE", "COMM", "SAMPLE"]
    assert [row["fields"].get("comm") or row["fields"]["ip"] for row in rows] == ["one", "0x1", "two", "0x2"]


def test_records_that_do_not_fit_in_memory_are_spilled(tmp_path, monkeypatch):
    monkeypatch.setattr(perf_dump, "_SPILL_BYTES", 5000)
    b = Builder(sample_type=pw.IP | pw.TID | pw.TIME)
    for i in range(200):
        b.comm(pid=i, name=f"n{i}", time=1000 + i * 37 % 200)
        b.sample(ip=i, pid=i, time=1000 + i)
    rows = objects(write(tmp_path, b.build()))
    times = [row["time_ms"] for row in rows]
    assert times == sorted(times)
    assert sorted(row["pid"] for row in rows if row["event"] == "COMM") == list(range(200))
    assert all(row["time_ms"] * 1_000_000 == row["pid"] * 37 % 200 for row in rows if row["event"] == "COMM")


@pytest.mark.parametrize("name", [*REAL, *SYNTHETIC])
def test_every_record_of_real_captures(name, data: Data):
    """As many rows of each type as the file has records, in time order, fields as the independent reader has them."""
    import lastbranch

    path = data.path(name)
    rows, profile = objects(path), lastbranch.open(path)
    counts = {}
    for row in rows:
        counts[row["event"]] = counts.get(row["event"], 0) + 1
    assert counts == {kind: number for kind, number in profile.records.items() if number}
    times = [row["time_ms"] for row in rows if row["time_ms"] is not None]
    assert times == sorted(times)
    assert times[:1] in ([0], [])


@pytest.mark.parametrize(
    "name",
    [
        "hsw_5820k_16deep_attr136",
        "demo_features",
        pytest.param("skx_6154_32deep_pie", marks=pytest.mark.thorough),
    ],
)
def test_fields_of_real_records(name, data: Data):
    path = data.path(name)
    ours = [row for row in objects(path) if row["event"] in ("MMAP", "MMAP2", "COMM", "FORK", "EXIT")]
    theirs = pw.parse(path.read_bytes()).named("MMAP", "MMAP2", "COMM", "FORK", "EXIT")
    keys = {"name": "filename", "length": "len"}

    def shape(kind, fields):
        fields = {k: int(v, 16) if isinstance(v, str) and v.startswith("0x") else v for k, v in fields.items()}
        return kind, tuple(sorted((k, str(v)) for k, v in fields.items() if k not in ("misc", "sample_id")))

    expected = []
    for record in theirs:
        rename = {"name": "comm"} if record.name == "COMM" else keys
        fields = {rename.get(k, k): v for k, v in record.fields.items()}
        build_id = fields.get("build_id")
        if isinstance(build_id, bytes):
            fields["build_id"] = build_id.hex()
            fields |= {"__reserved_1": fields.pop("pad1"), "__reserved_2": fields.pop("pad2")}
        expected.append(shape(record.name, fields))
    assert sorted(shape(row["event"], row["fields"]) for row in ours) == sorted(expected)
    assert expected


# -- text of perf script


@pytest.mark.parametrize("name", ["hsw_5820k_16deep_attr136", "skl_m7_32deep_branch-4.14"])
def test_text_of_perf_script(name, data: Data, tmp_path):
    """A row for each line, with the entries that the line has."""
    text = data.golden(name, "perf612-script-brstack.txt.gz")
    (tmp_path / "text").write_text(text)
    rows = [row for row in objects(tmp_path / "text") if row["event"] == "SAMPLE"]
    lines = [line.split() for line in text.splitlines() if line.strip()]
    assert len(rows) == len(lines) > 0
    for row, words in zip(rows, lines, strict=True):
        entries = [word.split("/") for word in words if word.count("/") > 3]
        assert [int(a, 16) for a in row["fields"]["branch_from"]] == [int(e[0], 16) for e in entries]
        assert [int(a, 16) for a in row["fields"]["branch_to"]] == [int(e[1], 16) for e in entries]


def test_text_of_perf_script_with_mappings_and_times(tmp_path):
    (tmp_path / "text").write_text(
        "prog  7/9  [000]  1.000002: PERF_RECORD_MMAP2 7/7: [0x400000(0x1000) @ 0 08:01 5 0]: r-xp /bin/prog\n"
        "prog  7/9  1.000005:   10 cycles:  400010 0x400010/0x400020/P/-/-/3\n"
        "prog  7/9  1.000009:   10 cycles:  400010 0x400030/0x400040/M/-/-/3\n"
    )
    rows = objects(tmp_path / "text")
    assert [(row["event"], row["time_ms"], row["pid"], row["tid"]) for row in rows if row["event"] != "NAME"] == [
        ("MAP", 0, 7, 7),
        ("SAMPLE", Decimal("0.003"), 7, 9),
        ("SAMPLE", Decimal("0.007"), 7, 9),
    ]
    assert [row["event"] for row in objects(tmp_path / "text", "--time", "0.000004..")] == ["SAMPLE"]


def test_a_provider_is_asked_for_only_where_events_have_one(tmp_path):
    import click

    files = {"perf.data": capture().build(), "perf script": b" 400010 0x400010/0x400020/P/-/-/3\n"}
    for name, data in files.items():
        with pytest.raises(click.BadParameter, match=f"events of {name} have no provider"):
            ran(write(tmp_path, data), "--provider", str(GUID))


# -- nothing selected


def test_names_that_no_event_has(tmp_path):
    path = write(tmp_path, trace((0, pmc(1_000_005, 0x1000, 71))))
    code, out, err = ran(path, "--event", "unlike")
    assert (code, len(out.splitlines())) == (0, 1)
    assert err == "note: no event matches the selection\n"
    code, out, err = ran(path, "--event", "NOSUCH,perfinfos,perfinfo/pmcsampel", "--format", "json")
    assert (code, out) == (0, "[]\n")
    note, hint = err.splitlines()
    assert note == "note: no event matches the selection"
    assert hint.startswith("hint: events in this capture are called ")
    names = hint.removeprefix("hint: events in this capture are called ").split(", ")
    assert {"PerfInfo", "PerfInfo/PMCSample"} <= set(names)
    for name in names:
        assert objects(path, "--event", name), name
    assert ran(path, "--pid", 4711)[2] == note + "\n"
    assert "note" not in ran(path, "--event", "PerfInfo")[2]


def test_machine_forms_name_their_columns_as_all_verbs_do(tmp_path):
    path = write(tmp_path, trace((0, pmc(1_000_005, 0x1000, 71))))
    names = ["time_ms", "pid", "tid", "cpu", "event", "size", "fields"]
    assert ran(path, "--format", "csv")[1].splitlines()[0].split(",") == names
    assert [list(row) for row in objects(path)] == [names] * 2


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_nothing_selected_is_still_the_form_that_was_asked_for(form, tmp_path):
    path = write(tmp_path, trace((0, pmc(1_000_005, 0x1000, 71))))
    code, out, err = ran(path, "--pid", 4711, "--format", form)
    assert (code, err) == (0, "note: no event matches the selection\n")
    assert out == "[]\n" if form == "json" else len(out.splitlines()) == 1
    assert ran(path, "--limit", 1, "--format", form)[2] == ""


def test_a_selection_by_time_where_times_jump_back(tmp_path):
    """The times of a buffer that is damaged need not ascend: its ends are not its extremes."""
    times = (1_000_030, 1_000_010, 1_000_020)
    path = write(tmp_path, trace(*((0, pmc(time, n, 71)) for n, time in enumerate(times))))
    got = [row["time_ms"] for row in table(path, "--time", "0.0000015..", "--event", "PerfInfo")]
    assert sorted(got) == ["0.0020", "0.0030"]
    got = [row["time_ms"] for row in table(path, "--time", "..0.0000025", "--event", "PerfInfo")]
    assert sorted(got) == ["0.0010", "0.0020"]


def test_threads_are_known_before_they_are_told_of_and_the_idle_one_always(tmp_path):
    """One dump does not learn from another."""
    made = trace((1, pmc(1_000_005, 1, 71)), (1, pmc(1_000_006, 2, 0)), (0, thread(0x0504, 1_000_050, 70, 71)))
    rows = table(write(tmp_path, made), "--event", "PerfInfo")
    assert [(row["pid"], row["tid"]) for row in rows] == [("70", "71"), ("0", "0")]
    rows = table(write(tmp_path, trace((1, pmc(1_000_005, 1, 71)))), "--event", "PerfInfo")
    assert [(row["pid"], row["tid"]) for row in rows] == [("-1", "71")]
