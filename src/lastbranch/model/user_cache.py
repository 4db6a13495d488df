"""Folders of the user's cache, and the binaries that are kept there: one file for each build id."""

from __future__ import annotations

import os
import sys

__all__ = ["BINARIES", "default_cache", "kept_binary"]

BINARIES = "binaries"
"""The folder of binaries that were recorded in containers, where this host has no file of their names."""


def default_cache(name: str = "symbols") -> str:
    """The folder ``name`` of the user's cache (XDG Base Directory Specification; ``LOCALAPPDATA`` on Windows)."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or os.path.expanduser("~\\AppData\\Local")
    else:
        base = os.environ.get("XDG_CACHE_HOME", "")
        base = base if os.path.isabs(base) else os.path.expanduser("~/.cache")  # relative ones are invalid there
    return os.path.join(base, "lastbranch", name)


def kept_binary(build_id: bytes, kind: str = "binary") -> str:
    """The path at which the ``binary`` or ``debug`` file of a build id is kept, if it is."""
    return os.path.join(default_cache(BINARIES), f"{build_id.hex()}.{kind}")
