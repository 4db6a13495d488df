"""Windows' functions: prototypes against a compiler and against the fake's own declarations, and how they are found."""

from __future__ import annotations

import ctypes
import shutil
import sys
from types import SimpleNamespace

import pytest

import make_etw_layouts as made
from lastbranch.etw.status import EtwError, Status
from lastbranch.etw.windows.libraries import (
    CALLBACKS,
    FUNCTIONS,
    UNPROVEN,
    Libraries,
    SystemLoader,
    c_type,
    callback,
    wide,
)
from windows_fake import CDECL, DECLARED, LBR, TOOLKIT, FakeWindows

POINTER = 8


@pytest.mark.parametrize("bits", [64, 32])
def test_the_compiler_and_the_linker_agree(bits: int) -> None:
    if shutil.which(made.COMPILERS[bits]) is None:
        pytest.skip(f"{made.COMPILERS[bits]} is not installed")
    done = made.prove_functions(bits)
    assert done.returncode == 0, done.stderr
    assert made.prototypes(bits).count("volatile") == len(FUNCTIONS) - len(UNPROVEN)


@pytest.mark.parametrize(
    ("bits", "right", "wrong", "said"),
    [
        (64, "(TRACEHANDLE, LPCWSTR, P", "(ULONG, LPCWSTR, P", "ControlTraceW"),
        pytest.param(32, "PEVENT_RECORD))", "PEVENT_TRACE))", "PEVENT_RECORD_CALLBACK", marks=pytest.mark.thorough),
    ],
)
def test_the_compiler_would_notice(
    monkeypatch: pytest.MonkeyPatch, bits: int, right: str, wrong: str, said: str
) -> None:
    if shutil.which(made.COMPILERS[bits]) is None:
        pytest.skip(f"{made.COMPILERS[bits]} is not installed")
    text = made.prototypes(bits)
    assert right in text
    monkeypatch.setattr(made, "prototypes", lambda bits: text.replace(right, wrong, 1))
    done = made.prove_functions(bits)
    assert done.returncode
    assert said in done.stderr


def test_the_table_and_the_fake_declare_the_same() -> None:
    """Two hands wrote them: the table in the headers' words, the fake in widths."""
    assert set(DECLARED) == set(FUNCTIONS)
    for name, function in FUNCTIONS.items():
        _, words = DECLARED[name]
        result, _, arguments = words.partition(":")
        widths = [int(a) if a.isdigit() else POINTER for a in arguments]
        assert [ctypes.sizeof(c_type(a)) for a in function.arguments] == widths, name
        assert ctypes.sizeof(c_type(function.result)) == (int(result) if result.isdigit() else POINTER), name
    assert {name for name, f in FUNCTIONS.items() if f.convention == "cdecl"} == CDECL


def test_callbacks_have_pointers_for_structures() -> None:
    for result, arguments in CALLBACKS.values():
        assert c_type(result) in (None, ctypes.c_uint32)
        assert c_type(arguments[0]) is ctypes.c_void_p


def test_an_unknown_type_is_an_error() -> None:
    with pytest.raises(KeyError):
        c_type("SIZE_T")


def test_each_function_has_its_convention() -> None:
    """On 32-bit Windows the stack goes wrong otherwise."""
    windows = FakeWindows(toolkit=TOOLKIT)
    libraries = Libraries(windows)
    for name in FUNCTIONS:
        libraries.function(name)
    assert {n for n, convention in windows.conventions.items() if convention == "cdecl"} == {LBR}
    assert set(windows.conventions) == set(FUNCTIONS)


def test_a_function_is_looked_up_once_and_when_it_is_needed() -> None:
    windows = FakeWindows()
    libraries = Libraries(windows)
    assert windows.conventions == {}
    assert libraries.function("CloseTrace") is libraries.function("CloseTrace")
    assert list(windows.conventions) == ["CloseTrace"]


def test_a_function_is_taken_from_the_second_library() -> None:
    libraries = Libraries(FakeWindows())
    assert DECLARED[LBR][0] == FUNCTIONS[LBR].libraries[1]
    assert libraries.has(LBR)


def test_a_missing_export_is_told_with_the_windows_that_has_it() -> None:
    libraries = Libraries(FakeWindows(build=19045))
    assert not libraries.has(LBR)
    with pytest.raises(EtwError) as failed:
        libraries.function(LBR)
    assert failed.value.status == Status.PROC_NOT_FOUND
    assert str(failed.value).startswith(f"{LBR}: advapi32.dll and sechost.dll do not export {LBR}")
    assert failed.value.hint == "it needs build 26100.1301; this is build 19045"


def test_a_missing_library_is_told() -> None:
    libraries = Libraries(FakeWindows())
    with pytest.raises(EtwError) as failed:
        libraries.function("CreateMergedTraceFile")
    assert failed.value.status == Status.MOD_NOT_FOUND
    assert failed.value.hint is not None
    assert "Windows Performance Toolkit" in failed.value.hint


def test_the_toolkit_is_found_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROGRAMFILES(X86)", "C:\\Program Files (x86)")
    folder = "C:\\Program Files (x86)\\Windows Kits\\10\\Windows Performance Toolkit\\"
    assert Libraries(FakeWindows(toolkit=folder + TOOLKIT)).has("CreateMergedTraceFile")


def test_a_code_that_is_not_fine_is_an_exception() -> None:
    windows = FakeWindows()
    windows.codes["CloseTrace"] = 31337
    with pytest.raises(EtwError) as failed:
        Libraries(windows).status("CloseTrace", 1)
    assert (failed.value.call, failed.value.status) == ("CloseTrace", 31337)
    assert str(failed.value) == "CloseTrace: Windows' text of 31337 (code 31337)"


def test_elsewhere_windows_libraries_are_missing() -> None:
    libraries = Libraries(SystemLoader())
    with pytest.raises(EtwError) as failed:
        libraries.function("StartTraceW")
    assert (failed.value.call, failed.value.status) == ("StartTrace", Status.MOD_NOT_FOUND)
    assert SystemLoader().build() == SystemLoader().last_error() == 0
    assert SystemLoader().meaning(5) == ""


def test_on_windows_the_libraries_are_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines for Windows alone, with stand-ins for what only its ctypes has."""
    loaded: list[tuple[str, str, dict[str, object]]] = []
    for kind in ("WinDLL", "CDLL"):
        monkeypatch.setattr(
            ctypes, kind, lambda name, kind=kind, **how: loaded.append((kind, name, how)), raising=False
        )
    types: list[tuple[object, ...]] = []
    monkeypatch.setattr(
        ctypes, "WINFUNCTYPE", lambda *kinds: types.append(kinds) or ctypes.CFUNCTYPE(*kinds), raising=False
    )
    monkeypatch.setattr(ctypes, "get_last_error", lambda: 1300, raising=False)
    monkeypatch.setattr(ctypes, "FormatError", lambda code: f"text of {code}\r\n", raising=False)
    monkeypatch.setattr(sys, "getwindowsversion", lambda: SimpleNamespace(build=26100), raising=False)
    monkeypatch.setattr(sys, "platform", "win32")
    loader = SystemLoader()
    loader.library("advapi32.dll", "stdcall")
    loader.library("sechost.dll", "cdecl")
    how = {"use_last_error": True}
    assert loaded == [("WinDLL", "advapi32.dll", how), ("CDLL", "sechost.dll", how)]
    assert (loader.last_error(), loader.build(), loader.meaning(5)) == (1300, 26100, "text of 5")
    callback("PEVENT_RECORD_CALLBACK", lambda record: None)
    assert types == [(None, ctypes.c_void_p)]


@pytest.mark.parametrize("text", ["", "LbrLogger", "Sitzung ä", "\U0001f40d", "\ud800"])
def test_names_are_utf16_with_a_nul(text: str) -> None:
    assert bytes(wide("StartTrace", text)) == text.encode("utf-16-le", "surrogatepass") + b"\0\0"


def test_a_nul_in_a_name_is_refused() -> None:
    with pytest.raises(EtwError) as failed:
        wide("StartTrace", "a\0b")
    assert failed.value.status == Status.INVALID_NAME
