"""Recording: the software branch record (`record`) and the processor's (`record_hardware`).

Loaded at first use: some of it needs Linux.
"""

from ..lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "cgroups": "CgroupProcesses cgroup_at hierarchies unit_called",
        "containers": "container_called",
        "doctor": "COLUMNS examine",
        "hardware": "HardwareSummary collect_hardware describe_hardware negotiated record_hardware",
        "launch": "end_with_parent held_signals",
        "options": "CALL_GRAPHS Callbacks Calls Options SoftwareRequest Summary SwitchOutput Targets",
        "full_disk": "loss_of",
        "perf_events.event_set": "Request Target",
        "process_groups": "EveryProcess NamedProcesses ProcessGroup Without",
        "procfs": "memory_kb",
        "recording": "collect describe record save",
        "traceable": "CollectorError RunError check_command check_linux check_machine check_output check_target "
        "describe_exec",
    },
)
