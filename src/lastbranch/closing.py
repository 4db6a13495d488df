"""How the use of an object ends: with its block, or where something fails before it can be used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

__all__ = ["Closing", "on_failure"]


class Closing:
    """Base of classes whose ``with`` block ends with `close`."""

    __slots__ = ()

    def close(self) -> None:
        """End the use of the object."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def on_failure(undo: Callable[..., object], *arguments: Any) -> Iterator[None]:
    """Call ``undo(*arguments)`` if the block fails, by an interrupt too; its exception goes on."""
    try:
        yield
    except BaseException:
        undo(*arguments)
        raise
