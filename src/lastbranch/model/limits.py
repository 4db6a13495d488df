"""What a file may ask for: counts and sizes in it are claims, and some kilobytes can claim the memory of a machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["MEMORY", "Limits", "limited"]

MEMORY = 256 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets for reading one file. What goes beyond one is not read: what precedes it is delivered, and
    ``profile.damage`` names the place."""

    memory: int | None = None
    """Bytes that the tables of a capture may take (processes, threads, mappings, modules, names...), by estimate.
    ``None``: `MEMORY`, or the size of the file where that is more."""
    expansion: int = 256 << 20
    """Bytes that compressed data may become, however small they are; beyond that, `ratio` decides."""
    ratio: int = 100
    """How many times their own size compressed data may become, beyond `expansion`."""

    def memory_of(self, size: int) -> int:
        """The budget of tables for a file of ``size`` bytes."""
        return max(MEMORY, size) if self.memory is None else self.memory

    def expanded(self, packed: int) -> int:
        """What ``packed`` compressed bytes may become."""
        return max(self.expansion, self.ratio * packed)

    @staticmethod
    def current() -> Limits:
        """Those that `limited` set, or the default."""
        return _CURRENT.get()


_CURRENT: ContextVar[Limits] = ContextVar("limits", default=Limits())  # noqa: B039 - it cannot be changed


@contextmanager
def limited(limits: Limits) -> Iterator[None]:
    """Files that are opened inside have ``limits``, also when they are read later."""
    before = _CURRENT.set(limits)
    try:
        yield
    finally:
        _CURRENT.reset(before)
