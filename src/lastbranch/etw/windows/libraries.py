"""Exports of Windows' DLLs, found when they are called first, with a clear word where one is missing."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import PureWindowsPath
from typing import Any, Protocol

from ..status import EtwError, Status
from .functions import CALLBACKS, FUNCTIONS, MERGE, c_type

__all__ = ["Libraries", "Loader", "SystemLoader", "callback", "wide"]


class Loader(Protocol):
    """Where libraries come from: `SystemLoader`, and in tests a recording fake."""

    def library(self, name: str, convention: str) -> Any:
        """The library ``name`` as ctypes gives one, its attributes being foreign functions. `OSError` without one."""

    def last_error(self) -> int:
        """What GetLastError said after the last call of this thread."""

    def build(self) -> int:
        """Build number of the running Windows."""

    def meaning(self, code: int) -> str:
        """What Windows says of a code."""


class SystemLoader:
    """Windows itself. DLLs are looked for in the system's folders only, never in the current one."""

    def library(self, name: str, convention: str) -> Any:
        if sys.platform == "win32":
            kind = ctypes.CDLL if convention == "cdecl" else ctypes.WinDLL
            return kind(name, use_last_error=True)
        raise OSError(f"{name} is a library of Windows")

    def last_error(self) -> int:
        if sys.platform == "win32":
            return ctypes.get_last_error()
        return 0

    def build(self) -> int:
        if sys.platform == "win32":
            return sys.getwindowsversion().build
        return 0

    def meaning(self, code: int) -> str:
        if sys.platform == "win32":
            return ctypes.FormatError(code).strip()
        return ""


def callback(name: str, function: Callable[..., Any]) -> Any:
    """``function`` as the callback type ``name`` of `CALLBACKS`. The caller keeps it as long as Windows may call it."""
    result, arguments = CALLBACKS[name]
    types = [c_type(a) for a in arguments]
    if sys.platform == "win32":
        return ctypes.WINFUNCTYPE(c_type(result), *types)(function)
    return ctypes.CFUNCTYPE(c_type(result), *types)(function)


def wide(call: str, text: str) -> Any:
    """``text`` as an array of UTF-16 units with a nul behind them.

    Raises `EtwError` (123) for a nul in the text, at which Windows would cut it.
    """
    if "\0" in text:
        raise EtwError(call, Status.INVALID_NAME, f"{text!r} has a nul in it")
    data = text.encode("utf-16-le", "surrogatepass") + b"\0\0"
    return (ctypes.c_uint16 * (len(data) // 2)).from_buffer_copy(data)


def _toolkit() -> tuple[str, ...]:
    """KernelTraceControl.dll: on the loader's path, and where the Windows Performance Toolkit is installed."""
    programs = os.environ.get("PROGRAMFILES(X86)") or os.environ.get("PROGRAMFILES")
    folder = ("Windows Kits", "10", "Windows Performance Toolkit", MERGE[0])
    return (*MERGE, *([str(PureWindowsPath(programs, *folder))] if programs else []))


class Libraries:
    """The exports of `FUNCTIONS`, each resolved once."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self._functions: dict[str, Any] = {}

    def function(self, name: str) -> Any:
        """The export ``name`` as a foreign function.

        Raises `EtwError`: 127 where this Windows lacks it, 126 where none of its libraries is installed.
        """
        if name not in self._functions:
            self._functions[name] = self._resolve(name)
        return self._functions[name]

    def has(self, name: str) -> bool:
        """Whether this Windows exports ``name``."""
        try:
            self.function(name)
        except EtwError:
            return False
        return True

    def status(self, name: str, *arguments: Any, fine: Sequence[int] = (Status.SUCCESS,)) -> int:
        """Call ``name``, which returns a Win32 code. Raises `EtwError` for a code that is not ``fine``.

        Raises 87 for a number that its argument cannot hold, which ctypes would cut.
        """
        function = self.function(name)
        for value, kind in zip(arguments, function.argtypes, strict=True):
            if isinstance(value, int) and not 0 <= value < 1 << 8 * ctypes.sizeof(kind):
                raise EtwError(name.removesuffix("W"), Status.INVALID_PARAMETER, f"{value:#x} is out of range")
        code = int(function(*arguments))
        if code not in fine:
            known = code in Status._value2member_map_
            raise EtwError(name.removesuffix("W"), code, "" if known else self.loader.meaning(code))
        return code

    def _resolve(self, name: str) -> Any:
        declared = FUNCTIONS[name]
        found = False
        for file in _toolkit() if declared.libraries is MERGE else declared.libraries:
            try:
                library = self.loader.library(file, declared.convention)
            except OSError:
                continue
            found = True
            try:
                function = getattr(library, name)
            except AttributeError:
                continue
            function.restype, function.argtypes = c_type(declared.result), [c_type(a) for a in declared.arguments]
            return function
        raise self._missing(name, found)

    def _missing(self, name: str, found: bool) -> EtwError:
        call, libraries, since = name.removesuffix("W"), FUNCTIONS[name].libraries, FUNCTIONS[name].since
        hint = f"it needs {since}; this is build {self.loader.build()}" if since else None
        if found:
            return EtwError(call, Status.PROC_NOT_FOUND, f"{' and '.join(libraries)} do not export {name}", hint=hint)
        return EtwError(call, Status.MOD_NOT_FOUND, f"{' or '.join(libraries)} cannot be loaded", hint=hint)
