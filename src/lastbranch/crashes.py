"""The last resort for unexpected errors: a report for the bug tracker, and one line for people.

With ``LASTBRANCH_TRACEBACK=1`` in the environment the traceback is printed, too.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import traceback
from importlib import metadata

__all__ = ["EXIT_CODE", "crash_line"]

EXIT_CODE = 70
"""EX_SOFTWARE of sysexits.h: an internal software error."""
_PACKAGES = ("numpy", "click", "rich", "zstandard", "capstone", "symbolic", "duckdb", "pyarrow")


def crash_line(error: BaseException) -> str:
    """Write a report of ``error`` to a new file; return a line for the user, with the error and the path of the report.

    Never raises: if no report can be written, the line says so.
    """
    text = "".join(traceback.format_exception(error))
    if os.environ.get("LASTBRANCH_TRACEBACK", "0") != "0":
        sys.stderr.write(text)
    said = "".join(c if c.isprintable() or c.isspace() else f"\\x{ord(c):02x}" for c in str(error))
    what = " ".join(f"{type(error).__name__}: {said}".split())
    try:
        fd, path = tempfile.mkstemp(".txt", "lastbranch-crash-")
        with open(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(_report(text))
    except OSError as failure:
        where = f"LASTBRANCH_TRACEBACK=1 shows where (no report was written: {failure.strerror})"
    else:
        where = f"please report it with {path}"
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    return f"this is a bug in lastbranch: {what}{notes}; {where}"


def _report(text: str) -> str:
    """The text of a bug report: versions, machine, command, traceback. Nothing of the capture's contents."""
    lines = [
        f"lastbranch {_version('lastbranch')}, an unexpected failure.",
        "This report contains the command line and file names: read it before you publish it.",
        "",
        f"command:  {' '.join(map(repr, sys.argv))}",
        f"python:   {sys.version}",
        f"platform: {platform.platform()}, {platform.machine()}, {sys.byteorder}-endian, {os.cpu_count()} CPUs",
        f"locale:   {sys.getfilesystemencoding()}, output {getattr(sys.stdout, 'encoding', None)}",
        *(f"{name}: {version}" for name in _PACKAGES if (version := _version(name))),
        "",
        text,
    ]
    return "\n".join(lines)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
