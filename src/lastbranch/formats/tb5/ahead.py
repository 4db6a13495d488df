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
    numbers: range, work: Callable[[int, Room], Done], new_room: Callable[[], Room], *, alone: bool = False
) -> Iterator[tuple[int, Done]]:
    """(number, ``work(number, room)``) of each number, in order.

    A result may lie in its room, which is used again when the next result is asked for. Many numbers are worked on by
    other threads, at most three ahead; few, and all where it is to work ``alone``, by the caller's. What ``work``
    raises comes where its result would.
    """
    if alone or len(numbers) < _ROOMS:
        room = new_room()
        yield from ((number, work(number, room)) for number in numbers)
        return
    rooms = [new_room() for _ in range(_ROOMS)]
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
