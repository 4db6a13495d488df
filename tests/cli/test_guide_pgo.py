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

from export_tools import pe_stacks, tool

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "pgo.md").read_text(encoding="utf-8")
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
        self.told: dict[str, str] = {}

    def follow(self, title: str) -> None:
        """Run the commands of a section; skips where one of its tools is not there."""
        commands = re.findall(r"^\$ (.*)$", SECTIONS[title], re.M)
        for name in {shlex.split(c)[0] for c in commands}:
            if shutil.which(name, path=self.env["PATH"]) is None:
                pytest.skip(f"{name} is not installed")
        for command in commands:
            done = subprocess.run(
                shlex.split(command), cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=120
            )
            if done.returncode == 125 and " record " in command:
                pytest.skip(f"nothing can be recorded here: {done.stderr.strip()}")
            assert done.returncode == 0, f"{command}\n{done.stderr}"
            self.told[command] = done.stdout + done.stderr

    def counted(self, what: str, program: str, rounds: int = 10) -> int:
        told = self.told[f"valgrind --tool=lackey --basic-counts=yes ./{program} {rounds}"]
        found = re.search(rf"{what}: +([0-9,]+)", told)
        assert found, told
        return int(found[1].replace(",", ""))


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_clang(shell: Shell) -> None:
    shell.follow("clang")
    assert shell.counted("guest instrs", "app.pgo") < shell.counted("guest instrs", "app") * 0.97
    assert "clamp" in (shell.folder / "app.prof").read_text()
    assert any(line.startswith("app.unsym.txt\t") for line in (shell.folder / "profiles/index.tsv").open())


def test_contexts(shell: Shell) -> None:
    shell.follow("Contexts")
    assert "inlined into 'main' to match profiling context" in "".join(shell.told.values())


def test_gcc(shell: Shell) -> None:
    shell.follow("gcc")
    assert shell.counted("guest instrs", "app-gcc.pgo") < shell.counted("guest instrs", "app-gcc") * 0.97


def test_bolt(shell: Shell) -> None:
    shell.follow("BOLT")
    assert shell.counted("taken", "bolted.opt") < shell.counted("taken", "bolted") * 0.5
    assert any("3 out of 11 functions" in told for command, told in shell.told.items() if "bolt.yaml" in command)
    assert shell.counted("guest instrs", "bolted.opt") < shell.counted("guest instrs", "bolted")


def test_propeller(shell: Shell) -> None:
    shell.follow("Propeller")
    assert (shell.folder / "cc_prof.txt").read_text().startswith("v1\nf main\nc 0 ")
    assert shell.counted("taken", "laid-out", 2) < shell.counted("taken", "mapped", 2) * 0.5
    assert shell.counted("guest instrs", "laid-out", 2) < shell.counted("guest instrs", "mapped", 2)


def test_windows(shell: Shell, run) -> None:
    """The trace is made up: the functions of the binary that the page's first command builds are run through."""
    build = re.findall(r"^\$ (clang-19 .*-o app\.exe .*)$", SECTIONS["Windows"], re.M)[0]
    tool("clang-19"), tool("x86_64-w64-mingw32-gcc")
    subprocess.run(shlex.split(build), cwd=shell.folder, check=True)
    (shell.folder / "made-up.txt").write_text(pe_stacks(shell.folder / "app.exe", ("main", "clamp", "wrap")))
    done = run("convert", shell.folder / "made-up.txt", shell.folder / "trace.etl")
    assert done.code == 0, done.err
    shell.follow("Windows")
    assert "main:" in (shell.folder / "win.prof").read_text()
    assert (shell.folder / "app.pgo.exe").read_bytes() != (shell.folder / "app.exe").read_bytes()
