"""Events by name: the PMUs that the kernel describes in sysfs, and ``--event`` in perf's syntax.

Layout of /sys/bus/event_source/devices: Documentation/ABI/testing/sysfs-bus-event_source-devices-* of Linux.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...errors import SelectionError
from ...formats.perfdata.layout import HARDWARE_EVENTS, SOFTWARE_EVENTS, TYPE
from ..procfs import cpu_list

if TYPE_CHECKING:
    from .linux_kernel import Kernel

__all__ = ["EventChoice", "Pmu", "core_sources", "parse_event", "read_pmus"]


_ROOT = "/sys/bus/event_source/devices"
FIELDS = ("config", "config1", "config2", "config3")
"""Fields of perf_event_attr that a term of a format may be in."""

_NOT_EVENTS = (".scale", ".unit", ".per-pkg", ".snapshot", ".retirement_latency.min", ".retirement_latency.mean")
"""Endings of files that describe an event."""
_CORE = re.compile(r"cpu|cpu_core|cpu_atom|cpu_lowpower|armv\d.*|apple_.*_pmu")


@dataclass(frozen=True, slots=True)
class Pmu:
    """One source of events. ``formats`` and ``events`` are the texts of sysfs by name."""

    name: str
    type: int
    formats: dict[str, str]
    events: dict[str, str]
    caps: dict[str, str]
    cpus: tuple[int, ...] | None = None
    """Its processors; ``None``: all."""

    @property
    def core(self) -> bool:
        """Whether the PMU counts events of processor cores that are online (not of a bus, a kernel function, or a
        clock)."""
        return _CORE.fullmatch(self.name) is not None and self.cpus != ()

    @property
    def depth(self) -> int:
        """Entries of its branch stack; 0 without one, or before Linux 5.9."""
        return int(self.caps.get("branches", "0") or 0)

    @property
    def max_precise(self) -> int:
        return int(self.caps.get("max_precise", "0") or 0)

    def encode(self, term: str, value: int) -> dict[str, int]:
        """The fields of the attribute that ``term=value`` sets. Raises `SelectionError` for an unknown term or a value
        that does not fit."""
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
    """All PMUs by name."""
    found = {}
    for name in kernel.names(_ROOT):
        folder = f"{_ROOT}/{name}"
        number = kernel.text(f"{folder}/type")
        if number is None:
            continue
        # `cpus` is of a core PMU; `cpumask` has one processor of each package or die.
        cpus = kernel.text(f"{folder}/cpus")
        if cpus is None:
            cpus = kernel.text(f"{folder}/cpumask")
        events = {n: t for n, t in _texts(kernel, f"{folder}/events").items() if not n.endswith(_NOT_EVENTS)}
        found[name] = Pmu(
            name,
            int(number),
            _texts(kernel, f"{folder}/format"),
            events,
            _texts(kernel, f"{folder}/caps"),
            None if cpus is None else cpu_list(cpus),
        )
    return found


def _texts(kernel: Kernel, folder: str) -> dict[str, str]:
    texts = ((name, kernel.text(f"{folder}/{name}")) for name in kernel.names(folder))
    return {name: text for name, text in texts if text is not None}


# -- ``--event`` in perf's syntax: generic names, ``rUUEE``, ``pmu/term=value,.../``, names from sysfs, and modifiers
#
# Sources: perf-list(1) of Linux (EVENT MODIFIERS, RAW HARDWARE EVENT DESCRIPTOR, ARBITRARY PMUS),
# include/uapi/linux/perf_event.h (perf_hw_id, perf_sw_ids, the type in the upper half of config on hybrid processors).


_HARDWARE = {name: config for config, name in enumerate(HARDWARE_EVENTS)}
_SOFTWARE = {name: config for config, name in enumerate(SOFTWARE_EVENTS)}
_ALIASES = {
    "cpu-cycles": "cycles",
    "branch-instructions": "branches",
    "faults": "page-faults",
    "cs": "context-switches",
    "migrations": "cpu-migrations",
}
"""Other names that perf-list(1) gives them."""
_LEVELS = {"u": "exclude_user", "k": "exclude_kernel", "h": "exclude_hv"}
_MOST_PRECISE = 3


@dataclass(frozen=True, slots=True)
class EventChoice:
    """One event on one source. ``type`` and the four words are fields of perf_event_attr.

    ``precise`` is the number of ``p`` modifiers, ``None`` (as with ``P``) where the recorder chooses.
    """

    name: str
    type: int
    config: int = 0
    config1: int = 0
    config2: int = 0
    config3: int = 0
    pmu: Pmu | None = None
    exclude: frozenset[str] = frozenset()
    precise: int | None = 0
    period: int | None = None
    frequency: int | None = None

    @property
    def software(self) -> bool:
        return self.type == TYPE.SOFTWARE

    @property
    def fields(self) -> dict[str, int]:
        """Fields of perf_event_attr that select the event."""
        return {name: getattr(self, name) for name in ("type", *FIELDS)}


def parse_event(text: str, pmus: Mapping[str, Pmu]) -> list[EventChoice]:
    """The events that ``text`` names: on a hybrid processor, an event for each core PMU that ``text`` applies to.

    Raises `SelectionError` that names the faulty part.
    """
    if any(c in text for c in "{}"):
        raise SelectionError(f"{text!r}: groups of events are not supported", hint="give one event")
    pmu_name, slash, rest = text.partition("/")
    if slash:
        terms, closed, modifiers = rest.rpartition("/")
        if not closed:
            raise SelectionError(f"{text!r}: the terms do not end with a slash")
        return [
            _apply_modifiers(_of_terms(pmu, terms), modifiers.lstrip(":"), text)
            for pmu in _sources(pmu_name, text, pmus)
        ]
    name, _, modifiers = text.partition(":")
    if "," in text:
        raise SelectionError(f"{text!r}: more than one event", hint="give one event")
    return [_apply_modifiers(choice, modifiers, text) for choice in _find_by_name(name, pmus)]


def _sources(name: str, text: str, pmus: Mapping[str, Pmu]) -> list[Pmu]:
    """The PMU of that name; ``cpu`` means all core PMUs of a hybrid processor."""
    if name in pmus:
        return [pmus[name]]
    if name == "cpu" and (core := core_sources(pmus)):
        return core
    raise SelectionError(f"{text!r}: this machine has no PMU {name!r}", hint=f"PMUs are {', '.join(pmus)}")


def core_sources(pmus: Mapping[str, Pmu]) -> list[Pmu]:
    """PMUs of processor cores: several on a hybrid processor, none without counters."""
    return [pmu for pmu in pmus.values() if pmu.core]


def _find_by_name(name: str, pmus: Mapping[str, Pmu]) -> list[EventChoice]:
    core, generic = core_sources(pmus), _ALIASES.get(name, name)
    if generic in _SOFTWARE:
        return [EventChoice(name, TYPE.SOFTWARE, _SOFTWARE[generic])]
    if generic in _HARDWARE:
        if len(core) > 1:  # the type of each PMU goes into the upper half
            return [
                EventChoice(f"{p.name}/{name}/", TYPE.HARDWARE, _HARDWARE[generic] | p.type << 32, pmu=p) for p in core
            ]
        return [EventChoice(name, TYPE.HARDWARE, _HARDWARE[generic], pmu=core[0] if core else None)]
    if found := [(pmu, pmu.events[name]) for pmu in (core or pmus.values()) if name in pmu.events]:
        named = [replace(_of_terms(pmu, terms), name=name) for pmu, terms in found]
        return [replace(c, name=f"{c.pmu.name}/{name}/") for c in named if c.pmu] if len(named) > 1 else named
    if re.fullmatch(r"r[0-9a-fA-F]{1,16}", name):
        config = int(name[1:], 16)
        if len(core) > 1:
            return [EventChoice(f"{p.name}/{name}/", p.type, config, pmu=p) for p in core]
        return [EventChoice(name, TYPE.RAW, config, pmu=core[0] if core else None)]
    raise SelectionError(
        f"this machine has no event {name!r}",
        hint="`perf list` shows names; give processor-specific events as rUUEE (unit mask and event in hexadecimal)",
    )


def _of_terms(pmu: Pmu, text: str, depth: int = 0) -> EventChoice:
    """``event=0xc4,umask=0x20``, or terms with the name of an event of this PMU."""
    choice = EventChoice(f"{pmu.name}/{text}/", pmu.type, pmu=pmu)
    words: dict[str, int] = {}
    for term in filter(None, text.split(",")):
        key, equals, value = term.partition("=")
        if not equals and key in pmu.events and not depth:
            inner = _of_terms(pmu, pmu.events[key], depth + 1)
            words |= {f: words.get(f, 0) | getattr(inner, f) for f in FIELDS}
        elif key == "name":
            choice = replace(choice, name=value)
        elif key == "period":
            choice = replace(choice, period=_number(value, term))
        elif key == "freq":
            choice = replace(choice, frequency=_number(value, term))
        else:
            for word, bits in pmu.encode(key, _number(value, term) if equals else 1).items():
                words[word] = words.get(word, 0) | bits
    config, config1, config2, config3 = (words.get(field, 0) for field in FIELDS)
    return replace(choice, config=config, config1=config1, config2=config2, config3=config3)


def _number(text: str, term: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise SelectionError(f"{term!r}: {text!r} is not a number") from None


def _apply_modifiers(choice: EventChoice, modifiers: str, text: str) -> EventChoice:
    levels, precise, at_most = set(modifiers) & set(_LEVELS), modifiers.count("p"), "P" in modifiers
    exclude = {_LEVELS[level] for level in _LEVELS if levels and level not in levels}
    if set(modifiers) & {"G", "H"}:
        exclude |= {"exclude_host"} if "H" not in modifiers else {"exclude_guest"} if "G" not in modifiers else set()
    unknown = set(modifiers) - set("ukhGHpP")
    if unknown or precise > _MOST_PRECISE:
        wrong = "".join(sorted(unknown)) or "p" * precise
        raise SelectionError(f"{text!r}: unknown modifier {wrong!r}", hint="known are u, k, h, G, H, p, pp, ppp and P")
    return replace(choice, exclude=frozenset(exclude), precise=None if at_most else precise)
