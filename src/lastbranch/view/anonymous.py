"""A capture without the names in it: what is left to give to others.

Names of functions, source files, modules, processes and threads become hashes, with a key of their own for each file:
nobody can find a name by hashing guesses, and equal names stay equal within the file. Everything else that says whose
program ran where goes: paths, build ids, command lines, host name and kernel release, date, source text.
"""

from __future__ import annotations

import copy
import hmac
import os
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..analysis import Sources
from ..model import Event, Module, ModuleKind, Process, Profile, Thread, visible
from ..symbols import Function, FunctionTable, Names, Symbolizer, SymbolOptions
from .answer import Answer
from .loaded import Loaded

__all__ = ["Anonymous"]

_HASHED = (ModuleKind.FILE, ModuleKind.KERNEL_MODULE)
"""Modules whose name is not the same everywhere."""
_LETTERS = 10
_STUB = "@plt"
"""At the end of a name, which analysis looks for."""
_TRACEPOINT = 2
"""PERF_TYPE_TRACEPOINT (include/uapi/linux/perf_event.h)."""
_COMMON = ("perf.data",)
"""A name that a capture can have without saying anything, and that hints speak of."""
_LEFT_OUT = "left out: this file is anonymous"


class Anonymous:
    """Hides the names of one file, in `loaded` and in `cleaned` answers."""

    def __init__(self, loaded: Loaded) -> None:
        self._key = secrets.token_bytes(16)
        self.loaded = self._without_names(loaded)
        paths = _paths(loaded)
        if loaded.before is not None:
            self.loaded.before = self._without_names(loaded.before)
            paths |= _paths(loaded.before)
        self._paths = _pattern(paths)

    def _without_names(self, loaded: Loaded) -> Loaded:
        profile = _profile(loaded.profile, self.hidden)
        made = replace(loaded, profile=profile, source_roots=(), before=None)
        made.symbolizer = _HiddenSymbolizer(loaded.profile, loaded.symbols, self.hidden)
        made.sources = Sources(profile, None)
        return made

    def hidden(self, kind: str, name: str) -> str:
        """The substitute of ``name``; an empty name stays empty."""
        text = name.encode("utf-8", "surrogateescape")
        return f"{kind}_{hmac.digest(self._key, text, 'sha256').hex()[:_LETTERS]}" if name else ""

    def cleaned(self, question: str, answer: Answer) -> Answer:
        """``answer`` of `loaded` without its remaining names: paths of binaries, hosts of captures that were opened
        together, and details in findings of `check`, which reads the file itself."""
        columns, header = dict(answer.columns), answer.header
        if question == "capture":
            header = {**header, "captures": [{**one, "host": ""} for one in header["captures"]]}
        if question == "findings":
            columns["seen"] = [_LEFT_OUT] * len(columns["seen"])
        for name, column in columns.items():
            columns[name] = column if isinstance(column, np.ndarray) else [*map(self.text, column)]
        return Answer(self._of(header), columns)

    def text(self, text: str) -> str:
        """``text`` with a hash in the place of each path."""
        return self._paths.sub(lambda found: self.hidden("path", found[0]), text)

    def _of(self, value: Any) -> Any:
        match value:
            case dict():
                return {self._of(name): self._of(one) for name, one in value.items()}
            case list() | tuple():
                return [self._of(one) for one in value]
            case str():
                return self.text(value)
        return value


_Hide = Callable[[str, str], str]


def _profile(profile: Profile, hide: _Hide) -> Profile:
    """``profile`` with other tables; samples and addresses are the same."""
    made = copy.copy(profile)  # it has what `bind` added
    made.name, made.header, made.raw_features, made.findings = "capture", {}, {}, None
    made.machine = replace(profile.machine, host="", os_release="")
    made.clock = replace(profile.clock, wall=None)
    made.modules = [_module(module, hide) for module in profile.modules]
    made.processes = [_process(process, hide) for process in profile.processes]
    made.threads = [_thread(thread, hide) for thread in profile.threads]
    made.events = [_event(event, hide) for event in profile.events]
    made.notes = []
    made.records = {"all": sum(profile.records.values())}
    made.damage = [replace(damage, value=None) for damage in profile.damage]
    return made


def _module(module: Module, hide: _Hide) -> Module:
    if module.kind not in _HASHED:
        return replace(module, build_id=b"")
    # The format of a module decides how its addresses count, and a backslash marks a module of Windows.
    name = ("\\" if module.is_pe else "") + hide("module", module.name)
    return replace(module, name=name, build_id=b"", pdb_guid=None, pdb_age=0, pdb_name="", timestamp=0, checksum=0)


def _process(process: Process, hide: _Hide) -> Process:
    return replace(process, name=hide("process", process.name), command_line="")


def _thread(thread: Thread, hide: _Hide) -> Thread:
    return replace(thread, name=hide("thread", thread.name))


def _event(event: Event, hide: _Hide) -> Event:
    """Tracepoints can be those of a program (uprobes, USDT), which their names say."""
    own = event.programming.get("type") == _TRACEPOINT
    return replace(event, name=hide("event", event.name)) if own else event


class _HiddenSymbolizer(Symbolizer):
    """Names addresses by hashes of their names."""

    def __init__(self, profile: Profile, options: SymbolOptions, hide: _Hide) -> None:
        super().__init__(profile, options)
        self._hide, self._hidden = hide, dict[int, FunctionTable]()

    def names(self, module: int, address: NDArray[np.uint64]) -> Names:
        return self._without_names(super().names(module, address))

    def names_at(self, process: int, address: NDArray[np.uint64], time: NDArray[np.int64] | None = None) -> Names:
        return self._without_names(super().names_at(process, address, time))

    def functions(self, module: int) -> FunctionTable:
        if module not in self._hidden:
            table = super().functions(module)
            self._hidden[module] = FunctionTable(table.start, table.end, self._functions(table.functions))
            self.notes.clear()
        return self._hidden[module]

    def _without_names(self, names: Names) -> Names:
        self.notes.clear()
        files = [self._hide("file", file) for file in names.files]
        return replace(names, functions=self._functions(names.functions), files=files, notes=[])

    def _functions(self, functions: Iterable[Function]) -> list[Function]:
        out = []
        for one in functions:
            name = self._hide("function", one.name or one.shown) + (_STUB if one.name.endswith(_STUB) else "")
            out.append(one._replace(name=name, shown=name, file=self._hide("file", one.file)))
        return out


def _paths(loaded: Loaded) -> set[str]:
    """Every path that an answer could name."""
    profile = loaded.profile
    given = {*loaded.paths, loaded.symfs or "", *loaded.folders, *loaded.source_roots, profile.name}
    given = (given | {name for name, _ in profile.refused}) - {"", "-"}
    modules = [m for m in profile.modules if m.kind in _HASHED]
    paths = {path for m in modules for path in (m.name, m.binary, m.pdb_name) if "/" in path or "\\" in path}
    paths |= given.difference(_COMMON) | {os.path.abspath(path) for path in given}
    return paths | {os.path.realpath(path) for path in given} | {os.path.expanduser("~")}


def _pattern(paths: Iterable[str]) -> re.Pattern[str]:
    """The longest of ``paths`` at each place, as they are shown, and what follows them as a part of the path."""
    shown = sorted({visible(path) for path in paths} - {"/", "."}, key=len, reverse=True)
    return re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, shown))})(?![\w-])(?:[/\\][^\s:;,'\"]*)?")
