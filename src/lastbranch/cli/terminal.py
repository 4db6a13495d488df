"""What a terminal can show: colours, bars, and long output through a pager ($PAGER, or less).

Heat is for shares of a whole; those that rest on few counts are faint instead. A share of mispredictions is hot at half
of `answers.columns.GUESS`: there, nobody can predict a branch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

__all__ = [
    "FAINT",
    "Style",
    "bar",
    "can_print",
    "colours",
    "emphasis",
    "has_pager",
    "heat",
    "page",
    "paint",
    "terminal",
]

Style = dict[str, Any]
"""What `click.style` takes."""
_HEAT: tuple[tuple[float, Style], ...] = (
    (0.4, {"fg": "red", "bold": True}),
    (0.15, {"fg": "red"}),
    (0.05, {"fg": "yellow"}),
)
"""From which part of the whole on, and how it looks. In between are colours that any palette can show."""
FAINT: Style = {"dim": True}
"""Of what rests on fewer than `analysis.statistics.significance.ENOUGH` counts."""
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def terminal() -> bool:
    """Whether standard output is a terminal that does more than append lines."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def colours() -> bool:
    """Whether colours are wanted: on a terminal, unless NO_COLOR is set (to anything: no-color.org)."""
    return terminal() and not os.environ.get("NO_COLOR")


def emphasis(text: str) -> str:
    """``text`` in bold, which is no colour."""
    return click.style(text, bold=True) if terminal() else text


def heat(part: float | None) -> Style:
    """The style of a share, from 0 to 1; ``None``: not known, which is no style."""
    return next((style for least, style in _HEAT if part is not None and part >= least), {})


def paint(text: str, style: Style) -> str:
    """``text`` in a style, its outer spaces without it."""
    inner = text.strip(" ")
    if not style or not inner or not colours():
        return text
    before, _, after = text.partition(inner)
    return f"{before}{click.style(inner, **style)}{after}"


def bar(part: float, width: int) -> str:
    """A bar for a share, from 0 to 1, in up to ``width`` columns; what is not nothing is at least a sliver."""
    if not can_print(_EIGHTHS):
        return "#" * max(part > 0, round(part * width))
    whole, rest = divmod(max(part > 0, round(part * width * 8)), 8)
    return "█" * whole + _EIGHTHS[rest].strip()


def can_print(text: str) -> bool:
    """Whether the encoding of standard output has all of ``text``."""
    # What Textual has in the place of standard output has no encoding.
    found = (getattr(stream, "encoding", None) for stream in (sys.stdout, sys.__stdout__))
    try:
        text.encode(next(filter(None, found), "ascii"))
    except UnicodeEncodeError:
        return False
    return True


# -- the pager

_LESS = "FRX"
"""Options of less where $LESS has none: end at once if all fits, pass colours, leave the text on the screen."""
_NONE: tuple[list[str], ...] = ([], ["cat"])


def has_pager() -> bool:
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
