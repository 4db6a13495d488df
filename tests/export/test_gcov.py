"""What gcc reads: the counts of create_gcov, and a file that this machine's gcc takes."""

from __future__ import annotations

import re
import struct
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from export_tools import PROGRAM, made_up_stacks, ran, tool

Lines = Counter[tuple[str, ...]]


class Gcov:
    """Reads a profile by gcc's auto-profile.cc. ``unit``: bytes that a length of a name counts."""

    def __init__(self, data: bytes, unit: int) -> None:
        self.data, self.at = data, 0
        assert self.words(3) == (0x67636461, 2, 0)
        tag, _, number = self.words(3)
        assert tag == 0xAA000000
        self.names = [self.text(unit) for _ in range(number)]
        assert self.names[0] == ""
        tag, _, number = self.words(3)
        assert tag == 0xAC000000
        self.heads: Counter[str] = Counter()
        self.lines: Lines = Counter()
        for _ in range(number):
            head = self.words(1, "Q")[0]
            self.heads[self.function(())] += head
        assert self.words(1) == (0xAE000000,)
        assert self.words(2)[1] == 0

    def words(self, count: int, kind: str = "I") -> tuple[int, ...]:
        found = struct.unpack_from(f"<{count}{kind}", self.data, self.at)
        self.at += struct.calcsize(f"<{count}{kind}")
        return found

    def text(self, unit: int) -> str:
        length = self.words(1)[0] * unit
        self.at += length
        return self.data[self.at - length : self.at].rstrip(b"\0").decode()

    def function(self, outside: tuple[str, ...]) -> str:
        """Its name; its lines are in ``lines`` by names and lines of what it is inlined in."""
        name, lines, inlined = self.words(3)
        # Forms of a constructor or destructor that are one code: create_gcov counts under the name of each.
        here = (*outside, re.sub(r"(?<=[CD])[124](?=E)", "x", self.names[name].partition(".")[0]))
        for _ in range(lines):
            offset, targets = self.words(2)
            key = (*here, hex(offset))
            self.lines[key] = max(self.lines[key], self.words(1, "Q")[0])
            for _ in range(targets):
                assert 0 < (self.words(1), self.words(2, "Q"))[1][0] < len(self.names)
        for _ in range(inlined):
            self.function((*here, hex(self.words(1)[0])))
        return here[-1]


def exported(run, program: Path, form: str) -> Path:
    capture, out = program.with_suffix(".txt"), program.with_suffix(f".{form}")
    capture.write_text(made_up_stacks(program))
    done = run("export", "--to", form, "--no-symbol-cache", "--binary", program, "-o", out, capture)
    assert done.code == 0, done.err
    return out


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "p.cc").write_text(PROGRAM)
    ran(tool("g++"), "-g", "-gdwarf-4", "-O2", "-o", tmp_path / "program", tmp_path / "p.cc")
    return tmp_path / "program"


def test_counts_are_create_gcovs(run, program: Path) -> None:
    """By function, inlined function, line and discriminator."""
    create, made = tool("create_gcov"), program.with_suffix(".theirs")
    text = exported(run, program, "autofdo")
    ran(create, f"--binary={program}", "--profiler=text", f"--profile={text}", f"--gcov={made}", "-gcov_version=2")
    theirs, ours = Gcov(made.read_bytes(), 4), Gcov(exported(run, program, "gcov").read_bytes(), 1)
    counted = {key: count for key, count in theirs.lines.items() if count and key[0] != "_start"}
    assert len(counted) > 100
    # A line that main and main.cold have both counts as often as the more frequent one; create_gcov adds them up.
    unlike = {key for key, count in counted.items() if ours.lines[key] != count}
    assert all(key[0] == "main" and ours.lines[key] == 4 and counted[key] == 6 for key in unlike), unlike
    assert len(unlike) < 6


def test_gcc_takes_it(run, program: Path) -> None:
    version = subprocess.run([tool("g++"), "-dumpversion"], capture_output=True, text=True, check=True).stdout
    if not 12 <= int(version.split(".")[0]) <= 15:
        pytest.skip(f"gcc {version.strip()} reads another version of the format")
    use = f"-fauto-profile={exported(run, program, 'gcov')}"
    source, out = program.parent / "p.cc", program.parent / "out.s"
    code = []
    for options in ([], [use]):
        command = [tool("g++"), "-O2", *options, "-S", source, "-o", out]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        code.append(out.read_text())
    assert code[0] != code[1]
