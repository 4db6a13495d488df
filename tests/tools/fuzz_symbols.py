"""Damages symbol files of every kind at random and reads them in-tree: only `LastbranchError` may come out.

    python tests/tools/fuzz_symbols.py [--seconds 20] [--seed 1]

Damage is put where it matters: into debugging sections and symbol tables as often as anywhere in the file. One in fifty
files goes to the worker as well, with each of the other backends: the worker may fail, but not for a forbidden system
call. One in a hundred rounds has a hostile debuginfod server.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _pytest.outcomes import Skipped

from command_line import time_limit
from hostile_server import ANSWERS, Talk, hostile_server
from lastbranch.binaries import read_image
from lastbranch.binaries.call_frames import CallFrames, Fde, frame_sections
from lastbranch.binaries.image import SegmentFlags
from lastbranch.binaries.pdb import pdb_identity
from lastbranch.errors import LastbranchError
from lastbranch.model import BytesSource, Profile
from lastbranch.symbols import SymbolOptions, debuginfod
from lastbranch.symbols.backends import symbol_tables as tables
from lastbranch.symbols.backends.dwarf import reader as dwarf_reader
from lastbranch.symbols.breakpad import Breakpad, module_id
from lastbranch.symbols.cache import open_cache
from lastbranch.symbols.jit import names_in
from lastbranch.symbols.model import DebugFiles
from lastbranch.symbols.search import Search
from lastbranch.symbols.worker import READERS, WorkerClient, WorkerFailed
from pdb_files import PDB, SOURCE
from symbol_files import SYMBOLS, Dump, written
from symbol_files import TEXT as TEXT_OF_BREAKPAD
from symbol_programs import Programs, command

PROGRAMS = "gcc", "gcc2", "gcc4", "gcc64-zlib", "clang", "clang-lld", "clang-split", "clang-split4", "s390x"


Work = Callable[[DebugFiles, np.ndarray], object]

TABLES: tuple[Work, ...] = (lambda f, a: tables.symbolize(f, a).check(len(a)), lambda f, _: len(tables.functions(f)))
IDENTITY: tuple[Work, ...] = (
    lambda f, _: [pdb_identity(BytesSource(Path(f.debug).read_bytes())) if f.debug else None],
    lambda f, _: [read_image(BytesSource(Path(f.binary).read_bytes())) if f.binary else None],
)
EVERY: tuple[Work, ...] = (
    lambda f, a: dwarf_reader.symbolize(f, a).check(len(a)), *TABLES, lambda f, a: call_frames_of(f.binary, a)
)  # fmt: skip
TEXT: dict[str, tuple[bytes, tuple[Work, ...]]] = {
    "breakpad": (TEXT_OF_BREAKPAD.encode(), (
        lambda f, a: Breakpad().symbolize(f, a).check(len(a)), lambda f, _: len(Breakpad().functions(f)),
        lambda f, _: module_id(f.binary),
    )),
    "perfmap": (b"1000 20 a\n1010 8 b::c\n1040 0 d\n2000 ffffffffffffffff e f\n0x1080 10 g\n", (
        lambda f, a: READERS["perfmap"]().symbolize(f, a).check(len(a)),
    )),
    "jitdump": (Dump("<").story(), (
        lambda f, a: names_in(f, a, None).check(len(a)), lambda f, a: names_in(f, a, a % np.uint64(90)).check(len(a)),
    )),
}  # fmt: skip
"""Kind -> (a file, how it is read)."""


def call_frames_of(path: str, address: np.ndarray) -> None:
    """Every entry of the file, and what is found for addresses."""
    source = BytesSource(Path(path).read_bytes(), path)
    frames = CallFrames(source)
    for one in address.tolist():
        frames.find(one)
    for section in frame_sections(source, frames.image):
        for entry in section.entries():
            if isinstance(entry, Fde):
                section.rows(entry)


class Original:
    """A file to damage: where its interesting parts are, and how it is read."""

    def __init__(
        self, name: str, data: bytes, files: Callable[[str], DebugFiles], works: tuple[Work, ...] = EVERY
    ) -> None:
        self.name, self.data, self.files, self.works = name, data, files, works
        self.places = [(0, len(data)), (0, min(len(data), 1024))]
        self.address = np.arange(0x1000, 0x1100, 5, dtype=np.uint64)
        if data[:2] == b"MZ":
            image = read_image(BytesSource(data))
            self.places += [(s.offset, s.offset + min(s.file_size, 1 << 14)) for s in image.sections if s.file_size]
            self.places.append((max((s.offset + s.file_size for s in image.sections), default=0), len(data)))
        if data[:4] == b"\x7fELF":
            image = read_image(BytesSource(data))
            parts = [s for s in image.sections if any(word in s.name for word in ("debug", "sym", "str", "frame"))]
            self.places += [(s.offset, s.offset + min(s.file_size, 1 << 14)) for s in parts if s.file_size]
            code = max(
                (s for s in image.sections if s.flags & SegmentFlags.EXECUTE), key=lambda s: s.size, default=None
            )
            if code:
                self.address = np.arange(code.vaddr, code.vaddr + min(code.size, 4000), 7, dtype=np.uint64)


def originals(folder: Path) -> list[Original]:
    """Programs of the compilers that are here, and files written by the tests."""
    found = [
        Original("symbols", written(SYMBOLS), lambda p: DebugFiles("elf", p)),
        Original("pdb", PDB, lambda p: DebugFiles("pe", "", p), (*TABLES, *IDENTITY)),
    ]
    for kind, (data, works) in TEXT.items():
        found.append(Original(kind, data, lambda p, k=kind: DebugFiles(k, p), works))  # type: ignore[misc]
    for name, options in (("coff", ["-g"]), ("exports", ["-s", "-shared"])):
        try:
            (folder / "program.cpp").write_text(SOURCE + "int main() { return start(); }\n")
            command(["x86_64-w64-mingw32-g++", "-O1", *options, "program.cpp", "-o", f"{name}.exe"], folder)
            works = (*(EVERY if name == "coff" else TABLES), *IDENTITY)
            program = folder / f"{name}.exe"
            found.append(Original(name, program.read_bytes(), lambda p: DebugFiles("pe", p), works))
            beside = Original(f"pdb of {name}", PDB, lambda p, e=str(program): DebugFiles("pe", e, p), works)  # type: ignore[misc]
            found.append(beside)
        except Skipped as why:
            print(why)
    programs = Programs(folder)
    for name in PROGRAMS:
        try:
            path = programs.path(name)
        except Skipped as why:
            print(why)
            continue
        home = str(path.parent)
        found.append(Original(name, path.read_bytes(), lambda p, h=home: DebugFiles("elf", p, dwo=(h,))))  # type: ignore[misc]
        found += [
            Original(
                f"{name} {split.name}",
                split.read_bytes(),
                lambda p, m=str(path): DebugFiles("elf", m, dwo=(str(Path(p).parent),)),
            )
            for split in path.parent.glob("*.dwo")
        ]
    return found


def damaged(original: Original, dice: random.Random) -> bytes:
    data = bytearray(original.data)
    for _ in range(dice.choice((1, 1, 2, 5, 20))):
        first, last = dice.choice([p for p in original.places if p[0] < len(data)])
        at = dice.randrange(first, max(first + 1, min(last, len(data))))
        kind = dice.randrange(5)
        if kind == 0:
            data[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            width = dice.choice((1, 2, 4, 8))
            data[at : at + width] = dice.choice((b"\xff", b"\0", b"\x7f", b"\x80"))[:1] * min(width, len(data) - at)
        elif kind == 2:
            data[at : at + 4] = dice.randbytes(4)[: len(data) - at]
        elif kind == 3:
            other = dice.randrange(len(data))
            data[at : at + 64] = data[other : other + 64].ljust(64, b"\0")[: len(data) - at]
        elif dice.random() < 0.2:
            del data[max(16, at) :]
            break
    return bytes(data)


def through_the_worker(worker: WorkerClient, known: DebugFiles, address: np.ndarray) -> None:
    """With every backend: libraries and programs may fail as they like."""
    for backend in ("auto", "symbolic", "llvm"):
        try:
            worker.names(known, backend, address)
            worker.functions(known, backend)
        except WorkerFailed as failure:
            if "system call" in str(failure):
                raise AssertionError(f"{backend}: {failure}") from failure


def from_a_server(folder: Path, dice: random.Random) -> str:
    """An answer of `ANSWERS`, or one of them with bytes changed on its way: never a file, nothing that stays."""
    name = dice.choice(list(ANSWERS))

    class Spoiled(Talk):
        def send(self, data: bytes) -> None:
            spoiled = bytearray(data)
            for _ in range(dice.choice((0, 0, 1, 3))):
                if spoiled:
                    spoiled[dice.randrange(len(spoiled))] = dice.randrange(256)
            super().send(bytes(spoiled))

    def answer(talk: Talk) -> None:
        if dice.random() < 0.5:
            talk.__class__ = Spoiled
        ANSWERS[name](talk)

    cache = open_cache(str(folder / "cache"))
    search = Search(Profile("p", "perf.data"), SymbolOptions(debuginfod=True), cache)
    with hostile_server(answer, dice.randbytes(1000), dice) as home:
        os.environ.update(DEBUGINFOD_URLS=home, no_proxy="*")
        assert debuginfod.fetch(cache.folder, dice.randbytes(20), "debuginfo", [], None) is None
    assert "not done after 20 s" not in str(search.rejected), "it had no end"
    assert os.listdir(folder / "cache" / "debuginfod") == []
    return name


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20, help="how long")
    parser.add_argument("--seed", type=int, default=1, help="of the damage")
    options = parser.parse_args()
    dice, number, refused = random.Random(options.seed), 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = originals(folder)
        worker = WorkerClient(SymbolOptions(cache=None, seconds=20))
        debuginfod.CONNECT_SECONDS = debuginfod.ANSWER_SECONDS = debuginfod.FILE_SECONDS = 1
        debuginfod.SIZE_LIMIT = 4 << 20
        until = time.monotonic() + options.seconds
        while time.monotonic() < until:
            if number % 100 == 99:
                with time_limit(20):
                    from_a_server(folder, dice)
            original = dice.choice(files)
            data = damaged(original, dice)
            path = folder / original.name.rpartition(" ")[2]
            path = folder / "split" / path.name if path.suffix == ".dwo" else folder / "damaged"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
            known = original.files(str(path))
            outside: Work = lambda f, a: through_the_worker(worker, f, a)  # noqa: E731
            for work in (*original.works, *([outside] if number % 50 == 0 else [])):
                try:
                    with time_limit(20 if work is not outside else 200):
                        work(known, original.address)
                except (LastbranchError, MemoryError):
                    refused += 1
                except BaseException:
                    Path("fuzz-symbols-failure").write_bytes(data)
                    print(f"file {number} (seed {options.seed}), {original.name}: kept as fuzz-symbols-failure")
                    raise
            number += 1
        worker.close()
    print(f"{number} files, {refused} refusals, no failure")
    return 0


if __name__ == "__main__":
    sys.exit(main())
