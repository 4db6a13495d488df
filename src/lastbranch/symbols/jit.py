"""Code that a program made while it ran: perf maps and jitdumps of the processes of a capture.

Both lie where everybody can write, under names that everybody can guess. They are taken only if they belong to the user
whose process they speak of, are regular files and no links, and if the capture was made on this machine. A file
in a folder that the user names (``--debug-dir``) is the user's word.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass, field

from ..binaries.files import below, open_regular
from ..errors import LastbranchError
from ..model import Process, Profile
from .jitdump import JitHeader, read_header
from .model import DebugFiles
from .options import SymbolOptions

__all__ = ["JitSource", "find_jit"]

PERF_MAPS = "/tmp"
"""Where JITs write their perf maps (Linux, tools/perf/Documentation/jit-interface.txt)."""

_DUMP = re.compile(r"(?:.*/)?jit-(\d+)\.dump").fullmatch
_HEAD = 64


@dataclass(slots=True)
class JitSource:
    """The files that speak of one process. A jitdump, which knows times and lines, is asked before a perf map."""

    dump: DebugFiles | None = None
    header: JitHeader | None = None
    perfmap: DebugFiles | None = None
    notes: list[str] = field(default_factory=list)


def find_jit(profile: Profile, process: Process, options: SymbolOptions) -> JitSource:
    """What there is of ``process``."""
    out = JitSource()
    owners = _owners(profile, process)
    for root, name in _dumps(profile, process, options):
        path = _usable(root, name, owners, out)
        header = _header(path, out) if path else None
        if path and header and header.pid == process.pid:
            out.dump, out.header = DebugFiles("jitdump", path), header
            break
        if path and header:
            out.notes.append(f"{path} is of process {header.pid}, not of {process.pid}")
    name = f"perf-{process.pid}.map"
    for root in (*options.debug_dirs, ""):
        path = _usable(root, name if root else os.path.join(PERF_MAPS, name), owners, out)
        if path:
            out.perfmap = DebugFiles("perfmap", path)
            break
    return out


def _dumps(profile: Profile, process: Process, options: SymbolOptions) -> list[tuple[str, str]]:
    """(folder that the user named or nothing, name) of what may be the jitdump of ``process``.

    A JIT maps its dump executable, so that its path is in the capture.
    """
    name = f"jit-{process.pid}.dump"
    mapped = [m.name for m in profile.modules if (found := _DUMP(m.name)) and int(found[1]) == process.pid]
    return [*((root, name) for root in options.debug_dirs), *(("", m) for m in mapped)]


def _usable(root: str, name: str, owners: frozenset[int], out: JitSource) -> str | None:
    """The path of a file that may be read: below ``root``, or (where there is no root) owned by one of ``owners``."""
    if root:
        return below(root, name)
    if not owners or not os.path.isabs(name) or ".." in name.split("/"):
        return None
    try:
        fd = open_regular(name, links=False)
    except OSError as error:
        if os.path.lexists(name):
            out.notes.append(f"{name} is not used: {error.strerror or 'not a regular file'}")
        return None
    said = os.fstat(fd)
    os.close(fd)
    if said.st_uid not in owners:
        out.notes.append(
            f"{name} is not used: it belongs to user {said.st_uid}, the process to {min(owners)}; if you trust it, "
            "copy it to a folder and give that with --debug-dir"
        )
        return None
    return name


def _owners(profile: Profile, process: Process) -> frozenset[int]:
    """Whose files may speak of ``process``: the user that it runs as, or (once it is gone) who reads the capture.

    Empty where the capture is from another machine, or the system has no such owners.
    """
    here = (profile.machine.host, profile.machine.os_release) == (platform.node(), platform.release())
    if not here or not hasattr(os, "geteuid"):
        return frozenset()
    if process.end is None:
        try:
            with open(f"/proc/{process.pid}/status", encoding="utf-8", errors="replace") as status:
                uids = next(line for line in status if line.startswith("Uid:"))
            return frozenset([int(uids.split()[2])])
        except (OSError, StopIteration):
            pass
    return frozenset([os.geteuid()])


def _header(path: str, out: JitSource) -> JitHeader | None:
    try:
        with os.fdopen(open_regular(path, links=False), "rb") as file:
            return read_header(file.read(_HEAD), path)
    except (OSError, LastbranchError) as error:
        out.notes.append(f"{path} is not used: {error}")
        return None
