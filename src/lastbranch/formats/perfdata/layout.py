"""perf.data as declarations: file header, attributes, record types, sample fields, header features.

Names and order are those of the kernel ABI (include/uapi/linux/perf_event.h) and of perf's own format
(tools/perf/Documentation/perf.data-file-format.txt, tools/perf/util/header.h, tools/lib/perf/include/perf/event.h).
"""

from __future__ import annotations

from ..fields import Fields

__all__ = [
    "ATTR_FIELDS",
    "ATTR_FLAGS",
    "FEATURES",
    "HARDWARE_EVENTS",
    "HEADER",
    "MAGIC",
    "MISC",
    "MMAP2_BUILD_ID",
    "OLD_MAGIC",
    "PIPE_HEADER_SIZE",
    "READ",
    "RECORD",
    "RECORDS",
    "RECORD_FIELDS",
    "SAMPLE",
    "SAMPLE_ID",
    "SOFTWARE_EVENTS",
    "TYPE",
    "USER_RECORDS",
]

MAGIC = b"PERFILE2"
OLD_MAGIC = b"PERFFILE"

HEADER = (  # struct perf_file_header, all u64
    "size",  # 0x08
    "attr_size",  # 0x10: one attribute and its section of ids
    "attrs.offset", "attrs.size",  # 0x18
    "data.offset", "data.size",  # 0x28
    "event_types.offset", "event_types.size",  # 0x38: no longer written
    "features.0", "features.1", "features.2", "features.3",  # 0x48: bitmap
)  # fmt: skip
PIPE_HEADER_SIZE = 16

ATTR_FIELDS = (  # struct perf_event_attr: name, format character of `struct`
    ("type", "I"), ("size", "I"), ("config", "Q"), ("sample_period", "Q"), ("sample_type", "Q"),  # 0x00
    ("read_format", "Q"), ("flags", "Q"), ("wakeup_events", "I"), ("bp_type", "I"), ("config1", "Q"),  # 0x20: VER0, 64
    ("config2", "Q"),  # 0x40: VER1, 72
    ("branch_sample_type", "Q"),  # 0x48: VER2, 80
    ("sample_regs_user", "Q"), ("sample_stack_user", "I"), ("clockid", "i"),  # 0x50: VER3, 96
    ("sample_regs_intr", "Q"),  # 0x60: VER4, 104
    ("aux_watermark", "I"), ("sample_max_stack", "H"), ("reserved_2", "H"),  # 0x68: VER5, 112
    ("aux_sample_size", "I"), ("aux_action", "I"),  # 0x70: VER6, 120
    ("sig_data", "Q"),  # 0x78: VER7, 128
    ("config3", "Q"),  # 0x80: VER8, 136
    ("config4", "Q"),  # 0x88: VER9, 144
)  # fmt: skip

ATTR_FLAGS = (  # bit 0 up of perf_event_attr.flags; precise_ip has two bits
    "disabled", "inherit", "pinned", "exclusive", "exclude_user", "exclude_kernel", "exclude_hv", "exclude_idle",
    "mmap", "comm", "freq", "inherit_stat", "enable_on_exec", "task", "watermark", "precise_ip_0", "precise_ip_1",
    "mmap_data", "sample_id_all", "exclude_host", "exclude_guest", "exclude_callchain_kernel",
    "exclude_callchain_user", "mmap2", "comm_exec", "use_clockid", "context_switch", "write_backward", "namespaces",
    "ksymbol", "bpf_event", "aux_output", "cgroup", "text_poke", "build_id", "inherit_thread", "remove_on_exec",
    "sigtrap", "defer_callchain", "defer_output",
)  # fmt: skip

RECORDS = {  # perf_event_type, then perf's own from 64
    1: "MMAP", 2: "LOST", 3: "COMM", 4: "EXIT", 5: "THROTTLE", 6: "UNTHROTTLE", 7: "FORK", 8: "READ", 9: "SAMPLE",
    10: "MMAP2", 11: "AUX", 12: "ITRACE_START", 13: "LOST_SAMPLES", 14: "SWITCH", 15: "SWITCH_CPU_WIDE",
    16: "NAMESPACES", 17: "KSYMBOL", 18: "BPF_EVENT", 19: "CGROUP", 20: "TEXT_POKE", 21: "AUX_OUTPUT_HW_ID",
    22: "CALLCHAIN_DEFERRED",
    64: "HEADER_ATTR", 65: "HEADER_EVENT_TYPE", 66: "HEADER_TRACING_DATA", 67: "HEADER_BUILD_ID",
    68: "FINISHED_ROUND", 69: "ID_INDEX", 70: "AUXTRACE_INFO", 71: "AUXTRACE", 72: "AUXTRACE_ERROR",
    73: "THREAD_MAP", 74: "CPU_MAP", 75: "STAT_CONFIG", 76: "STAT", 77: "STAT_ROUND", 78: "EVENT_UPDATE",
    79: "TIME_CONV", 80: "HEADER_FEATURE", 81: "COMPRESSED", 82: "FINISHED_INIT", 83: "COMPRESSED2",
    84: "BPF_METADATA", 85: "SCHEDSTAT_CPU", 86: "SCHEDSTAT_DOMAIN",
}  # fmt: skip

RECORD = {name: number for number, name in RECORDS.items()}
"""Type of a record by its name."""
USER_RECORDS = 64
"""PERF_RECORD_USER_TYPE_START: records from here on are perf's own, not the kernel's."""


class TYPE:
    """The kind of an event: perf_event_attr.type (perf_type_id). Sources of sysfs have further numbers."""

    HARDWARE, SOFTWARE, TRACEPOINT, HW_CACHE, RAW, BREAKPOINT = range(6)


HARDWARE_EVENTS = (  # perf_hw_id: config of TYPE.HARDWARE, as perf-list(1) names them
    "cycles", "instructions", "cache-references", "cache-misses", "branches", "branch-misses", "bus-cycles",
    "stalled-cycles-frontend", "stalled-cycles-backend", "ref-cycles",
)  # fmt: skip
SOFTWARE_EVENTS = (  # perf_sw_ids: config of TYPE.SOFTWARE
    "cpu-clock", "task-clock", "page-faults", "context-switches", "cpu-migrations", "minor-faults", "major-faults",
    "alignment-faults", "emulation-faults", "dummy", "bpf-output", "cgroup-switches",
)  # fmt: skip


class MISC:
    """Bits of perf_event_header.misc."""

    CPUMODE_MASK = 7
    KERNEL, USER = 1, 2
    MMAP_DATA = COMM_EXEC = FORK_EXEC = SWITCH_OUT = 1 << 13
    MMAP_BUILD_ID = SWITCH_OUT_PREEMPT = 1 << 14
    BUILD_ID_SIZE = 1 << 15


class SAMPLE:
    """Bits of perf_event_attr.sample_type (PERF_SAMPLE_*)."""

    (
        IP,
        TID,
        TIME,
        ADDR,
        READ,
        CALLCHAIN,
        ID,
        CPU,
        PERIOD,
        STREAM_ID,
        RAW,
        BRANCH_STACK,
        REGS_USER,
        STACK_USER,
        WEIGHT,
        DATA_SRC,
        IDENTIFIER,
        TRANSACTION,
        REGS_INTR,
        PHYS_ADDR,
        AUX,
        CGROUP,
        DATA_PAGE_SIZE,
        CODE_PAGE_SIZE,
        WEIGHT_STRUCT,
    ) = (1 << bit for bit in range(25))


SAMPLE_ID: tuple[tuple[int, Fields], ...] = (
    (SAMPLE.TID, (("pid", "i"), ("tid", "i"))),
    (SAMPLE.TIME, (("time", "q"),)),
    (SAMPLE.ID, (("id", "Q"),)),
    (SAMPLE.STREAM_ID, (("stream_id", "Q"),)),
    (SAMPLE.CPU, (("cpu", "i"), ("res", "I"))),
    (SAMPLE.IDENTIFIER, (("identifier", "Q"),)),
)
"""struct sample_id: the trailer of records other than samples where sample_id_all is on. Each part is one word."""


class READ:
    """Bits of perf_event_attr.read_format (PERF_FORMAT_*)."""

    TOTAL_TIME_ENABLED, TOTAL_TIME_RUNNING, ID, GROUP, LOST = (1 << bit for bit in range(5))


FEATURES = (  # HEADER_* of tools/perf/util/header.h: bit number = position, from 1
    "RESERVED", "TRACING_DATA", "BUILD_ID", "HOSTNAME", "OSRELEASE", "VERSION", "ARCH", "NRCPUS", "CPUDESC", "CPUID",
    "TOTAL_MEM", "CMDLINE", "EVENT_DESC", "CPU_TOPOLOGY", "NUMA_TOPOLOGY", "BRANCH_STACK", "PMU_MAPPINGS",
    "GROUP_DESC", "AUXTRACE", "STAT", "CACHE", "SAMPLE_TIME", "MEM_TOPOLOGY", "CLOCKID", "DIR_FORMAT",
    "BPF_PROG_INFO", "BPF_BTF", "COMPRESSED", "CPU_PMU_CAPS", "CLOCK_DATA", "HYBRID_TOPOLOGY", "PMU_CAPS",
    "CPU_DOMAIN_INFO", "E_MACHINE",
)  # fmt: skip


# -- Fields of the records other than samples, by type, in the language of `formats.fields`

_TASK = (("pid", "i"), ("tid", "i"))
_MMAP = (*_TASK, ("addr", "A"), ("len", "A"), ("pgoff", "A"))
_PROTECTION = (("prot", "X"), ("flags", "X"), ("filename", "text"))
_FORK = (("pid", "i"), ("ppid", "i"), ("tid", "i"), ("ptid", "i"), ("time", "Q"))
_THROTTLE = (("time", "Q"), ("id", "Q"), ("stream_id", "Q"))

MMAP2_BUILD_ID: Fields = (
    *_MMAP,
    ("build_id_size", "B"),
    ("__reserved_1", "B"),
    ("__reserved_2", "H"),
    ("build_id", "20s"),
    *_PROTECTION,
)
"""MMAP2 where misc has MISC_MMAP_BUILD_ID."""

RECORD_FIELDS: dict[str, Fields] = {
    "MMAP": (*_MMAP, ("filename", "text")),
    "LOST": (("id", "Q"), ("lost", "Q")),
    "COMM": (*_TASK, ("comm", "text")),
    "EXIT": _FORK,
    "THROTTLE": _THROTTLE,
    "UNTHROTTLE": _THROTTLE,
    "FORK": _FORK,
    "READ": (*_TASK, ("values", "bytes")),  # struct read_format
    "MMAP2": (*_MMAP, ("maj", "I"), ("min", "I"), ("ino", "Q"), ("ino_generation", "Q"), *_PROTECTION),
    "AUX": (("aux_offset", "A"), ("aux_size", "A"), ("flags", "A")),
    "ITRACE_START": _TASK,
    "LOST_SAMPLES": (("lost", "Q"),),
    "SWITCH": (),
    "SWITCH_CPU_WIDE": (("next_prev_pid", "i"), ("next_prev_tid", "i")),
    "NAMESPACES": (*_TASK, ("nr_namespaces", "Q"), ("link_info", (("dev", "Q"), ("inode", "Q")))),
    "KSYMBOL": (("addr", "A"), ("len", "I"), ("ksym_type", "H"), ("flags", "H"), ("name", "text")),
    "BPF_EVENT": (("type", "H"), ("flags", "H"), ("id", "I"), ("tag", "8s")),
    "CGROUP": (("id", "Q"), ("path", "text")),
    "TEXT_POKE": (("addr", "A"), ("old_len", "H"), ("new_len", "H"), ("bytes", "bytes")),
    "AUX_OUTPUT_HW_ID": (("hw_id", "Q"),),
    "CALLCHAIN_DEFERRED": (("cookie", "A"), ("nr", "Q"), ("ips", (("ip", "A"),))),
    "HEADER_ATTR": (
        ("type", "I"), ("size", "I"), ("config", "A"), ("sample_period", "Q"), ("sample_type", "A"),
        ("read_format", "A"), ("rest", "bytes"),
    ),
    "HEADER_EVENT_TYPE": (("event_id", "Q"), ("name", "text")),
    "HEADER_TRACING_DATA": (("size", "I"),),
    "HEADER_BUILD_ID": (("pid", "i"), ("build_id", "20s"), ("size", "B"), ("reserved", "3s"), ("filename", "text")),
    "FINISHED_ROUND": (),
    "ID_INDEX": (("nr", "Q"), ("entries", (("id", "Q"), ("idx", "q"), ("cpu", "q"), ("tid", "q")))),
    "AUXTRACE_INFO": (("type", "I"), ("reserved", "I"), ("priv", (("priv", "A"),))),
    "AUXTRACE": (
        ("size", "Q"), ("offset", "A"), ("reference", "A"), ("idx", "I"), ("tid", "i"), ("cpu", "i"), ("reserved", "I"),
    ),
    "AUXTRACE_ERROR": (
        ("type", "I"), ("code", "I"), ("cpu", "i"), ("pid", "i"), ("tid", "i"), ("fmt", "I"), ("ip", "A"),
        ("time", "Q"), ("msg", "text"),
    ),
    "THREAD_MAP": (("nr", "Q"), ("entries", (("pid", "q"), ("comm", "N")))),
    "CPU_MAP": (("type", "H"), ("data", "bytes")),
    "STAT_CONFIG": (("nr", "Q"), ("data", (("tag", "Q"), ("val", "Q")))),
    "STAT": (("id", "Q"), ("cpu", "i"), ("thread", "i"), ("val", "Q"), ("ena", "Q"), ("run", "Q")),
    "STAT_ROUND": (("type", "Q"), ("time", "Q")),
    "EVENT_UPDATE": (("type", "Q"), ("id", "Q"), ("data", "text")),
    "TIME_CONV": (
        ("time_shift", "Q"), ("time_mult", "Q"), ("time_zero", "Q"), ("time_cycles", "Q"), ("time_mask", "A"),
        ("cap_user_time_zero", "B"), ("cap_user_time_short", "B"),
    ),
    "HEADER_FEATURE": (("feat_id", "Q"), ("data", "bytes")),
    "FINISHED_INIT": (),
}  # fmt: skip
