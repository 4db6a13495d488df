"""A mapping in one process, with its life."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Load"]


class Load(NamedTuple):
    """``module`` (row) at ``start:end`` of process ``pid``, -1 in the kernel, from clock tick ``first`` (``None``: ever
    since) until ``last`` (``None``: for good)."""

    pid: int
    module: int
    start: int
    end: int
    first: int | None
    last: int | None
