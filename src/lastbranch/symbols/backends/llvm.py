"""llvm-symbolizer as a backend: asked once for all addresses, its JSON read line by line.

It follows debug links and the names of split DWARF files by itself; servers it is not allowed to ask.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import FormatError, UnavailableError
from ..files import DebugFiles
from ..model import Function, FunctionTable, Names
from . import tables
from .elf_file import open_binary

__all__ = ["available", "functions", "resolve"]

VERSION = 1
PROGRAMS = (*(f"llvm-symbolizer-{n}" for n in range(30, 14, -1)), "llvm-symbolizer")
"""The newest first: JSON came with LLVM 13, start lines in it with 15."""

OPTIONS = "--output-style=JSON", "--no-demangle"


def available() -> str | None:
    """The program that is used, or ``None``."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def resolve(files: DebugFiles, address: NDArray[np.uint64]) -> Names:
    """The names of ``address``. Raises `UnavailableError` without the program, `FormatError` for bad files."""
    program = available()
    if program is None:
        raise UnavailableError("llvm-symbolizer is not installed", hint="install LLVM's tools, or use another backend")
    answers = _Answers(_image_base(files))
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as said:
        asked.write("".join(f"{a:#x}\n" for a in address.tolist()).encode())
        asked.seek(0)
        relative = ("--relative-address",) if files.kind == "pe" else ()
        command = [program, *OPTIONS, *relative, "--obj", _arranged(files, folder)]
        environment = {**os.environ, "DEBUGINFOD_URLS": ""}
        with subprocess.Popen(command, stdin=asked, stdout=subprocess.PIPE, stderr=said, env=environment) as running:
            assert running.stdout is not None
            try:
                for line in running.stdout:
                    answers.add(line)
            except (ValueError, KeyError, TypeError) as error:
                running.kill()
                raise FormatError(f"{program} answered what cannot be read: {error}", file=files.binary) from None
        if answers.count != len(address):
            said.seek(0)
            why = said.read(500).decode(errors="replace").strip() or f"exit code {running.returncode}"
            raise FormatError(f"{program} gave {answers.count} of {len(address)} answers: {why}", file=files.binary)
    return answers.names()


def functions(files: DebugFiles) -> FunctionTable:
    """All code symbols, read in-tree."""
    return tables.functions(files)


def _image_base(files: DebugFiles) -> int:
    return open_binary(files.binary).image.image_base if files.kind == "pe" and files.binary else 0


def _arranged(files: DebugFiles, folder: str) -> str:
    """The file to name to the program. It looks for a PDB beside the binary, under the name that stands in that."""
    if files.kind == "elf":
        return files.debug or files.binary
    if not files.binary:
        raise UnavailableError("llvm-symbolizer reads a PDB through its binary, which is not at hand")
    recorded = open_binary(files.binary).image.pdb_name
    binary = os.path.join(folder, os.path.basename(files.binary))
    os.symlink(os.path.abspath(files.binary), binary)
    if files.debug and recorded:
        os.symlink(os.path.abspath(files.debug), os.path.join(folder, recorded.replace("\\", "/").rpartition("/")[2]))
    return binary


class _Answers:
    """Collects answers as columns."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.count = 0
        self._functions: dict[Function, int] = {}
        self._files: dict[str, int] = {}
        self._function: list[int] = []
        self._offsets = [0]
        self._frames: list[tuple[int, int, int, int, int]] = []

    def add(self, line: bytes) -> None:
        """One line of JSON: the frames of one address, innermost first."""
        frames = json.loads(line).get("Symbol", [])
        self.count += 1
        if not any(f["FunctionName"] or f["FileName"] for f in frames):
            frames = []
        row = -1
        for number, frame in enumerate(frames, 1):
            function = self._of(frame, number == len(frames))
            row = self._functions.setdefault(function, len(self._functions))
            file = frame["FileName"]
            place = self._files.setdefault(file, len(self._files)) if file else -1
            self._frames.append((row, place, frame["Line"], frame["Column"], frame["Discriminator"]))
        self._function.append(row)
        self._offsets.append(len(self._frames))

    def _of(self, frame: dict[str, Any], whole: bool) -> Function:
        name, start = frame["FunctionName"], frame.get("StartAddress") or "0"
        begin = max(0, int(start, 16) - self.base) if whole else 0
        return Function(name, name, begin, 0, frame.get("StartFileName", ""), frame.get("StartLine", 0))

    def names(self) -> Names:
        columns = np.array(self._frames, np.int64).reshape(-1, 5).T
        function, file = columns[:2].astype(np.int32)
        line, column, discriminator = columns[2:].astype(np.uint32)
        return Names(
            np.array(self._function, np.int32), np.array(self._offsets, np.int64), function, file, line, column,
            discriminator, list(self._functions), list(self._files),
        )  # fmt: skip
