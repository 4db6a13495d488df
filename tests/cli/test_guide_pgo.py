"""The commands of docs/guides/pgo.md, run as they stand there, in a clean folder; what they promise comes true."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import spe_writer
import toy_kernel
from arm_walks import CODE, PID, brbe_capture, listed, operation, spe_capture, walk
from export_tools import pe_stacks, ran, tool
from spe_writer import Area

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "pgo.md").read_text(encoding="utf-8")
PROGRAMS = Path(__file__).parents[1] / "programs"
SOURCE = re.findall(r"^```c\n(.*?)^```", PAGE, re.M | re.S)[0]
SECTIONS: dict[str, str] = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))


class Shell:
    """A folder with ``app.c`` and a ``lastbranch`` to call; what ran is in ``told``, by command."""

    def __init__(self, folder: Path) -> None:
        (folder / "bin").mkdir()
        (folder / "bin" / "lastbranch").write_text(
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m lastbranch "$@"\n'
        )
        (folder / "bin" / "lastbranch").chmod(0o755)
        (folder / "app.c").write_text(SOURCE)
        path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        self.folder, self.env = folder, {**os.environ, "PATH": path, "XDG_CACHE_HOME": str(folder / "cache")}
        self.env.pop("MAKEFLAGS", None)  # of `make test`, whose jobs are not for the guide's make
        self.told: dict[str, str] = {}

    def assert_commands_run(self, title: str, made: tuple[str, ...] = ()) -> None:
        """Run the commands of a section, which succeed, but not those that begin like one of ``made``: the test has
        made what these write. Skips where a tool is not there."""
        commands = [c for c in re.findall(r"^\$ (.*)$", SECTIONS[title], re.M) if not c.startswith(made or ("\0",))]
        for name in {shlex.split(c)[0] for c in commands}:
            if shutil.which(name, path=self.env["PATH"]) is None:
                pytest.skip(f"{name} is not installed")
        for command in commands:
            done = subprocess.run(
                ["sh", "-c", command], cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=300
            )
            if done.returncode == 125 and " record " in command:
                pytest.skip(f"nothing can be recorded here: {done.stderr.strip()}")
            assert done.returncode == 0, f"{command}\n{done.stderr}"
            self.told[command] = done.stdout + done.stderr

    def assert_lines_are_printed(self, title: str) -> None:
        """Every line that a section shows below a command was printed by it, but for numbers."""
        for block in re.findall(r"^```console\n(.*?)^```", SECTIONS[title], re.M | re.S):
            for command, text in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M):
                if command in self.told:
                    printed = {*map(_without_numbers, self.told[command].splitlines())}
                    missing = [line for line in text.splitlines() if _without_numbers(line) not in printed]
                    assert not missing, f"{command}\n{self.told[command]}"

    def counted(self, what: str, program: str, rounds: int = 10) -> int:
        told = self.told[f"valgrind --tool=lackey --basic-counts=yes ./{program} {rounds}"]
        found = re.search(rf"{what}: +([0-9,]+)", told)
        assert found, told
        return int(found[1].replace(",", ""))


def _without_numbers(line: str) -> str:
    return re.sub(r"\b[0-9a-f]{12,}\b|[0-9][0-9.,]*", "#", " ".join(line.split()))


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_clang(shell: Shell) -> None:
    shell.assert_commands_run("clang")
    assert shell.counted("guest instrs", "app.pgo") < shell.counted("guest instrs", "app") * 0.97
    assert "clamp" in (shell.folder / "app.prof").read_text()
    assert any(line.startswith("app.unsym.txt\t") for line in (shell.folder / "profiles/index.tsv").open())


def test_contexts(shell: Shell) -> None:
    shell.assert_commands_run("Contexts")
    assert "inlined into 'main' to match profiling context" in "".join(shell.told.values())


def test_gcc(shell: Shell) -> None:
    shell.assert_commands_run("gcc")
    assert shell.counted("guest instrs", "app-gcc.pgo") < shell.counted("guest instrs", "app-gcc") * 0.97


def test_bolt(shell: Shell) -> None:
    shell.assert_commands_run("BOLT")
    assert shell.counted("taken", "bolted.opt") < shell.counted("taken", "bolted") * 0.5
    assert any("3 out of 11 functions" in told for command, told in shell.told.items() if "bolt.yaml" in command)
    assert shell.counted("guest instrs", "bolted.opt") < shell.counted("guest instrs", "bolted")
    assert shell.counted("taken", "changed.opt") < shell.counted("taken", "changed") * 0.5


def test_propeller(shell: Shell) -> None:
    shell.assert_commands_run("Propeller")
    assert (shell.folder / "cc_prof.txt").read_text().startswith("v1\nf main\nc 0 ")
    assert shell.counted("taken", "laid-out", 2) < shell.counted("taken", "mapped", 2) * 0.5
    assert shell.counted("guest instrs", "laid-out", 2) < shell.counted("guest instrs", "mapped", 2) * 1.01


def toolchain(shell: Shell, **more: str) -> None:
    """Let the section's commands have these variables, and the Go that `make go` installs."""
    go = Path(__file__).parents[2] / ".venv-go" / "bin"
    shell.env.update(more, PATH=f"{shell.env['PATH']}{os.pathsep}{go}")


@pytest.mark.thorough
def test_go(shell: Shell) -> None:
    """It compiles Go's runtime three times."""
    shutil.copy(PROGRAMS / "calls.go", shell.folder)
    toolchain(shell, GOFLAGS="", GOTOOLCHAIN="local", GOMAXPROCS="2")
    shell.assert_commands_run("Go")
    shell.assert_lines_are_printed("Go")


@pytest.mark.thorough
def test_rust(shell: Shell) -> None:
    """A release of rustc takes the options of nightly ones, where it is asked to."""
    shutil.copy(PROGRAMS / "shapes.rs", shell.folder)
    there = subprocess.run([tool("rustc"), "+nightly", "-V"], capture_output=True).returncode == 0
    if not there:
        (shell.folder / "bin" / "rustc").write_text(f'#!/bin/sh\nshift\nexec {tool("rustc")} "$@"\n')
        (shell.folder / "bin" / "rustc").chmod(0o755)
    toolchain(shell, RUSTC_BOOTSTRAP="1")
    shell.assert_commands_run("Rust", made=("cargo",))
    said = "".join(shell.told.values())
    assert re.search(r"note: \S*shapes\.rs:\d+:\d+ sample-profile-impl \(analysis\): Applied [1-9]\d* samples", said)
    assert re.search(
        r"sample-profile \(success\): most popular destination for conditional branches at \S*shapes\.rs", said
    )


STUBS = """\
int printf(const char *format, ...) { return format[0]; }
int atoi(const char *text) { return text[0]; }
"""


def test_arm(shell: Shell) -> None:
    """The captures are made of walks through the program's code: no machine is needed, and clang compiles for one."""
    compiler, folder = tool("clang-19"), shell.folder
    (folder / "stubs").mkdir()
    for header in ("stdio.h", "stdlib.h"):
        (folder / "stubs" / header).write_text("int printf(const char *format, ...);\nint atoi(const char *text);\n")
    (folder / "stubs" / "libc.c").write_text(STUBS)
    flags = f"--target=aarch64-linux-gnu -I{folder}/stubs -nostdlib -static -fuse-ld=lld-19 -Wl,-e,main"
    (folder / "bin" / "clang-19").write_text(f'#!/bin/sh\nexec {compiler} {flags} {folder}/stubs/libc.c "$@"\n')
    (folder / "bin" / "clang-19").chmod(0o755)
    tool("lld-19")
    build = "clang-19 -O2 -g -fdebug-info-for-profiling -o app app.c"
    subprocess.run(shlex.split(build), cwd=folder, env=shell.env, check=True)
    made = listed(folder / "app")
    at = {
        one.function: min(a for a, o in made.code.items() if o.function == one.function) for one in made.code.values()
    }
    _, branches = walk(made, 20_000, 1, at["main"], (at["clamp"], at["wrap"]))
    spe_capture(made, branches, folder / "spe.data", previous_targets=True)
    brbe_capture(made, branches, folder / "brbe.data")
    whole = b"".join(operation(made, one, None).bytes() for one in branches[:1000])
    spe_writer.write(folder / "cut.data", Area(whole, flags=1), maps=[(PID, CODE, 0x10000, "/bin/app")])
    spe_writer.write(folder / "pt.data", Area(bytes(4096)), kind=1)
    shell.assert_commands_run("Arm", made=("perf record",))
    shell.assert_lines_are_printed("Arm")


def test_kernel(shell: Shell) -> None:
    """With a kernel of a few functions in the place of Linux; `make kernel` does it with Linux."""
    folder, toy = shell.folder, toy_kernel.built(shell.folder)
    (folder / "root" / toy_kernel.MODULE[1:]).parent.mkdir(parents=True)
    shutil.copy(toy.module, folder / "root" / toy_kernel.MODULE[1:])
    shutil.copy(toy.vmlinux, folder / "root" / "vmlinux")
    (folder / "system.data").write_bytes(toy.capture().build())
    source = folder / "linux" / "kernel" / "sched" / "core.c"
    source.parent.mkdir(parents=True)
    shutil.copy(folder / "kernel.c", source)
    (folder / "linux" / "Makefile").write_text(
        f"%.o: %.c\n\tclang$(LLVM) {' '.join(toy_kernel.FLAGS)} $(KCFLAGS) -c -o $@ $<\n"
    )
    shell.assert_commands_run("Kernel", made=("perf record",))
    profiled, placed = (told for command, told in shell.told.items() if command.startswith("make"))
    assert re.search(r"remark: Applied [1-9]\d* samples from profile", profiled)
    assert "warning:" not in profiled + placed
    laid_out = ran(tool("llvm-readobj-19"), "--bb-addr-map", source.with_suffix(".o"))
    clusters = (folder / "kernel_cc_profile.txt").read_text()
    assert "f __x64_sys_rest __do_sys_rest\n" in clusters  # the second one is what clang knows
    for name in ("tick", "schedule"):
        listed_order = re.search(rf"^f {name}\nc (.*)$", clusters, re.M)
        blocks = re.search(rf"Name: {name}\n(.*?)Name:", laid_out + "Name:", re.S)
        assert listed_order is not None
        assert blocks is not None
        assert re.findall(r"ID: (\d+)", blocks[1])[: len(listed_order[1].split())] == listed_order[1].split(), name
    assert (folder / "kernel.llvm.prof").read_text() == (folder / "profiles" / "_kernel.kallsyms_.prof").read_text()


def test_windows(shell: Shell, run) -> None:
    """The trace is made up: the functions of the binary that the page's first command builds are run through."""
    build = re.findall(r"^\$ (clang-19 .*-o app\.exe .*)$", SECTIONS["Windows"], re.M)[0]
    tool("clang-19"), tool("x86_64-w64-mingw32-gcc")
    subprocess.run(shlex.split(build), cwd=shell.folder, check=True)
    (shell.folder / "made-up.txt").write_text(pe_stacks(shell.folder / "app.exe", ("main", "clamp", "wrap")))
    done = run("convert", shell.folder / "made-up.txt", shell.folder / "trace.etl")
    assert done.code == 0, done.err
    shell.assert_commands_run("Windows")
    assert "main:" in (shell.folder / "win.prof").read_text()
    assert (shell.folder / "app.pgo.exe").read_bytes() != (shell.folder / "app.exe").read_bytes()
