"""Recording: the software branch record (`record`) and the processor's (`record_hardware`).

Loaded at first use: some of it needs Linux.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .hardware import HardwareSummary, record_hardware
    from .options import Options, Summary
    from .perf_events.programme import Request, Target
    from .recording import record
    from .traceable import CollectorError, RunError

_WHERE = {
    "CollectorError": "traceable",
    "HardwareSummary": "hardware",
    "Options": "options",
    "Request": "perf_events.programme",
    "RunError": "traceable",
    "Summary": "options",
    "Target": "perf_events.programme",
    "record": "recording",
    "record_hardware": "hardware",
}

__all__ = [
    "CollectorError", "HardwareSummary", "Options", "Request", "RunError", "Summary", "Target", "record",
    "record_hardware",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_WHERE[name]}", __name__), name)
    return value
