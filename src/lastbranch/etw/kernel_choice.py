"""This machine's kernel of trace sessions: Windows' own, or the portable one of this package."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .interface import Kernel
    from .windows.kernel import WindowsKernel

__all__ = ["kernel", "windows"]


@cache
def windows() -> WindowsKernel | None:
    """Windows' own kernel, on Windows."""
    if sys.platform == "win32":
        from .windows.kernel import WindowsKernel

        return WindowsKernel()
    return None


@cache
def kernel() -> Kernel:
    """This machine's kernel: Windows' own there, the portable one elsewhere."""
    system = windows()
    if system is not None:
        return system
    from .portable.kernel import PortableKernel

    return PortableKernel()
