"""Names of the running kernel: /proc/kallsyms (kallsyms(9), kernel/kallsyms.c) and the build ids in /sys.

Addresses of another kernel mean nothing here, and those of another boot of this one are moved (KASLR). So names are
taken only if the build id of the running kernel is the one recorded, and count from ``_text`` or from the beginning of
their module, as the binder's addresses do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from ..binaries.elf import build_id_in
from ..binaries.files import open_regular
from ..errors import FormatError, LastbranchError
from .model import DebugFiles, FunctionTable
from .tables import lines_of, only_at, table_of

__all__ = ["is_module_name", "read_kallsyms", "running_build_id"]

KALLSYMS = "/proc/kallsyms"
_CODE = frozenset("tTwWvV")
"""Types of code, as nm(1) calls them; weak ones can be code."""
_LIMIT = 1 << 20

is_module_name = re.compile(r"[A-Za-z0-9_-]+").fullmatch


def read_bytes(path: str) -> bytes | None:
    """The beginning of a regular file; ``None`` where it cannot be read."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            return file.read(_LIMIT)
    except OSError:
        return None


def running_build_id(module: str = "", read: Callable[[str], bytes | None] = read_bytes) -> bytes:
    """The build id of the running kernel or one of its modules; empty where the kernel does not tell."""
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
    code = {a - base for a, kind, _ in found if kind in _CODE}
    return only_at(table, code)  # what is no code only tells where code ends


def _rank(kind: str, name: str) -> tuple[bool, bool, int, int]:
    """Which of the symbols of one address names it best, as perf chooses."""
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
