"""The backends beside each other, and which one is taken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lastbranch.errors import FormatError, UnavailableError
from lastbranch.symbols.backends import MODULES, backend_of, llvm, symbolic_reader, version_of
from lastbranch.symbols.model import DebugFiles
from pdb_files import PDB
from symbol_programs import Programs, agreed, code_addresses, command, elf, told


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("programs"))


def needs(backend: str) -> None:
    if backend == "llvm" and llvm.available() is None:
        pytest.skip("llvm-symbolizer is not installed")
    if backend == "symbolic" and not symbolic_reader.available():
        pytest.skip("the symbolic library is not installed")


@pytest.mark.parametrize("name", ["gcc", "clang4"])
def test_llvm(programs: Programs, name: str) -> None:
    needs("llvm")
    path = programs.path(name)
    address = code_addresses(path)
    own, other = (backend_of(b).symbolize(elf(path), address).check(len(address)) for b in ("dwarf", "llvm"))
    left, right = agreed(told(own), told(other))
    assert left == right
    shown = [{names.functions[row].shown for row in names.frame_function.tolist()} for names in (own, other)]
    assert shown[0] == shown[1]


def test_llvm_gets_nothing_to_follow(programs: Programs, tmp_path: Path) -> None:
    """Split DWARF and debug links name files wherever they are; where there are only symbols it is not asked."""
    needs("llvm")
    path = programs.path("gcc")
    linked, bare = tmp_path / "linked", tmp_path / "bare"
    command(["objcopy", f"--add-gnu-debuglink={path}", str(path), str(linked)], tmp_path)
    command(["objcopy", "--strip-debug", f"--add-gnu-debuglink={path}", str(path), str(bare)], tmp_path)
    address = code_addresses(path)
    for refused in (linked, programs.path("clang-split"), programs.path("clang-split4")):
        with pytest.raises(UnavailableError, match="not checked"):
            backend_of("llvm").symbolize(elf(refused), address)
    shutil.copy(path, tmp_path / "program")  # what the link means, with the right CRC
    assert told(backend_of("llvm").symbolize(elf(bare), address)) == told(
        backend_of("tables").symbolize(elf(path), address)
    )


@pytest.mark.parametrize("name", ["gcc", "gcc4", "clang", "clang4", "clang-lld"])
def test_symbolic(programs: Programs, name: str) -> None:
    """Functions, lines and inline chains are those of the in-tree reader at every address.

    The library knows no columns, discriminators and declarations, and writes ``a/b`` for ``a/./b``. The one difference
    that is allowed is in padding between functions, of which line tables say something and the library nothing.
    """
    needs("symbolic")
    path = programs.path(name)
    address = code_addresses(path)
    own, other = (told(backend_of(b).symbolize(elf(path), address)) for b in ("dwarf", "symbolic"))
    left, right = ([[(f[0], f[1] and os.path.normpath(f[1]), f[2]) for f in x] for x in y] for y in (own, other))
    padding = [len(mine) == 1 and mine[0][0] == "" and not theirs for mine, theirs in zip(left, right, strict=True)]
    assert [x for x, p in zip(left, padding, strict=True) if not p] == [
        x for x, p in zip(right, padding, strict=True) if not p
    ]
    assert sum(padding) < 50
    assert sum(len(frames) > 2 for frames in left) > 300


def test_auto_takes_the_best(programs: Programs) -> None:
    path = programs.path("gcc")
    address = code_addresses(path)
    assert told(backend_of("auto").symbolize(elf(path), address)) == told(
        backend_of("dwarf").symbolize(elf(path), address)
    )


def test_llvm_is_not_installed(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UnavailableError, match="llvm-symbolizer"):
        backend_of("llvm").symbolize(elf(programs.folder / "x"), np.array([1], np.uint64))


def test_symbolic_says_what_it_leaves_out(programs: Programs) -> None:
    """It is given bytes and no paths: split DWARF is not read, and its lines are not passed off as all there are."""
    needs("symbolic")
    for name, notes in (("clang-split", 1), ("gcc", 0)):
        path = programs.path(name)
        found = backend_of("symbolic").symbolize(elf(path, dwo=path.parent), code_addresses(path, 10)).notes
        assert ["split DWARF" in note for note in found] == [True] * notes


def test_symbolic_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PDB still has its symbols then."""
    monkeypatch.setattr(symbolic_reader, "available", lambda: False)
    monkeypatch.setattr(llvm, "available", lambda: None)
    (tmp_path / "x.pdb").write_bytes(PDB)
    only = DebugFiles("pe", "", str(tmp_path / "x.pdb"))
    assert told(backend_of("auto").symbolize(only, np.array([0x1010], np.uint64)))[0][0][0] == "?shown@@YAHH@Z"
    with pytest.raises(UnavailableError, match="symbolic"):
        backend_of("symbolic").symbolize(only, np.array([1], np.uint64))


@pytest.mark.parametrize("backend", ["dwarf", "symbolic", "tables", "auto"])
def test_what_is_no_binary(tmp_path: Path, backend: str) -> None:
    needs(backend)
    (tmp_path / "text").write_text("neither ELF nor PE")
    with pytest.raises(FormatError, match="text"):
        backend_of(backend).symbolize(elf(tmp_path / "text"), np.array([1], np.uint64))


@pytest.mark.parametrize("backend", ["dwarf", "tables", "auto"])
def test_fifo(tmp_path: Path, backend: str) -> None:
    """Nothing waits for a writer."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        backend_of(backend).symbolize(elf(tmp_path / "pipe"), np.array([1], np.uint64))


def test_unknown_backend() -> None:
    with pytest.raises(UnavailableError, match="no symbol backend"):
        backend_of("nobody")


def test_versions_tell_backends_apart() -> None:
    for kind in ("elf", "pe"):
        assert len({version_of(name, kind) for name in (*MODULES, "auto")}) == len(MODULES) + 1


def test_versions_cost_nothing() -> None:
    """The cache is asked with them in a process that shall read no symbol file."""
    program = (
        "import sys; from lastbranch.symbols.backends import version_of; version_of('auto', 'pe');"
        "print(sorted(m for m in sys.modules if 'backends.' in m or m in ('symbolic', 'subprocess')))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
