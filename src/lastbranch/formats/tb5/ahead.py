"""Work on numbered things in order, a few ahead of the caller on other threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["ahead"]

_THREADS = 2
_ROOMS = 4

Room = TypeVar("Room")
Done = TypeVar("Done")


def ahead(
    numbers: range, work: Callable[[int, Room], Done], new_room: Callable[[], Room]
) -> Iterator[tuple[int, Done]]:
    """(number, ``work(number, room)``) of each number, in order.

    A result may lie in its room, which is used again when the next result is asked for. Few numbers are worked on by
    the caller's thread, many by others, at most three ahead. What ``work`` raises comes where its result would.
    """
    rooms = [new_room() for _ in range(min(_ROOMS, len(numbers)))]
    if len(numbers) < _ROOMS:
        yield from ((number, work(number, rooms[0])) for number in numbers)
        return
    waiting: deque[tuple[int, Future[Done]]] = deque()
    pool = ThreadPoolExecutor(_THREADS, "lastbranch-ahead")
    try:
        for at, number in enumerate(numbers):
            waiting.append((number, pool.submit(work, number, rooms[at % _ROOMS])))
            if len(waiting) == _ROOMS:
                first, future = waiting.popleft()
                yield first, future.result()
        for first, future in waiting:
            yield first, future.result()
    finally:
        pool.shutdown(cancel_futures=True)
