"""Readable names, against what compilers and LLVM's tools say of them."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lastbranch.symbols import demangle as module
from lastbranch.symbols.demangle import demangle, mangled
from lastbranch.symbols.tools import newest

CPP = {
    "_ZN3foo3barIiEEvT_": "void foo::bar<int>(int)",
    "_ZN3foo3barIiEEvT_.isra.0.cold": "void foo::bar<int>(int) (.isra.0.cold)",
    "_ZN12_GLOBAL__N_11fEv": "(anonymous namespace)::f()",
    "__ZN3foo3barIiEEvT_": "void foo::bar<int>(int)",
    "_ZNSt6vectorIiSaIiEE9push_backERKi": "std::vector<int, std::allocator<int>>::push_back(int const&)",
}
IMPL = "_$LT$alloc..vec..Vec$LT$T$GT$$u20$as$u20$core..ops..index..Index$LT$I$GT$$GT$"
RUST = {
    "_ZN4core3fmt9Formatter9write_str17h0123456789abcdefE": "core::fmt::Formatter::write_str",
    f"_ZN{len(IMPL)}{IMPL}5index17h0123456789abcdefE": "<alloc::vec::Vec<T> as core::ops::index::Index<I>>::index",
    "_ZN3std2rt10lang_start28_$u7b$$u7b$closure$u7d$$u7d$17hfedcba9876543210E.llvm.123": (
        "std::rt::lang_start::{{closure}} (.llvm.123)"
    ),
}
MSVC = {"?f@@YAHH@Z": "f(int)", "??0Thing@ns@@QEAA@XZ": "ns::Thing::Thing(void)"}
PLAIN = [
    "main",
    "",
    "_Z",
    "_Zzz",
    "?",
    "_R",
    "LazyCompile:*f file.js:3",
    "a b",
    "_ZN1 a",
    "f\n_Z1fv",
    "\udcff_Z1fv",
    "$x",
    "_",
]


def test_cpp() -> None:
    if not shutil.which("llvm-cxxfilt-19"):
        pytest.skip("no llvm-cxxfilt-19: other tools write brackets otherwise")
    assert dict(zip(CPP, demangle(CPP), strict=True)) == CPP


def test_rust_names_lose_their_hash_and_escapes() -> None:
    if demangle(["_Z1fv"]) == ["_Z1fv"]:
        pytest.skip("nothing here can demangle")
    assert dict(zip(RUST, demangle(RUST), strict=True)) == RUST


def test_msvc() -> None:
    if not shutil.which("llvm-undname-19"):
        pytest.skip("no llvm-undname-19")
    assert dict(zip(MSVC, demangle(MSVC), strict=True)) == MSVC


OLD_EXPRESSION = "_Z4makeI3KeyILi10EEENSt9enable_ifIXntsrSt8is_arrayIT_E5valueEiE4typeEv"
"""``sr`` without ``E`` behind the type, as GCC wrote it before version 13 (-fabi-version=17); LLVM does not read it."""


def tools_but(*missing: str) -> Callable[[str], str | None]:
    return lambda name: None if name in missing else newest(name)


@pytest.mark.parametrize("missing", [(), ("llvm-cxxfilt",), ("c++filt",), ("llvm-cxxfilt", "c++filt")])
def test_names_that_one_tool_cannot_read_are_read_by_another(
    monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...]
) -> None:
    """A name of an old compiler, one with a letter that tools take for the end of a word, and what linkers append."""
    monkeypatch.setattr(module, "newest", tools_but(*missing))
    names = [OLD_EXPRESSION, "_Z7größei", "_Z1fv.isra.0.cold", "_Z1fv@plt", "_Z1fv@@V_1.2", "_Z1fv"]
    try:
        ctypes.CDLL("libstdc++.so.6")
    except OSError:
        pytest.skip("no C++ runtime library of GCC")
    told = demangle(names)
    shown = "std::enable_if<!std::is_array<Key<10>>::value, int>::type make<Key<10>>()"
    assert told[0].replace("> >", ">>") == shown
    assert told[1:] == ["größe(int)", "f() (.isra.0.cold)", "f()@plt", "f()@@V_1.2", "f()"]


def test_what_is_not_mangled_stays() -> None:
    assert demangle(PLAIN) == PLAIN


def test_order_and_number_are_kept() -> None:
    names = [*PLAIN, *CPP, *MSVC, *RUST, *PLAIN, *CPP]
    told = demangle(names)
    assert len(told) == len(names)
    assert told[: len(PLAIN)] == PLAIN
    assert told[-len(CPP) :] == told[len(PLAIN) : len(PLAIN) + len(CPP)]


def test_the_runtime_library_says_what_tools_say(monkeypatch: pytest.MonkeyPatch) -> None:
    with_tools = demangle(CPP)
    monkeypatch.setattr(module, "newest", lambda name: None)
    alone = demangle(CPP)
    if alone == list(CPP):
        pytest.skip("no C++ runtime library")
    assert [a.replace("> >", ">>") for a in alone] == [t.replace("> >", ">>") for t in with_tools]
    assert demangle(PLAIN) == PLAIN
    assert demangle(MSVC) == list(MSVC)


def test_a_tool_that_fails_leaves_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "RUNTIME_LIBRARIES", ())
    tool = tmp_path / "tool"
    monkeypatch.setattr(module, "newest", lambda name: str(tool))
    for text in ("exit 3", "echo one line", "yes x | head -c 100"):
        tool.write_text(f"#!/bin/sh\n{text}\n")
        tool.chmod(0o700)
        assert demangle(CPP) == list(CPP)


def test_a_tool_is_looked_for_once_on_each_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each module that is named asks for all tools, in 18 versions and every folder."""
    old, new = tmp_path / "old", tmp_path / "new"
    for folder, name in ((old, "llvm-cxxfilt"), (new, "llvm-cxxfilt-19")):
        folder.mkdir()
        (folder / name).touch(0o700)
    newest_on = {str(old): old / "llvm-cxxfilt", f"{old}{os.pathsep}{new}{os.pathsep}.": new / "llvm-cxxfilt-19"}
    for path, tool in newest_on.items():
        monkeypatch.setenv("PATH", path)
        assert newest("llvm-cxxfilt") == str(tool)
    monkeypatch.setattr(os.path, "isfile", lambda path: pytest.fail(f"looked for {path} again"))
    for path, tool in newest_on.items():
        monkeypatch.setenv("PATH", path)
        assert newest("llvm-cxxfilt") == str(tool)


def test_names_of_a_real_library_are_those_of_nm(tmp_path: Path) -> None:
    """Every mangled name of the C++ runtime, as llvm-cxxfilt says it one by one."""
    library = next((p for p in Path("/usr/lib").glob("*/libstdc++.so.6")), None)
    if library is None or not shutil.which("nm") or not shutil.which("llvm-cxxfilt-19"):
        pytest.skip("no libstdc++ with nm and llvm-cxxfilt-19")
    listed = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
    names = sorted({line.split()[-1].partition("@")[0] for line in listed.stdout.splitlines()})
    one_by_one = [
        subprocess.run(["llvm-cxxfilt-19", n], capture_output=True, text=True, check=True).stdout.rstrip("\n")
        for n in names[::200]
    ]
    assert demangle(names)[::200] == one_by_one
    assert sum(map(bool, map(mangled, names))) > 1000
