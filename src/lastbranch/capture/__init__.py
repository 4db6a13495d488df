"""Recording: the software branch record (`record`) and the processor's (`record_hardware`).

Loaded at first use: some of it needs Linux.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .hardware import HardwareSummary, record_hardware
    from .options import CALL_GRAPHS, Options, Summary
    from .perf_events.event_set import Request, Target
    from .recording import record
    from .traceable import CollectorError, RunError

__all__ = [
    "CALL_GRAPHS", "CollectorError", "HardwareSummary", "Options", "Request", "RunError", "Summary", "Target", "record",
    "record_hardware",
]  # fmt: skip

__getattr__ = lazy_names(__name__, {
    "hardware": "HardwareSummary record_hardware",
    "options": "CALL_GRAPHS Options Summary",
    "perf_events.event_set": "Request Target",
    "recording": "record",
    "traceable": "CollectorError RunError",
})  # fmt: skip
