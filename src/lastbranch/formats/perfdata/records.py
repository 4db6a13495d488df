"""Records other than samples: what each type does to the profile, by table.

To read one more record type, write a function ``(state, Record)`` and enter it in `HANDLERS`. Types without a handler
are counted and otherwise left alone. Layouts: comments of enum perf_event_type in include/uapi/linux/perf_event.h and
tools/lib/perf/include/perf/event.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from ...errors import Damage, FormatError
from ...model import KERNEL, THROTTLES, Change, Mode, guest_kernel, guest_user
from ..fields import Fields, decode, decoder, unpack
from .attr import Attr, parse_attr
from .header import decode_feature
from .layout import MISC, MMAP2_BUILD_ID, READ, RECORD, RECORD_FIELDS, RECORDS, SAMPLE, USER_RECORDS
from .state import IndexState, build_id_of

__all__ = ["ATTR", "COUNTED", "HANDLERS", "HandledRecord", "fields_of", "handle", "has_time_stamps", "trailer_of"]

_MOST_LOST = (1 << 63) - 1
_MOST_LOSSES = 1 << 16
_LAST = (1 << 64) - 1
_MOST_NAMED = 1000  # a file that is damaged all over must not fill the memory with that


@dataclass(slots=True)
class HandledRecord:
    """A record: its body after the header, and its time (the time in its trailer, or the nearest known time)."""

    kind: int
    misc: int
    body: bytes
    position: int
    time: int
    order: str
    trailer: int
    """Bytes of the sample_id trailer at the end of ``body``; 0 where it has none."""
    times: int = 1
    """How many equal records this is."""

    def fields(self) -> dict[str, Any]:
        """Its fields by name. `ValueError` if the record ends inside its fields."""
        body = self.body[: len(self.body) - self.trailer] if self.trailer else self.body
        return _decoder(self.kind, self.misc & MISC.MMAP_BUILD_ID, self.order)(body)

    @property
    def cpumode(self) -> int:
        """One of `model.Mode`: they are perf's."""
        return self.misc & MISC.CPUMODE_MASK


def handle(state: IndexState, kind: int, misc: int, body: bytes, position: int, times: int = 1) -> None:
    """Apply a record that is not a sample to the profile; the file has this record ``times`` times. A record that is
    too short for its type is noted as damage."""
    handler = HANDLERS.get(kind)
    if handler is None:
        return
    time, trailer = _time_of(state, kind, body, position)
    if trailer and time:  # what recorders make up before the first event has time 0
        state.profile.start = time if state.profile.start is None else min(time, state.profile.start)
    try:
        handler(state, HandledRecord(kind, misc, body, position, time, state.order, trailer, times))
    except (ValueError, FormatError) as error:
        reason = error.reason if isinstance(error, FormatError) else error
        damage = Damage(f"record cannot be read: {reason}", position, "type", kind, len(body) + 8)
        if len(state.profile.damage) < _MOST_NAMED:
            state.profile.damage.append(damage)
        else:
            lost = state.profile.lost
            lost["damaged records not listed"] = lost.get("damaged records not listed", 0) + times


def fields_of(kind: int, misc: int, unknown: Fields = ()) -> Fields:
    """How a record is laid out, which is ``unknown`` for other types."""
    name = RECORDS.get(kind, "")
    return MMAP2_BUILD_ID if name == "MMAP2" and misc & MISC.MMAP_BUILD_ID else RECORD_FIELDS.get(name, unknown)


@cache
def _decoder(kind: int, misc: int, order: str) -> Callable[[bytes], dict[str, Any]]:
    return decoder(fields_of(kind, misc), order)


def trailer_of(state: IndexState, kind: int, body: bytes) -> tuple[dict[str, int], int]:
    """(fields, bytes) of the trailer that sample_id_all adds to a record of the kernel; (none, 0) without one."""
    attr = None if kind >= USER_RECORDS else attr_of_trailer(state, body)
    if attr is None or not attr.trailer or attr.trailer > len(body):
        return {}, 0
    return decode(attr.sample_id, body[len(body) - attr.trailer :], state.order), attr.trailer


def _time_of(state: IndexState, kind: int, body: bytes, position: int) -> tuple[int, int]:
    """(time, bytes of the trailer) of a record.

    Without a time (before Linux 2.6.39) it is that of the newest sample so far; in files without any time, the position
    in the file.
    """
    attr = None if kind >= USER_RECORDS else attr_of_trailer(state, body)
    size = 0 if attr is None or attr.trailer > len(body) else attr.trailer
    if size and attr is not None and attr.time_at is not None:
        return unpack(state.order + "q", body, len(body) - size + attr.time_at)[0], size
    if kind >= USER_RECORDS:
        return 0, 0
    return (state.newest_time if _has_times(state) else position), size


def _has_times(state: IndexState) -> bool:
    return any(attr.timed for attr in state.attrs)


def has_time_stamps(state: IndexState) -> bool:
    """Whether every record of the kernel has its own time."""
    return bool(state.attrs) and all(attr.time_at is not None for attr in state.attrs)


def attr_of_trailer(state: IndexState, body: bytes) -> Attr | None:
    """The attribute that shaped the trailer: by its identifier, which is the last word, where there are several."""
    if not state.attrs:
        return None
    first = state.attrs[0]
    if len(state.attrs) > 1 and first.sample_type & SAMPLE.IDENTIFIER and len(body) >= 8:
        identifier = unpack(state.order + "Q", body, len(body) - 8)[0]
        return state.attrs[state.attr_of_id.get(identifier, 0)]
    return first


def _mmap(state: IndexState, r: HandledRecord) -> None:
    """MMAP and MMAP2. perf names the kernel's with pid -1."""
    f = r.fields()
    name, start, offset = f["filename"], f["addr"], f["pgoff"]
    build_id = build_id_of(f["build_id"], f["build_id_size"]) if "build_id" in f else b""
    inode = tuple(f[part] for part in _INODE) if f.get("ino") else ()
    kernel = r.cpumode in (Mode.KERNEL, Mode.GUEST_KERNEL)
    if kernel and name.startswith(("[kernel.", "[guest.kernel.")) and name.endswith("]_stext"):
        offset &= ~0xFFF  # _text is the page of _stext
    module = state.module(name, kernel, build_id, inode)
    if kernel and not name.startswith("[") and start == 0:
        return  # simpleperf names kernel modules whose place it does not know: from 0, as long as may be
    owner, end = _OWNERS.get(r.cpumode, int)(f["pid"]), min(start + f["len"], _LAST)
    timeline = state.profile.timeline
    timeline.add(Change.MAP, r.time, owner, tid=f["tid"], module=module, start=start, end=end, offset=offset)


_INODE = ("maj", "min", "ino", "ino_generation")

_OWNERS: dict[int, Callable[[int], int]] = {
    # perf names a guest by its process on the host, or by 0 if there is only one guest
    Mode.KERNEL: lambda _: KERNEL,
    Mode.GUEST_KERNEL: lambda pid: guest_kernel(max(pid, 0)),
    Mode.GUEST_USER: lambda pid: guest_user(max(pid, 0)),
}


def _comm(state: IndexState, r: HandledRecord) -> None:
    """MISC_COMM_EXEC: the process has this name because it replaced its program."""
    f = r.fields()
    if r.misc & MISC.COMM_EXEC:
        state.profile.timeline.add(Change.EXEC, r.time, f["pid"], tid=f["tid"])
    state.profile.timeline.name(r.time, f["pid"], f["tid"], f["comm"])


def _task(change: Change) -> Callable[[IndexState, HandledRecord], None]:
    """FORK and EXIT. They have a time of their own, which counts in old files, whose records lack the trailer."""

    def handler(state: IndexState, r: HandledRecord) -> None:
        f = r.fields()
        own = f["time"] - (f["time"] >> 63 << 64)
        time = r.time if r.trailer or not _has_times(state) else own
        if change is Change.EXIT:
            state.profile.timeline.add(change, time, f["pid"], tid=f["tid"])
            return
        # perf makes FORK records of tasks that ran before the recording (time 0); their own mappings follow.
        alone = int(bool(r.misc & MISC.FORK_EXEC) or own == 0)
        state.profile.timeline.add(change, time, f["pid"], tid=f["tid"], parent=f["ppid"], offset=alone)

    return handler


def _read(state: IndexState, r: HandledRecord) -> None:
    """The count of an event for one thread, which the kernel writes when that ends (inherit_stat, ``perf record -s``):
    of a clock it is CPU time in ns. Of several clocks the first one counts."""
    attr = attr_of_trailer(state, r.body)
    if attr is None or not attr.counts_time or attr.fields["read_format"] & READ.GROUP:
        return
    if state.clock_event is None:
        state.clock_event = attr
    if attr is state.clock_event:
        f = r.fields()
        (ns,) = unpack(state.order + "Q", f["values"], 0)
        state.profile.timeline.add(Change.RAN, r.time, f["pid"], tid=f["tid"], start=min(ns, _MOST_LOST))


def _count(name: str, field: str | None = None) -> Callable[[IndexState, HandledRecord], None]:
    """A handler that adds ``field`` (``None``: 1) to a loss counter."""

    def handler(state: IndexState, r: HandledRecord) -> None:
        lost = state.profile.lost
        more = r.times * (r.fields()[field] if field else 1)
        lost[name] = min(lost.get(name, 0) + more, _MOST_LOST)
        if field and has_time_stamps(state) and len(state.profile.losses) < _MOST_LOSSES:
            state.profile.losses.append((r.time, min(more, _MOST_LOST)))

    return handler


def _ksymbol(state: IndexState, r: HandledRecord) -> None:
    """Code that the kernel makes: BPF programs, trampolines. Flag 1: it is gone."""
    f = r.fields()
    timeline, start, end = state.profile.timeline, f["addr"], min(f["addr"] + f["len"], _LAST)
    if f["flags"] & 1:
        timeline.add(Change.UNMAP, r.time, -1, start=start, end=end)
        return
    module = state.module("//anon:" + f["name"], kernel=False)
    if start == 0:
        return  # hidden from this user (kernel.kptr_restrict)
    timeline.add(Change.MAP, r.time, -1, module=module, start=start, end=end, offset=0)


def _header_attr(state: IndexState, r: HandledRecord) -> None:
    """Pipe mode: an attribute, then the ids of its counters."""
    attr = parse_attr(r.body, r.position + 8, state.order, state.profile.name)
    size = attr.fields["size"] or 64
    attr.ids = unpack(f"{state.order}{(len(r.body) - size) // 8}Q", r.body, size)
    state.add_attr(attr)
    state.late_attr |= state.samples_seen


def _header_feature(state: IndexState, r: HandledRecord) -> None:
    """Pipe mode: the contents of a section of the file form."""
    f = r.fields()
    decode_feature(state, f["feat_id"], f["data"], r.position)


def _header_build_id(state: IndexState, r: HandledRecord) -> None:
    state.add_build_id(r.body, r.misc)


def _event_update(state: IndexState, r: HandledRecord) -> None:
    """Type 2 is the event's name."""
    f = r.fields()
    if f["type"] == 2:
        state.event_names.append(((f["id"],), f["data"]))


def _event_type(state: IndexState, r: HandledRecord) -> None:
    """Old pipes: the config of a tracepoint, and its name."""
    f = r.fields()
    state.tracepoints[f["event_id"]] = f["name"]


def _aux(state: IndexState, r: HandledRecord) -> None:
    trailer, _ = trailer_of(state, r.kind, r.body)
    state.aux.stretch(r.fields(), trailer, state.profile, r.times)


def _itrace_start(state: IndexState, r: HandledRecord) -> None:
    trailer, _ = trailer_of(state, r.kind, r.body)
    state.aux.started(r.fields(), trailer)


def _time_conv(state: IndexState, r: HandledRecord) -> None:
    """Records before Linux 5.10 end after the third field."""
    found = decode(RECORD_FIELDS["TIME_CONV"], r.body, state.order, cut=True)
    if "time_zero" not in found:
        raise ValueError(f"{len(r.body)} bytes of time conversion")
    state.aux.conversion(found)


COUNTED = tuple(RECORD[name] for name in ("LOST", "THROTTLE", "LOST_SAMPLES", "AUXTRACE_ERROR"))
"""Types that only add to a counter: their order does not matter."""
ATTR = RECORD["HEADER_ATTR"]

HANDLERS: dict[int, Callable[[IndexState, HandledRecord], None]] = {
    RECORD[name]: handler
    for name, handler in {
        "MMAP": _mmap,
        "LOST": _count("records", "lost"),
        "COMM": _comm,
        "EXIT": _task(Change.EXIT),
        "THROTTLE": _count(THROTTLES),
        "FORK": _task(Change.FORK),
        "READ": _read,
        "MMAP2": _mmap,
        "AUX": _aux,
        "ITRACE_START": _itrace_start,
        "LOST_SAMPLES": _count("samples", "lost"),
        "KSYMBOL": _ksymbol,
        "HEADER_ATTR": _header_attr,
        "HEADER_EVENT_TYPE": _event_type,
        "HEADER_BUILD_ID": _header_build_id,
        "AUXTRACE_INFO": lambda state, r: state.aux.information(r.fields()),
        "AUXTRACE_ERROR": _count("aux errors"),
        "EVENT_UPDATE": _event_update,
        "TIME_CONV": _time_conv,
        "HEADER_FEATURE": _header_feature,
    }.items()
}
