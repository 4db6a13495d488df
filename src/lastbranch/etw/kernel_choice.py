"""This machine's kernel of trace sessions: Windows' own, or the portable one of this package."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .interface import Kernel

__all__ = ["kernel"]


@cache
def kernel() -> Kernel:
    """This machine's kernel: Windows' own there, the portable one elsewhere."""
    if sys.platform == "win32":
        from .windows.kernel import WindowsKernel

        return WindowsKernel()
    from .portable.kernel import PortableKernel

    return PortableKernel()
