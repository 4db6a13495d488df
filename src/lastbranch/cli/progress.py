"""Progress on standard error, for long operations."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..model import Progress, Stages

__all__ = ["bar", "stages"]


def stages(wanted: bool) -> Stages:
    """A `bar` for each stage, unless nobody wants one."""
    return lambda stage: bar(stage, wanted)


@contextmanager
def bar(what: str, wanted: bool) -> Iterator[Progress | None]:
    """A function that draws how far ``what`` is, or ``None`` where nobody looks. It is erased at the end."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn(what), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    # Standard output is left alone: rich would send what is printed there to the bar's terminal, whatever it is.
    console = Console(stderr=True)
    with Bar(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
