"""The backends beside each other, and which one is taken."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from lastbranch.errors import FormatError, UnavailableError
from lastbranch.symbols.backends import MODULES, backend_of, llvm, symbolic_reader, version_of
from lastbranch.symbols.files import DebugFiles
from symbol_programs import Programs, agreed, code_addresses, elf, told
from test_symbols_pdb import PDB


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
    own, other = (backend_of(b).resolve(elf(path), address).check(len(address)) for b in ("dwarf", "llvm"))
    left, right = agreed(told(own), told(other))
    assert left == right
    assert {f.shown for f in own.functions} == {f.shown for f in other.functions}


@pytest.mark.parametrize("name", ["gcc", "clang4", "clang-lld"])
def test_symbolic(programs: Programs, name: str) -> None:
    """Functions, lines and inline chains are those of the in-tree reader at 98 of 100 addresses that have lines.

    Not compared is what the library does otherwise: lines 0 (code that no line stands for), ``a/./b`` for ``a/b``, and
    which of several symbols for one address a function is called by.
    """
    needs("symbolic")
    path = programs.path(name)
    address = code_addresses(path)
    own, other = (told(backend_of(b).resolve(elf(path), address)) for b in ("dwarf", "symbolic"))
    compared = same = 0
    for mine, theirs in zip(own, other, strict=True):
        if not mine or any(f[2] == 0 for f in mine):
            continue
        compared += 1
        left, right = ([(os.path.normpath(f[1]), f[2]) for f in frames] for frames in (mine, theirs))
        names = [f[0] for f in mine[:-1]] == [f[0] for f in theirs[:-1]]
        same += left == right and names
    assert compared > 1000
    assert same >= 0.98 * compared


def test_auto_takes_the_best(programs: Programs) -> None:
    path = programs.path("gcc")
    address = code_addresses(path)
    assert told(backend_of("auto").resolve(elf(path), address)) == told(backend_of("dwarf").resolve(elf(path), address))


def test_llvm_is_not_installed(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UnavailableError, match="llvm-symbolizer"):
        backend_of("llvm").resolve(elf(programs.folder / "x"), np.array([1], np.uint64))


def test_symbolic_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PDB still has its symbols then."""
    monkeypatch.setattr(symbolic_reader, "available", lambda: False)
    monkeypatch.setattr(llvm, "available", lambda: None)
    (tmp_path / "x.pdb").write_bytes(PDB)
    only = DebugFiles("pe", "", str(tmp_path / "x.pdb"))
    assert told(backend_of("auto").resolve(only, np.array([0x1010], np.uint64)))[0][0][0] == "?shown@@YAHH@Z"
    with pytest.raises(UnavailableError, match="symbolic"):
        backend_of("symbolic").resolve(only, np.array([1], np.uint64))


@pytest.mark.parametrize("backend", ["dwarf", "symbolic", "tables", "auto"])
def test_what_is_no_binary(tmp_path: Path, backend: str) -> None:
    needs(backend)
    (tmp_path / "text").write_text("neither ELF nor PE")
    with pytest.raises(FormatError, match="text"):
        backend_of(backend).resolve(elf(tmp_path / "text"), np.array([1], np.uint64))


@pytest.mark.parametrize("backend", ["dwarf", "tables", "auto"])
def test_fifo(tmp_path: Path, backend: str) -> None:
    """Nothing waits for a writer."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        backend_of(backend).resolve(elf(tmp_path / "pipe"), np.array([1], np.uint64))


def test_unknown_backend() -> None:
    with pytest.raises(UnavailableError, match="no symbol backend"):
        backend_of("nobody")


def test_versions_tell_backends_apart() -> None:
    assert len({version_of(name) for name in (*MODULES, "auto")}) == len(MODULES) + 1
