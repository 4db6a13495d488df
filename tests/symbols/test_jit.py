"""Perf maps and jitdumps: what they say, when, and whose are believed."""

from __future__ import annotations

import os
import platform
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastbranch.errors import FormatError
from lastbranch.model import Clock, Machine, Module, ModuleKind, Process, Profile
from lastbranch.symbols import Symbolizer, SymbolOptions, jit
from lastbranch.symbols.jit import names_in, read_header, read_perfmap
from lastbranch.symbols.model import DebugFiles
from symbol_files import PID, Dump


def profile(*mapped: str, pid: int = PID, end: int | None = 9, clock: str = "CLOCK_MONOTONIC") -> Profile:
    """A capture of this machine in which ``pid`` ran, and is gone."""
    modules = [Module(name, ModuleKind.ANONYMOUS if name.startswith("//") else ModuleKind.FILE) for name in mapped]
    machine = Machine(host=platform.node(), os_release=platform.release())
    return Profile(
        "p", "perf.data", machine=machine, clock=Clock(clock), modules=modules, processes=[Process(pid, end=end)]
    )


def symbolizer(of: Profile, *debug_dirs: Path) -> Symbolizer:
    return Symbolizer(of, SymbolOptions(cache=None, debug_dirs=tuple(map(str, debug_dirs))))


def called(names: object, count: int) -> list[str]:
    return [f[0].function.name if (f := names.frames(i)) else "" for i in range(count)]  # type: ignore[attr-defined]


# -- perf maps


def perfmap(tmp_path: Path, text: bytes) -> list[tuple[int, int, str]]:
    path = tmp_path / "p.map"
    path.write_bytes(text)
    table = read_perfmap(DebugFiles("perfmap", str(path)))
    return [(int(s), int(e), f.name) for s, e, f in zip(table.start, table.end, table.functions, strict=True)]


def test_lines_of_a_perf_map(tmp_path: Path) -> None:
    text = (
        b"7f10 10 LazyCompile:*f file.js:3\nnonsense\n7f30 0 empty\n0x7f40 0x8 py::f:/a b.py\r\n\n"
        b"ffffffffffffffff ffffffffffffffff last\n7f50 8 \xff\x1b[31m\n-5 8 no\n7f60 8\n7f70 99999999999999999 no\n"
    )
    assert perfmap(tmp_path, text) == [
        (0x7F10, 0x7F20, "LazyCompile:*f file.js:3"),
        (0x7F40, 0x7F48, "py::f:/a b.py"),
        (0x7F50, 0x7F58, "\udcff\x1b[31m"),
    ]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=12))
def test_later_lines_cover_earlier_ones(tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[int, int]]) -> None:
    text = "".join(f"{start:x} {size:x} f{i}\n" for i, (start, size) in enumerate(lines))
    pieces = perfmap(tmp_path_factory.getbasetemp(), text.encode())
    memory = [""] * 50
    for i, (start, size) in enumerate(lines):
        memory[start : start + size] = [f"f{i}"] * size
    assert [next((n for s, e, n in pieces if s <= a < e), "") for a in range(50)] == memory


def test_a_table_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lastbranch.symbols.symbol_lists.TEXT_LIMIT", 10)
    with pytest.raises(FormatError, match="at most 10 bytes"):
        perfmap(tmp_path, b"7f10 10 function\n")


# -- jitdumps, written from the specification


ASKED = [  # address, time, function, file and line
    (0x1000, 5, "", "", 0), (0x1000, 10, "a", "a.js", 5), (0x100B, 29, "a", "a.js", 6), (0x100C, 29, "a", "lib.js", 9),
    (0x1000, 30, "", "", 0), (0x3000, 29, "", "", 0), (0x3008, 30, "a", "a.js", 6), (0x1000, 50, "b", "", 0),
    (0x1018, 55, "b", "", 0), (0x1018, 60, "_ZN1cEv", "", 0), (0x101C, 60, "b", "", 0), (0x5000, 99, "", "", 0),
    (0x1010, 40, "", "", 0),
]  # fmt: skip


@pytest.mark.parametrize("order", "<>")
def test_names_are_those_of_the_time(tmp_path: Path, order: str) -> None:
    path = tmp_path / "jit-4242.dump"
    path.write_bytes(Dump(order).story())
    address, time = (np.array(c, np.uint64) for c in list(zip(*ASKED, strict=True))[:2])
    names = names_in(DebugFiles("jitdump", str(path)), address, time)
    got = [
        (f[0].function.name, f[0].file, f[0].line) if (f := names.frames(i)) else ("", "", 0) for i in range(len(ASKED))
    ]
    assert got == [a[2:] for a in ASKED]
    last = names_in(DebugFiles("jitdump", str(path)), np.array([0x1000, 0x1018, 0x3000], np.uint64), None)
    assert called(last, 3) == ["b", "_ZN1cEv", "a"]


def test_a_jitdump_that_is_cut_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    whole, path = Dump("<").story(), tmp_path / "jit-4242.dump"
    address = np.array([0x1000, 0x3000], np.uint64)
    for cut in range(40, len(whole), 5):
        path.write_bytes(whole[:cut])
        assert set(called(names_in(DebugFiles("jitdump", str(path)), address, None), 2)) <= {"", "a", "b"}


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", "magic"),
        (b"\x7fELF" + bytes(60), "magic"),
        (struct.pack("<6I2Q", 0x4A695444, 2, 40, 0, 0, 0, 0, 0), "version"),
        (struct.pack("<6I2Q", 0x4A695444, 1, 8, 0, 0, 0, 0, 0), "total_size"),
    ],
)
def test_no_jitdump(data: bytes, field: str) -> None:
    with pytest.raises(FormatError) as error:
        read_header(data, "x")
    assert error.value.field == field


def test_huge_counts_cost_nothing(tmp_path: Path) -> None:
    dump = Dump("<")
    dump.record(2, 1, struct.pack("<QQ", 0x1000, 1 << 63) + struct.pack("<Qii", 0x1000, 7, 0) + b"f.c\0")
    dump.load(2, 0x1000, 0x10, 0, b"f")
    dump.record(0, 3, struct.pack("<IIQQQQ", 1, 1, 0, (1 << 64) - 8, (1 << 64) - 1, 5) + b"top\0")
    path = tmp_path / "d"
    path.write_bytes(dump.data)
    names = names_in(DebugFiles("jitdump", str(path)), np.array([0x1000, (1 << 64) - 4], np.uint64), None)
    assert called(names, 2) == ["f", "top"]


# -- whose files are believed


@pytest.fixture
def maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for /tmp."""
    folder = tmp_path / "maps"
    folder.mkdir()
    monkeypatch.setattr(jit, "PERF_MAPS", str(folder))
    return folder


ASK = np.array([0x1004, 0x9000, 0x1000], np.uint64)


def test_a_perf_map_of_the_process_names_its_code(maps: Path) -> None:
    (maps / f"perf-{PID}.map").write_text("1000 10 jitted\n")
    with symbolizer(profile()) as names:
        assert called(names.names_at(0, ASK), 3) == ["jitted", "", "jitted"]
        assert called(names.names(-1, ASK), 3) == ["", "", ""]
        assert names.notes == []
        assert called(names.names_at(-1, ASK), 3) == ["", "", ""]


def test_a_jitdump_comes_before_a_perf_map_and_knows_times(maps: Path) -> None:
    dump = maps / f"jit-{PID}.dump"
    dump.write_bytes(Dump("<").story())
    (maps / f"perf-{PID}.map").write_text("1000 8 old\n9000 10 only here\n")
    with symbolizer(profile(str(dump))) as names:
        assert called(names.names_at(0, ASK), 3) == ["b", "only here", "b"]
        assert called(names.names_at(0, ASK, np.array([20, 20, 40])), 3) == ["a", "only here", "old"]
    with symbolizer(profile(str(dump), clock="perf_clock")) as names:  # times of another clock mean nothing
        assert called(names.names_at(0, ASK, np.array([20, 20, 40])), 3) == ["b", "only here", "b"]


def test_a_jitdump_of_another_process_is_not_used(maps: Path) -> None:
    dump = maps / f"jit-{PID}.dump"
    dump.write_bytes(Dump("<", pid=7).story())
    with symbolizer(profile(str(dump))) as names:
        assert called(names.names_at(0, ASK), 3) == ["", "", ""]
        assert "belongs to process 7" in names.notes[0]


def test_captures_of_other_machines_have_no_maps_here(maps: Path) -> None:
    (maps / f"perf-{PID}.map").write_text("1000 10 jitted\n")
    away = profile()
    away.machine.host = "another-machine"
    with symbolizer(away) as names:
        assert called(names.names_at(0, ASK), 3) == ["", "", ""]
    with symbolizer(away, maps) as names:  # unless the user says that they are
        assert called(names.names_at(0, ASK), 3) == ["jitted", "", "jitted"]


@pytest.mark.parametrize("kind", ["fifo", "link", "folder", "device"])
def test_what_is_no_file_of_its_own_is_not_read(maps: Path, tmp_path: Path, kind: str) -> None:
    path = maps / f"perf-{PID}.map"
    (tmp_path / "secret").write_text("1000 10 secret\n")
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "link":
            path.symlink_to(tmp_path / "secret")
        case "folder":
            path.mkdir()
        case _:
            path.symlink_to("/dev/zero")
    with symbolizer(profile()) as names:
        assert called(names.names_at(0, ASK), 3) == ["", "", ""]
        assert "is not used" in names.notes[0]


@pytest.mark.parametrize("name", ["relative/jit-4242.dump", "/tmp/../tmp/jit-4242.dump", "//host/share/jit-4242.dump"])
def test_names_of_dumps_are_hints(maps: Path, name: str) -> None:
    with symbolizer(profile(name)) as names:
        assert called(names.names_at(0, ASK), 3) == ["", "", ""]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_maps_must_belong_to_the_user_of_the_process(maps: Path) -> None:
    path = maps / f"perf-{PID}.map"
    path.write_text("1000 10 forged\n")
    os.chown(path, 12345, -1)
    with symbolizer(profile()) as names:
        assert called(names.names_at(0, ASK), 3) == ["", "", ""]
        assert "belongs to user 12345" in names.notes[0]
        assert "--debug-dir" in names.notes[0]
    running = subprocess.Popen(["sleep", "60"], user=12345)
    try:  # while it runs, it is known whose it is
        own = maps / f"perf-{running.pid}.map"
        own.write_text("1000 10 jitted\n")
        with symbolizer(profile(pid=running.pid, end=None)) as names:
            assert called(names.names_at(0, ASK), 3) == ["", "", ""]
            assert "belongs to user 0, the process to 12345" in names.notes[0]
        os.chown(own, 12345, -1)
        with symbolizer(profile(pid=running.pid, end=None)) as names:
            assert called(names.names_at(0, ASK), 3) == ["jitted", "", "jitted"]
    finally:
        running.kill()
        running.wait()


def test_what_a_jit_wrote(tmp_path: Path) -> None:
    """V8's jitdump has the names of its perf map at the same addresses."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    script = tmp_path / "hot.js"
    script.write_text(
        "function hotFunction(n) { let s = 0; for (let i = 0; i < n; i++) s += i % 7; return s; }\n"
        "for (let i = 0; i < 3000; i++) hotFunction(1000);\nconsole.log(process.pid);\n"
    )
    done = subprocess.run(
        [node, "--perf-prof", "--perf-basic-prof", str(script)],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        timeout=120,
    )
    if done.returncode:
        pytest.skip("this node has no perf support")
    pid = int(done.stdout)
    path, dump = Path(f"/tmp/perf-{pid}.map"), tmp_path / f"jit-{pid}.dump"
    try:
        rows = [line.split(" ", 2) for line in path.read_text().splitlines()]
        hot = {int(start, 16): name for start, _, name in rows if "hotFunction" in name}
        address = np.array(sorted(hot), np.uint64)
        assert len(hot)
        for mapped in ([], [str(dump)]):
            with symbolizer(profile(*mapped, pid=pid)) as names:
                told = called(names.names_at(0, address), len(address))
                assert told[-1] == hot[max(hot)] if not mapped else "hotFunction" in told[-1]
                assert names.notes == []
    finally:
        path.unlink()
