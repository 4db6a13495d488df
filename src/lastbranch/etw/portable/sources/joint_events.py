"""Kernel events that several tracepoints make together: of interrupts, disks and sockets.

A `TracepointFollower` gets the samples of its tracepoints row by row in the order of time, keeps its state between
samples, and logs events. The follower sees all rows of a round before the events of that round are written.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any, ClassVar, NamedTuple

from ....capture.perf_events.linux_kernel import Kernel
from ....formats.etl import Event, kernel_event
from ....formats.etl.kernel.hooks import DISK_IO, PERF_INFO, SPLIT_IO, STACK_WALK, TCP_IP, UDP_IP
from ....formats.etl.profile.sample_events import frames_of
from ....model import SampleBatch
from .event_words import Events, Ints, count_unwritten, encode_events, shown_hook
from .kinds import Raw

__all__ = ["BlockIo", "Feed", "Interrupts", "Row", "Sockets", "TracepointFollower", "as_signed"]


_POINTER = 8
_STACK = 0x20
_U32 = 0xFFFFFFFF


class Feed(NamedTuple):
    """The samples of one tracepoint in a round, at ``ticks`` of the session."""

    tracepoint: str
    batch: SampleBatch
    ticks: Ints
    raw: Raw


class Row(NamedTuple):
    """One sample. ``values`` are the fields of its tracepoint: numbers, or bytes of arrays.

    ``pid`` and ``tid`` are u32, as payloads have them: 0xFFFFFFFF for a thread that has ended.
    """

    tracepoint: str
    time: int
    cpu: int
    pid: int
    tid: int
    values: dict[str, Any]
    frames: list[int]


class TracepointFollower:
    """Makes the events of ``kinds`` (`enable_map`); those of ``stack_hooks`` have call stacks."""

    needs: ClassVar[dict[str, tuple[str, ...]]]
    """Kind -> its tracepoints."""
    fields: ClassVar[dict[str, tuple[str, ...]]]
    """Tracepoint -> its fields that are numbers; a leading * marks fields that are arrays."""
    hooks: ClassVar[frozenset[int]]
    """The kernel events that it makes."""

    def __init__(self, kernel: Kernel) -> None:
        self.kinds: frozenset[str] = frozenset()
        self.stack_hooks: Collection[int] = ()
        self.kernel = kernel
        self._events: list[Event] = []
        self._unwritten: Counter[str] = Counter()

    @classmethod
    def filter(cls, kinds: frozenset[str], machine: str) -> str:
        """The filter of its tracepoints for ``kinds`` on a ``machine`` (``uname -m``). `EtwError` 50 for an unknown
        machine."""
        return ""

    @abstractmethod
    def row(self, row: Row) -> None:
        """Take the next sample."""

    def whole_round(self, rows: Sequence[Row]) -> None:
        """Called with all rows of a round before the first of them is taken."""

    def end_round(self) -> None:
        """Called after the last row of a round."""

    def begin(self, now: int) -> Events:
        """Events about what exists at ``now`` (ticks)."""
        return self._take_events()

    def end(self, now: int) -> Events:
        """Events about what still exists at ``now`` (ticks)."""
        return self._take_events()

    def events(self, feeds: Sequence[Feed]) -> Events:
        """The events of a round. A row that cannot be handled counts as an event that could not be written."""
        rows = sorted((row for feed in feeds for row in self._rows(feed)), key=lambda row: row.time)
        about = type(self).__name__
        try:
            self.whole_round(rows)
        except Exception as error:  # here and below: rows come from any program, and none may end the source
            count_unwritten(self._unwritten, about, error, 0)
        for row in rows:
            try:
                self.row(row)
            except Exception as error:
                count_unwritten(self._unwritten, row.tracepoint, error)
        try:
            self.end_round()
        except Exception as error:
            count_unwritten(self._unwritten, about, error)
        return self._take_events()

    def _rows(self, feed: Feed) -> Iterator[Row]:
        names = self.fields[feed.tracepoint]
        columns = [feed.raw.array(name[1:]) if name.startswith("*") else feed.raw[name].tolist() for name in names]
        keys = [name.lstrip("*") for name in names]
        batch = feed.batch
        offsets, frames = frames_of(batch)
        ids = (feed.ticks.tolist(), batch.cpu.tolist(), batch.pid.tolist(), batch.tid.tolist())
        for i, (time, cpu, pid, tid) in enumerate(zip(*ids, strict=True)):
            values = {key: column[i] for key, column in zip(keys, columns, strict=True)}
            chain = frames[offsets[i] : offsets[i + 1]].tolist()
            yield Row(feed.tracepoint, time, cpu, pid & _U32, tid & _U32, values, chain)

    def log(
        self, key: tuple[int, int], row: Row, version: int, fields: dict[str, Any], time: int | None = None
    ) -> None:
        """Log an event of the thread and processor of ``row``, at its time or at ``time``."""
        at = row.time if time is None else time
        self._add(key, at, version, fields, row)
        if row.frames and key[0] << 8 | key[1] in self.stack_hooks:
            stack = {"EventTimeStamp": at, "ProcessID": row.pid, "ThreadID": row.tid, "Addresses": row.frames}
            self._add((STACK_WALK, _STACK), at, 2, stack, row)

    def log_at(self, key: tuple[int, int], time: int, version: int, fields: dict[str, Any]) -> None:
        """Log an event that belongs to no thread."""
        self._add(key, time, version, fields)

    def _add(
        self, key: tuple[int, int], time: int, version: int, fields: dict[str, Any], row: Row | None = None
    ) -> None:
        """Numbers come from any program: where a number does not fit, the event has its low bits."""
        try:
            event = kernel_event(key, time, _POINTER, fields, version=version, cut=True)
        except Exception as error:
            count_unwritten(self._unwritten, shown_hook(key[0] << 8 | key[1]), error)
            return
        if row is not None:
            event.pid, event.tid, event.cpu = as_signed(row.pid), as_signed(row.tid), row.cpu
        self._events.append(event)

    def _take_events(self) -> Events:
        made, self._events = self._events, []
        found = Events.join([encode_events([e for e in made if e.cpu == cpu], cpu) for cpu in {e.cpu for e in made}])
        found.unwritten += self._unwritten
        self._unwritten = Counter()
        return found


def as_signed(number: int) -> int:
    """The low 32 bits as an int of C: -1 for 0xFFFFFFFF, as headers of events and registers have it."""
    return (number & 0xFFFFFFFF) - ((number & 0x80000000) << 1)


# -- Interrupts: PerfInfo/ISR from the handlers of devices, DPC and TimerDPC from softirqs, with the time they began


_IRQ_ENTRY, _IRQ_EXIT = "irq/irq_handler_entry", "irq/irq_handler_exit"
_SOFT_ENTRY, _SOFT_EXIT = "irq/softirq_entry", "irq/softirq_exit"
_ISR, _DPC, _TIMER_DPC = 67, 68, 69
_ROUTINES: dict[int, tuple[str, ...]] = {
    0: ("tasklet_hi_action",), 1: ("run_timer_softirq",), 2: ("net_tx_action",), 3: ("net_rx_action",),
    4: ("blk_done_softirq",), 5: ("irq_poll_softirq",), 6: ("tasklet_action",),
    7: ("sched_balance_softirq", "run_rebalance_domains"), 8: ("hrtimer_run_softirq",), 9: ("rcu_core_si",),
}  # fmt: skip
"""The function of each softirq, which open_softirq of the kernel sets."""
_TIMERS = (1, 8)


class Interrupts(TracepointFollower):
    needs: ClassVar = {"isr": (_IRQ_ENTRY, _IRQ_EXIT), "dpc": (_SOFT_ENTRY, _SOFT_EXIT)}
    fields: ClassVar = {
        _IRQ_ENTRY: ("irq",),
        _IRQ_EXIT: ("irq", "ret"),
        _SOFT_ENTRY: ("vec",),
        _SOFT_EXIT: ("vec",),
    }
    hooks: ClassVar = frozenset(PERF_INFO << 8 | kind for kind in (_ISR, _DPC, _TIMER_DPC))

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._began: dict[tuple[str, int, int], int] = {}
        self._addresses: dict[int, int] | None = None

    def row(self, row: Row) -> None:
        if row.tracepoint in (_IRQ_ENTRY, _SOFT_ENTRY):
            name = "irq" if row.tracepoint == _IRQ_ENTRY else "vec"
            self._began[name, row.cpu, row.values[name]] = row.time
        elif row.tracepoint == _IRQ_EXIT:
            number = row.values["irq"]
            if (began := self._began.pop(("irq", row.cpu, number), None)) is not None:
                fields = {"InitialTime": began, "ReturnValue": row.values["ret"] & 0xFF, "Vector": number & 0xFFFF}
                self.log((PERF_INFO, _ISR), row, 2, fields)
        else:
            number = row.values["vec"]
            if (began := self._began.pop(("vec", row.cpu, number), None)) is not None:
                kind = _TIMER_DPC if number in _TIMERS else _DPC
                self.log((PERF_INFO, kind), row, 2, {"InitialTime": began, "Routine": self._routine(number)})

    def _routine(self, number: int) -> int:
        """The address of the function of a softirq; its number where the kernel hides addresses."""
        if self._addresses is None:
            self._addresses = {}
            wanted = {name: number for number, names in _ROUTINES.items() for name in names}
            for line in (self.kernel.text("/proc/kallsyms") or "").splitlines():
                fields = line.split(None, 3)
                if len(fields) > 2 and fields[2] in wanted:
                    self._addresses[wanted[fields[2]]] = int(fields[0], 16)
        return self._addresses.get(number) or number


# -- Disks: DiskIo events from requests that the block layer issues and completes, SplitIo events from split requests


_ISSUE, _COMPLETE, _SPLIT = "block/block_rq_issue", "block/block_rq_complete", "block/block_split"
_READ, _WRITE, _FLUSH = 10, 11, 14
_INIT = {_READ: 12, _WRITE: 13, _FLUSH: 15}
_VOLUME_MANAGER = 32
_SECTOR = 512
_IRP_READ, _IRP_WRITE, _NOCACHE = 0x100, 0x200, 0x1
_MOST_PENDING = 1 << 16


def operation(rwbs: bytes) -> int:
    """The DiskIo event of a request, 0 for one without (discards, zones). Source: blk_fill_rwbs of the kernel."""
    letters = rwbs.split(b"\0")[0]
    if b"D" in letters or b"N" in letters:
        return 0
    return _READ if b"R" in letters else _WRITE if b"W" in letters else _FLUSH if b"F" in letters else 0


class BlockIo(TracepointFollower):
    needs: ClassVar = {
        "disk": (_ISSUE, _COMPLETE),
        "disk init": (_ISSUE,),
        "split": (_SPLIT,),
    }
    fields: ClassVar = {
        _ISSUE: ("dev", "sector", "bytes", "*rwbs"),
        _COMPLETE: ("dev", "sector", "*rwbs"),
        _SPLIT: ("dev", "sector", "new_sector"),
    }
    hooks: ClassVar = frozenset({DISK_IO << 8 | n for n in range(10, 16)} | {SPLIT_IO << 8 | _VOLUME_MANAGER})

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        disks = kernel.names("/sys/block")
        self._disks = {kernel.text(f"/sys/block/{name}/dev"): number for number, name in enumerate(disks)}
        self._irps: dict[tuple[int, int], int] = {}
        """(device, sector) -> Irp of a request that is not complete."""
        self._issued: dict[tuple[int, int, bool], tuple[Row, int]] = {}
        self._number = 0

    def row(self, row: Row) -> None:
        device, sector = row.values["dev"], row.values["sector"]
        if row.tracepoint == _SPLIT:
            fields = {"ParentIrp": self._irp(device, sector), "ChildIrp": self._irp(device, row.values["new_sector"])}
            if "split" in self.kinds:
                self.log((SPLIT_IO, _VOLUME_MANAGER), row, 2, fields)
            return
        kind = operation(row.values["rwbs"])
        if not kind:
            return
        flush = kind == _FLUSH
        if row.tracepoint == _ISSUE:
            if len(self._issued) > _MOST_PENDING:
                self._issued.clear()
            irp = self._irp(device, sector)
            self._issued[device, 0 if flush else sector, flush] = row, irp
            if "disk init" in self.kinds:
                self.log((DISK_IO, _INIT[kind]), row, 3, {"Irp": irp, "IssuingThreadID": row.tid})
            return
        issue, irp = self._issued.pop((device, 0 if flush else sector, flush), (None, 0))
        self._irps.pop((device, sector), None)
        if issue is None or "disk" not in self.kinds:
            return
        fields = {
            "DiskNumber": self._disk(device),
            "HighResResponseTime": row.time - issue.time,
            "Irp": irp,
            "IrpFlags": _NOCACHE | (_IRP_READ if kind == _READ else _IRP_WRITE),
            "Priority": 3,
            "IssuingThreadID": issue.tid,
        }
        if not flush:
            fields |= {"TransferSize": issue.values["bytes"], "ByteOffset": sector * _SECTOR}
        self.log((DISK_IO, kind), row, 3, fields)

    def _irp(self, device: int, sector: int) -> int:
        if (device, sector) not in self._irps:
            if len(self._irps) > _MOST_PENDING:
                self._irps.clear()
            self._number += 1
            self._irps[device, sector] = 0xFFFD << 48 | self._number << 4
        return self._irps[device, sector]

    def _disk(self, device: int) -> int:
        """The place of a disk in the sorted list of /sys/block; of another device (a partition) its number."""
        return self._disks.get(f"{device >> 20}:{device & 0xFFFFF}", device)


# -- TcpIp and UdpIp events: what sockets send and receive, and when connections begin and end
#
# The kernel reports bytes by the address of the socket, and addresses and ports when its state changes. Connections
# that are older than the session, and UDP, have addresses and ports 0.


_STATE, _SENT, _RECEIVED = "sock/inet_sock_set_state", "sock/sock_send_length", "sock/sock_recv_length"
_SEND, _RECV, _CONNECT, _DISCONNECT, _ACCEPT = 10, 11, 12, 13, 15
_V6_BEGINS = 16
"""The difference of a type for IPv6 from the same type for IPv4."""
_INET, _INET6 = 2, 10
_TCP, _UDP = 6, 17
_ESTABLISHED, _SYN_SENT, _SYN_RECV, _CLOSE, _LISTEN = 1, 2, 3, 7, 10  # include/net/tcp_states.h
_PEEK = 2
_MOST = 1 << 16


@dataclass(slots=True)
class _Socket:
    local: bytes
    remote: bytes
    local_port: int
    remote_port: int
    pid: int
    connected: bool = False


class Sockets(TracepointFollower):
    needs: ClassVar = {"tcp": (_STATE, _SENT, _RECEIVED)}
    fields: ClassVar = {
        _STATE: ("skaddr", "oldstate", "newstate", "sport", "dport", "family", "protocol", "*saddr", "*daddr",
                 "*saddr_v6", "*daddr_v6"),
        _SENT: ("sk", "family", "protocol", "ret", "flags"), _RECEIVED: ("sk", "family", "protocol", "ret", "flags"),
    }  # fmt: skip
    hooks: ClassVar = frozenset(
        group << 8 | kind + more for group in (TCP_IP, UDP_IP) for kind in (_SEND, _RECV) for more in (0, _V6_BEGINS)
    ) | frozenset(TCP_IP << 8 | kind + more for kind in (_CONNECT, _DISCONNECT, _ACCEPT) for more in (0, _V6_BEGINS))

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._sockets: dict[int, _Socket] = {}
        self._listeners: dict[tuple[int, int], int] = {}
        """(family, port) -> the process that listens."""

    def row(self, row: Row) -> None:
        if row.tracepoint == _STATE:
            self._change_state(row)
            return
        family, protocol, size = (row.values[name] for name in ("family", "protocol", "ret"))
        if family not in (_INET, _INET6) or protocol not in (_TCP, _UDP) or size <= 0 or row.values["flags"] & _PEEK:
            return
        group = TCP_IP if protocol == _TCP else UDP_IP
        key, known = row.values["sk"], self._sockets.get(row.values["sk"])
        if known is not None:
            known.pid = row.pid
        kind = _SEND if row.tracepoint == _SENT else _RECV
        self._log(group, kind, row, family, key, known, row.pid, size)

    def _change_state(self, row: Row) -> None:
        old, new, family, key = (row.values[name] for name in ("oldstate", "newstate", "family", "skaddr"))
        if row.values["protocol"] != _TCP or family not in (_INET, _INET6):
            return
        if new == _LISTEN:
            self._listeners[family, row.values["sport"]] = row.pid
            return
        if new == _SYN_SENT or (new == _ESTABLISHED and key not in self._sockets):
            more = "_v6" if family == _INET6 else ""
            pid = row.pid if new == _SYN_SENT else self._listeners.get((family, row.values["sport"]), 0)
            if len(self._sockets) > _MOST:
                self._sockets.clear()
            self._sockets[key] = _Socket(
                row.values[f"saddr{more}"], row.values[f"daddr{more}"], row.values["sport"], row.values["dport"], pid
            )
        known = self._sockets.get(key)
        if known is not None and new == _ESTABLISHED:
            more = "_v6" if family == _INET6 else ""
            known.local, known.remote = row.values[f"saddr{more}"], row.values[f"daddr{more}"]
            known.local_port, known.remote_port = row.values["sport"], row.values["dport"]
            known.connected = True
            self._log(TCP_IP, _ACCEPT if old == _SYN_RECV else _CONNECT, row, family, key, known, known.pid, 0)
        elif new == _CLOSE and known is not None:
            if known.connected:
                self._log(TCP_IP, _DISCONNECT, row, family, key, known, known.pid, 0)
            del self._sockets[key]

    def _log(
        self, group: int, kind: int, row: Row, family: int, key: int, known: _Socket | None, pid: int, size: int
    ) -> None:
        wide = family == _INET6
        one = known or _Socket(b"", b"", 0, 0, pid)
        self.log(
            (group, kind + _V6_BEGINS * wide),
            row,
            1 if wide else 2,
            {
                "ProcessID": pid,
                "size": size,
                "daddr": _address(one.remote, wide),
                "saddr": _address(one.local, wide),
                "dport": one.remote_port,
                "sport": one.local_port,
                "connid": key & (1 << 64) - 1,
            },
        )


def _address(raw: bytes, wide: bool) -> str:
    """An address of the family that an event is of. A socket may change from IPv6 to IPv4 (IPV6_ADDRFORM): the address
    is in the last bytes then. An address that is not known is 0."""
    if wide:
        return str(IPv6Address(raw if len(raw) == 16 else bytes(16)))
    return str(IPv4Address(raw[-4:] if len(raw) >= 4 else bytes(4)))
