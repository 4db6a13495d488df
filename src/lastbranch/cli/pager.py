"""Long output through a pager: $PAGER, or less."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from .paint import terminal

__all__ = ["page", "wanted"]

_LESS = "FRX"
"""Options of less where $LESS has none: end at once if all fits, pass colours, leave the text on the screen."""
_NONE: tuple[list[str], ...] = ([], ["cat"])


def wanted() -> bool:
    """Whether somebody sits there to turn pages: input and output are a terminal, and $PAGER is not empty or cat."""
    return terminal() and sys.stdin is not None and sys.stdin.isatty() and _command() not in _NONE


def _command() -> list[str]:
    import shlex

    given = os.environ.get("PAGER", "" if os.name == "nt" else "less")
    try:
        return shlex.split(given, posix=os.name != "nt")
    except ValueError:  # a quotation without its end
        return []


def page(lines: Sequence[str]) -> bool:
    """Show lines in the pager until it ends. ``False`` where it cannot be started: nothing was shown."""
    import subprocess

    sys.stdout.flush()
    text = "".join(f"{line}\n" for line in lines).encode(sys.stdout.encoding, "backslashreplace")
    environment = {"LESS": _LESS, **os.environ}
    try:
        pager = subprocess.Popen(_command(), stdin=subprocess.PIPE, env=environment)
    except OSError:
        return False
    with suppress(KeyboardInterrupt), suppress(BrokenPipeError):  # it may end before it has read everything
        pager.communicate(text)
    while pager.poll() is None:
        with suppress(KeyboardInterrupt):  # Ctrl-C is the pager's
            pager.wait()
    return True
