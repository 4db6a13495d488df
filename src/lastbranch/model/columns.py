"""The columns of a sample batch, declared once: name, dtype, unit, meaning.

The documentation's column table and every schema are made from `COLUMNS`. A column belongs to a *group*: ``sample``
has one value a sample; every other group is ragged, that is, it has ``offsets`` (samples + 1) into its values.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BRANCH", "COLUMNS", "ENTRY", "FRAME", "GROUPS", "REQUIRED", "Column", "Mode", "column"]

BRANCH = "branch"
"""Group of branch entries: the branch stack of a sample, newest first."""
ENTRY = ("branch_from", "branch_to", "branch_flags")
"""The columns of `BRANCH` that every source of branch entries has."""
FRAME = "frame"
"""Group of call chain frames: leaf first."""


class Mode:
    """Values of the ``mode`` column: what the processor ran when the sample was taken (perf's cpumode)."""

    UNKNOWN, KERNEL, USER, HYPERVISOR, GUEST_KERNEL, GUEST_USER = range(6)
    NAMES = ("unknown", "kernel", "user", "hypervisor", "guest kernel", "guest user")


class Column(NamedTuple):
    """One declared column. A batch lacks each ``optional`` column that its source lacks."""

    name: str
    dtype: str
    unit: str
    meaning: str
    group: str = "sample"
    optional: bool = True


COLUMNS: tuple[Column, ...] = (
    Column("time", "int64", "ticks", "when, in ticks of the profile's clock", optional=False),
    Column("ip", "uint64", "address", "instruction address; 0 where the trigger has none", optional=False),
    Column("pid", "int32", "id", "process id as recorded; -1 unknown", optional=False),
    Column("tid", "int32", "id", "thread id as recorded; -1 unknown", optional=False),
    Column("cpu", "int32", "index", "logical processor; -1 unknown", optional=False),
    Column("event", "int32", "index", "row of the events table", optional=False),
    Column("period", "uint64", "events", "events that this sample represents; 0 unknown", optional=False),
    Column("mode", "uint8", "code", "what the processor ran: see Mode", optional=False),
    Column("capture", "int32", "index", "row of the captures table, of captures that were opened together"),
    Column("position", "int64", "bytes", "offset of the record in its file (decompressed bytes in a compressed one)"),
    Column("id", "uint64", "id", "recorder's id of the event on this processor or thread"),
    Column("stream_id", "uint64", "id", "recorder's id of the counter that overflowed"),
    Column("addr", "uint64", "address", "data address of the access that was sampled"),
    Column("hw_idx", "int64", "index", "physical slot of the newest branch entry (top of stack); -1 unknown"),
    Column("weight", "uint64", "cycles", "cost of the sample: full weight, or three packed parts (see events)"),
    Column("data_src", "uint64", "bits", "what served the sampled access: perf_mem_data_src layout"),
    Column("transaction", "uint64", "bits", "transactional state, PERF_TXN_* layout"),
    Column("phys_addr", "uint64", "address", "physical address of the sampled access"),
    Column("cgroup", "uint64", "id", "control group of the task"),
    Column("data_page_size", "uint64", "bytes", "size of the page that holds addr"),
    Column("code_page_size", "uint64", "bytes", "size of the page that holds ip"),
    Column("time_enabled", "uint64", "ns", "how long the counter was enabled"),
    Column("time_running", "uint64", "ns", "how long the counter ran on the hardware"),
    Column("user_regs_abi", "uint64", "code", "0 no registers, 1 32-bit, 2 64-bit"),
    Column("intr_regs_abi", "uint64", "code", "0 no registers, 1 32-bit, 2 64-bit"),
    Column("user_stack_size", "uint64", "bytes", "how much of user_stack the kernel could copy (dyn_size)"),
    Column("branch_from", "uint64", "address", "address of the branch instruction; 0 = nothing recorded", BRANCH),
    Column("branch_to", "uint64", "address", "address that it went to; 0 = nothing recorded", BRANCH),
    Column("branch_flags", "uint64", "bits", "perf_branch_entry layout for every source: see lbr.words", BRANCH),
    Column("branch_counters", "uint64", "bits", "event counts since the older entry, packed by the processor", BRANCH),
    Column("branch_info", "uint64", "bits", "the source's own information word, unconverted", BRANCH),
    Column("frame", "uint64", "address", "call chain address, or a PERF_CONTEXT_* marker", FRAME),
    Column("read_value", "uint64", "events", "counter value", "read"),
    Column("read_id", "uint64", "id", "id of the counter that read_value belongs to", "read"),
    Column("read_lost", "uint64", "samples", "samples this counter has lost", "read"),
    Column("user_reg", "uint64", "word", "user registers in ascending order of the event's mask", "user_regs"),
    Column("intr_reg", "uint64", "word", "registers at the interrupt in ascending order of the mask", "intr_regs"),
    Column("raw", "uint8", "bytes", "raw data of the event, undecoded", "raw"),
    Column("user_stack", "uint8", "bytes", "copy of the top of the user stack", "user_stack"),
    Column("aux", "uint8", "bytes", "snapshot of the AUX area", "aux"),
    Column("previous_target", "uint64", "address", "target of the last taken branch before the sample; 0 unknown"),
    Column("operation", "uint64", "bits", "Arm SPE: operation class << 8 | its payload; 0xFFFF unknown"),
    Column("operation_events", "uint64", "bits", "Arm SPE: what happened to the operation (events packet)"),
    Column("operation_source", "uint64", "code", "Arm SPE: what served the access, a code of the processor's model"),
    Column("issue_latency", "uint64", "cycles", "Arm SPE: from dispatch to issue; weight has the total"),
    Column("translation_latency", "uint64", "cycles", "Arm SPE: address translation"),
)

_BY_NAME = {c.name: c for c in COLUMNS}
REQUIRED: tuple[Column, ...] = tuple(c for c in COLUMNS if not c.optional)
GROUPS: tuple[str, ...] = tuple(dict.fromkeys(c.group for c in COLUMNS if c.group != "sample"))


def column(name: str) -> Column:
    """The declaration of column ``name``; `KeyError` for a name that is not declared."""
    return _BY_NAME[name]
