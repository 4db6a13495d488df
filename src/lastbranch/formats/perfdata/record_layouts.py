"""Fields of the records beside the samples, by type: names and order of the kernel ABI and of perf's own records.

Sources: comments of enum perf_event_type in include/uapi/linux/perf_event.h, tools/lib/perf/include/perf/event.h. A
field is a name and its type: a code of `struct`, ``text`` (up to a NUL), ``bytes`` (all that is left), or a tuple of
fields, which are repeated up to the end. `CODES` adds some that say how a value is read.
"""

from __future__ import annotations

from typing import Any

__all__ = ["CODES", "MMAP2_BUILD_ID", "RECORD_FIELDS", "Fields"]

Fields = tuple[tuple[str, Any], ...]

CODES: dict[str, str] = {"A": "Q", "X": "I", "N": "16s"}
"""Beyond `struct`: addresses and bits of 64 and of 32 bits, which are read in hexadecimal, and names of 16 bytes."""

_TASK = (("pid", "i"), ("tid", "i"))
_MMAP = (*_TASK, ("addr", "A"), ("len", "A"), ("pgoff", "A"))
_PROTECTION = (("prot", "X"), ("flags", "X"), ("filename", "text"))
_FORK = (("pid", "i"), ("ppid", "i"), ("tid", "i"), ("ptid", "i"), ("time", "Q"))
_THROTTLE = (("time", "Q"), ("id", "Q"), ("stream_id", "Q"))

MMAP2_BUILD_ID: Fields = (
    *_MMAP, ("build_id_size", "B"), ("__reserved_1", "B"), ("__reserved_2", "H"), ("build_id", "20s"), *_PROTECTION,
)  # fmt: skip
"""MMAP2 where misc has MISC_MMAP_BUILD_ID."""

RECORD_FIELDS: dict[int, Fields] = {
    1: (*_MMAP, ("filename", "text")),
    2: (("id", "Q"), ("lost", "Q")),
    3: (*_TASK, ("comm", "text")),
    4: _FORK,
    5: _THROTTLE,
    6: _THROTTLE,
    7: _FORK,
    8: (*_TASK, ("values", "bytes")),  # struct read_format
    10: (*_MMAP, ("maj", "I"), ("min", "I"), ("ino", "Q"), ("ino_generation", "Q"), *_PROTECTION),
    11: (("aux_offset", "A"), ("aux_size", "A"), ("flags", "A")),
    12: _TASK,
    13: (("lost", "Q"),),
    14: (),
    15: (("next_prev_pid", "i"), ("next_prev_tid", "i")),
    16: (*_TASK, ("nr_namespaces", "Q"), ("link_info", (("dev", "Q"), ("inode", "Q")))),
    17: (("addr", "A"), ("len", "I"), ("ksym_type", "H"), ("flags", "H"), ("name", "text")),
    18: (("type", "H"), ("flags", "H"), ("id", "I"), ("tag", "8s")),
    19: (("id", "Q"), ("path", "text")),
    20: (("addr", "A"), ("old_len", "H"), ("new_len", "H"), ("bytes", "bytes")),
    21: (("hw_id", "Q"),),
    22: (("cookie", "A"), ("nr", "Q"), ("ips", (("ip", "A"),))),
    64: (("type", "I"), ("size", "I"), ("config", "A"), ("sample_period", "Q"), ("sample_type", "A"),
         ("read_format", "A"), ("rest", "bytes")),
    65: (("event_id", "Q"), ("name", "text")),
    66: (("size", "I"),),
    67: (("pid", "i"), ("build_id", "20s"), ("size", "B"), ("reserved", "3s"), ("filename", "text")),
    68: (),
    69: (("nr", "Q"), ("entries", (("id", "Q"), ("idx", "q"), ("cpu", "q"), ("tid", "q")))),
    70: (("type", "I"), ("reserved", "I"), ("priv", (("priv", "A"),))),
    71: (("size", "Q"), ("offset", "A"), ("reference", "A"), ("idx", "I"), ("tid", "i"), ("cpu", "i"),
         ("reserved", "I")),
    72: (("type", "I"), ("code", "I"), ("cpu", "i"), ("pid", "i"), ("tid", "i"), ("fmt", "I"), ("ip", "A"),
         ("time", "Q"), ("msg", "text")),
    73: (("nr", "Q"), ("entries", (("pid", "q"), ("comm", "N")))),
    74: (("type", "H"), ("data", "bytes")),
    75: (("nr", "Q"), ("data", (("tag", "Q"), ("val", "Q")))),
    76: (("id", "Q"), ("cpu", "i"), ("thread", "i"), ("val", "Q"), ("ena", "Q"), ("run", "Q")),
    77: (("type", "Q"), ("time", "Q")),
    78: (("type", "Q"), ("id", "Q"), ("data", "text")),
    79: (("time_shift", "Q"), ("time_mult", "Q"), ("time_zero", "Q"), ("time_cycles", "Q"), ("time_mask", "A"),
         ("cap_user_time_zero", "B"), ("cap_user_time_short", "B")),
    80: (("feat_id", "Q"), ("data", "bytes")),
    82: (),
}  # fmt: skip
