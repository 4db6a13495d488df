"""Context managers that close themselves at the end of their block."""

from __future__ import annotations

from typing import Self

__all__ = ["Closing"]


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
