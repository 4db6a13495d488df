"""Recording: the software branch record (`record`) and the processor's (`record_hardware`).

Loaded at first use: some of it needs Linux.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .cgroups import cgroup_at, unit_called
    from .containers import container_called
    from .hardware import HardwareSummary, record_hardware
    from .options import CALL_GRAPHS, Options, Summary, Targets
    from .perf_events.event_set import Request, Target
    from .process_groups import EveryProcess, NamedProcesses, ProcessGroup, Without
    from .recording import record
    from .traceable import CollectorError, RunError

__all__ = [
    "CALL_GRAPHS", "CollectorError", "EveryProcess", "HardwareSummary", "NamedProcesses", "Options", "ProcessGroup",
    "Request", "RunError", "Summary", "Target", "Targets", "Without", "cgroup_at", "container_called", "record",
    "record_hardware", "unit_called",
]  # fmt: skip

__getattr__ = lazy_names(__name__, {
    "cgroups": "cgroup_at unit_called",
    "containers": "container_called",
    "hardware": "HardwareSummary record_hardware",
    "options": "CALL_GRAPHS Options Summary Targets",
    "perf_events.event_set": "Request Target",
    "process_groups": "EveryProcess NamedProcesses ProcessGroup Without",
    "recording": "record",
    "traceable": "CollectorError RunError",
})  # fmt: skip
