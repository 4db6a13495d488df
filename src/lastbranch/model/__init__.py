"""The contents of a capture: profile, tables, streams of sample batches. The model imports nothing of lastbranch but
the errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .address_spaces import AddressSpaces
    from .atomic_output import check_replaceable
    from .batch import MAX_ENTRIES, MAX_SAMPLES, Array, EntriesInPlace, SampleBatch, SampleFilter, concatenate, cuts
    from .clock import Clock
    from .columns import BRANCH, COLUMNS, ENTRY, FRAME, GROUPS, REQUIRED, Column, Mode, column
    from .kernel_half import (
        KERNEL_HALF,
        KERNEL_HALF_32,
        guest_host,
        guest_kernel,
        guest_user,
        kernel_map_start,
        kernel_start,
        kernel_starts,
    )
    from .order import by_time, merge, watermarks
    from .profile import TABLES, THROTTLES, Profile
    from .safe_text import check_utf8, counted, visible, word
    from .source import MEMORY, BytesSource, Limits, OpenFile, Source, limited, read_at
    from .stream import IN_PLACE, BatchReader, Progress, SampleStream, StackWatcher, Stages, no_progress
    from .tables import (
        PATCHED,
        Capture,
        Cpu,
        Event,
        Machine,
        Module,
        ModuleKind,
        Node,
        Process,
        Rows,
        Segment,
        Thread,
    )
    from .tabular import Columns, RowNames, Tabular
    from .timeline import KERNEL, Change, Load, Timeline

__all__ = [
    "BRANCH",
    "COLUMNS",
    "ENTRY",
    "FRAME",
    "GROUPS",
    "IN_PLACE",
    "KERNEL",
    "KERNEL_HALF",
    "KERNEL_HALF_32",
    "MAX_ENTRIES",
    "MAX_SAMPLES",
    "MEMORY",
    "PATCHED",
    "REQUIRED",
    "TABLES",
    "THROTTLES",
    "AddressSpaces",
    "Array",
    "BatchReader",
    "BytesSource",
    "Capture",
    "Change",
    "Clock",
    "Column",
    "Columns",
    "Cpu",
    "EntriesInPlace",
    "Event",
    "Limits",
    "Load",
    "Machine",
    "Mode",
    "Module",
    "ModuleKind",
    "Node",
    "OpenFile",
    "Process",
    "Profile",
    "Progress",
    "RowNames",
    "Rows",
    "SampleBatch",
    "SampleFilter",
    "SampleStream",
    "StackWatcher",
    "Segment",
    "Source",
    "Stages",
    "Tabular",
    "Thread",
    "Timeline",
    "by_time",
    "check_replaceable",
    "column",
    "concatenate",
    "check_utf8",
    "counted",
    "cuts",
    "guest_host",
    "guest_kernel",
    "guest_user",
    "kernel_map_start",
    "kernel_start",
    "kernel_starts",
    "limited",
    "merge",
    "no_progress",
    "read_at",
    "visible",
    "watermarks",
    "word",
]

__getattr__ = lazy_names(__name__, {
    "address_spaces": "AddressSpaces",
    "batch": "MAX_ENTRIES MAX_SAMPLES Array EntriesInPlace SampleBatch SampleFilter concatenate cuts",
    "clock": "Clock",
    "columns": "BRANCH COLUMNS ENTRY FRAME GROUPS REQUIRED Column Mode column",
    "kernel_half": (
        "KERNEL_HALF KERNEL_HALF_32 guest_host guest_kernel guest_user kernel_map_start kernel_start "
        "kernel_starts"
    ),
    "order": "by_time merge watermarks",
    "atomic_output": "check_replaceable",
    "profile": "TABLES THROTTLES Profile",
    "source": "MEMORY BytesSource Limits OpenFile Source limited read_at",
    "stream": "IN_PLACE BatchReader Progress SampleStream StackWatcher Stages no_progress",
    "tables": "PATCHED Capture Cpu Event Machine Module ModuleKind Node Process Rows Segment Thread",
    "tabular": "Columns RowNames Tabular",
    "safe_text": "check_utf8 counted visible word",
    "timeline": "KERNEL Change Load Timeline",
})  # fmt: skip
