"""What the process that reads symbol files cannot do itself: it starts no program, and asks the one that may.

There is nobody to ask in other processes, where `asked` is ``None`` and everybody does all by himself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .columns import Columns

__all__ = ["Outside", "asked"]

Outside = Callable[[dict[str, Any], Columns], tuple[dict[str, Any], Columns]]
"""From a question to its answer, both as `columns` have them. Raises `ValueError`, `OSError`."""

asked: Outside | None = None
