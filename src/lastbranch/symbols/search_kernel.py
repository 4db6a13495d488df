"""Names of the kernel and its modules: vmlinux or a module file by build id, else the running kernel's own list."""

from __future__ import annotations

import os

from ..binaries import same_build_id
from ..model import ModuleKind
from . import kallsyms
from .found import Found, Pieces, Search
from .model import DebugFiles
from .search_elf import find_elf

__all__ = ["find_kernel"]

_MODULES = "/proc/modules"


def find_kernel(search: Search, row: int) -> Found:
    """The kernel image or kernel module in ``row``."""
    module = search.profile.modules[row]
    member = "" if module.kind is ModuleKind.KERNEL else _member(module.short)
    found = find_elf(search, row) if not member else search.nothing(module, "")
    if found.files is not None:
        return found
    if member and not kallsyms.is_module_name(member):
        return search.nothing(module, "not a name of a kernel module")
    running = kallsyms.running_build_id(member)
    if not module.build_id:
        return search.nothing(module, "no build id of the kernel was recorded to know its names by")
    if not same_build_id(module.build_id, running):
        return search.nothing(
            module,
            f"the running kernel is another one (build id {running.hex() or 'unknown'}, recorded "
            f"{module.build_id.hex()}); give vmlinux with --debug-dir",
        )
    files = DebugFiles("kallsyms", kallsyms.KALLSYMS, debug=_MODULES if member else None, member=member)
    linked = min((s.address for s in module.segments if s.executable), default=0)
    return Found(files, f"kallsyms {running.hex()} {member}", Pieces(((linked, (1 << 64) - 1, -linked),)))


def _member(short: str) -> str:
    """``/lib/modules/R/kernel/net/nf-tables.ko.xz`` or ``[nf_tables]`` -> ``nf_tables``."""
    stem = short.strip("[]")
    for end in (".zst", ".xz", ".gz", ".ko", ".debug"):
        stem = stem.removesuffix(end)
    return os.path.basename(stem).replace("-", "_")
