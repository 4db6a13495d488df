"""Work that a copy of this process does meanwhile: reading a large file has two long parts that need not wait."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...columns import pack, unpack

__all__ = ["as_bytes", "as_texts", "beside"]

Arrays = list[NDArray[Any]]


def beside(work: Callable[[], Arrays]) -> Callable[[], Arrays]:
    """Begin ``work``; what is returned waits for its arrays. Call it once.

    Where a process cannot be copied, or its copy came to nothing, the work is done here and then.
    """
    if not hasattr(os, "fork") or threading.active_count() > 1 or (os.cpu_count() or 1) < 2:
        return work
    back, out = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            with os.fdopen(out, "wb") as stream:
                stream.write(pack({}, {str(n): a for n, a in enumerate(work())}))
        finally:
            os._exit(0)  # nothing of what this process has open is the copy's to finish
    os.close(out)

    def arrays() -> Arrays:
        with os.fdopen(back, "rb") as stream:
            packed = stream.read()
        os.waitpid(process, 0)
        try:
            return list(unpack(packed)[1].values())
        except ValueError:
            return work()

    return arrays


def as_bytes(texts: list[str]) -> NDArray[np.uint8]:
    """``texts``, which have no zero in them, as an array."""
    return np.frombuffer("".join(f"{text}\0" for text in texts).encode("utf-8", "surrogatepass"), np.uint8)


def as_texts(array: NDArray[np.uint8]) -> list[str]:
    """The texts that `as_bytes` made one array of."""
    return array.tobytes().decode("utf-8", "surrogatepass").split("\0")[:-1]
