"""Saying what is waited for: a program that reads a pipe to which nobody writes looks as if it hung.

A program that uses the package says where that is told (`tell`); nothing is by default. ``lastbranch`` prints it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["SECONDS", "tell", "waiting"]

SECONDS = 2.0
"""A wait that is over by then is nothing to tell."""


def _nobody(what: str) -> None:
    pass


tell: Callable[[str], None] = _nobody
"""Called, in another thread, with what is waited for."""


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """`tell` what the block waits for, if the wait takes longer than `SECONDS`.

    The block gets a function and calls it after each arrival, with the text of the next wait. Nothing is told twice.
    """
    times, told, over = 0, set[str](), threading.Event()

    def came(then: str) -> None:
        nonlocal what, times
        what, times = then, times + 1

    def watch() -> None:
        seen = 0
        while not over.wait(SECONDS):
            if times == seen and what not in told:
                told.add(what)
                tell(what)
            seen = times

    threading.Thread(target=watch, name="long wait", daemon=True).start()
    try:
        yield came
    finally:
        over.set()
