"""llvm-symbolizer as a backend: one process for all addresses, with JSON output read line by line.

It would follow debug links and the paths of split DWARF files and PDBs, wherever they lead, and ask servers. So it gets
only files with nothing to follow, by links in a folder of its own. It is not used for other files.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...binaries.files import open_regular, whole_file
from ...binaries.sections import open_binary
from ...errors import FormatError, UnavailableError
from .. import tools
from ..model import DebugFiles, Frame, Function, FunctionTable, Names, NamesBuilder
from ..table_bytes import unpack_names
from ..tools import newest
from . import symbol_tables
from .dwarf.reader import names_split_files
from .symbol_tables import elf_symbols, stub_symbols

__all__ = ["available", "functions", "symbolize"]

OPTIONS = "--output-style=JSON", "--no-demangle"


def available() -> str | None:
    """The path of the program, or ``None``."""
    return newest("llvm-symbolizer")  # JSON came with LLVM 13, start lines in it with 15


def symbolize(files: DebugFiles, address: NDArray[np.uint64]) -> Names:
    """The names of ``address``. Raises `UnavailableError` without the program, `FormatError` for bad files."""
    if tools.delegate is not None:
        head, answer = tools.delegate({"ask": "llvm"}, {"address": address})
        if head.get("ok") is not True:
            raise UnavailableError(str(head.get("why", "llvm-symbolizer did not answer")))
        return unpack_names(answer, len(address))
    program = available()
    if program is None:
        raise UnavailableError("llvm-symbolizer is not installed", hint="install LLVM's tools, or use another backend")
    if not _has_debug_information(files):
        return symbol_tables.symbolize(files, address)
    builder, image_base = NamesBuilder(), _image_base(files)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as said:
        asked.write("".join(f"{a:#x}\n" for a in address.tolist()).encode())
        asked.seek(0)
        relative = ("--relative-address",) if files.kind == "pe" else ()
        command = [program, *OPTIONS, f"--debug-file-directory={folder}", *relative, "--obj", _arrange(files, folder)]
        environment = {**os.environ, "DEBUGINFOD_URLS": ""}
        streams: dict[str, Any] = {"stdin": asked, "stdout": subprocess.PIPE, "stderr": said}
        with subprocess.Popen(command, **streams, env=environment, cwd=folder) as running:
            assert running.stdout is not None
            try:
                for line in running.stdout:
                    builder.add(_chain(line, image_base))
            except (ValueError, KeyError, TypeError) as error:
                running.kill()
                raise FormatError(f"{program} gave an unreadable answer: {error}", file=files.binary) from None
        if len(builder) != len(address):
            said.seek(0)
            why = said.read(500).decode(errors="replace").strip() or f"exit code {running.returncode}"
            raise FormatError(f"{program} gave {len(builder)} of {len(address)} answers: {why}", file=files.binary)
    return _with_stubs(files, address, builder.names())


def _with_stubs(files: DebugFiles, address: NDArray[np.uint64], names: Names) -> Names:
    """``names`` with those of call stubs, which llvm-symbolizer counts to the symbol before them."""
    if files.kind != "elf" or not files.binary:
        return names
    binary = open_binary(files.binary)
    stubs = stub_symbols(binary, elf_symbols(binary)).by_address()
    rows = np.flatnonzero(stubs.at(address) >= 0)
    order = np.arange(len(address))
    order[rows] = len(address) + np.arange(len(rows))
    return Names.join([names, stubs.symbolize(address[rows])]).take(order)


def functions(files: DebugFiles) -> FunctionTable:
    """All code symbols, read in-tree."""
    return symbol_tables.functions(files)


def _image_base(files: DebugFiles) -> int:
    return open_binary(files.binary).image.image_base if files.kind == "pe" and files.binary else 0


def _has_debug_information(files: DebugFiles) -> bool:
    """Whether the files have more than symbols. Raises `UnavailableError` where llvm-symbolizer would open other files.

    Raises `FormatError` or `OSError` where the files cannot be read.
    """
    if files.kind == "pe" and files.debug:
        return True
    binary = open_binary(files.debug or files.binary)
    if not binary.has(".debug_info"):
        return False
    linked, split = binary.has(".gnu_debuglink"), names_split_files(binary)
    if linked or split:
        what = "a debug link" if linked else "split DWARF"
        reason = f"{binary.name}: llvm-symbolizer would follow {what} to files that were not checked"
        raise UnavailableError(reason, hint="use --symbol-backend auto")
    return True


def _arrange(files: DebugFiles, folder: str) -> str:
    """The file to pass to the program. It looks for a PDB beside the binary, by the name in the binary."""
    if files.kind == "elf":
        return _link(files.debug or files.binary, folder, "program")
    if not files.binary:
        raise UnavailableError("llvm-symbolizer reads a PDB through its binary, which was not found")
    recorded = open_binary(files.binary).image.pdb_name or ""
    if not recorded:
        return _link(files.binary, folder, "program.exe")
    # If it cannot read that PDB it opens the path in the binary, so the copy has a name without folders there.
    name = recorded.replace("\\", "/").rpartition("/")[2]
    if files.debug:
        _link(files.debug, folder, name)
    old = recorded.encode() + b"\0"
    data = whole_file(files.binary).replace(old, name.encode().ljust(len(old), b"\0"))
    path = os.path.join(folder, "program.exe")
    with open(path, "xb") as copy:
        copy.write(data)
    return path


def _link(path: str, folder: str, name: str) -> str:
    """A link ``folder/name`` to ``path``, a regular file."""
    os.close(open_regular(path))
    made = os.path.join(folder, name)
    os.symlink(os.path.abspath(path), made)
    return made


def _chain(line: bytes, image_base: int) -> list[Frame]:
    """The frames of one address, innermost first, from a line of JSON."""
    frames = json.loads(line).get("Symbol", [])
    if not any(f["FunctionName"] or f["FileName"] for f in frames):
        return []
    chain = []
    for number, frame in enumerate(frames, 1):
        start = int(frame.get("StartAddress") or "0", 16) if number == len(frames) else 0
        function = Function(
            name := frame["FunctionName"],
            name,
            max(0, start - image_base),
            0,
            frame.get("StartFileName", ""),
            frame.get("StartLine", 0),
        )
        chain.append(Frame(function, frame["FileName"], frame["Line"], frame["Column"], frame["Discriminator"]))
    return chain
