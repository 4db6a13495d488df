"""What a capture says: profile, tables, streams of sample batches. Imports nothing else of the package but errors."""

from .batch import MAX_ENTRIES, MAX_SAMPLES, Array, SampleBatch, concatenate, cuts
from .clock import Clock
from .columns import BRANCH, COLUMNS, FRAME, GROUPS, REQUIRED, Column, Mode, column
from .filter import SampleFilter
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
from .limits import MEMORY, Limits, limited
from .load import Load
from .order import by_time, merge
from .output import check_replaceable
from .profile import TABLES, Profile
from .source import BytesSource, Source, read_at
from .stream import BatchReader, SampleStream
from .tables import Cpu, Event, Machine, Module, ModuleKind, Node, Process, Rows, Segment, Thread
from .text import counted, visible, word
from .timeline import KERNEL, Change, Timeline

__all__ = [
    "BRANCH",
    "COLUMNS",
    "FRAME",
    "GROUPS",
    "KERNEL",
    "KERNEL_HALF",
    "KERNEL_HALF_32",
    "MAX_ENTRIES",
    "MAX_SAMPLES",
    "MEMORY",
    "REQUIRED",
    "TABLES",
    "Array",
    "BatchReader",
    "BytesSource",
    "Change",
    "Clock",
    "Column",
    "Cpu",
    "Event",
    "Limits",
    "Load",
    "Machine",
    "Mode",
    "Module",
    "ModuleKind",
    "Node",
    "Process",
    "Profile",
    "Rows",
    "SampleBatch",
    "SampleFilter",
    "SampleStream",
    "Segment",
    "Source",
    "Thread",
    "Timeline",
    "by_time",
    "check_replaceable",
    "column",
    "concatenate",
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
    "read_at",
    "visible",
    "word",
]
