"""Records beside the samples: what each type does to the profile, by table.

To read one more record type, write a function ``(state, Record)`` and enter it in `HANDLERS`. Types without a handler
are counted and otherwise left alone. Layouts: comments of enum perf_event_type in include/uapi/linux/perf_event.h and
tools/lib/perf/include/perf/event.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...errors import Damage, FormatError
from ...model import KERNEL, Change, Mode, guest_kernel, guest_user
from ..numbers import unpack
from .attr import Attr, parse_attr
from .features import decode_feature
from .layout import MISC, RECORD, SAMPLE, USER_RECORDS
from .state import State, trim

__all__ = ["ATTR", "COUNTED", "HANDLERS", "Record", "handle", "stamped"]

_MOST_LOST = (1 << 63) - 1
_LAST = (1 << 64) - 1
_MOST_NAMED = 1000  # a file that is damaged all over must not fill the memory with that


@dataclass(slots=True)
class Record:
    """One record: its body after the header, and the time of its sample_id trailer (or what stands in for it)."""

    kind: int
    misc: int
    body: bytes
    position: int
    time: int
    order: str
    trailer: int
    """Bytes of the sample_id trailer at the end of ``body``; 0 where it has none."""
    times: int = 1
    """How often it stands there, in the same bytes."""

    def unpack(self, codes: str, at: int = 0) -> tuple[int, ...]:
        """The fields ``codes`` (of `struct`) from byte ``at``; `ValueError` if they go past the record."""
        return unpack(self.order + codes, self.body, at)

    def text(self, at: int) -> str:
        """The NUL-terminated string at byte ``at``, before the trailer."""
        return self.body[at : len(self.body) - self.trailer].split(b"\0")[0].decode("utf-8", "surrogateescape")

    @property
    def cpumode(self) -> int:
        """One of `model.Mode`: they are perf's."""
        return self.misc & MISC.CPUMODE_MASK


def handle(state: State, kind: int, misc: int, body: bytes, position: int, times: int = 1) -> None:
    """Work off one record that is not a sample, which stands there so many ``times`` in the same bytes. A record too
    short for its type is noted as damage."""
    handler = HANDLERS.get(kind)
    if handler is None:
        return
    time, trailer = (0, 0) if kind >= USER_RECORDS else _sample_id(state, body, position)
    if trailer and time:  # what recorders make up before the first event has time 0
        state.profile.start = time if state.profile.start is None else min(time, state.profile.start)
    try:
        handler(state, Record(kind, misc, body, position, time, state.order, trailer, times))
    except (ValueError, FormatError) as error:
        reason = error.reason if isinstance(error, FormatError) else error
        damage = Damage(f"record cannot be read: {reason}", position, "type", kind, len(body) + 8)
        if len(state.profile.damage) < _MOST_NAMED:
            state.profile.damage.append(damage)
        else:
            lost = state.profile.lost
            lost["damaged records not listed"] = lost.get("damaged records not listed", 0) + times


def _sample_id(state: State, body: bytes, position: int) -> tuple[int, int]:
    """(time, bytes) of the trailer that sample_id_all puts behind a record.

    Without one (before Linux 2.6.39) the newest sample so far tells the time; in files without any time the position
    in the file takes its place.
    """
    attr = attr_of_trailer(state, body)
    if attr is None or not attr.sample_type & SAMPLE.TIME:
        return (state.newest_time if _timed(state) else position), trailer_size(attr)
    size = attr.trailer
    if attr.time_at is None or size > len(body):
        return state.newest_time, 0
    time: int = unpack(state.order + "q", body, len(body) - size + attr.time_at)[0]
    return time, size


def _timed(state: State) -> bool:
    return any(a.sample_type & SAMPLE.TIME for a in state.attrs)


def stamped(state: State) -> bool:
    """Whether every record of the kernel says its own time."""
    return bool(state.attrs) and all(attr.time_at is not None for attr in state.attrs)


def trailer_size(attr: Attr | None) -> int:
    return 0 if attr is None else attr.trailer


def attr_of_trailer(state: State, body: bytes) -> Attr | None:
    """The attribute that shaped the trailer: by its identifier, which is the last word, where there are several."""
    if not state.attrs:
        return None
    first = state.attrs[0]
    if len(state.attrs) > 1 and first.sample_type & SAMPLE.IDENTIFIER and len(body) >= 8:
        identifier = unpack(state.order + "Q", body, len(body) - 8)[0]
        return state.attrs[state.attr_of_id.get(identifier, 0)]
    return first


def _mmap(state: State, r: Record) -> None:
    """u32 pid, tid; u64 addr, len, pgoff; name. perf names the kernel's with pid -1."""
    pid, tid, start, length, offset = r.unpack("iiQQQ")
    _map(state, r, pid, tid, start, length, offset, r.text(32), b"")


def _mmap2(state: State, r: Record) -> None:
    """As MMAP, then device and inode or (MISC_MMAP_BUILD_ID) the build id, u32 prot, flags; name."""
    pid, tid, start, length, offset = r.unpack("iiQQQ")
    build_id = b""
    if r.misc & MISC.MMAP_BUILD_ID:
        (size,) = r.unpack("B", 32)
        if size > 20:
            raise ValueError(f"build id of {size} bytes")
        build_id = trim(r.body[36 : 36 + size])
    _map(state, r, pid, tid, start, length, offset, r.text(64), build_id)


def _map(
    state: State, r: Record, pid: int, tid: int, start: int, length: int, offset: int, name: str, build_id: bytes
) -> None:
    end = min(start + length, _LAST)
    kernel = r.cpumode in (Mode.KERNEL, Mode.GUEST_KERNEL)
    if kernel and name.startswith(("[kernel.", "[guest.kernel.")) and name.endswith("]_stext"):
        offset &= ~0xFFF  # _text is the page that _stext stands in
    module = state.module(name, kernel, build_id)
    if kernel and not name.startswith("[") and start == 0:
        return  # simpleperf names kernel modules whose place it does not know: from 0, as long as may be
    owner = _OWNERS.get(r.cpumode, int)(pid)
    state.profile.timeline.add(Change.MAP, r.time, owner, tid=tid, module=module, start=start, end=end, offset=offset)


_OWNERS: dict[int, Callable[[int], int]] = {
    # perf names a guest by the process of the host that runs it, 0 where it knows of one only
    Mode.KERNEL: lambda _: KERNEL,
    Mode.GUEST_KERNEL: lambda pid: guest_kernel(max(pid, 0)),
    Mode.GUEST_USER: lambda pid: guest_user(max(pid, 0)),
}


def _comm(state: State, r: Record) -> None:
    """u32 pid, tid; name. MISC_COMM_EXEC: it is called so because it replaced its program."""
    pid, tid = r.unpack("ii")
    if r.misc & MISC.COMM_EXEC:
        state.profile.timeline.add(Change.EXEC, r.time, pid, tid=tid)
    state.profile.timeline.name(r.time, pid, tid, r.text(8))


def _task_time(state: State, r: Record, time: int) -> int:
    """FORK and EXIT carry a time of their own, which old files have where the trailer is missing."""
    return r.time if r.trailer or not _timed(state) else time


def _fork(state: State, r: Record) -> None:
    """u32 pid, ppid, tid, ptid; u64 time."""
    pid, parent, tid, _parent_tid = r.unpack("iiii")
    time = _task_time(state, r, r.unpack("q", 16)[0])
    # perf makes FORK records of tasks that were there before (time 0); their own mappings follow.
    alone = int(bool(r.misc & MISC.FORK_EXEC) or time == 0)
    state.profile.timeline.add(Change.FORK, time, pid, tid=tid, parent=parent, offset=alone)


def _exit(state: State, r: Record) -> None:
    pid, _parent, tid, _parent_tid = r.unpack("iiii")
    state.profile.timeline.add(Change.EXIT, _task_time(state, r, r.unpack("q", 16)[0]), pid, tid=tid)


def _count(name: str, number: int = 1) -> Callable[[State, Record], None]:
    """A handler that adds the ``number``-th u64 (0: the constant 1) to a loss counter."""

    def handler(state: State, r: Record) -> None:
        lost = state.profile.lost
        more = r.times * (r.unpack("Q", 8 * (number - 1))[0] if number else 1)
        lost[name] = min(lost.get(name, 0) + more, _MOST_LOST)

    return handler


def _ksymbol(state: State, r: Record) -> None:
    """u64 addr; u32 len; u16 type, flags (1: gone); name. Code that the kernel makes: BPF programs, trampolines."""
    start, length, _type, flags = r.unpack("QIHH")
    timeline, end = state.profile.timeline, min(start + length, _LAST)
    if flags & 1:
        timeline.add(Change.UNMAP, r.time, -1, start=start, end=end)
        return
    module = state.module("//anon:" + r.text(16), kernel=False)
    if start == 0:
        return  # hidden from this user (kernel.kptr_restrict)
    timeline.add(Change.MAP, r.time, -1, module=module, start=start, end=end, offset=0)


def _header_attr(state: State, r: Record) -> None:
    """Pipe mode: an attribute, then the ids of its counters."""
    attr = parse_attr(r.body, r.position + 8, state.order, state.profile.name)
    size = attr.fields["size"] or 64
    count = (len(r.body) - size) // 8
    attr.ids = r.unpack(f"{count}Q", size)
    for identifier in attr.ids:
        state.attr_of_id[identifier] = len(state.attrs)
    state.attrs.append(attr)
    state.late_attr |= state.samples_seen


def _header_feature(state: State, r: Record) -> None:
    """Pipe mode: u64 feature bit, then what stands in the feature's section of a file."""
    (number,) = r.unpack("Q")
    decode_feature(state, number, r.body[8:], r.position)


def _header_build_id(state: State, r: Record) -> None:
    state.add_build_id(r.body, r.misc)


def _event_update(state: State, r: Record) -> None:
    """u64 type, id, data. Type 2 is the event's name."""
    kind, identifier = r.unpack("QQ")
    if kind == 2:
        state.event_names.append(((identifier,), r.text(16)))


def _event_type(state: State, r: Record) -> None:
    """Old pipes: u64 config of a tracepoint; name."""
    state.tracepoints[r.unpack("Q")[0]] = r.text(8)


COUNTED = tuple(RECORD[name] for name in ("LOST", "THROTTLE", "LOST_SAMPLES", "AUXTRACE_ERROR"))
"""Types that only add to a counter: the order in which they stand does not matter."""
ATTR = RECORD["HEADER_ATTR"]

HANDLERS: dict[int, Callable[[State, Record], None]] = {
    RECORD[name]: handler
    for name, handler in {
        "MMAP": _mmap,
        "LOST": _count("records", 2),  # u64 id, lost
        "COMM": _comm,
        "EXIT": _exit,
        "THROTTLE": _count("throttles", 0),
        "FORK": _fork,
        "MMAP2": _mmap2,
        "LOST_SAMPLES": _count("samples", 1),  # u64 lost
        "KSYMBOL": _ksymbol,
        "HEADER_ATTR": _header_attr,
        "HEADER_EVENT_TYPE": _event_type,
        "HEADER_BUILD_ID": _header_build_id,
        "AUXTRACE_ERROR": _count("aux errors", 0),
        "EVENT_UPDATE": _event_update,
        "HEADER_FEATURE": _header_feature,
    }.items()
}
