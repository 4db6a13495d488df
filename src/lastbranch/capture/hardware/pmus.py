"""The event sources that the kernel describes in /sys/bus/event_source/devices: events, formats, capabilities.

Layout of the folder: Documentation/ABI/testing/sysfs-bus-event_source-devices-* of Linux.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ...errors import SelectionError
from ..kernel import Kernel
from ..procfs import cpu_list

__all__ = ["FIELDS", "Pmu", "read_pmus"]

_ROOT = "/sys/bus/event_source/devices"
FIELDS = ("config", "config1", "config2", "config3")
"""Words of perf_event_attr that a format may place a term in."""

_NOT_EVENTS = (".scale", ".unit", ".per-pkg", ".snapshot", ".retirement_latency.min", ".retirement_latency.mean")
"""Endings of files that say how to read an event."""
_CORE = re.compile(r"cpu|cpu_core|cpu_atom|cpu_lowpower|armv\d.*|apple_.*_pmu")


@dataclass(frozen=True, slots=True)
class Pmu:
    """One source of events. ``formats`` and ``events`` are sysfs' texts by name."""

    name: str
    type: int
    formats: dict[str, str]
    events: dict[str, str]
    caps: dict[str, str]
    cpus: tuple[int, ...] | None = None
    """Processors it is of; ``None``: all."""

    @property
    def core(self) -> bool:
        """Whether it counts what processor cores do that are online (and not a bus, a kernel function, or a clock)."""
        return _CORE.fullmatch(self.name) is not None and self.cpus != ()

    @property
    def depth(self) -> int:
        """Branch records that it keeps; 0 where it does not say (before Linux 5.9), or has none."""
        return int(self.caps.get("branches", "0") or 0)

    @property
    def max_precise(self) -> int:
        return int(self.caps.get("max_precise", "0") or 0)

    def encode(self, term: str, value: int) -> dict[str, int]:
        """The words of the attribute that ``term=value`` sets. `SelectionError` for an unknown term, or too large."""
        if term in FIELDS:
            return {term: value}
        if term not in self.formats:
            known = ", ".join(sorted([*self.formats, *FIELDS]))
            raise SelectionError(f"{self.name} has no term {term!r}", hint=f"it has {known}")
        words: dict[str, int] = {}
        left = value
        for word, low, width in _bits(self.formats[term]):
            words[word] = words.get(word, 0) | (left & (1 << width) - 1) << low
            left >>= width
        if left:
            raise SelectionError(f"{term}={value:#x} does not fit its bits of {self.name} ({self.formats[term]})")
        return words


def _bits(text: str) -> Iterator[tuple[str, int, int]]:
    """``config:0-7,32-35`` -> (word, lowest bit, width) of each piece, from the value's lowest bits up."""
    word, _, places = text.partition(":")
    for place in places.split(","):
        low, _, high = place.partition("-")
        yield word, int(low), int(high or low) - int(low) + 1


def read_pmus(kernel: Kernel) -> dict[str, Pmu]:
    """All sources of events by name."""
    found = {}
    for name in kernel.names(_ROOT):
        folder = f"{_ROOT}/{name}"
        number = kernel.text(f"{folder}/type")
        if number is None:
            continue
        # `cpus` is of a core's own source; `cpumask` names processors that stand for all of theirs.
        cpus = kernel.text(f"{folder}/cpus")
        if cpus is None:
            cpus = kernel.text(f"{folder}/cpumask")
        events = {n: t for n, t in _texts(kernel, f"{folder}/events").items() if not n.endswith(_NOT_EVENTS)}
        found[name] = Pmu(
            name, int(number), _texts(kernel, f"{folder}/format"), events, _texts(kernel, f"{folder}/caps"),
            None if cpus is None else cpu_list(cpus),
        )  # fmt: skip
    return found


def _texts(kernel: Kernel, folder: str) -> dict[str, str]:
    texts = ((name, kernel.text(f"{folder}/{name}")) for name in kernel.names(folder))
    return {name: text for name, text in texts if text is not None}
