"""All kernel layouts in one table, and the rule that finds the one for an event."""

from __future__ import annotations

from . import kernel_config, kernel_io, kernel_net, kernel_perf, kernel_process, kernel_session
from .payloads import Layout, Versions, newest
from .providers import Key

__all__ = ["LAYOUTS", "kernel_layout"]

LAYOUTS: dict[Key, Versions] = {}
for _table in (kernel_session, kernel_process, kernel_perf, kernel_io, kernel_net, kernel_config):
    LAYOUTS.update(_table.TABLE)


def kernel_layout(key: Key, version: int) -> Layout | None:
    """The layout of a version, else of the newest known lower one; None for an unknown event or so old a version."""
    versions = LAYOUTS.get(key)
    return None if versions is None else newest(versions, version)
