"""What a session says beside the events that are enabled: the machine, its profile sources, the group masks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ....capture.perf_events.host import Host
from ....capture.perf_events.kernel import Kernel
from ....capture.procfs import memory_kb
from ....formats.etl.event import Event, encode_event
from ....formats.etl.kernel.layouts import kernel_event
from ....formats.etl.kernel.perf import PERF_INFO
from ....formats.etl.kernel.session import SESSION
from ....formats.etl.profile.session import Session
from ....model import Clock, Machine, Profile
from ..clock import Clock as SessionClock
from ..enable_map import WORDS

__all__ = ["counter_event", "interval_events", "machine_events", "mask_event", "mask_events"]

_POINTER = 8
_COUNTERS, _SET, _START, _END = 0x30, 0x48, 0x49, 0x4A
_MASKS, _END_MASKS = 0x05, 0x20
_KERNEL_VERSION = 0x55


def mask_event(masks: Sequence[int], time: int, *, end: bool = False) -> Event:
    """The group masks that hold from ``time`` on (hook 0x0005), or (``end``) have held until then (0x0020)."""
    fields = {f"GroupMask{number}": word for number, word in enumerate([*masks, *[0] * WORDS][:WORDS], 1)}
    fields["KernelEventVersion"] = _KERNEL_VERSION
    return kernel_event((SESSION, _END_MASKS if end else _MASKS), time, _POINTER, fields, version=2)


def mask_events(masks: Sequence[int], time: int) -> list[bytes]:
    """For the header buffer of a system logger: its group masks at the begin, encoded."""
    return [encode_event(mask_event(masks, time))]


def machine_events(kernel: Kernel, host: Host, clock: int, time: int) -> list[Event]:
    """The processor, and what no event of Windows has a field for."""
    profile = Profile("session", "session", recorder="lastbranch session", machine=_machine(kernel, host))
    frequency = SessionClock(clock).frequency
    profile.clock = Clock("monotonic" if frequency == 1_000_000_000 else "system time", frequency)
    events = Session(profile).configuration()
    for event in events:
        event.time = time
    return events


def _machine(kernel: Kernel, host: Host) -> Machine:
    return Machine(
        arch=host.machine, host=(kernel.text("/proc/sys/kernel/hostname") or ""), os="Linux", os_release=host.release,
        cpu_description=host.model, cpuid=host.cpuid, cpus_online=len(host.cpus), cpus_available=host.possible,
        memory=memory_kb(kernel.text("/proc/meminfo") or "") * 1024, page_size=os.sysconf("SC_PAGESIZE"),
        hypervisor=host.hypervisor,
    )  # fmt: skip


def counter_event(names: Sequence[str], time: int) -> Event:
    """What the counter values in headers are called."""
    return kernel_event((PERF_INFO, _COUNTERS), time, _POINTER, {"Names": list(names)}, version=2)


def interval_events(
    names: Mapping[int, str], intervals: Mapping[int, int], before: Mapping[int, int], time: int, *, end: bool = False
) -> list[Event]:
    """The interval of each source of ``names``: at the begin (``before`` is empty), changed since ``before``, or at the
    end."""
    events = []
    for source, name in names.items():
        now, old = intervals[source], before.get(source)
        if old == now and not end:
            continue
        kind = _END if end else _START if old is None else _SET
        fields: dict[str, Any] = {"SampleSource": source, "NewInterval": now, "SourceName": name}
        fields["OldInterval"] = now if old is None else old
        events.append(kernel_event((PERF_INFO, kind), time, _POINTER, fields, version=3))
    return events
