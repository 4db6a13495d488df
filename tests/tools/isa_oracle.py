"""Instructions as llvm-objdump prints them: programs to disassemble, its text read, and the branch kinds by its words.

    python tests/tools/isa_oracle.py

writes the samples of tests/data anew, with the compilers and the llvm-objdump of this machine.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

DATA = Path(__file__).parents[1] / "data"
OBJDUMP = next((n for n in ("llvm-objdump-19", "llvm-objdump") if shutil.which(n)), None)

C = """
void abort(void); int strcmp(const char *, const char *); unsigned long strlen(const char *);
int g(int), (*fp)(int), counter;
int choose(int a) { switch (a) { case 0: return g(1); case 1: return 7 * a; case 2: return g(a) + 3;
  case 3: return fp(a); case 4: abort(); case 5: return a * a; case 6: return g(6); } return -1; }
double sum(double *p, int n) { double s = 0; for (int i = 0; i < n; i++) s += p[i] * p[i]; return s; }
void copy(char *a, const char *b, long n) { while (n--) *a++ = *b++; }
int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
int tail(int n) { return fp(n + 1); }
long compare(const char *a, const char *b) { return strcmp(a, b) ? strlen(a) : strlen(b); }
int increment(void) { return __atomic_fetch_add(&counter, 1, 5); }
long divide(long a, long b) { return a / b + a % b; }
unsigned mix(unsigned *p, int n) { unsigned s = 1; for (int i = 0; i < n; i++) { s ^= p[i] << 3; if (s & 4) s += g(s);
  else if (s > 99) s = s * 31 + 7; } return s; }
"""

X86 = """
1: jo 1b; jno 1b; jb 1b; jae 1b; je 1b; jne 1b; jbe 1b; ja 1b; js 1b; jns 1b; jp 1b; jnp 1b; jl 1b; jge 1b
jle 1b; jg 1b; jne 2f; jg 2f; loop 1b; loope 1b; loopne 1b; jmp 1b; jmp 2f; call 1b; call 2f
.byte 0xe8, 0, 0, 0, 0
.byte 0x2e, 0x74, 0x02
.byte 0x3e, 0x75, 0x02
repz ret; ret; ret $8; lret; iret; int3; int $0x80; hlt; ud2; sysenter; lock incl 4(%eax); rep movsb; nop; pause
.skip 200, 0x90
2: ret
"""
X86_64 = """
3: jrcxz 3b; jecxz 3b; syscall; sysretq; iretq; lretq; bnd jmp 1b; bnd ret; notrack jmp *%rax; notrack call *%rdx
call *%rax; call *%r12; call *8(%rax); call *16(%rip); jmp *%r9; jmp *(%rax,%rcx,8); jmp *32(%rip)
ljmp *(%rax); lcall *(%rax); endbr64; xbegin 1b; xend; vpaddd %zmm1, %zmm2, %zmm3{%k1}; vzeroupper
movabs $0x1122334455667788, %rax
.byte 0x06, 0x0e, 0x37
nop
"""
I386 = """
3: jcxz 3b; jecxz 3b; call *%eax; call *8(%eax); jmp *%edx; jmp *(%eax,%ecx,4); into; push %es; aaa; lcall *(%eax)
"""
A64 = """
1: b 1b; b 2f; bl 1b; bl 2f; b.eq 1b; b.ne 2f; b.hs 1b; b.lo 1b; b.mi 1b; b.pl 1b; b.vs 1b; b.vc 1b; b.hi 1b; b.ls 1b
b.ge 1b; b.lt 1b; b.gt 1b; b.le 1b; cbz x0, 1b; cbnz w1, 2f; tbz x3, #40, 1b; tbnz w4, #3, 2f; br x5; blr x6; ret
ret x7; svc #0; hvc #1; brk #7; eret; nop; add x0, x1, x2; ldr x3, [x4, #8]; fmadd d0, d1, d2, d3
ldp x29, x30, [sp], #16
.inst 0
2: ret
"""

BUILDS: dict[str, tuple[str, list[str], list[str], str]] = {
    # name: (architecture, compiler, options, assembly)
    "x86_64": ("x86_64", ["gcc"], ["-O2"], X86 + X86_64),
    "x86_64 -O0": ("x86_64", ["gcc"], ["-O0", "-fPIC", "-fcf-protection"], ""),
    "x86_64 -O3 avx2": ("x86_64", ["gcc"], ["-O3", "-mavx2", "-mfma"], ""),
    "i386": ("i386", ["gcc", "-m32"], ["-O2", "-fno-pic"], X86 + I386),
    "i386 -O0": ("i386", ["gcc", "-m32"], ["-O0", "-fPIC"], ""),
    "aarch64": ("aarch64", ["clang-19", "--target=aarch64-linux-gnu"], ["-O2"], A64),
}
SAMPLES = ("x86_64", "i386", "aarch64")
"""Builds whose text is stored."""


PROGRAMS = {
    "branches": ["gcc", "-O2", "-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector"],
    "loops": ["clang-19", "-O3", "-mavx2", "-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector"],
    "storm": ["gcc", "-O2", "-pthread"],
    "threads": ["gcc", "-O3", "-pthread", "-no-pie"],
    "timer": ["clang-19", "-O2", "-pthread", "-lrt"],
    "traps": ["gcc", "-O0", "-pthread"],
}
"""Programs of tests/programs that are linked whole: name -> how."""


class Line(NamedTuple):
    """One instruction: bytes, text in AT&T or Arm syntax."""

    address: int
    code: bytes
    text: str


def disassembly(name: str, folder: Path) -> str | None:
    """The output of llvm-objdump for build ``name``; ``None`` if a program is missing or cannot make this build."""
    _, compiler, options, assembly = BUILDS[name]
    if OBJDUMP is None or shutil.which(compiler[0]) is None:
        return None
    objects = []
    for suffix, text in (("c", C), ("s", assembly)):
        source, built = folder / f"isa.{suffix}", folder / f"isa-{suffix}.o"
        source.write_text(text)
        done = subprocess.run([*compiler, *options, "-w", "-c", "-o", built, source], capture_output=True, text=True)
        if done.returncode:
            return None
        objects.append(built)
    command = [OBJDUMP, "-d", "-z", "--section=.text", *objects]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def program(name: str, folder: Path) -> str | None:
    """The output of llvm-objdump for all code of a program of `PROGRAMS`; ``None`` as in `disassembly`."""
    compiler, *options = PROGRAMS[name]
    if OBJDUMP is None or shutil.which(compiler) is None:
        return None
    source, built = Path(__file__).parents[1] / "programs" / f"{name}.c", folder / name
    done = subprocess.run([compiler, *options, "-w", "-o", built, source], capture_output=True, text=True)
    if done.returncode:
        return None
    return subprocess.run([OBJDUMP, "-d", "-z", built], capture_output=True, text=True, check=True).stdout


_LINE = re.compile(r" *([0-9a-f]+):[ \t]+((?:[0-9a-f]{2}[ \t])+|[0-9a-f]{8}[ \t])[ \t]*(.*)")
_ALONE = ("lock", "rep", "repne", "notrack", "bnd")


def sections(text: str, arch: str) -> list[list[Line]]:
    """The instructions of each section in ``text``, without gaps; a prefix on a line of its own joins the next."""
    found: list[list[Line]] = []
    for row in text.splitlines():
        if row.startswith("Disassembly of section"):
            found.append([])
        if not (matched := _LINE.match(row)):
            continue
        code = bytes.fromhex(matched[2])
        line = Line(int(matched[1], 16), code[::-1] if arch == "aarch64" else code, matched[3].strip())
        lines = found[-1]
        if lines and lines[-1].text in _ALONE:
            before = lines.pop()
            line = Line(before.address, before.code + line.code, f"{before.text} {line.text}")
        lines.append(line)
    for lines in found:
        at = lines[0].address if lines else 0
        for line in lines:
            assert line.address == at, line
            at += len(line.code)
    return [lines for lines in found if lines]


def kind_of(text: str, arch: str) -> str:
    """The branch type of an instruction by its text; ``unknown`` for other instructions, ``(bad)`` for none."""
    if text == "<unknown>":
        return "(bad)"
    words = text.replace("\t", " ").split()
    while words[0] in ("bnd", "notrack", "rep", "repz", "repne", "lock"):
        words = words[1:]
    name = words[0].split(",")[0]
    if arch == "aarch64":
        table = {
            "b": "uncond",
            "bl": "call",
            "br": "ind",
            "blr": "ind_call",
            "ret": "ret",
            "eret": "eret",
            "brk": "irq",
        }
        if name in ("svc", "hvc"):
            return "syscall"
        return "cond" if re.fullmatch(r"b\..*|cbn?z|tbn?z", name) else table.get(name, "unknown")
    indirect = len(words) > 1 and words[1].startswith("*")
    if re.fullmatch(r"l?jmp[lq]?", name):
        return "ind" if indirect else "uncond"
    if re.fullmatch(r"l?call[lq]?", name):
        return "ind_call" if indirect else "call"
    patterns = {
        r"j.*|loop.*": "cond",
        r"l?ret[lq]?": "ret",
        r"iret[lq]?": "eret",
        r"int|int3|into": "irq",
        r"syscall|sysenter": "syscall",
        r"sysret[lq]?|sysexit[lq]?": "sysret",
    }
    return next((kind for pattern, kind in patterns.items() if re.fullmatch(pattern, name)), "unknown")


def target_of(text: str, kind: str) -> int:
    """The address that a direct branch names, 0 for all others."""
    named = re.search(r"(?:^|[ \t,])0x([0-9a-f]+)(?: <.*>)?$", text)
    return int(named[1], 16) if named and kind in ("cond", "uncond", "call") else 0


def sample_path(name: str) -> Path:
    return DATA / f"isa-{name}.txt"


def main() -> None:
    import tempfile

    for name in SAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            text = disassembly(name, Path(folder))
        if text is None:
            sys.exit(f"{name}: cannot be built here")
        rows = [row for row in text.splitlines() if _LINE.match(row) or row.startswith("Disassembly of section")]
        sample_path(name).write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
