"""Names for the modules of a profile: first one search for files, then the cache, then the worker."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from ..arrays import distinct
from ..closing import Closing
from ..model import ModuleKind, Profile, visible
from .cache import Cache, CacheRefused, open_cache
from .jit import JitSource, find_jit
from .model import DebugFiles, Function, FunctionTable, Names
from .options import SymbolOptions
from .search import AddressMap, Found, Search, file_state, find_files
from .worker import WorkerClient, WorkerFailed

__all__ = ["Symbolizer"]

Address = NDArray[np.uint64]
_Answer = TypeVar("_Answer")


class Symbolizer(Closing):
    """Names addresses. A symbol file that is damaged, missing or of another build costs its names and adds to ``notes``
    for the user; nothing is raised.

    ``progress`` is called with (address, bytes done, bytes in all or 0) while a file comes from debuginfod. `close`, or
    leaving the context, ends the worker.
    """

    def __init__(
        self,
        profile: Profile,
        options: SymbolOptions | None = None,
        *,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.notes: list[str] = []
        self._profile, self._options, self._progress = profile, options or SymbolOptions(), progress
        self._cache = self._open_cache()
        self._worker = WorkerClient(self._options)
        self._found: dict[int, Found] = {}
        self._jit: dict[int, JitSource] = {}
        self._tables: dict[int, FunctionTable] = {}
        self._failed: set[tuple[int, str]] = set()
        self._end_worker = weakref.finalize(self, self._worker.close)

    def close(self) -> None:
        """End the worker."""
        self._end_worker()

    def names(self, module: int, address: Address) -> Names:
        """The names of module addresses, as the binder makes them, of the module in row ``module``.

        Row -1 and memory without a file have absolute addresses and no names here: see `names_at`.
        """
        found = self._found_files(module)
        if found.files is None:
            return Names.unknown(len(address))
        address = np.asarray(address, np.uint64)
        ordered = bool((address[1:] > address[:-1]).all())
        once, back = (address, None) if ordered else np.unique(address, return_inverse=True)
        in_file, known = found.addresses.to_file(once)
        wanted = once if found.addresses.identical else distinct(in_file[known])
        names = self._attempt(module, found, Names.unknown(len(wanted)), lambda b: self._resolve(found, b, wanted))
        self._note(self._profile.modules[module].short, names)
        if wanted is not once or back is not None:
            row = np.full(len(once), -1, np.int64)
            row[known] = np.searchsorted(wanted, in_file[known])
            names = names.take(row if back is None else row[back])
        if not found.addresses.identical:
            names.functions = _move_functions(names.functions, found.addresses)
        return names

    def functions(self, module: int) -> FunctionTable:
        """Every function of the module, at module addresses; empty where nothing is known."""
        if module not in self._tables:
            found = self._found_files(module)
            table = FunctionTable.empty()
            if found.files is not None:
                table = self._attempt(module, found, table, lambda b: self._list(found, b))
            self._tables[module] = table if found.addresses.identical else _moved_table(table, found.addresses)
        return self._tables[module]

    def files(self, module: int) -> DebugFiles | None:
        """The files that the names of a module come from; ``None`` where there are none."""
        return self._found_files(module).files

    def names_at(self, process: int, address: Address, time: NDArray[np.int64] | None = None) -> Names:
        """The names of code of a JIT at absolute addresses of the process in row ``process``: its jitdump and perf map.

        ``time`` is the clock tick of each address, as a JIT reuses memory. ``None``: the code at the end.
        """
        source = self._jit_files(process)
        address = np.asarray(address, np.uint64)
        names = Names.unknown(len(address))
        label = f"process {self._profile.processes[process].pid}" if process >= 0 else ""
        if source.dump is not None:
            dump, when = source.dump, self._dump_times(source, time)
            names = self._noting_failure(label, names, lambda: self._worker.jit_names(dump, address, when))
        missing = np.flatnonzero(names.function < 0)
        if source.perfmap is not None and len(missing):
            perfmap = source.perfmap
            once, back = np.unique(address[missing], return_inverse=True)
            unknown = Names.unknown(len(once))
            more = self._noting_failure(label, unknown, lambda: self._worker.names(perfmap, "", once))
            row = np.arange(len(address))
            row[missing] = len(address) + back
            names = Names.join([names, more]).take(row)
        return names

    def jit_state(self, process: int) -> list[Any]:
        """Look for the files of a JIT anew, which come and grow while a program runs: their paths, sizes and times."""
        self._jit.pop(process, None)
        source, states = self._jit_files(process), []
        for files in filter(None, (source.dump, source.perfmap)):
            try:
                states.append([files.binary, *file_state(files.binary)])
            except OSError:
                states.append([files.binary])
        return states

    def follow(self, profile: Profile) -> None:
        """Go on with a newer state of a recording, whose tables begin with the rows of the profile until now. Files of
        JITs are looked for anew when they are needed next: they come and grow while a program runs."""
        self._profile, self._jit = profile, {}

    def used(self) -> list[list[Any]] | None:
        """(row of the module, `state_of` it) of all modules that names were asked of, for JSON; ``None`` where names
        came from a JIT."""
        return None if self._jit else [[row, self.state_of(row)] for row in sorted(self._found)]

    def state_of(self, module: int) -> list[Any]:
        """All that the names of a module depend on, for JSON."""
        found = self._found_files(module)
        return [] if found.files is None else self._key(found, self._options.backend)

    def _note(self, what: str, names: Names) -> None:
        for text in (f"{what}: {visible(note)}" for note in names.notes):
            if text not in self.notes:
                self.notes.append(text)

    # -- Sources of names

    def _open_cache(self) -> Cache | None:
        try:
            return open_cache(self._options.cache)
        except CacheRefused as refusal:
            self.notes.append(str(refusal))
            return None

    def _found_files(self, module: int) -> Found:
        if module not in self._found:
            found = self._found[module] = self._search(module)
            if found.why:
                lead = "" if found.files else "no names: "
                self.notes.append(f"{self._profile.modules[module].short}: {lead}{found.why}")
        return self._found[module]

    def _search(self, row: int) -> Found:
        if row < 0 or self._profile.modules[row].kind is ModuleKind.ANONYMOUS:
            return Found()
        search = Search(self._profile, self._options, self._cache, progress=self._progress)
        return find_files(search, row)

    def _jit_files(self, process: int) -> JitSource:
        source = self._jit.get(process)
        if source is None:
            known = process >= 0
            profile, row = self._profile.capture_of(process) if known else (self._profile, process)
            source = find_jit(profile, profile.processes[row], self._options) if known else JitSource()
            self.notes += [note for note in source.notes if note not in self.notes]
            self._jit[process] = source
        return source

    def _dump_times(self, source: JitSource, time: NDArray[np.int64] | None) -> NDArray[np.uint64] | None:
        """Times in the clock of the jitdump, where both have the same."""
        clock = self._profile.clock
        same = source.header is not None and not source.header.processor_clock and clock.name == "CLOCK_MONOTONIC"
        if time is None or not same:
            return None
        return np.maximum(clock.to_ns_array(time), 0).astype(np.uint64)

    # -- Requests

    def _attempt(self, module: int, found: Found, nothing: _Answer, ask: Callable[[str], _Answer]) -> _Answer:
        """The answer of the selected backend, or else of symbol tables; ``nothing`` if both fail."""
        assert found.files is not None
        plain = found.files.kind in ("elf", "pe") and self._options.backend != "tables"
        for backend in (self._options.backend, "tables") if plain else (self._options.backend,):
            if (module, backend) in self._failed:
                continue
            try:
                return ask(backend)
            except WorkerFailed as failure:
                self._failed.add((module, backend))
                self.notes.append(f"{self._profile.modules[module].short}: {failure}")
        return nothing

    def _noting_failure(self, what: str, nothing: Names, ask: Callable[[], Names]) -> Names:
        try:
            return ask()
        except WorkerFailed as failure:
            self.notes.append(f"{what}: {failure}")
            return nothing

    def _resolve(self, found: Found, backend: str, wanted: Address) -> Names:
        """The names of ``wanted``, distinct and ascending addresses of the file. Raises `WorkerFailed`."""
        assert found.files is not None
        if self._cache is None:
            return self._worker.names(found.files, backend, wanted)
        key = self._key(found, backend)
        kept = self._cache.names(key)
        had = wanted[:0] if kept is None else kept[0]
        missing = wanted[~np.isin(wanted, had, assume_unique=True)]
        if kept is None or len(missing):
            more = self._worker.names(found.files, backend, missing)
            both = np.concatenate([had, missing])
            order = np.argsort(both)
            kept = both[order], more if kept is None else Names.join([kept[1], more]).take(order)
            self._cache.keep_names(key, *kept)
        known, names = kept
        return names if len(wanted) == len(known) else names.take(np.searchsorted(known, wanted))

    def _list(self, found: Found, backend: str) -> FunctionTable:
        assert found.files is not None
        if self._cache is None:
            return self._worker.functions(found.files, backend)
        key = self._key(found, backend)
        table = self._cache.functions(key)
        if table is None:
            table = self._worker.functions(found.files, backend)
            self._cache.keep_functions(key, table)
        return table

    def _key(self, found: Found, backend: str) -> list[object]:
        """All that the answer depends on: a debug file, for one, adds names to those of the binary."""
        assert found.files is not None
        files = found.files
        if files.kind == "kallsyms":
            return [files.kind, found.identity]
        paths = [p for p in (files.binary, files.debug, files.dwp) if p]
        states = [[os.path.basename(p), *file_state(p)] for p in paths]
        if files.kind == "breakpad":
            return [files.kind, found.identity, states]
        from .backends import version_of

        return [files.kind, found.identity, backend, version_of(backend, files.kind), states, list(files.dwo)]


def _move_functions(functions: Sequence[Function], addresses: AddressMap) -> list[Function]:
    start, known = addresses.to_module(np.array([f.start for f in functions], np.uint64))
    return [
        f._replace(start=s) if k and f.start else f
        for f, s, k in zip(functions, start.tolist(), known.tolist(), strict=True)
    ]


def _moved_table(table: FunctionTable, addresses: AddressMap) -> FunctionTable:
    """The functions that have module addresses, at these."""
    start, known = addresses.to_module(table.start)
    rows = np.flatnonzero(known)
    rows = rows[np.argsort(start[rows], kind="stable")]
    begin, end = start[rows], start[rows] + (table.end - table.start)[rows]
    aliases = {new: table.aliases[old] for new, old in enumerate(rows.tolist()) if old in table.aliases}
    return FunctionTable(begin, end, _MovedFunctions(table.functions, rows, begin), aliases)


class _MovedFunctions(Sequence[Function]):
    """The functions in ``rows`` of a table at other addresses. Made on use: a program has tens of thousands."""

    def __init__(self, functions: Sequence[Function], rows: NDArray[np.int64], start: NDArray[np.uint64]) -> None:
        self._functions, self._rows, self._start = functions, rows, start

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, row: int) -> Function: ...
    @overload
    def __getitem__(self, row: slice) -> list[Function]: ...
    def __getitem__(self, row: int | slice) -> Function | list[Function]:
        if isinstance(row, slice):
            return list(self)[row]
        return self._functions[int(self._rows[row])]._replace(start=int(self._start[row]))

    def __iter__(self) -> Iterator[Function]:
        functions = list(self._functions)
        for row, start in zip(self._rows.tolist(), self._start.tolist(), strict=True):
            yield functions[row]._replace(start=start)
