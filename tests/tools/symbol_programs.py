"""Programs for tests of symbols, built by the compilers that are here, and what llvm-symbolizer says of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lastbranch.binaries import read_image
from lastbranch.binaries.image import SegmentFlags
from lastbranch.model import BytesSource
from lastbranch.symbols.backends import symbol_tables as plt
from lastbranch.symbols.backends.dwarf import reader as dwarf_reader
from lastbranch.symbols.model import DebugFiles, Names

SHARED = """
#define ALWAYS inline __attribute__((always_inline))
template <int N> struct Deep {
    static ALWAYS int go(const int *p, int n) {
        int sum = N;
        for (int i = 0; i < n; ++i) if (p[i] % (N + 2)) sum += p[i] * N;
        else sum -= Deep<N - 1>::go(p + i, n - i - 1) + 1;
        return sum;
    }
};
template <> struct Deep<0> { static ALWAYS int go(const int *p, int n) { return n > 0 ? p[n - 1] : n; } };
template <class T> struct Box {
    T value;
    __attribute__((noinline)) T twice(T by) { auto f = [&](T x) { return x * by + value; }; return f(by) + f(value); }
    ~Box() { value = T(); }
};
template <class T> __attribute__((noinline)) T folded(T a) { Box<T> box{a}; return box.twice(a) / (a + 1); }
"""

SOURCES = {
    "first.cpp": SHARED
    + """
int second(int *, int);
namespace { struct Hidden { int x; int get(int y) const; };
int Hidden::get(int y) const { return x * y + Deep<2>::go(&y, 1); } }
extern "C" __attribute__((noinline)) int plain(int n) { Hidden h{n}; return h.get(n); }
__attribute__((noinline, cold)) static int seldom(int n) { return n / 3 + plain(n); }
int data[64];
extern "C" int start(int n, char **) {
    for (int i = 0; i < 64; ++i) data[i] = i * n;
    int r = Deep<4>::go(data, 64) + folded(n) + (int)folded((long)n) + second(data, n);
    if (r == 77) r += seldom(r);
    return r;
}
int also(int) __attribute__((alias("_Z4realf")));
extern "C" __attribute__((used)) int _Z4realf(int n) { return n * 7; }
""",
    "second.cpp": SHARED
    + """
extern "C" int plain(int);
static ALWAYS int both(int *p, int n) { return Deep<3>::go(p, n) + plain(n); }
int second(int *p, int n) { Box<short> b{(short)n}; return both(p, n) + both(p + 1, n - 1) + folded(n) + b.twice(3); }
""",
}
LOCAL = {
    file: (Path(__file__).parents[1] / "programs" / file).read_text()
    for file in ("local.cpp", "nested.c", "contained.f90", "closures.rs")
}
"""Functions that belong to functions: lambdas, members of local classes, nested and contained procedures, closures."""

MAIN = 'extern "C" int start(int, char **); int main(int n, char **v) { return start(n, v) & 1; }\n'

HOSTED = ["first.cpp", "second.cpp", "main.cpp"]
LOCAL_CPP = ["-std=c++17", "local.cpp", "main.cpp"]
FREESTANDING = ["-nostdlib", "-fuse-ld=lld", "-Wl,-e,start", "-ffreestanding", "first.cpp", "second.cpp"]

PROGRAMS: dict[str, list[str]] = {
    "gcc": ["g++", "-O2", "-g", *HOSTED],
    "gcc4": ["g++", "-O2", "-gdwarf-4", "-no-pie", *HOSTED],
    "gcc3-static": ["g++", "-O2", "-gdwarf-3", "-gstrict-dwarf", "-static", *HOSTED],
    "gcc2": ["g++", "-O1", "-gdwarf-2", "-gstrict-dwarf", *HOSTED],
    "gcc64-zlib": ["g++", "-O3", "-g", "-gz=zlib", "-gdwarf64", "-ffunction-sections", *HOSTED],
    "gcc-split": ["g++", "-O2", "-g", "-gsplit-dwarf", *HOSTED],
    "clang": ["clang++-19", "-O2", "-g", *HOSTED],
    "clang-lld": ["clang++-19", "-O2", "-g", "-fuse-ld=lld", "-Wl,-z,noseparate-code", "-gz=zstd",
                  "-Wl,--icf=all", "-ffunction-sections",
                  "-fdebug-info-for-profiling", *HOSTED],
    "clang4": ["clang++-19", "-O3", "-gdwarf-4", "-no-pie", "-fdebug-info-for-profiling", *HOSTED],
    "clang-split": ["clang++-19", "-O2", "-g", "-gsplit-dwarf", "-fno-split-dwarf-inlining", *HOSTED],
    "clang-split4": ["clang++-19", "-O2", "-gdwarf-4", "-gsplit-dwarf", *HOSTED],
    "clang-line-tables": ["clang++-19", "-O2", "-gline-tables-only", *HOSTED],
    "aarch64": ["clang++-19", "--target=aarch64-linux-gnu", "-O2", "-g", *FREESTANDING],
    "s390x": ["clang++-19", "--target=s390x-linux-gnu", "-O2", "-g", *FREESTANDING],
    "mips": ["clang++-19", "--target=mips-linux-gnu", "-O2", "-gdwarf-4", *FREESTANDING],
    "i386": ["clang++-19", "--target=i386-linux-gnu", "-O2", "-g", *FREESTANDING],
    "arm": ["clang++-19", "--target=armv7-linux-gnueabihf", "-mcpu=cortex-a15", "-mthumb", "-O2", "-g", *FREESTANDING],
    "riscv": ["clang++-19", "--target=riscv64-linux-gnu", "-O2", "-g", *FREESTANDING],
    "local": ["g++", "-O2", "-g", *LOCAL_CPP],
    "local-unoptimized": ["g++", "-O0", "-g", *LOCAL_CPP],
    "local-lto": ["g++", "-O2", "-g", "-flto", "-flto-partition=max", *LOCAL_CPP],
    "local-lto4": ["g++", "-O1", "-gdwarf-4", "-flto", *LOCAL_CPP],
    "local-split": ["g++", "-O2", "-g", "-gsplit-dwarf", *LOCAL_CPP],
    "local-split4": ["g++", "-O1", "-gdwarf-4", "-gsplit-dwarf", *LOCAL_CPP],
    "local2": ["g++", "-O1", "-gdwarf-2", "-gstrict-dwarf", *LOCAL_CPP],
    "local-clang": ["clang++-19", "-O1", "-g", *LOCAL_CPP],
    "mingw": ["x86_64-w64-mingw32-g++", "-O2", "-g", *HOSTED],
    "local-mingw": ["x86_64-w64-mingw32-g++", "-O1", "-gdwarf-4", *LOCAL_CPP],
    "nested": ["gcc", "-O2", "-g", "nested.c"],
    "nested-lto4": ["gcc", "-O2", "-gdwarf-4", "-flto", "nested.c"],
    "fortran": ["gfortran", "-O2", "-g", "contained.f90"],
    "fortran-lto": ["gfortran", "-O1", "-g", "-flto", "contained.f90"],
    "rust": ["rustc", "-O", "-g", "closures.rs"],
    "rust5": ["rustc", "-C", "opt-level=1", "-g", "-C", "dwarf-version=5", "closures.rs"],
}  # fmt: skip
"""Name -> command, in a folder that has the sources; ``-o`` is added."""

SYMBOLIZER = "llvm-symbolizer-19"


@dataclass
class Programs:
    """Builds each program once."""

    folder: Path
    built: dict[str, Path] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """The program ``name`` of `PROGRAMS`. Skips the test where its compiler is missing or cannot build it."""
        if name not in self.built:
            folder = self.folder / name
            folder.mkdir(exist_ok=True)  # it is there where building failed before
            for file, text in {**SOURCES, **LOCAL, "main.cpp": MAIN}.items():
                (folder / file).write_text(text)
            file = "program.exe" if "mingw" in name else "program"
            command(PROGRAMS[name] + ["-o", file], folder)
            self.built[name] = folder / file
        return self.built[name]


def command(words: list[str], folder: Path) -> str:
    """Run a tool of this machine in ``folder``; skips the test where it is missing or fails."""
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.skip(f"{' '.join(words[:4])} failed here: {done.stderr.strip()[:300]}")
    return done.stdout


def code_addresses(path: Path, count: int = 1 << 20, seed: int = 7) -> NDArray[np.uint64]:
    """Addresses in executable sections: all, or ``count`` of them at random (always the same)."""
    image = read_image(BytesSource(path.read_bytes(), str(path)))
    parts = [
        np.arange(s.vaddr, s.vaddr + s.size, dtype=np.uint64) for s in image.sections if s.flags & SegmentFlags.EXECUTE
    ]
    every = np.unique(np.concatenate(parts))
    if len(every) <= count:
        return every
    return np.sort(np.random.default_rng(seed).choice(every, count, replace=False))


Frame = tuple[str, str, int, int, int, str, int]
"""(function, file, line, column, discriminator, file and line of the declaration)."""

KEYS = "FunctionName", "FileName", "Line", "Column", "Discriminator", "StartFileName", "StartLine"
"""The same in the JSON of llvm-symbolizer."""


def told(names: Names) -> list[list[Frame]]:
    """The frames of each address."""
    return [
        [
            (f.function.name, f.file, f.line, f.column, f.discriminator, f.function.file, f.function.line)
            for f in names.frames(row)
        ]
        for row in range(len(names))
    ]


def symbolized(path: Path, address: NDArray[np.uint64], *options: str) -> list[list[Frame]]:
    """The frames by llvm-symbolizer. Skips the test if the program is missing."""
    if shutil.which(SYMBOLIZER) is None:
        pytest.skip(f"{SYMBOLIZER} is not installed")
    words = [SYMBOLIZER, "--output-style=JSON", "--no-demangle", *options, "-e", str(path)]
    text = "\n".join(map(hex, address.tolist()))
    done = subprocess.run(words, input=text, capture_output=True, text=True, timeout=120, check=True)
    return [[tuple(f[key] for key in KEYS) for f in json.loads(line)["Symbol"]] for line in done.stdout.splitlines()]


NOTHING: Frame = ("", "", 0, 0, 0, "", 0)


def compared(path: Path, address: NDArray[np.uint64]) -> tuple[list[int], list[list[Frame]], list[list[Frame]]]:
    """(the addresses, what is known here of the program at ``path``, what llvm-symbolizer says), `agreed`.

    In a PE program, only addresses with a line are compared: the symbols of other addresses are a different question
    there.
    """
    pe = path.suffix == ".exe"
    if pe:
        base = np.uint64(dwarf_reader.open_binary(str(path)).image.image_base)
        names = dwarf_reader.symbolize(DebugFiles("pe", str(path)), address - base)
    else:
        names = dwarf_reader.symbolize(elf(path, dwo=path.parent), address)
    left, right = agreed(told(names.check(len(address))), symbolized(path, address))
    rows = [i for i, frames in enumerate(right) if not pe or (frames and frames[0][2])]
    return address[rows].tolist(), [left[i] for i in rows], [right[i] for i in rows]


def agreed(ours: list[list[Frame]], theirs: list[list[Frame]]) -> tuple[list[list[Frame]], list[list[Frame]]]:
    """Both without the differences that are meant:

    - nothing known is one empty frame there, and none here;
    - llvm-symbolizer takes the name of a local symbol's STT_FILE for its source file where no line is known: a name
      without a folder, that no debugging information stands behind. Here it is unknown;
    - llvm-symbolizer does not know the stubs of calls through the linkage table, and takes them for the symbol before
      (`_init`);
    - LLVM 19 reads no file of a declaration whose number is a constant of the abbreviation (DW_FORM_implicit_const, as
      GCC writes it). Here it is read.
    """
    left, right = [], []
    for mine, other in zip(ours, theirs, strict=True):
        other = [] if other == [NOTHING] else other
        if other and other[-1][2:5] == (0, 0, 0) and "/" not in other[-1][1]:
            other = [*other[:-1], (other[-1][0], "", *other[-1][2:])]
        if len(mine) == 1 and (mine[0][0].endswith("@plt") or mine[0][0] in plt.SECTIONS):
            mine = other
        if len(mine) == len(other):
            mine = [(*m[:5], o[5] and m[5], m[6]) for m, o in zip(mine, other, strict=True)]
        left.append(mine)
        right.append(other)
    return left, right


def elf(path: Path, debug: Path | None = None, dwp: Path | None = None, dwo: Path | None = None) -> DebugFiles:
    """An ELF module."""
    return DebugFiles(
        "elf", str(path), str(debug) if debug else None, str(dwp) if dwp else None, (str(dwo),) if dwo else ()
    )
