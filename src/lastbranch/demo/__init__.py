"""A small capture in the package: two processes of one program, at different addresses.

Its branches are exact: every taken branch of the program was traced, then divided into branch stacks of 16. Only
mispredictions and cycles are invented.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["capture", "symfs"]

_HERE = Path(__file__).parent


def capture() -> str:
    """Path of the capture, a perf.data file."""
    return str(_HERE / "capture.perf.data")


def symfs() -> str:
    """The folder with the capture's binaries at their full paths (for ``--symfs``)."""
    return str(_HERE / "symfs")
