"""Function tables from lists of symbols in text files, and the kernel's list."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from ..binaries.elf import build_id_in
from ..binaries.files import open_regular, whole_file
from ..errors import FormatError, LastbranchError
from .demangle import demangle
from .model import DebugFiles, Function, FunctionTable, Names, used_rows

__all__ = ["TableReader", "is_module_name", "lines_of", "read_kallsyms", "running_build_id", "table_of"]


TEXT_LIMIT = 1 << 30
"""Bytes of a text file of symbols."""

_TOP = (1 << 64) - 1


def table_of(symbols: Iterable[tuple[int, int, str]]) -> FunctionTable:
    """The table of (address, size, linkage name). The last name of an address counts, the others are aliases.

    A symbol of size 0 reaches to the next symbol; a symbol that overlaps the next symbol ends there.
    """
    found = sorted(enumerate(symbols), key=lambda s: (s[1][0], s[0]))
    if not found:
        return FunctionTable.empty()
    rows: list[tuple[int, int, str]] = []
    aliases: dict[int, tuple[str, ...]] = {}
    for _, (address, size, name) in found:
        if rows and rows[-1][0] == address:
            _, earlier_size, earlier = rows[-1]
            if earlier != name:
                aliases[len(rows) - 1] = (*aliases.get(len(rows) - 1, ()), earlier)
            rows[-1] = (address, size or earlier_size, name)
        else:
            rows.append((address, size, name))
    names = [name for *_, name in rows]
    start = np.array([a for a, *_ in rows], np.uint64)
    sizes = np.array([s for _, s, _ in rows], np.uint64)
    following = np.append(start[1:], np.uint64(_TOP))
    end = np.where(sizes > 0, np.minimum(start + np.minimum(sizes, ~start), following), following)
    length = np.where(end == _TOP, sizes, end - start).tolist()
    columns = (names, demangle(names), start.tolist(), length)
    functions = [Function(*row) for row in zip(*columns, strict=True)]
    return FunctionTable(start, end, functions, aliases)


class TableReader:
    """A backend made of a function that reads a table."""

    def __init__(self, read: Callable[[DebugFiles], FunctionTable]) -> None:
        self._read = read

    def functions(self, files: DebugFiles) -> FunctionTable:
        """Every function. Raises `FormatError`, `OSError`."""
        return self._read(files)

    def symbolize(self, files: DebugFiles, address: NDArray[np.uint64]) -> Names:
        """The function that each address lies in; no lines. Raises `FormatError`, `OSError`."""
        table = self._read(files)
        used, rows = used_rows(table.at(address))
        return Names.of_functions(rows, [table.functions[row] for row in used.tolist()])


def lines_of(path: str, *, links: bool = True) -> list[str]:
    """The lines of a text file; bytes that are no UTF-8 become surrogates. Raises `FormatError` if it is too large."""
    with os.fdopen(open_regular(path, links=links), "rb") as file:
        if os.fstat(file.fileno()).st_size > TEXT_LIMIT:
            raise FormatError(f"a list of symbols has at most {TEXT_LIMIT} bytes", file=path, field="size")
        data = file.read()
    return data.decode("utf-8", "surrogateescape").split("\n")


# -- Names of the running kernel: /proc/kallsyms (kallsyms(9), kernel/kallsyms.c) and the build ids in /sys
#
# Another kernel has other addresses, and each boot of a kernel moves its addresses (KASLR). So the list is used only if
# the build id of the running kernel is the recorded one. Addresses count from ``_text`` or the start of the module, as
# in the binder.


KALLSYMS = "/proc/kallsyms"
_CODE = frozenset("tTwWvV")
"""Types of code (nm(1)); weak symbols can be code."""
_LIMIT = 1 << 20

is_module_name = re.compile(r"[A-Za-z0-9_-]+").fullmatch


def read_bytes(path: str) -> bytes | None:
    """The beginning of a regular file; ``None`` where it cannot be read."""
    try:
        return whole_file(path, _LIMIT)
    except OSError:
        return None


def running_build_id(module: str = "", read: Callable[[str], bytes | None] = read_bytes) -> bytes:
    """The build id of the running kernel or of a kernel module; empty if not known."""
    notes = f"/sys/module/{module.replace('-', '_')}/notes/.note.gnu.build-id" if module else "/sys/kernel/notes"
    return build_id_in(read(notes) or b"")


def read_kallsyms(files: DebugFiles) -> FunctionTable:
    """Functions of the kernel, or of module ``files.member``; ``files.debug`` names /proc/modules, which has its base.

    Raises `FormatError` where addresses are hidden (all zero, for those without CAP_SYSLOG).
    """
    found: list[tuple[int, str, str]] = []
    base = -1
    for line in lines_of(files.binary):
        # ffffffff81000000 T _text            ffffffffc0001000 t function\t[module]
        fields = line.split()
        if len(fields) < 3 or not _is_hex(fields[0]):
            continue
        address, kind, name = int(fields[0], 16), fields[1], fields[2]
        if name == "_text" and not files.member and len(fields) == 3:
            base = address
        if (fields[3][1:-1] if len(fields) > 3 else "") == files.member:
            found.append((address, kind, name))
    if files.member:
        base = _module_base(files)
    if base <= 0 or not any(a for a, *_ in found):
        raise FormatError(
            "addresses of the kernel are hidden", file=files.binary, hint="run as root, or set kernel.kptr_restrict=0"
        )
    found.sort(key=lambda s: (s[0], *_rank(*s[1:])))
    table = table_of((address - base, 0, name) for address, _, name in found if address >= base)
    code = np.array([a - base for a, kind, _ in found if kind in _CODE and a >= base], np.uint64)
    return table.take(np.flatnonzero(np.isin(table.start, code)))  # other symbols only end the code before them


def _rank(kind: str, name: str) -> tuple[bool, bool, int, int]:
    """The order of the symbols of one address, the best name last, as perf chooses."""
    return kind in _CODE, kind.isupper(), len(name.lstrip("_")) - len(name), len(name)


def _module_base(files: DebugFiles) -> int:
    """The address in the last column of /proc/modules (proc(5)): ``name size uses by state address``."""
    try:
        found = (line.split() for line in lines_of(files.debug or ""))
        return next((int(f[5], 16) for f in found if len(f) > 5 and f[0] == files.member and _is_hex(f[5])), -1)
    except (OSError, LastbranchError):
        return -1


def _is_hex(text: str) -> bool:
    return bool(re.fullmatch(r"(0x)?[0-9a-f]{1,16}", text))
