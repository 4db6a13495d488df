"""Readable names: C++ (Itanium and MSVC), Rust and Swift.

LLVM's tools come first, so that names read as llvm-symbolizer writes them, then those of binutils, then the C++ runtime
library (``__cxa_demangle``) or, on Windows, dbghelp. A name that no demangler knows stays as it is. Names come from
files that others made, so all this runs in the worker's process for programs.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import Any

from ..model import temporary_file
from . import tools
from .table_bytes import texts_column, texts_of
from .tools import newest

__all__ = ["demangle", "mangled"]

mangled = re.compile(r"_{1,4}Z|_R[A-Z0-9]|\?|_?\$[sS]|_T0").match
"""Whether a name may be mangled: Itanium and old Rust, Rust v0, MSVC, Swift (the prefixes that its ABI had)."""

_SAFE = re.compile(r"[!-~]+", re.ASCII).fullmatch
"""What can be handed to a tool that reads words line by line."""

_SECONDS = 120
_PROCESSES, _SHARE = 4, 5000
"""Most processes of a tool at once, and the names that are worth one more."""

_UNDNAME = [
    "--no-access-specifier",
    "--no-calling-convention",
    "--no-member-type",
    "--no-return-type",
    "--no-variable-type",
]
"""How llvm-symbolizer shows MSVC names."""

_HASH = re.compile(r"::h[0-9a-f]{16}(?=$|[ .])")
"""What Rust's first mangling appends: it differs between instances."""

_CLONE = re.compile(r" \[clone ([^\]]+)\]")
_CLONES = re.compile(r"( \[clone [^\]]+\])+$")
"""How GNU's tools show what a compiler appended to the name of a part or a variant of a function."""

_ESCAPES = {"$SP$": "@", "$BP$": "*", "$RF$": "&", "$LT$": "<", "$GT$": ">", "$LP$": "(", "$RP$": ")", "$C$": ",",
            "..": "::"}  # fmt: skip
_ESCAPE = re.compile(r"\$u([0-9a-f]{1,6})\$|\$(?:SP|BP|RF|LT|GT|LP|RP|C)\$|\.\.")


def demangle(names: Iterable[str]) -> list[str]:
    """``names`` as people write them, in the same order. Raises nothing.

    The text after ``@`` (``@plt``, a version) is no part of a mangled name and stays.
    """
    names = list(names)
    parts = [(n, "", "") if n[:1] == "?" else n.partition("@") for n in names]
    wanted = sorted({base for base, _, _ in parts if mangled(base)})
    readable: dict[str, str] = {}
    if tools.delegate is not None and wanted:
        _, answer = tools.delegate({"ask": "demangle"}, {"name": texts_column(wanted)})
        readable = dict(zip(wanted, texts_of(answer, "shown"), strict=True))
    else:
        for belongs, demanglers in _SCHEMES:
            readable |= _with_first([n for n in wanted if n not in readable and belongs(n)], demanglers)
    return [
        f"{readable[base]}{at}{rest}" if base in readable else n
        for n, (base, at, rest) in zip(names, parts, strict=True)
    ]


Demangler = Callable[[list[str]], list[str]]
"""Names -> their readable forms, the name itself where it knows none; or nothing at all where it cannot run."""


def _with_first(names: list[str], demanglers: tuple[Demangler, ...]) -> dict[str, str]:
    """Each demangler gets the names that the demanglers before it did not know: no demangler knows all names. GCC
    before 13 mangled some expressions in a way that LLVM does not know."""
    mangled_as = {n: _one_underscore(n) for n in names}
    readable: dict[str, str] = {}
    for ask in demanglers:
        left = [n for n in names if n not in readable]
        shown = zip(left, ask([mangled_as[n] for n in left]), strict=False) if left else ()
        readable.update((n, _rust(n, s)) for n, s in shown if s and s != mangled_as[n])
    return readable


def _one_underscore(name: str) -> str:
    """Mach-O and old Windows compilers put one more in front."""
    return name[1:] if name.startswith(("__Z", "____Z")) else name


# -- Installed tools


def _with_tool(tool: str, ask: Callable[[str, list[str]], list[str] | None], names: list[str]) -> list[str]:
    """The answers of ``tool`` to ``names``; none where it is not installed or fails."""
    path = newest(tool)
    safe = [n for n in names if _SAFE(n)]
    shown = ask(path, safe) if path else None
    if shown is None:
        return []
    readable = dict(zip(safe, shown, strict=True))
    return [readable.get(n, n) for n in names]


def _gnu(names: list[str]) -> list[str]:
    """As LLVM writes them: ``f() (.isra.0.cold)`` for ``f() [clone .isra.0] [clone .cold]``."""
    shown = _with_tool("c++filt", _lines, names)
    return [_CLONES.sub(lambda found: f" ({''.join(_CLONE.findall(found[0]))})", name) for name in shown]


def _lines(tool: str, names: list[str]) -> list[str] | None:
    shown = _run([tool], names)
    return shown if len(shown) == len(names) else None


def _undname(tool: str, names: list[str]) -> list[str] | None:
    """llvm-undname prints each name, its readable form (not on standard output if it has none), and a blank line."""
    out: dict[str, str] = {}
    wanted, current = set(names), ""
    for line in _run([tool, *_UNDNAME], names):
        if line in wanted and line not in out:
            current = line
            out[current] = current
        elif line and current:
            out[current] = line
    return [out.get(n, n) for n in names]


def _run(command: list[str], names: list[str]) -> list[str]:
    """The lines that ``command`` answers to ``names``; no lines if the command fails. Many are shared among
    processes."""
    from subprocess import SubprocessError  # not at the top: names that are kept need no program

    count = max(1, min(os.cpu_count() or 1, _PROCESSES, len(names) // _SHARE))
    cuts = [len(names) * i // count for i in range(count + 1)]
    with contextlib.ExitStack() as stack:
        try:
            running = [stack.enter_context(_Tool(command, names[a:b])) for a, b in pairwise(cuts)]
            return [line for tool in running for line in tool.lines()]
        except (OSError, SubprocessError):
            return []


class _Tool:
    """One process, asked and answering through files: a tool that writes line by line makes a pipe slow."""

    def __init__(self, command: list[str], names: list[str]) -> None:
        from subprocess import DEVNULL, Popen

        self._answers = temporary_file()
        with temporary_file() as asked:
            asked.write("".join(f"{n}\n" for n in names).encode())
            asked.seek(0)
            self._process = Popen(command, stdin=asked, stdout=self._answers, stderr=DEVNULL)

    def __enter__(self) -> _Tool:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._answers.close()

    def lines(self) -> list[str]:
        self._process.wait(_SECONDS)
        self._answers.seek(0)
        return self._answers.read().decode("utf-8", "backslashreplace").splitlines()


# -- Libraries of the system


RUNTIME_LIBRARIES = ("libstdc++.so.6", "libc++abi.so.1", "libc++.1.dylib")


def _runtime(names: list[str]) -> list[str]:
    """By ``__cxa_demangle`` of the C++ runtime library (Itanium C++ ABI, 3.4)."""
    import ctypes

    for library in RUNTIME_LIBRARIES:
        try:
            function, free = ctypes.CDLL(library).__cxa_demangle, ctypes.CDLL(None).free
        except (OSError, AttributeError):
            continue
        function.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        function.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]

        def allocated(name: str, function: Any = function, free: Any = free) -> str:
            found = function(name.encode(), None, None, None)
            if not found:
                return ""
            try:
                return ctypes.string_at(found).decode("utf-8", "backslashreplace")
            finally:
                free(found)

        return [_with_suffix(name, allocated) for name in names]
    return []


def _with_suffix(name: str, demangle_one: Callable[[str], str]) -> str:
    """Clones (.cold, .isra.0) are the compiler's own and not the ABI's; they are shown as LLVM shows them."""
    base, dot, suffix = name.partition(".")
    shown = demangle_one(base) if name.isprintable() else ""  # no C string otherwise
    return f"{shown} ({dot}{suffix})" if shown and dot else shown or name


def _dbghelp(names: list[str]) -> list[str]:
    """By UnDecorateSymbolNameW of Windows, with the class and arguments only."""
    import ctypes

    if not hasattr(ctypes, "WinDLL"):
        return []
    undecorate = ctypes.WinDLL("dbghelp").UnDecorateSymbolNameW
    room = ctypes.create_unicode_buffer(1 << 14)
    name_only_parts = 0x0002 | 0x0004 | 0x0008 | 0x0080 | 0x0200  # no MS keywords, returns, model, access, member type
    return [room.value if undecorate(n, room, len(room), name_only_parts) else n for n in names]


_SCHEMES: tuple[tuple[Callable[[str], object], tuple[Demangler, ...]], ...] = (
    (re.compile(r"_[^Z]{0,3}Z|_R").match, (partial(_with_tool, "llvm-cxxfilt", _lines), _gnu, _runtime)),
    (re.compile(r"\?").match, (partial(_with_tool, "llvm-undname", _undname), _dbghelp)),
    (re.compile(r".?\$[sS]|_T0").match, (partial(_with_tool, "swift-demangle", _lines),)),
)
"""Whether a name is of a scheme, and its demanglers: C++ but of MSVC and Rust, MSVC, Swift."""


# -- Rust's first mangling is Itanium with escapes in it


def _rust(name: str, shown: str) -> str:
    if name.startswith("_R") or not _HASH.search(shown):
        return shown
    plain = _HASH.sub("", shown)
    parts = [p[1:] if p.startswith("_$") else p for p in plain.split("::")]
    return "::".join(_ESCAPE.sub(_unescape, p) for p in parts)


def _unescape(found: re.Match[str]) -> str:
    number = found.group(1)
    if number is None:
        return _ESCAPES[found.group()]
    code = int(number, 16)
    return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else found.group()
