"""Running ahead held against real programs, and against random code: for minutes, with what it cannot foresee.

    python tests/tools/compare_run_ahead.py [--seconds N] [--seed N] [--only TEXT]

Each program is stopped at random times. A run of 700 branches tells how runs end; another one of some instructions is
compared with single steps of the thread: registers, flags and vectors.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ahead_oracle import Ahead, Bench, Generator, Stopped, compare, register_differences
from lastbranch import native
from lastbranch.capture import ptrace
from lastbranch.capture.ptrace import RIP, Registers
from lastbranch.capture.software.kept_file import MemoryFiles
from lastbranch.native.build import compiler

BRANCHES = 700
_STRINGS = (*range(0xA4, 0xA8), *range(0xAA, 0xB0))
_PREFIXES = bytes((0x66, 0x67, 0xF2, 0xF3, 0xF0, 0x2E, 0x36, 0x3E, 0x26, 0x64, 0x65, *range(0x40, 0x50)))
_PYTHON = "import json\nwhile 1: json.loads(json.dumps({str(n): [n, n * 1.5, 'x' * n] for n in range(300)}))"
_NUMPY = """import numpy as n
while 1:
    n.sort(n.random.rand(9999))
    n.random.rand(200, 200) @ n.random.rand(200, 200)
"""
_SQL = """with recursive t(x) as (select 1 union all select x + 1 from t where x < 99999999)
select count(distinct x % 9973), sum(x * 1.5) from t;"""
_NODE = (
    "for (;;) { const m = new Map(); for (let i = 0; i < 1e5; i++) m.set('k' + i % 999, Math.sin(i)); [...m].sort() }"
)
_LOOPED = "{ for (;;) for (i = 0; i < 1000; i++) a[i % 77] = a[i % 77] substr($0, i % 5) i; }"
_THROWS = """#include <map>
#include <stdexcept>
#include <string>
int main() { std::map<std::string, int> m; for (int i = 0;; i++) try { m[std::to_string(i % 999)]++;
    if (i % 3 == 0) throw std::runtime_error("x"); } catch (std::exception &e) { m[e.what()]++; } }
"""
_JAVA = """import java.util.*;
class Loop { public static void main(String[] a) { for (;;) { var m = new TreeMap<String, Double>();
    for (int i = 0; i < 99999; i++) m.merge("k" + i % 999, Math.sin(i), Double::sum); } } }
"""
_RUST = """use std::collections::HashMap;
fn main() { loop { let mut m: HashMap<String, f64> = HashMap::new(); for i in 0..99999u64 {
    *m.entry(format!("{}", i % 999)).or_insert(0.0) += (i as f64).sqrt(); } if m.len() == 7 { break; } } }
"""
_LONG_DOUBLE = """#include <math.h>
#include <stdio.h>
int main(void) { volatile long double s = 0; char text[99]; for (long i = 1;; i++) {
    s += sinl(i) / i + cbrtl(i) + floorl(s); if (i % 9 == 0) snprintf(text, 99, "%Lf %g", s, (double)s); } }
"""
_FORTRAN = """program p
real(8) :: a(200,200), b(200,200)
call random_number(a)
do
  b = matmul(a, a); a = b / maxval(b) + sqrt(abs(a))
end do
end program
"""


def _output(*argv: str) -> str:
    if not shutil.which(argv[0]):
        return argv[0]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()


def programs(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Programs that are installed here, and that compute for a while."""
    text = folder / "text"
    text.write_bytes(b"".join(p.read_bytes() for p in sorted(Path(__file__).parent.glob("*.py")))[: 1 << 20] * 30)
    (folder / "Loop.java").write_text(_JAVA)
    source = str(Path(native.__file__).with_name("run_ahead.c"))
    speed = ["openssl", "speed", "-seconds", "30"]
    for name, argv in (
        ("python", [os.path.realpath(sys.executable), "-c", _PYTHON]),
        ("python numpy", [sys.executable, "-c", _NUMPY]),
        ("xz", ["xz", "-9kc", str(text)]),
        ("bzip2", ["bzip2", "-kc", str(text)]),
        ("zstd", ["zstd", "-19", "--single-thread", "-kc", str(text)]),
        ("gzip", ["gzip", "-9kc", str(text)]),
        ("sha256", [*speed, "sha256"]),
        ("rsa", [*speed, "rsa2048"]),
        ("aes", [*speed, "-evp", "aes-256-gcm"]),
        ("chacha", [*speed, "-evp", "chacha20-poly1305"]),
        ("p256", [*speed, "ecdsap256"]),
        ("sort", ["sort", "--parallel=1", "-R", str(text), str(text)]),
        ("grep", ["grep", "-cE", r"(.)(.)(.).*\3\2\1", str(text)]),
        ("node", ["node", "-e", _NODE]),
        ("java", ["java", str(folder / "Loop.java")]),
        ("perl", ["perl", "-e", 'for(;;){my %h; $h{$_ % 997}.="x$_" for 1..9999; join ",", sort keys %h}']),
        ("awk", ["awk", "BEGIN " + _LOOPED]),
        ("sqlite", ["sqlite3", ":memory:", _SQL]),
        ("git", ["git", "-C", str(Path(__file__).parent), "log", "-p", "--stat"]),
        ("cc1", [_output("gcc", "-print-prog-name=cc1"), "-O3", "-quiet", "-o", "/dev/null", source]),
    ):
        if shutil.which(argv[0]):
            yield name, argv
    for name, code, ending, command, *options in (
        ("exceptions", _THROWS, ".cpp", "g++", "-O2"),
        ("long double", _LONG_DOUBLE, ".c", "gcc", "-O2", "-lm"),
        ("rust", _RUST, ".rs", "rustc", "-O"),
        ("fortran", _FORTRAN, ".f90", "gfortran", "-O3", "-march=native"),
    ):
        if shutil.which(command):
            made = folder / name.replace(" ", "")
            made.with_suffix(ending).write_text(code)
            subprocess.run([command, made.with_suffix(ending), "-o", made, *options], check=True)
            yield name, [str(made)]


def _ticks(task: Path) -> int:
    """Processor time of a thread."""
    return sum(map(int, (task / "stat").read_text().rsplit(")", 1)[1].split()[11:13]))


class Traced:
    """A program, of which the thread is followed that computes most."""

    def __init__(self, argv: list[str]) -> None:
        nothing = subprocess.DEVNULL
        self._process = subprocess.Popen(argv, stdin=nothing, stdout=nothing, stderr=nothing)
        time.sleep(2 if argv[0] == "java" else 0.2)
        tasks = Path(f"/proc/{self._process.pid}/task")
        self.pid = int(max(tasks.iterdir(), key=_ticks).name)
        ptrace.seize(self.pid, ptrace.EXITKILL)
        self.memory = MemoryFiles.of(self.pid, os.open(f"/proc/{self.pid}/mem", os.O_RDONLY))
        self.now = Registers()

    def close(self) -> None:
        self._process.kill()
        with suppress(ChildProcessError, ptrace.Gone):  # a program ends when its tracer has seen its threads end
            while os.WIFSTOPPED(ptrace.wait(self.pid)[1]):
                pass
        self._process.wait()
        self.memory.close()
        os.close(self.memory.mem)

    def stop(self) -> bool:
        """Stop the program; false if it has ended."""
        try:
            ptrace.interrupt(self.pid)
        except (ptrace.Gone, OSError):
            return False
        while True:
            _, status = ptrace.wait(self.pid)
            if not os.WIFSTOPPED(status):
                return False
            if status >> 16 == ptrace.EVENT_STOP:
                break
            self.go_on(0 if status >> 16 else os.WSTOPSIG(status))
        ptrace.registers(self.pid, self.now)
        return True

    def go_on(self, number: int = 0) -> None:
        ptrace.cont(self.pid, number)

    def step(self) -> bool:
        """One whole instruction; false if something else came in between."""
        before = self.now[RIP]
        while True:
            ptrace.single_step(self.pid)
            _, status = ptrace.wait(self.pid)
            if not os.WIFSTOPPED(status) or status >> 8 != signal.SIGTRAP:
                if os.WIFSTOPPED(status) and not status >> 16:
                    self._pending = os.WSTOPSIG(status)
                return False
            ptrace.registers(self.pid, self.now)
            if self.now[RIP] != before or os.pread(self.memory.mem, 8, before).lstrip(_PREFIXES)[0] not in _STRINGS:
                return True


def state_differences(pid: int, ahead: Ahead) -> list[str]:
    """XMM and the upper halves of YMM (whose place is the same on each processor)."""
    if (vectors := ahead.vectors()) is None:
        return []
    state = (ctypes.c_uint8 * 8192)()
    size = ptrace.register_set(pid, 0x202, state)
    raw, lanes = bytes(state[:size]), vectors[0]
    differ = [f"xmm{n}" for n in range(16) if raw[160 + 16 * n : 176 + 16 * n] != lanes[64 * n : 64 * n + 16]]
    if size > 832:
        differ += [f"ymm{n}" for n in range(16) if raw[576 + 16 * n : 592 + 16 * n] != lanes[64 * n + 16 : 64 * n + 32]]
    return differ


def follow(name: str, argv: list[str], ahead: Ahead, chance: random.Random, seconds: float) -> int:
    """Print how runs end in this program. How many differ."""
    try:
        traced = Traced(argv)
    except (OSError, ValueError):
        print(f"{name}: it has ended")
        return 0
    ends: collections.Counter[str] = collections.Counter()
    where: collections.Counter[str] = collections.Counter()
    different = compared = executed = runs = branches = 0
    cpu = 0.0
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            time.sleep(chance.uniform(0, 0.02))
            if not traced.stop():
                break
            if (traced.now[ptrace.ORIG_RAX] + 1) & (1 << 64) - 1:  # in a system call
                traced.go_on()
                continue
            alone = len(os.listdir(f"/proc/{traced.pid}/task")) == 1
            ptrace.registers(traced.pid, ahead.registers)
            began = time.process_time()
            why = ahead.go(traced.pid, traced.memory, 60000, wanted=BRANCHES, alone=alone)
            cpu += time.process_time() - began
            executed += ahead.run.executed
            branches += ahead.run.count
            runs += 1
            ends[why] += 1
            if why in ("not modelled", "fault", "unreadable code"):
                try:
                    code = os.pread(traced.memory.mem, 11, ahead.run.address).hex()
                except (OSError, OverflowError):
                    code = "?"
                where[f"{why} {code}"] += 1
            if alone:
                ptrace.registers(traced.pid, ahead.registers)
                start = ahead.registers[RIP]
                why = ahead.go(traced.pid, traced.memory, chance.randrange(1, 300), alone=alone)
                steps = ahead.run.executed
                if all(traced.step() for _ in range(steps)):
                    compared += steps
                    differ = register_differences(traced.now, ahead.registers) + state_differences(traced.pid, ahead)
                    if differ:
                        different += 1
                        print(f"  DIFFERS from {start:#x} in {steps} instructions ({why}): {differ[:8]}")
                else:
                    pending, traced._pending = getattr(traced, "_pending", 0), 0
                    traced.go_on(pending)
                    continue
            traced.go_on()
    finally:
        traced.close()
    shares = ", ".join(f"{why} {100 * n / max(runs, 1):.1f}%" for why, n in ends.most_common())
    each = cpu / max(executed, 1) * 1e9
    print(f"{name}: {runs} runs ({shares}), {branches} branches, {each:.0f} ns an instruction;", end=" ")
    print(f"{compared} steps, {different} differ", flush=True)
    for text, n in where.most_common(4):
        print(f"    {n} {text}")
    return different


def random_code(ahead: Ahead, seed: int, seconds: float) -> int:
    """Compare random code for a while. How many differ."""
    different = tests = 0
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), "bench0")
        while time.monotonic() < until:
            generator = Generator(seed + tests)
            kinds, length = (("l", 1), ("e", 1), ("lj", 5), ("le", 2), ("j", 6))[tests % 5]
            code = generator.sequence(length, kinds)
            tests += 1
            try:
                alone = tests % 2 == 0
                found = compare(
                    bench, ahead, code, generator.values(), generator.data(), generator.state(), alone=alone
                )
            except EOFError:  # code of the test asked the kernel to end the program, or caused a signal
                print(f"  seed {seed + tests - 1}: the program has ended")
                bench = Bench(Path(folder), f"bench{tests}")
                continue
            except Stopped as stopped:
                print(f"  seed {seed + tests - 1}: {stopped}")
                bench = Bench(Path(folder), f"bench{tests}")
                continue
            if found.differ:
                different += 1
                print(f"  DIFFERS seed {seed + tests - 1}: {code.hex()} {found.why} at {found.at:#x}: {found.differ}")
        bench.close()
    print(f"random code: {tests} tests, {different} differ", flush=True)
    return different


def pieces(folder: Path, seed: int) -> int:
    """Whether an instruction of any map is not what x86_instruction.c says, by the processor (x86_pieces.c)."""
    if not (command := compiler()):
        return 0
    sources = [Path(__file__).with_name("x86_pieces.c"), Path(native.__file__).with_name("x86_instruction.c")]
    options = ["-O2", "-I", str(sources[1].parent), "-o", str(folder / "pieces")]
    subprocess.run([*command, *options, *map(str, sources)], check=True)
    return subprocess.run([folder / "pieces", str(seed), "1"], check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="TEXT", help="programs whose names contain it")
    options = parser.parse_args()
    if (library := native.library()) is None or not (ahead := Ahead(library)).close:
        print("no compiled library: nothing to compare")
        return 0
    chance = random.Random(options.seed)
    different = 0
    with tempfile.TemporaryDirectory() as folder:
        chosen = [(name, argv) for name, argv in programs(Path(folder)) if options.only in name]
        if not options.only:
            different += pieces(Path(folder), options.seed)
        for name, argv in chosen:
            different += follow(name, argv, ahead, chance, options.seconds / 2 / max(len(chosen), 1))
    if not options.only:
        different += random_code(ahead, options.seed * 1_000_003, options.seconds / 2)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
