"""Names of the kernel: only of the kernel that was recorded, counted as the binder counts."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from lastbranch.errors import FormatError
from lastbranch.model import Module, ModuleKind, Profile
from lastbranch.symbols import Symbolizer, SymbolOptions, search
from lastbranch.symbols.model import DebugFiles
from lastbranch.symbols.symbol_lists import read_bytes, read_kallsyms, running_build_id

BUILD_ID = bytes(range(20))
BASE, LOADED = 0xFFFFFFFF81000000, 0xFFFFFFFFC0400000
LIST = f"""\
{BASE - 0x100000:016x} A fixed_percpu_data
{BASE:016x} T _stext
{BASE:016x} T _text
{BASE:016x} t startup_64
{BASE + 0x40:016x} t _local
{BASE + 0x40:016x} T global_one
{BASE + 0x80:016x} T __do_it
{BASE + 0x80:016x} T do_it
{BASE + 0x100:016x} W weak
{BASE + 0x200:016x} D data
{BASE + 0x300:016x} t _RNvC6_123foo3bar
{LOADED:016x} t init_it\t[some_module]
{LOADED + 0x20:016x} T work\t[some_module]
{LOADED + 0x1000:016x} t other\t[another]
broken line
zzzz T nothing
"""
MODULES = f"""\
another 4096 0 - Live 0x{LOADED + 0x1000:016x}
some_module 8192 1 another, Live 0x{LOADED - 0x40:016x}
"""


def note(owner: bytes, kind: int, description: bytes) -> bytes:
    padded = owner.ljust(-(-len(owner) // 4) * 4, b"\0") + description.ljust(-(-len(description) // 4) * 4, b"\0")
    return struct.pack("=III", len(owner), len(description), kind) + padded


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine that runs a kernel with `LIST`, as files below a folder."""
    for path, data in {
        "sys/kernel/notes": note(b"Linux\0", 0x101, b"x") + note(b"GNU\0", 3, BUILD_ID) + note(b"Xen\0", 5, b""),
        "sys/module/some_module/notes/.note.gnu.build-id": note(b"GNU\0", 3, BUILD_ID[::-1]),
        "proc/kallsyms": LIST.encode(),
        "proc/modules": MODULES.encode(),
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(data)
    monkeypatch.setattr(search, "KALLSYMS", str(tmp_path / "proc/kallsyms"))
    monkeypatch.setattr("lastbranch.symbols.search._MODULES", str(tmp_path / "proc/modules"))

    def build_id(module: str = "") -> bytes:
        return running_build_id(module, lambda path: read_bytes(f"{tmp_path}{path}"))

    monkeypatch.setattr(search, "running_build_id", build_id)
    return tmp_path


def ask(module: Module, address: list[int], *debug_dirs: Path) -> tuple[list[str], list[str]]:
    options = SymbolOptions(cache=None, debug_dirs=tuple(map(str, debug_dirs)))
    with Symbolizer(Profile("p", "perf.data", modules=[module]), options) as symbols:
        names = symbols.names(0, np.array(address, np.uint64))
        return [f[0].function.name if (f := names.frames(i)) else "" for i in range(len(address))], symbols.notes


def kernel(build_id: bytes = BUILD_ID) -> Module:
    return Module("[kernel.kallsyms]", ModuleKind.KERNEL, build_id=build_id, missing="not found")


def test_addresses_count_from_text(running: Path) -> None:
    names, notes = ask(kernel(), [0, 0x40, 0x7F, 0x80, 0x1FF, 0x200, 0x2FF, 0x300])
    assert names == ["_stext", "global_one", "global_one", "do_it", "weak", "", "", "_RNvC6_123foo3bar"]
    assert notes == []


def test_functions_of_the_kernel_are_listed(running: Path) -> None:
    table = read_kallsyms(DebugFiles("kallsyms", str(running / "proc/kallsyms")))
    assert [f.name for f in table.functions][:3] == ["_stext", "global_one", "do_it"]
    assert set(table.aliases[0]) == {"startup_64", "_text"}
    assert table.find("__do_it") == [2]


@pytest.mark.parametrize("name", ["[some_module]", "/lib/modules/6.1/kernel/net/some-module.ko.xz"])
def test_addresses_of_a_kernel_module_count_from_its_beginning(running: Path, name: str) -> None:
    module = Module(name, ModuleKind.KERNEL_MODULE, build_id=BUILD_ID[::-1])
    names, notes = ask(module, [0, 0x40, 0x5F, 0x60])
    assert names == ["", "init_it", "init_it", "work"]
    assert notes == []


@pytest.mark.parametrize("name", ["[../../etc]", "[other/thing]", "[]", "/"])
def test_names_of_kernel_modules_are_no_paths(running: Path, name: str) -> None:
    names, notes = ask(Module(name, ModuleKind.KERNEL_MODULE, build_id=BUILD_ID[::-1]), [0x40])
    assert names == [""]
    assert "no names" in notes[0]


def test_another_kernel_is_told_apart(running: Path) -> None:
    names, notes = ask(kernel(b"\xaa" * 20), [0])
    assert names == [""]
    assert "the running kernel is another one" in notes[0]
    assert "vmlinux" in notes[0]
    assert "no build id" in ask(kernel(b""), [0])[1][0]


def test_hidden_addresses_are_no_names(running: Path) -> None:
    hidden = "".join(f"{0:016x}{line[16:]}\n" for line in LIST.splitlines())
    (running / "proc/kallsyms").write_text(hidden)
    with pytest.raises(FormatError, match="hidden"):
        read_kallsyms(DebugFiles("kallsyms", str(running / "proc/kallsyms")))
    names, notes = ask(kernel(), [0x40])
    assert names == [""]
    assert "hidden" in notes[0]


def test_the_running_kernel_names_its_own_addresses() -> None:
    build_id = running_build_id()
    try:
        lines = [line.split() for line in Path("/proc/kallsyms").read_text().splitlines()]
    except OSError:
        lines = []
    base = next((int(f[0], 16) for f in lines if f[2:] == ["_text"]), 0)
    if not base or not build_id:
        pytest.skip("this kernel hides its addresses")
    known: dict[int, set[str]] = {}
    for fields in lines:
        if len(fields) == 3:
            known.setdefault(int(fields[0], 16), set()).add(fields[2])
    code = [int(f[0], 16) for f in lines if len(f) == 3 and f[1] in "tT" and int(f[0], 16) >= base]
    asked = code[:: max(1, len(code) // 2000)]
    names, notes = ask(kernel(build_id), [a - base for a in asked])
    assert notes == []
    assert [n in known[a] for n, a in zip(names, asked, strict=True)] == [True] * len(asked)
