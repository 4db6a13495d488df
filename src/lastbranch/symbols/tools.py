"""Installed programs: the path to start, and the process that starts programs for a process without the right."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from .table_bytes import Columns

__all__ = ["newest"]

Delegate = Callable[[dict[str, Any], Columns], tuple[dict[str, Any], Columns]]
"""From a question to its answer, both in the form of `columns.pack`. Raises `ValueError`, `OSError`."""

delegate: Delegate | None = None
"""In the confined process, which may start no program: asks the process that may. ``None`` elsewhere."""

_VERSIONS = (*(f"-{n}" for n in range(30, 13, -1)), "")
"""What the names of LLVM's tools end in where several versions are installed."""

_END = ".exe" if sys.platform == "win32" else ""


def newest(name: str) -> str | None:
    """The path of program ``name`` in its newest version, or ``None``.

    Relative folders of PATH, also an empty one, could be anybody's choice and are not searched.
    """
    return _newest(name, os.environ.get("PATH", ""))


@cache
def _newest(name: str, path: str) -> str | None:
    """As `newest`. The answer is kept: every module asks, and a search takes hundreds of look-ups."""
    folders = [f for f in path.split(os.pathsep) if os.path.isabs(f)]
    paths = (os.path.join(folder, name + version + _END) for version in _VERSIONS for folder in folders)
    return next((path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)), None)
