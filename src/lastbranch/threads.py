"""Threads that start with their first work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["Threads"]

P = ParamSpec("P")
R = TypeVar("R")


class Threads:
    """A `concurrent.futures.ThreadPoolExecutor` of ``number`` threads, made at the first `submit`.

    Small captures never get there, and `concurrent.futures` (with `logging`) takes longer to import than they take to
    count.
    """

    def __init__(self, number: int, name: str) -> None:
        self._number, self._name = number, name
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Have a thread do ``work``; the future gets the result or the exception."""
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(self._number, self._name)
        return self._pool.submit(work, *args, **kwargs)

    def close(self) -> None:
        """Wait for running work, drop work that has not begun, and end the threads. `submit` starts them again."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
