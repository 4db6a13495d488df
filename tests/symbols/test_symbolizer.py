"""The whole way of a name: search, cache, worker, and back to module addresses."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lastbranch.binaries import read_image
from lastbranch.model import BytesSource, Change, Module, ModuleKind, Profile, Segment
from lastbranch.symbols import Symbolizer, SymbolOptions
from lastbranch.symbols.worker import WorkerClient, WorkerFailed

SOURCE = """
namespace ns {
template <class T> __attribute__((noinline)) T thrice(T x) { return x * 3; }
static inline __attribute__((always_inline)) int inner(int x) {
  return thrice<int>(x) + thrice<long>(x);
}
}
int main(int count, char **) {
  volatile int s = 0;
  for (int i = 0; i < count; i++)
    s = s + ns::inner(i);
  return s & 1;
}
"""


class Built:
    def __init__(self, folder: Path) -> None:
        self.folder, self.binary = folder, folder / "app"
        (folder / "app.cc").write_text(SOURCE)
        _run("g++", "-g", "-O2", "-pie", "-fPIE", "-Wl,--build-id", f"{folder}/app.cc", "-o", str(self.binary))
        self.image = read_image(BytesSource(self.binary.read_bytes()))
        listed = subprocess.run(["nm", "-S", self.binary], capture_output=True, text=True, check=True).stdout
        rows = [line.split() for line in listed.splitlines()]
        self.symbols = {r[3]: (int(r[0], 16), int(r[1], 16)) for r in rows if len(r) == 4 and r[2] in "tTW"}

    def module(self, binary: Path | None = None, **fields: Any) -> Module:
        segments = tuple(Segment(s.vaddr, s.offset, s.file_size, bool(s.flags & 1)) for s in self.image.segments)
        known = {"build_id": self.image.build_id or b"", "segments": segments, "binary": str(binary or self.binary)}
        return Module("/opt/app", **{**known, **fields})

    def addresses(self) -> np.ndarray:
        """Every byte of the functions of the program."""
        names = [n for n in self.symbols if "thrice" in n or n == "main"]
        return np.concatenate([np.arange(a, a + size) for a, size in map(self.symbols.__getitem__, names)]).astype(
            np.uint64
        )


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    if not (shutil.which("g++") and shutil.which("objcopy")):
        pytest.skip("no g++ with binutils")
    return Built(tmp_path_factory.mktemp("app"))


def symbolizer(*modules: Module, **options: Any) -> Symbolizer:
    return Symbolizer(Profile("p", "perf.data", modules=list(modules)), SymbolOptions(**{"cache": None, **options}))


def owners(symbols: Symbolizer, address: np.ndarray, module: int = 0) -> list[str]:
    names = symbols.names(module, address)
    return [names.functions[f].name if f >= 0 else "" for f in names.function.tolist()]


def expected(built: Built, address: np.ndarray) -> list[str]:
    inside = lambda a: (n for n, (start, size) in built.symbols.items() if start <= a < start + size)  # noqa: E731
    return [next(inside(a), "") for a in address.tolist()]


@pytest.mark.parametrize("backend", ["auto", "tables"])
def test_functions_are_those_of_nm(built: Built, backend: str) -> None:
    address = built.addresses()
    address = np.concatenate([address[::-1], address[:3]])  # any order, and again
    with symbolizer(built.module(), backend=backend) as symbols:
        assert owners(symbols, address) == expected(built, address)
        assert symbols.notes == []
        table = symbols.functions(0)
        assert {f.name: (f.start, f.size) for f in table.functions if f.name in ("main", "_ZN2ns6thriceIiEET_S1_")} == {
            n: built.symbols[n] for n in ("main", "_ZN2ns6thriceIiEET_S1_")
        }
        assert len(table.find("main")) == 1
        assert [table.functions[r].name for r in table.find("int ns::thrice<int>")] == ["_ZN2ns6thriceIiEET_S1_"]


def test_frames_are_those_of_llvm_symbolizer(built: Built) -> None:
    tool = shutil.which("llvm-symbolizer-19")
    if tool is None:
        pytest.skip("no llvm-symbolizer-19")
    address = built.addresses()
    command = [tool, "--obj", str(built.binary), "--output-style=LLVM", "--functions=linkage", "--no-demangle"]
    text = "".join(f"{a:#x}\n" for a in address.tolist())
    told = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    chains = []
    for block in told.strip().split("\n\n"):
        lines = block.split("\n")
        places = [place.rsplit(":", 2) for place in lines[1::2]]
        chains.append([(name, file, int(line)) for name, (file, line, _) in zip(lines[::2], places, strict=True)])
    with symbolizer(built.module()) as symbols:
        names = symbols.names(0, address)
        ours = [[(f.function.name, f.file, f.line) for f in names.frames(i)] for i in range(len(address))]
    assert ours == chains
    assert max(map(len, ours)) == 2


def test_the_cache_answers_without_a_worker(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = built.addresses()
    for part in (address[:10], address[5:40:3], address):
        with symbolizer(built.module(), cache=str(tmp_path / "c")) as symbols:
            assert owners(symbols, part) == expected(built, part)
            count = len(symbols.functions(0))
    monkeypatch.setattr(WorkerClient, "_start", lambda self: pytest.fail("a worker was started"))
    with symbolizer(built.module(), cache=str(tmp_path / "c")) as symbols:
        assert owners(symbols, address[::-1]) == expected(built, address[::-1])
        assert len(symbols.functions(0)) == count


def test_a_cache_that_others_can_use_is_told_and_not_used(built: Built, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with symbolizer(built.module(), cache=str(tmp_path)) as symbols:
        assert owners(symbols, built.addresses()[:1]) != [""]
        assert "names are not cached" in symbols.notes[0]
    assert os.listdir(tmp_path) == []


def test_offsets_of_a_binary_that_is_gone_have_names_by_its_debug_file(built: Built, tmp_path: Path) -> None:
    word = (built.image.build_id or b"").hex()
    debug = tmp_path / ".build-id" / word[:2] / f"{word[2:]}.debug"
    debug.parent.mkdir(parents=True)
    _run("objcopy", "--only-keep-debug", str(built.binary), str(debug))
    (code,) = built.image.executable_segments
    moved = np.uint64(code.vaddr - code.offset)
    profile = Profile("p", "perf.data", modules=[Module("/opt/app", build_id=built.image.build_id or b"")])
    start, end = code.vaddr & ~0xFFF, -(-(code.vaddr + code.memory_size) // 4096) * 4096
    profile.timeline.add(Change.MAP, 1, 7, module=0, start=start, end=end, offset=code.offset & ~0xFFF)
    address = built.addresses()
    with Symbolizer(profile, SymbolOptions(cache=None, debug_dirs=(str(tmp_path),))) as symbols:
        names = symbols.names(0, address - moved)
        assert [names.functions[f].name for f in names.function.tolist()] == expected(built, address)
        assert names.functions[names.function[0]].start == built.symbols[expected(built, address)[0]][0] - moved
        table = symbols.functions(0)
        assert table.at(address - moved).min() >= 0
        (main,) = table.find("main")
        for found in (table.functions[main], list(table.functions)[main], table.functions[main : main + 1][0]):
            assert (found.start, found.size) == (built.symbols["main"][0] - int(moved), built.symbols["main"][1])
        assert names.frames(0)[0].line > 0


def test_modules_without_files_cost_one_note(built: Built) -> None:
    gone = Module("/opt/gone", build_id=b"\1" * 20, missing="not found")
    with symbolizer(gone, Module("//anon", ModuleKind.ANONYMOUS)) as symbols:
        for _ in range(2):
            assert owners(symbols, np.array([1, 2], np.uint64)) == ["", ""]
            assert owners(symbols, np.array([1, 2], np.uint64), 1) == ["", ""]
            assert owners(symbols, np.array([1, 2], np.uint64), -1) == ["", ""]
            assert len(symbols.functions(0)) == 0
        assert symbols.notes == ["gone: no names: not found"]


def test_a_reader_that_fails_leaves_the_symbol_table(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = WorkerClient.names

    def names(self: WorkerClient, files: Any, backend: str, address: Any) -> Any:
        if backend == "auto":
            raise WorkerFailed("the process that reads symbol files died (SIGSEGV)", fatal=True)
        return ask(self, files, backend, address)

    monkeypatch.setattr(WorkerClient, "names", names)
    with symbolizer(built.module()) as symbols:
        for _ in range(2):
            assert owners(symbols, built.addresses()) == expected(built, built.addresses())
        assert symbols.notes == ["app: the process that reads symbol files died (SIGSEGV)"]


def test_truncated_binaries_cost_names_and_leave_a_note(built: Built, tmp_path: Path) -> None:
    whole = built.binary.read_bytes()
    with symbolizer(*(built.module(tmp_path / f"{n}") for n in range(6)), seconds=20) as symbols:
        for n in range(6):
            (tmp_path / f"{n}").write_bytes(whole[: len(whole) * (n + 1) // 7])
            told = owners(symbols, built.addresses()[:5], n)
            assert set(told) <= {"", *expected(built, built.addresses()[:5])}
        assert symbols.notes


def test_the_worker_does_not_load_what_it_does_not_need() -> None:
    program = "import sys, lastbranch.symbols.worker; print([m for m in sys.modules if m.startswith('lastbranch.')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "opening" not in done.stdout
    assert "bind" not in done.stdout
