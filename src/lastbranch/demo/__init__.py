"""A small capture that comes with the package: two processes of one program, at two places in memory.

Its branches are exact: every taken branch of the program was traced, then cut into branch stacks 16 deep. Only
mispredictions and cycles in it are made up.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["capture", "symfs"]

_HERE = Path(__file__).parent


def capture() -> str:
    """Path of the capture, a perf.data file."""
    return str(_HERE / "capture.perf.data")


def symfs() -> str:
    """Folder under which the capture's binaries lie at their full paths (for ``--symfs``)."""
    return str(_HERE / "symfs")
