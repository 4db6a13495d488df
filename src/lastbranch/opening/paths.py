"""Which captures a path, a folder or a pattern means, and what a capture is called."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from glob import glob

from ..errors import FormatError, SelectionError
from ..model import counted, visible

__all__ = ["CapturePaths", "captures_at", "is_called", "nothing_in", "weights_of"]


@dataclass(slots=True)
class CapturePaths:
    """Files that may be captures, and what users should know about which they are."""

    paths: list[str] = field(default_factory=list)
    in_folders: set[str] = field(default_factory=set)
    """Those that nobody said to be captures."""
    others: list[str] = field(default_factory=list)
    """Those of them that are none."""
    again: list[str] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        notes = []
        if self.others:
            notes.append(f"left out {counted(len(self.others), 'file')} of no capture format: {_listed(self.others)}")
        if self.again:
            notes.append(f"captures that were given twice count once: {_listed(self.again)}")
        return notes


def captures_at(paths: Sequence[str]) -> CapturePaths:
    """The files that ``paths`` mean: those in folders, and those that patterns match; one that comes again counts once.

    Raises `FormatError` where a folder has no file, and a pattern matches none.
    """
    found, known = CapturePaths(), set[object]()
    for path in paths:
        files = [path]
        if os.path.isdir(path):
            files = sorted(one.path for one in os.scandir(path) if one.is_file() and not one.name.startswith("."))
            found.in_folders.update(files)
        elif any(c in path for c in "*?[") and not os.path.lexists(path):
            files = sorted(one for one in glob(path, recursive=True) if not os.path.isdir(one))
        if not files:
            raise nothing_in([path])
        for file in files:
            again = (key := _same_file(file)) in known
            (found.again if again else found.paths).append(file)
            known.add(key)
    return found


def _same_file(path: str) -> object:
    """What is equal for another name of a file."""
    try:
        state = os.stat(path)
    except (OSError, ValueError):
        return path  # opening it says why
    return (state.st_dev, state.st_ino) if stat.S_ISREG(state.st_mode) else path


def nothing_in(paths: Sequence[str]) -> FormatError:
    folder = next((path for path in paths if os.path.isdir(path)), None)
    if folder is None:
        return FormatError("no file has a name like this", file=paths[0])
    hint = f"to search its subfolders, give '{os.path.join(folder, '**', '*')}'"
    return FormatError("the folder has no capture", file=folder, hint=hint)


def _listed(paths: Sequence[str]) -> str:
    return ", ".join(map(visible, paths[:_LISTED])) + (", ..." if len(paths) > _LISTED else "")


_LISTED = 3


def weights_of(paths: Sequence[str], weights: Mapping[str, int]) -> list[int]:
    """The weight of each capture; of several that it has, the last."""
    out = [1] * len(paths)
    for wanted, weight in weights.items():
        rows = [i for i, path in enumerate(paths) if is_called(path, wanted)]
        if not rows:
            raise SelectionError(f"no capture is called {wanted!r}", hint=f"there are: {_listed(paths)}")
        for row in rows:
            out[row] = weight
    return out


def is_called(path: str, wanted: str) -> bool:
    """Whether ``wanted`` is the capture at ``path``, its folder, its name, or a pattern for one of these."""
    names = path, os.path.basename(path), os.path.dirname(path)
    return any(name == wanted.rstrip("/") or fnmatchcase(name, wanted) for name in names)
