"""Work of a daemon that waits for others, without anything waiting: generators that say what they go on at."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass

from ...errors import LastbranchError
from ..status import EtwError, Status
from .rules import status_of

__all__ = ["Condition", "Done", "Steps", "Tasks", "expected"]

Condition = tuple[Callable[[], bool], float]
"""Go on when this holds, or after so many seconds at most: the work looks which it was."""
Steps = Generator[Condition, None, bytes]
"""Work in steps; its result is the body of an answer."""
Done = Callable[[bytes | None, LastbranchError | None], None]
"""Told the result, or the error; neither where there is nothing to tell."""


@dataclass
class _Task:
    steps: Steps
    done: Done
    holds: Callable[[], bool]
    deadline: float


class Tasks:
    """Work that has begun."""

    def __init__(self) -> None:
        self._tasks: list[_Task] = []

    def begin(self, work: Callable[[], bytes | Steps | None], done: Done) -> None:
        """Do ``work``, now or in steps, and give ``done`` what comes of it."""
        try:
            result = work()
        except Exception as error:
            return done(None, expected(error))
        if result is None or isinstance(result, bytes):
            return done(result, None)
        self._tasks.append(_Task(result, done, lambda: True, 0.0))
        return None

    def advance(self) -> None:
        """Go on with what can."""
        for task in list(self._tasks):
            if not task.holds() and time.monotonic() < task.deadline:
                continue
            try:
                task.holds, seconds = next(task.steps)
                task.deadline = time.monotonic() + seconds
                continue
            except StopIteration as end:
                result: tuple[bytes | None, LastbranchError | None] = end.value, None
            except Exception as error:
                result = None, expected(error)
            self._tasks.remove(task)
            task.done(*result)

    def deadline(self) -> float | None:
        """When `advance` has something to do, unless a condition changes before; 0 if it has now."""
        if any(task.holds() for task in self._tasks):
            return 0.0
        return min((task.deadline for task in self._tasks), default=None)


def expected(error: Exception) -> LastbranchError:
    """``error`` as one that has a code; what nobody thought of goes to the log as well."""
    if isinstance(error, LastbranchError):
        return error
    if isinstance(error, OSError):
        return EtwError("session", status_of(error), str(error))
    from traceback import print_exception

    with suppress(OSError):  # the log may be on the full disk that all this is about
        print_exception(error)
    return EtwError("session", Status.INVALID_DATA, f"{type(error).__name__}: {error}")
