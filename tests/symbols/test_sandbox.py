"""What the processes that read symbol files may ask of the system."""

from __future__ import annotations

import errno
import os
import re
import shutil
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from lastbranch.binaries import read_image
from lastbranch.model import BytesSource, Module, Profile, Segment
from lastbranch.symbols import Symbolizer, SymbolOptions, sandbox, symbolizer
from lastbranch.symbols.model import DebugFiles
from lastbranch.symbols.sandbox import ALLOW, KILL, REFUSE, reader_filter, tools_filter
from lastbranch.symbols.worker import WorkerClient, WorkerFailed
from symbol_programs import Programs
from symbol_workers import ADDRESS, children

MACHINES = "x86_64", "aarch64"
TABLES = {**sandbox.READING, **sandbox.CHECKED, **sandbox.FORBIDDEN, **sandbox.PRIVILEGED}
HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}
PID = 4711


def confines() -> bool:
    """Whether filters are to be had here."""
    code = "from lastbranch.symbols.sandbox import confine_reader; print(confine_reader())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).stdout == b"True\n"


@pytest.fixture(scope="module")
def filters() -> None:
    if not confines():
        pytest.skip("this system takes no seccomp filters")


def test_a_confined_reader_does_alone_what_takes_two_processes_elsewhere(filters: None) -> None:
    """As for a binary with so many lines that they are read beside its entries."""
    code = """
from lastbranch.symbols.backends.dwarf import reader
from lastbranch.symbols.sandbox import confine_reader
import numpy as np, os
work = lambda: {"process": np.array([os.getpid()])}
os.cpu_count = lambda: 2
for confined in (False, True):
    print(confined and confine_reader(), int(reader.meanwhile(work)()["process"][0]) == os.getpid())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False False\nTrue True\n", done.stderr


# -- the filters by themselves


def run(program: list[tuple[int, int, int, int]], call: int, *arguments: int, audit: int) -> int:
    """What classic BPF (as in linux/filter.h) makes of a call."""
    data = struct.pack("<IIQ6Q", call, audit, 0, *[a & (1 << 64) - 1 for a in arguments], *[0] * (6 - len(arguments)))
    at, accumulator = 0, 0
    while True:
        code, jump_if, jump_else, value = program[at]
        at += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x06:
                return value
            case 0x15:
                at += jump_if if accumulator == value else jump_else
            case 0x35:
                at += jump_if if accumulator >= value else jump_else
            case 0x45:
                at += jump_if if accumulator & value else jump_else
            case _:
                raise AssertionError(f"code {code:#x}")


@pytest.mark.parametrize("machine", MACHINES)
def test_numbers_are_those_of_the_kernels_headers(machine: str) -> None:
    path = Path(HEADERS[machine])
    if not path.exists():
        pytest.skip(f"no {path}")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)\s*$", path.read_text(), re.MULTILINE)
    numbers = {name: int(number) for name, number in found}
    if machine == "aarch64":
        numbers["newfstatat"] = 79  # __NR3264_fstatat, which the header renames
    ours = {name: row[sandbox.ARCHITECTURES[machine][0]] for name, row in TABLES.items()}
    assert ours == {name: numbers.get(name) for name in TABLES}


@pytest.mark.parametrize("machine", MACHINES)
def test_what_a_reader_may_do(machine: str) -> None:
    column, audit = sandbox.ARCHITECTURES[machine]
    number = {name: row[column] for name, row in TABLES.items() if row[column] is not None}
    program = reader_filter(machine, PID)

    def action(name: str, *arguments: int) -> int:
        return run(program, number[name], *arguments, audit=audit)

    assert {action(name) for name in sandbox.READING if name in number} == {ALLOW}
    assert {action(name) for name in sandbox.FORBIDDEN if name in number} == {KILL}
    places = {"openat": (-100, 0)} | ({"open": (0,)} if machine == "x86_64" else {})
    for name, before in places.items():
        for flags in (os.O_RDONLY, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW, os.O_DIRECTORY):
            assert action(name, *before, flags) == ALLOW
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_RDWR | os.O_TMPFILE):
            assert action(name, *before, flags) == KILL
    for name in ("kill", "tgkill"):
        assert [action(name, pid) for pid in (PID, 1, 0, -1, PID + 1)] == [ALLOW, KILL, KILL, KILL, KILL]
    assert [action("prlimit64", pid) for pid in (0, 1, PID)] == [ALLOW, KILL, KILL]
    assert action("ioctl", 0, 0x5412) == REFUSE | errno.ENOTTY
    for unknown in (451, 1000, 425, number["mount"]):
        assert run(program, unknown, audit=audit) == REFUSE | errno.ENOSYS


@pytest.mark.parametrize("machine", MACHINES)
def test_what_programs_may_do(machine: str) -> None:
    column, audit = sandbox.ARCHITECTURES[machine]
    program = tools_filter(machine)
    for row in sandbox.PRIVILEGED.values():
        assert run(program, row[column] or 0, audit=audit) == REFUSE | errno.EPERM
    for name in ("execve", "clone"):
        assert run(program, sandbox.FORBIDDEN[name][column] or 0, audit=audit) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_calls_of_another_architecture_do_not_get_past(machine: str) -> None:
    """The same number is another call there: 11 is munmap of x86-64 and execve of i386."""
    for program in (reader_filter(machine, PID), tools_filter(machine)):
        audit = sandbox.ARCHITECTURES[machine][1]
        assert len(program) < 4096
        assert run(program, 11, audit=0x40000003) == KILL
        assert run(program, 0x40000000 | 59, audit=audit) == KILL


@pytest.mark.parametrize("machine", ["riscv64", "i686", ""])
def test_other_machines_have_no_filter(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "", "", "", machine)))
    assert sandbox._machine() == ""


# -- in the worker


@pytest.mark.usefixtures("filters")
@pytest.mark.parametrize(
    "what",
    [
        "start a program",
        "start a process",
        "open a socket",
        "write to a file",
        "append to a file",
        "make a file",
        "end a process",
        "change limits",
        "read a process",
    ],
)
def test_what_no_file_may_lead_a_reader_to(bad, what: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """It ends the reader, says so plainly, and the next one works."""
    client, files = bad(what)
    with pytest.raises(WorkerFailed, match="attempt a forbidden system call") as failure:
        client.names(files, "auto", ADDRESS)
    assert failure.value.fatal
    assert not (tmp_path / "starts.new").exists()
    Path(files.binary).write_text("live")
    assert len(client.names(files, "auto", ADDRESS)) == 3
    assert len((tmp_path / "starts").read_text().split()) == 3, "nothing was cut off the file that it may not write"


@pytest.mark.usefixtures("filters")
def test_both_processes_are_restricted(bad) -> None:  # type: ignore[no-untyped-def]
    client, files = bad("live")
    client.names(files, "auto", ADDRESS)
    assert client._process is not None
    outer = client._process.pid
    (reader,) = children(outer)
    for pid in (outer, reader):
        status = dict(re.findall(r"^(\w+):\s+(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE))
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    limits = Path(f"/proc/{reader}/limits").read_text()
    for name in ("Max file size", "Max processes", "Max core file size"):
        assert re.search(rf"^{name} +0 +0 ", limits, re.MULTILINE), limits
    links = {os.readlink(f"/proc/{reader}/fd/{fd}").partition(":")[0] for fd in os.listdir(f"/proc/{reader}/fd")}
    assert links == {"/dev/null", "pipe"}
    pipes = {os.readlink(f"/proc/{pid}/fd/{fd}") for pid, fd in ((outer, 0),)}
    held = {os.readlink(f"/proc/{reader}/fd/{fd}") for fd in os.listdir(f"/proc/{reader}/fd")}
    assert not pipes & held, "it cannot answer in place of the other"


def test_where_filters_are_refused_the_limits_remain(bad, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """As in some containers: names come all the same, and files do not grow."""
    client, files = bad("live", "no filters")
    assert len(client.names(files, "auto", ADDRESS)) == 3
    assert client._process is not None
    (reader,) = children(client._process.pid)
    assert "Max file size             0 " in Path(f"/proc/{reader}/limits").read_text()


@pytest.mark.usefixtures("filters")
def test_other_backends_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names come from the symbol table where the reader of DWARF was led astray, and a note says why."""
    path = Programs(tmp_path).path("gcc")
    program = tmp_path / "astray.py"
    program.write_text(
        textwrap.dedent("""
        import socket
        from lastbranch.symbols import worker
        from lastbranch.symbols.backends.dwarf import reader
        reader.symbolize = lambda files, address: socket.socket()
        worker.main()
    """)
    )
    command = [sys.executable, "-B", str(program)]
    monkeypatch.setattr(symbolizer, "WorkerClient", lambda options: WorkerClient(options, command))
    image = read_image(BytesSource(path.read_bytes()))
    segments = tuple(Segment(s.vaddr, s.offset, s.file_size, bool(s.flags & 1)) for s in image.segments)
    module = Module("/opt/app", build_id=image.build_id or b"", segments=segments, binary=str(path))
    profile = Profile("p", "perf.data", modules=[module])
    with Symbolizer(profile, SymbolOptions(cache=None)) as names:
        table = names.functions(0)
        main = next(f for f in table.functions if f.name == "main")
        found = names.names(0, np.array([main.start], np.uint64))
        assert [frame.function.name for frame in found.frames(0)] == ["main"]
        assert any("attempt a forbidden system call" in note for note in names.notes)


@pytest.mark.parametrize("tool", ["llvm-cxxfilt", "c++filt"])
def test_programs_still_run(tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader asks for them; it cannot start them. A tool that says who it is proves that it was the one asked."""
    if shutil.which("sh") is None:
        pytest.skip("no shell")
    (tmp_path / tool).write_text('#!/bin/sh\nwhile read name; do echo "by $name"; done\n')
    (tmp_path / tool).chmod(0o755)
    (tmp_path / "p.map").write_text("1000 10 _Z1fv\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    client = WorkerClient(SymbolOptions(cache=None))
    names = client.names(DebugFiles("perfmap", str(tmp_path / "p.map")), "", ADDRESS)
    client.close()
    assert names.functions[0].shown == "by _Z1fv"
