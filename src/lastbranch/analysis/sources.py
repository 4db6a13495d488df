"""Source lines to show next to code, from trusted folders."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Sequence
from typing import Any

from ..binaries.files import below, open_regular
from ..model import Module, Profile, counted

__all__ = ["Sources"]

_LARGEST = 32 << 20
"""Bytes of a source file that is shown; larger ones are no source."""


class Sources:
    """Lines of source files by the paths that debug information has, which are hints.

    A file is read only below one of ``roots`` (the longest existing tail of its path), or, without roots, at its
    own path if that is below the folder of the module's checked binary. ``roots`` ``None``: no file is read.
    """

    def __init__(self, profile: Profile, roots: Sequence[str] | None = ()) -> None:
        self._profile, self._roots, self._wanted = profile, tuple(roots or ()), roots is not None
        self._files: dict[str, list[str]] = {}
        self._found: dict[tuple[int, str], str | None] = {}

    def line(self, module: int, file: str, number: int) -> str | None:
        """Line ``number`` (from 1) of ``file`` for a row of the modules table; ``None`` if it is not available."""
        if not file or number < 1:
            return None
        path = self._path(module, file)
        lines = self._lines(path) if path else []
        return lines[number - 1] if number <= len(lines) else None

    def used(self) -> list[list[Any]]:
        """[row of the module, file, `state_of` it] of the files that lines were asked of, for JSON."""
        return [[module, file, self.state_of(module, file)] for module, file in self._found]

    def state_of(self, module: int, file: str) -> list[Any]:
        """All that the text of ``file`` depends on, for JSON."""
        path = self._path(module, file)
        try:
            state = os.stat(path) if path else None
        except OSError:
            state = None
        return [path, state.st_size, state.st_mtime_ns, state.st_ino] if state else []

    @property
    def notes(self) -> list[str]:
        """Notes for the user: source text that was requested but not found."""
        lost = sorted({file for (_, file), path in self._found.items() if path is None and self._wanted})
        where = "below --source-root" if self._roots else "next to the binary: see --source-root"
        files = counted(len(lost), "source file")
        return [f"the text of {files} was not found {where}, such as {lost[0]}"] if lost else []

    def _path(self, module: int, file: str) -> str | None:
        key = (module, file)
        if key not in self._found:
            self._found[key] = next((p for p in self._candidates(module, file) if p), None)
        return self._found[key]

    def _candidates(self, module: int, file: str) -> Iterator[str | None]:
        if not self._wanted:
            return
        parts = posixpath.normpath(file.replace("\\", "/")).split("/")
        for root in self._roots:
            for first in range(len(parts)):
                yield below(root, "/".join(parts[first:]))
        if not self._roots and module >= 0:
            yield _beside_binary(self._profile.modules[module], "/".join(parts))

    def _lines(self, path: str) -> list[str]:
        if path not in self._files:
            try:
                with os.fdopen(open_regular(path), "rb") as file:
                    data = file.read(_LARGEST + 1)
            except OSError:
                data = b""
            self._files[path] = data.decode(errors="replace").splitlines() if len(data) <= _LARGEST else []
        return self._files[path]


def _beside_binary(module: Module, file: str) -> str | None:
    if not module.binary.endswith(module.name):
        return None
    folder = os.path.dirname(module.binary)
    path = module.binary.removesuffix(module.name) + file  # --symfs comes before both
    return below(folder, path[len(folder) :]) if file.startswith("/") and path.startswith(folder + "/") else None
