"""Windows' tracing DLLs, faked: each export is a C function with its documented rules, and records how it was called.

`FakeWindows` is a loader for `lastbranch.etw.windows`. Its exports are foreign functions, so the code under test
marshals its arguments as on Windows, and the fake reads the arguments by declarations and offsets of its own (the
vendor's pages, 64 bits), never by the package's. Sizes, flags, handles, the order of checks and codes are as
documented; handles need all of their 64 bits, so that a cut handle is found out.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

import pytest

from lastbranch import etw
from lastbranch.etw.windows.kernel import WindowsKernel
from lastbranch.recording import recorders
from windows_fake_events import Events
from windows_fake_information import Information
from windows_fake_sessions import Sessions
from windows_fake_system import System
from windows_memory import FakeSession, text, u32

LBR = "TraceConfigureLastBranchRecord"
TOOLKIT = "KernelTraceControl.dll"
# Arguments: 1 4 8 integers of that many bytes; w UTF-16 string, g GUID, p properties, b bytes and c CLASSIC_EVENT_IDs
# whose length or count follows, e ENABLE_TRACE_PARAMETERS, h EVENT_TRACE_HEADER, l EVENT_TRACE_LOGFILEW, o other
# pointer. Before the colon: the result.
DECLARED: dict[str, tuple[str, str]] = {
    "StartTraceW": ("advapi32.dll", "4:owp"), "ControlTraceW": ("advapi32.dll", "4:8wp4"),
    "QueryAllTracesW": ("advapi32.dll", "4:o4o"), "EnableTraceEx2": ("advapi32.dll", "4:8g41884e"),
    "TraceSetInformation": ("advapi32.dll", "4:84b4"), "TraceQueryInformation": ("advapi32.dll", "4:84b4o"),
    LBR: ("sechost.dll", "4:84c4"), "OpenTraceW": ("advapi32.dll", "8:l"), "ProcessTrace": ("advapi32.dll", "4:o4oo"),
    "CloseTrace": ("advapi32.dll", "4:8"), "TraceEvent": ("advapi32.dll", "4:8h"),
    "EventRegister": ("advapi32.dll", "4:gooo"), "EventUnregister": ("advapi32.dll", "4:8"),
    "EventProviderEnabled": ("advapi32.dll", "1:818"), "EventWriteTransfer": ("advapi32.dll", "4:8ogg4o"),
    "EventSetInformation": ("advapi32.dll", "4:84b4"), "GetCurrentProcess": ("kernel32.dll", "o:"),
    "CloseHandle": ("kernel32.dll", "4:o"), "OpenProcessToken": ("advapi32.dll", "4:o4o"),
    "LookupPrivilegeValueW": ("advapi32.dll", "4:wwo"), "AdjustTokenPrivileges": ("advapi32.dll", "4:o4o4oo"),
    "CreateMergedTraceFile": (TOOLKIT, "4:wo44"),
}  # fmt: skip
"""Export -> (the library that has it, its declaration). The LBR function is in sechost alone, as on some builds."""
CDECL = {LBR}
PRIVILEGE = ["GetCurrentProcess", "OpenProcessToken", "LookupPrivilegeValueW", "AdjustTokenPrivileges", "CloseHandle"]
"""The calls that enable a privilege."""
_TYPES = {"1": ctypes.c_uint8, "4": ctypes.c_uint32, "8": ctypes.c_uint64}


@dataclass(frozen=True)
class Call:
    """One call: each argument in bytes, and the memory behind the pointers at the time of the call."""

    name: str
    arguments: tuple[int, ...]
    raw: tuple[bytes, ...]
    memory: tuple[bytes | None, ...]


class _Library:
    def __init__(self, windows: FakeWindows, name: str, convention: str) -> None:
        self._windows, self._name, self._convention = windows, name, convention

    def __getattr__(self, name: str) -> Any:
        return self._windows.export(self._name, name, self._convention)


class FakeWindows(Sessions, Information, Events, System):
    """A Windows of some build, with switches for what may go wrong.

    ``admin``: whether sessions may be controlled. ``has_privilege``: whether the token holds SeSystemProfilePrivilege.
    ``wine``: calls succeed and do nothing. ``missing``: exports that this Windows lacks. ``codes``: export -> code that
    it returns without doing anything. ``size_code``: what class 7 answers to a size query. ``toolkit``: under which
    name KernelTraceControl.dll is found.
    """

    def __init__(
        self,
        build: int = 26100,
        *,
        admin: bool = True,
        has_privilege: bool = True,
        wine: bool = False,
        missing: tuple[str, ...] = (),
        toolkit: str | None = None,
        size_code: int = 24,
    ) -> None:
        for part in (Sessions, Information, Events, System):
            part.__init__(self)
        self.calls: list[Call] = []
        self.failures: list[BaseException] = []
        """Failures in the fake itself; tests expect none."""
        self.conventions: dict[str, str] = {}
        """Exports that were resolved -> how they are called."""
        self.codes: dict[str, int] = {}
        self.admin, self.has_privilege, self.wine, self.size_code = admin, has_privilege, wine, size_code
        self.toolkit = toolkit
        since = {LBR: 26100, "TraceQueryInformation": 9200}
        self.missing = {*missing, *(name for name, first in since.items() if build < first)}
        self._build, self._error, self._next = build, 0, 0x20
        self._thunks = {name: self._thunk(name, words) for name, (_, words) in DECLARED.items()}

    # -- the loader

    def library(self, name: str, convention: str) -> Any:
        if name == TOOLKIT or name.endswith("\\" + TOOLKIT):
            if name != self.toolkit:
                raise OSError(name)
        elif name not in {library for library, _ in DECLARED.values()}:
            raise OSError(name)
        return _Library(self, name.rpartition("\\")[2], convention)

    def last_error(self) -> int:
        return self._error

    def build(self) -> int:
        return self._build

    def meaning(self, code: int) -> str:
        return f"Windows' text of {code}"

    def export(self, library: str, name: str, convention: str) -> Any:
        if name in self.missing or DECLARED.get(name, ("",))[0] != library:
            raise AttributeError(name)
        self.conventions[name] = convention
        address = ctypes.cast(self._thunks[name], ctypes.c_void_p).value
        return ctypes.CFUNCTYPE(ctypes.c_int)(address)

    def _thunk(self, name: str, words: str) -> Any:
        result, _, arguments = words.partition(":")

        def called(*values: int | None) -> int:
            numbers = tuple(v or 0 for v in values)
            sizes = [int(a) if a.isdigit() else 8 for a in arguments]
            raw = tuple(n.to_bytes(s, "little") for n, s in zip(numbers, sizes, strict=True))
            try:
                memory = tuple(self._behind(a, numbers, i) for i, a in enumerate(arguments))
                self.calls.append(Call(name, numbers, raw, memory))
                return self.codes[name] if name in self.codes else getattr(self, name)(*numbers)
            except BaseException as error:
                self.failures.append(error)
                return 0x1F

        types = [_TYPES.get(a, ctypes.c_void_p) for a in arguments]
        return ctypes.CFUNCTYPE(_TYPES.get(result, ctypes.c_void_p), *types)(called)

    def _behind(self, kind: str, numbers: tuple[int, ...], i: int) -> bytes | None:
        at = numbers[i]
        if not at or kind.isdigit() or kind == "o":
            return None
        if kind == "w":
            return text(at).encode("utf-16-le", "surrogatepass")
        sizes: dict[str, Callable[[], int]] = {
            "g": lambda: 16,
            "p": lambda: u32(at),
            "b": lambda: numbers[i + 1],
            "c": lambda: 24 * numbers[i + 1],
            "e": lambda: 48,
            "h": lambda: ctypes.c_uint16.from_address(at).value,
            "l": lambda: 448,
        }
        return ctypes.string_at(at, sizes[kind]())

    # -- what tests ask

    @property
    def names(self) -> list[str]:
        """The calls in their order, without those about the privilege."""
        return [c.name for c in self.calls if c.name not in PRIVILEGE]

    def last(self, name: str) -> Call:
        return next(c for c in reversed(self.calls) if c.name == name)

    def counts(self) -> Counter[str]:
        return Counter(c.name for c in self.calls)


def lbr_calls(windows: FakeWindows) -> list[tuple[Any, ...]]:
    """The calls about branch records with what they carry."""
    shown: list[tuple[Any, ...]] = []
    for call in windows.calls:
        match call.name:
            case "TraceSetInformation" | "TraceQueryInformation" if call.arguments[1] != 7:
                shown.append((call.name, call.arguments[0], call.arguments[1], call.memory[2]))
            case "StartTraceW":
                shown.append((call.name,))
            case "ControlTraceW":
                shown.append((call.name, call.arguments[0], call.arguments[3]))
            case "TraceConfigureLastBranchRecord":
                shown.append((call.name, call.arguments[0], call.arguments[1], call.memory[2]))
    return shown


def stopped_sessions(monkeypatch: pytest.MonkeyPatch, windows: FakeWindows) -> list[FakeSession]:
    """Filled with each session in its state at the stop."""
    seen: list[FakeSession] = []
    stop = windows.ControlTraceW

    def control(handle: int, name_at: int, at: int, code: int) -> int:
        if code == 1:
            seen.append(windows.sessions[handle])
        return stop(handle, name_at, at, code)

    monkeypatch.setattr(windows, "ControlTraceW", control)
    return seen


def example(name: str) -> ModuleType:
    """The script ``name`` of ``examples``, as a module."""
    file = Path(__file__).parents[2] / "examples" / f"{name}.py"
    specification = importlib.util.spec_from_file_location(name, file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def api_on(monkeypatch: pytest.MonkeyPatch, windows: FakeWindows) -> None:
    """Let the functions and classes of `lastbranch.etw` run on ``windows``."""
    made, choice = WindowsKernel(windows), import_module("lastbranch.etw.kernel_choice")
    modules = [import_module(found.name) for found in iter_modules(etw.__path__, "lastbranch.etw.")]
    for name, theirs in (("kernel", choice.kernel), ("windows", choice.windows)):
        for module in modules:  # all modules are imported: a later import would keep the fake
            if vars(module).get(name) is theirs:
                monkeypatch.setattr(module, name, lambda: made)


@contextmanager
def fake_windows(log: bytes) -> Iterator[FakeWindows]:
    """A Windows that `lastbranch record` runs on, whose sessions write ``log``."""
    made = FakeWindows(toolkit=TOOLKIT)
    made.log_of = lambda session: log
    with pytest.MonkeyPatch.context() as patch:
        api_on(patch, made)
        patch.setitem(recorders.RECORDERS, sys.platform, recorders.RECORDERS["win32"])
        yield made
    assert made.failures == []
    assert made.open_tokens == 0
