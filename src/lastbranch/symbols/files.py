"""The files that a backend reads, and how a path that somebody else wrote is followed.

Captures and symbol files name other files. Such a name is a hint: it is joined to a folder that the user trusts, must
stay below it when all links are resolved, and is opened only if it is a regular file.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import Literal

__all__ = ["DebugFiles", "below", "is_remote", "open_regular"]


@dataclass(frozen=True, slots=True)
class DebugFiles:
    """Checked files of one module: all regular, and of the identity that the capture recorded.

    A backend opens these with `open_regular`, and nothing else but what `below` allows in ``dwo``. The addresses that
    it is asked for, and those of its functions, are link addresses in ELF; in PE they count from the image's base
    (RVA), since a PDB alone does not tell the base.
    """

    kind: Literal["elf", "pe", "breakpad", "kallsyms", "perfmap", "jitdump"]
    binary: str = ""
    """The ELF or PE file (empty where only the debug file was found), or the one file of another kind."""
    debug: str | None = None
    """ELF: the separate debug file. PE: the PDB."""
    dwp: str | None = None
    """ELF: the DWARF package beside the binary or its debug file."""
    dwo: tuple[str, ...] = ()
    """Folders below which split DWARF files (``DW_AT_dwo_name``) may be opened, in the order of search."""
    member: str = ""
    """kallsyms: the kernel module whose names are wanted; empty for the kernel itself."""


def is_remote(path: str) -> bool:
    """Whether opening ``path`` could talk to another machine (UNC), or to a device by a name of Windows."""
    return path.replace("\\", "/").startswith("//")


def open_regular(path: str, *, links: bool = True) -> int:
    """A descriptor of the regular file at ``path``, opened without waiting for a writer.

    Raises `OSError`: also for FIFOs, devices, sockets, folders and remote paths, and for links unless ``links``.
    """
    if is_remote(path) or "\0" in path:
        raise OSError(f"not a local file: {path!r}")
    flags = ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY", "O_NOCTTY", *(() if links else ("O_NOFOLLOW",)))
    fd = os.open(path, os.O_RDONLY | sum(getattr(os, f, 0) for f in flags))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"not a regular file: {path!r}")
    return fd


def below(root: str, hint: str) -> str | None:
    """The regular file that ``hint`` means in folder ``root``, absolute and free of links; ``None`` if there is none.

    ``hint`` may be written as POSIX or Windows paths are, absolute ones count from ``root``. What leaves ``root``, by
    ``..`` or by a link, is not followed.
    """
    parts = [p for p in hint.replace("\\", "/").split("/") if p not in ("", ".")]
    if not parts or ".." in parts or "\0" in hint or is_remote(hint) or is_remote(root):
        return None
    if parts[0][1:] == ":":  # a drive letter
        parts = parts[1:]
    try:
        top = os.path.realpath(root)
        found = os.path.realpath(os.path.join(top, *parts))
        inside = os.path.commonpath([top, found]) == top
        return found if inside and stat.S_ISREG(os.stat(found).st_mode) else None
    except (OSError, ValueError):
        return None
