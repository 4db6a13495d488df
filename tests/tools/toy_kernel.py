"""A kernel of three functions with a module, built like Linux, and system-wide captures of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import perfdata_writer as pw
from export_tools import leaving_branches, ran, tool
from perfdata_writer import Builder

TEXT, SHIFT = 0xFFFFFFFF81000000, 0x1A000000
"""The link address of the kernel, and how far the kernel was moved at boot (KASLR)."""
LOADED = 0xFFFFFFFFC0400000
"""The load address of the module."""
LINKED = 0x10000
"""The link address of the module's code in the program of the comparison."""
MODULE = "/lib/modules/6.1.0-toy/kernel/drivers/toy-device.ko"

KERNEL_SOURCE = """\
int ticks, idle;
__attribute__((noinline)) int schedule(int n) {
  for (int i = 0; i < n; i++)
    if (i & 3) ticks += n ^ i;
    else idle -= i;
  return idle;
}
static inline __attribute__((always_inline)) int twice(int n) { return n > 9 ? 2 * n : ticks; }
static int __do_sys_rest(int n);
__attribute__((used)) static int __do_sys_wake(int n);
int __x64_sys_rest(int n) __attribute__((alias("__do_sys_rest")));
int __x64_sys_wake(int n) __attribute__((alias("__do_sys_wake")));
__attribute__((noinline)) static int __do_sys_rest(int n) { return n > 5 ? (idle = n) : ticks; }
__attribute__((noinline)) static int __do_sys_wake(int n) { return n > 7 ? (ticks = n) : idle; }
__attribute__((noinline)) int tick(int n) {
  return twice(n) + schedule(n + 1) + __x64_sys_rest(n) + __x64_sys_wake(n);
}
void start(void) { for (;;) tick(ticks); }
"""
MODULE_SOURCE = """\
extern int tick(int n);
static int count;
__attribute__((noinline, section(".text.unlikely"))) static int failed(int n) {
  if (n & 1) count -= n;
  return -count;
}
__attribute__((noinline)) static int step(int n) { return n > 7 ? tick(n) : n * count; }
int toy_work(int n) {
  for (int i = 0; i < n; i++)
    count += step(i);
  return count > 99 ? failed(n) : count;
}
__attribute__((section(".init.text"))) int toy_init(void) { count = toy_work(3); return 0; }
"""
SCRIPT = """\
SECTIONS {{
  . = {linked:#x};
  .text : {{ *(.text) }}
  .text.unlikely : {{ *(.text.unlikely) }}
  . = ALIGN(0x1000);
  .data : {{ *(.data) *(.bss) }}
  .init.text : {{ *(.init.text) }}
}}
"""
FLAGS = ("-O2", "-g", "-fdebug-info-for-profiling", "-mcmodel=kernel", "-ffreestanding", "-fno-pic",
         "-fno-asynchronous-unwind-tables", "-fbasic-block-address-map")  # fmt: skip


@dataclass
class Toy:
    """``vmlinux`` and ``module``, and ``program``: the code of the module linked at `LINKED`, with the same layout."""

    vmlinux: Path
    module: Path
    program: Path

    def capture(self, *, module: str = MODULE, ids: bool = True) -> Builder:
        """A system-wide capture, in which the straight lines of the kernel and of the module were run."""
        b = Builder()
        b.feature("ARCH", value="x86_64")
        b.feature("OSRELEASE", value="6.1.0-toy")
        if ids:
            b.build_id("[kernel.kallsyms]", build_id_of(self.vmlinux), misc=pw.MISC_KERNEL)
            b.build_id(module, build_id_of(self.module), misc=pw.MISC_KERNEL)
        b.kernel_map(TEXT + SHIFT, 0x200000)
        b.kernel_map(LOADED, 0x4000, module)
        b.comm(pid=7, name="x", time=1, exec=True)
        b.mmap2(
            pid=7, addr=LINKED, length=0x8000, pgoff=text_offset(self.program) & ~0xFFF, name="/bin/program", time=1
        )
        moved = [
            (self.vmlinux, SHIFT, pw.MISC_KERNEL),
            (self.program, LOADED - LINKED, pw.MISC_KERNEL),
            (self.program, 0, pw.MISC_USER),
        ]
        time = 10
        for program, by, mode in moved:
            for start, end, times in runs_of(program):
                for _ in range(times):
                    b.sample(mode, ip=start + by, pid=7, time=time, branches=[(end + by, start + by, 2)] * 2)
                    time += 1
        return b


def built(folder: Path) -> Toy:
    """The kernel and its module in ``folder``."""
    compiler, linker, toy = (
        tool("clang-19"),
        tool("ld.lld-19"),
        Toy(*(folder / n for n in ("vmlinux", "t.ko", "program"))),
    )
    for name, text in ("kernel", KERNEL_SOURCE), ("module", MODULE_SOURCE):
        (folder / f"{name}.c").write_text(text)
        ran(compiler, *FLAGS, "-c", folder / f"{name}.c", "-o", folder / f"{name}.o")
    ran(
        linker,
        f"-Ttext={TEXT:#x}",
        "--build-id=sha1",
        "-e",
        "start",
        f"--defsym=_text={TEXT:#x}",
        f"--defsym=_stext={TEXT:#x}",
        "-o",
        toy.vmlinux,
        folder / "kernel.o",
    )
    ran(linker, "-r", "--build-id=sha1", "-o", toy.module, folder / "module.o")
    (folder / "script").write_text(SCRIPT.format(linked=LINKED))
    ran(linker, "--unresolved-symbols=ignore-all", "-T", folder / "script", "-o", toy.program, folder / "module.o")
    return toy


@cache
def runs_of(program: Path) -> list[tuple[int, int, int]]:
    """Straight lines of its functions: first and last instruction, and a number of times."""
    listing = ran(tool("nm"), "-S", "--defined-only", program)
    functions = sorted(
        {  # some have two names
            (int(w[0], 16), int(w[1], 16))
            for w in map(str.split, listing.splitlines())
            if len(w) == 4 and w[2] in "tT" and w[3] != "toy_init"  # which is gone when the module runs
        }
    )
    jumps, found = leaving_branches(program), []
    for start, size in functions:
        ends = [(at, behind) for at, behind in jumps if start <= at < start + size]
        begins = [start, *(behind for _, behind in ends)]
        found += [(begin, at, len(found) % 5 + 1) for begin, (at, _) in zip(begins, ends, strict=False)]
    assert len(found) > 4
    return found


def functions_of(path: Path) -> dict[str, int]:
    """The address of each symbol."""
    rows = (line.split() for line in ran(tool("nm"), "--defined-only", path).splitlines())
    return {name: int(at, 16) for at, _, name in rows}


@cache
def build_id_of(path: Path) -> bytes:
    found = re.search(r"Build ID: ([0-9a-f]+)", ran(tool("readelf"), "-n", path))
    assert found, path
    return bytes.fromhex(found[1])


@cache
def text_offset(path: Path) -> int:
    """The offset of the code in the file."""
    headers = ran(tool("readelf"), "-lW", path)
    loads = [w for w in map(str.split, headers.splitlines()) if w[:1] == ["LOAD"] and "E" in w[6:8]]
    return int(loads[0][1], 16)


def unsymbolized(program: Path) -> str:
    """llvm-profgen's input for the straight lines of ``program``."""
    runs = runs_of(program)
    first = min(start for start, _, _ in runs) & ~0xFFF
    ranges = [f"{a - first:x}-{b - first:x}:{n}\n" for a, b, n in sorted(runs)]
    branches = [f"{b - first:x}->{a - first:x}:{2 * n}\n" for a, b, n in sorted(runs)]
    return f"{len(runs)}\n{''.join(ranges)}{len(runs)}\n{''.join(branches)}"
