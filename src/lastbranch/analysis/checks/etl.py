"""Find what is wrong with a Windows trace: one pass over its events as columns, then rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...arrays import distinct
from ...formats.etl import (
    AS_IT_SAYS,
    INTERVAL_HOOKS,
    PMC_COUNTERS,
    SAMPLE_CACHE,
    BranchRecords,
    CarriedTriggers,
    Decoder,
    Event,
    EventBlock,
    Known,
    Reading,
    Supplement,
    TraceLog,
    events_of,
    kernel_names,
    too_short,
    trigger_candidates,
    types_of,
)
from ...formats.etl.payload.layouts import REST
from ...formats.etl.payload.types import PTR, WIDE
from ...formats.interface import Reading as FormatReading
from ...lbr import no_ranges_because
from ...model import Source
from ..counting.availability import Origin
from .findings import Finding, Severity, damage_findings, make_finding

__all__ = ["check_events", "check_log"]


# -- Whether the payloads of a trace's events are what their layouts say, and if not, whether another pointer size is
#
# Headers say the pointer size of their events, and some writers put payloads of the other pointer size after them. The
# decoded fields are then nonsense without a trace of damage. The signs are bytes left over or missing, process and
# thread ids that no system gives, addresses that no processor has, and names that begin with a control character.


_LOG_HEADER = 0x0000
_LOOKED_AT = 16
"""Events of a type."""
_MOST_TYPES = 4096
_IDS = ("ProcessID", "ThreadID", "ParentID", "NewThreadID", "OldThreadID", "IssuingThreadID")
_FIRST_NO_ID = 1 << 26
"""Ids are four times the number of an entry in a table of at most 2^24."""
_NO_ID = 0xFFFF_FFFF
_CANONICAL = 1 << 47
_UNSET = "DefaultBase"
"""If an image has no default base, loads leave old memory in this field."""

_LEFT_OVER = "bytes left over"

_Type = tuple[bytes, int, int, int, int, int]


def _type(event: Event) -> _Type:
    return event.provider, event.hook, event.id, event.opcode, event.version, event.header


@dataclass(slots=True)
class Payloads:
    """The first events of each type: `gather` takes them, `findings` judges."""

    _seen: dict[_Type, list[Event]] = field(default_factory=dict)

    def gather(self, block: EventBlock) -> None:
        """Select events of types that have rarely been seen."""
        block = block.take(block.hook != _LOG_HEADER)  # the rest of the log is read by it
        groups = list(types_of(block)) if len(block) else []
        if not groups:
            return
        for first, rows in zip(events_of(block.take([rows[0] for rows in groups])), groups, strict=True):
            mine = self._seen.get(_type(first))
            if mine is None:
                if len(self._seen) == _MOST_TYPES:
                    continue
                mine = self._seen.setdefault(_type(first), [])
            if len(mine) < _LOOKED_AT:
                mine += events_of(block.take(rows[: _LOOKED_AT - len(mine)]))

    def findings(self, decoder: Decoder) -> Iterator[Finding]:
        """The findings about the gathered events, as ``decoder`` reads them."""
        looked: Counter[int] = Counter()
        fitting: dict[int, list[str]] = {4: [], 8: []}
        odd: list[str] = []
        impossible = False
        for event in (event for events in self._seen.values() for event in events):
            known, pointer = decoder.find(event), decoder.pointer(event)
            if known.kind == "raw":
                continue
            fields, others = (decoder.fields(known, event, size) for size in (pointer, 12 - pointer))
            looked[pointer] += fields != others
            certain, doubts = _wrong(known, fields, pointer)
            text = f"{known.event_name} version {event.version}: {', '.join(certain + doubts)}"
            if (certain or doubts) and not any(_wrong(known, others, 12 - pointer)) and fields != others:
                fitting[12 - pointer].append(text)
            elif certain and known.kind == "kernel":
                odd.append(text)
                impossible |= certain != [_LEFT_OVER]
        for size, texts in fitting.items():
            if texts:
                number = f"{len(texts)} of {looked[12 - size]} events examined"
                yield make_finding(
                    "pointer size", f"{number} fit {8 * size}-bit pointers, not {96 - 8 * size}-bit: {texts[0]}"
                )
        if odd:
            severity = None if impossible else Severity.INFO
            yield make_finding("odd payloads", f"{len(odd)} of the events examined: {odd[0]}", severity)


def _wrong(known: Known, fields: Mapping[str, Any], pointer: int) -> tuple[list[str], list[str]]:
    """Signs that ``fields`` were not read as the event's layout: certain ones, and likely ones, which count only if
    another reading has none."""
    ids = [(name, fields.get(name)) for name in _IDS]
    certain = [f"{name} {int(v)}" for name, v in ids if isinstance(v, int) and _FIRST_NO_ID <= v != _NO_ID]
    certain += [_LEFT_OVER] * (REST in fields)
    doubts = []
    for name, type_ in known.layout.fields if known.layout is not None else ():
        value = fields.get(name)
        if type_ is PTR and pointer == 8 and name != _UNSET:
            if isinstance(value, int) and _CANONICAL <= value < (1 << 64) - _CANONICAL:
                doubts.append(f"{name} {value:#x}")
        elif type_ is WIDE and isinstance(value, str) and value and not value[0].isprintable():
            doubts.append(f"{name} {value[:8]!r}")
    if known.layout is not None and any(name not in fields for name in known.layout.names):
        doubts.append("fields missing")
    return certain, doubts


EXTENSION, END_EXTENSION = 0x0005, 0x0020
SAMPLE, PMC, PMC_CONFIG, LBR = 0x0F2E, 0x0F2F, 0x0F30, 0x0C20
STARTS, LISTS = {"process": 0x0301, "image": 0x030A}, {"process": (0x0303, 0x0304), "image": (0x1403, 0x1404)}
_MASKS = (EXTENSION, END_EXTENSION)
_WORDS = 8  # of the group masks
_RUNDOWN = (0x0008, 0x0030, 0x0031, *LISTS["process"], *LISTS["image"])
_BIND = 0x1 | 0x4  # Masks[0]: PROCESS, IMAGE_LOAD
_PMC_PROFILE = 0x400  # Masks[1]
_GROUP_OF = {PMC: ("PMC_PROFILE", 1, _PMC_PROFILE), SAMPLE: ("PROFILE", 1, 0x2), 0x0524: ("CONTEXT_SWITCH", 1, 0x4),
             0x0301: ("PROCESS", 0, 0x1), 0x0501: ("THREAD", 0, 0x2), 0x030A: ("IMAGE_LOAD", 0, 0x4),
             0x0F33: ("SYSCALL", 2, 0x40), 0x0F34: ("SYSCALL", 2, 0x40)}  # fmt: skip
"""Hook -> the group that enables its events: name, word of the group masks, bit."""
_MANY = 100
"""One in so many events lost is an error."""


class _Masks(NamedTuple):
    """The group masks that hold from ``time`` on (Extension) or have held until then (EndExtension)."""

    time: int
    hook: int
    words: tuple[int, ...]


class _State(NamedTuple):
    """The groups that were on from ``begin`` to ``end``, of all sessions that the log was merged from."""

    begin: int
    end: int
    words: tuple[int, ...]
    others: bool
    """Whether a session ended, and this is what the other ones have on."""

    def __str__(self) -> str:
        return f"Masks[0] = {self.words[0]:#x}, Masks[1] = {self.words[1]:#x}"


@dataclass(slots=True)
class _Facts:
    hooks: Counter[int] = field(default_factory=Counter)
    events: int = 0
    masks: list[_Masks] = field(default_factory=list)
    lists: list[NDArray[np.int64]] = field(default_factory=list)
    """Times at which lists of what was there were written."""
    sources: set[int] = field(default_factory=set)
    """Profile sources that have an interval."""
    options: Counter[int] = field(default_factory=Counter)
    """LBR configuration of the records."""
    triggers: Counter[int] = field(default_factory=Counter)
    orphans: int = 0
    counted: int = 0
    """Events with counter values in their headers."""
    triggers_carried: CarriedTriggers = field(default_factory=CarriedTriggers)
    supplement: Supplement = field(default_factory=Supplement)


def check_events(source: Source, reading: FormatReading | None = None) -> list[Finding]:
    """Facts from the events of the .etl ``source`` that its profile lacks; damage too."""
    how = reading if isinstance(reading, Reading) else AS_IT_SAYS
    log = how.log(source)
    found = list(check_log(log, how.decoder()))
    return found + damage_findings(log.damage)


def check_log(log: TraceLog, decoder: Decoder | None = None) -> Iterator[Finding]:
    """The findings that follow from the events of ``log`` alone, read by ``decoder``."""
    facts, payloads, decoder = _Facts(), Payloads(), decoder or Decoder()
    for block in log.blocks():
        _count(block, facts)
        payloads.gather(block)
        for event in events_of(block.take(np.isin(block.hook, _MASKS))):
            fields = decoder.decode(event).fields
            if "GroupMask8" in fields:
                words = tuple(int(fields[f"GroupMask{i}"]) for i in range(1, 9))
                facts.masks.append(_Masks(event.time, event.hook, words))
    yield from _about_masks(facts)
    yield from _about_lbr(facts)
    yield from _about_triggers(facts)
    yield from _about_losses(log, facts)
    yield from _about_rundown(facts)
    yield from payloads.findings(decoder)


def _count(block: EventBlock, facts: _Facts) -> None:
    facts.events += len(block)
    facts.counted += int(np.count_nonzero(block.packet_version & PMC_COUNTERS))
    facts.supplement.gather(block)
    facts.lists.append(block.time[np.isin(block.kernel_hook, _RUNDOWN)])
    hooks = np.bincount(block.kernel_hook[block.kernel_hook >= 0])
    facts.hooks.update({hook: int(hooks[hook]) for hook in np.flatnonzero(hooks).tolist()})
    intervals = np.flatnonzero(np.isin(block.kernel_hook, INTERVAL_HOOKS) & (block.payload_size >= 4))
    if len(intervals):
        sources = block.words.take(block.payload[intervals] >> 3) & np.uint64(0xFFFFFFFF)
        facts.sources.update(distinct(sources).tolist())
    short = too_short(block)
    if len(short):
        block = block.take(np.delete(np.arange(len(block)), short))
    records = BranchRecords.of(block)
    if len(records):
        part = block.take(records.row)
        options = part.words.take((part.payload >> 3) + 2) & np.uint64(0xFFFFFFFF)
        facts.options.update(options.tolist())
    facts.triggers_carried.complete(block, records)
    facts.triggers_carried.follow(block, trigger_candidates(block), {})
    facts.triggers.update(records.hook[records.hook >= 0].tolist())
    facts.orphans += int(np.count_nonzero(records.hook < 0))


# -- rules


def _about_masks(facts: _Facts) -> Iterator[Finding]:
    states, pauses = _states(facts.masks)
    lists = np.sort(np.concatenate([np.empty(0, np.int64), *facts.lists]))
    for begin, end in pauses:
        # Lists that are asked for while a session runs are written with its groups off.
        if np.searchsorted(lists, begin) == np.searchsorted(lists, end, "right"):
            yield make_finding("groups paused", f"from tick {begin} to {end}, and no rundown was written then")
    sampled = facts.hooks[PMC]
    on = [bool(m.words[1] & _PMC_PROFILE) for m in states]
    if states and not any(on) and not sampled:
        hints = [f"an interval of profile source {s}" for s in sorted(facts.sources - {0})]
        hints += ["PMC counters are configured"] * bool(facts.hooks[PMC_CONFIG] and not facts.counted)
        hints += ["branch records without a trigger"] * bool(facts.orphans)
        yield make_finding("pmc off", "; ".join([str(states[-1]), *hints]), None if hints else Severity.INFO)
    if states and not any(on) and sampled:
        yield make_finding("pmc lost", f"{sampled} PMC interrupts; later {states[-1]}")
    lost = _after(states, on)
    if lost is not None:
        yield make_finding("pmc lost", f"first {states[on.index(True)]}; later {lost}")
    bound = [m.words[0] & _BIND == _BIND for m in states]
    lost = _after(states, bound)
    if lost is not None:
        yield make_finding("masks overwritten", f"first {states[bound.index(True)]}; later {lost}")
    elif any(on) and not any(bound):
        if not any(facts.hooks[h] for h in _life_hooks()):
            yield make_finding("masks overwritten", f"{states[-1]}, and no image or process event")
        elif not any(m.words[0] & _BIND for m in states):
            # The lists are written with the groups of EnableFlags on, so these were overwritten before the first state.
            yield make_finding("masks overwritten", f"{states[-1]}, and lists of what existed before")


def _after(states: list[_State], flags: list[bool]) -> _State | None:
    """The first state in which it is off again, though no session ended."""
    went = (i for i in range(1, len(states)) if flags[i - 1] and not flags[i] and not states[i].others)
    return next((states[i] for i in went), None)


def _states(masks: list[_Masks]) -> tuple[list[_State], list[tuple[int, int]]]:
    """The groups that were on, in time order, and (from, to) of the times between in which no group was on.

    Zeros before the first groups, and zeros that the end of a session sets, are left out.
    """
    known = sorted(masks, key=lambda m: (m.time, m.hook == EXTENSION))
    on, ends, cut = _groups_held(known)
    states: list[_State] = []
    pauses: list[tuple[int, int]] = []
    off: list[tuple[_State, bool]] = []
    for i, now in enumerate(known):
        following = known[min(i + 1, len(known) - 1)]
        if i in ends and following.hook == EXTENSION:
            continue  # the moment between two masks of a session
        state = _State(now.time, following.time, on[i], i in ends or not any(now.words))
        if any(state.words):
            if states and not all(at_end for _, at_end in off):
                pauses.append((states[-1].end, state.begin))
            states.append(state)
            off = []
        elif now.hook == EXTENSION or i in cut:  # else they are another session's
            off.append((state, now.hook == END_EXTENSION))
    if states and any(at_end for _, at_end in off):
        states.append(off[0][0]._replace(others=False))  # all groups were off already when the session ended
    return states, pauses


def _groups_held(known: list[_Masks]) -> tuple[list[tuple[int, ...]], set[int], set[int]]:
    """For each event of ``known``, the groups that are on until the next event; which events end masks that were begun;
    and which events cut off masks that have no such end.

    A session that changes its masks logs the old masks and the new ones. A log may be merged of several sessions that
    each log their own: masks with a begin and an end are on all the time between, whatever the others say meanwhile.
    Masks without an end hold until the next event that is not such an end.
    """
    until = list(range(1, len(known) + 1))
    begun: dict[tuple[int, ...], list[int]] = {}
    ends = set()
    for i, now in enumerate(known):
        if now.hook == EXTENSION:
            begun.setdefault(now.words, []).append(i)
        elif begun.get(now.words):
            until[begun[now.words].pop()] = until[i] = i
            ends.add(i)
    endless = {i for left in begun.values() for i in left}
    following = len(known)
    for i in reversed(range(len(known))):
        if i in endless:
            until[i] = following
        following = following if i in ends else i
    words = np.array([m.words for m in known], np.int64).reshape(-1, _WORDS)
    bits, on = np.arange(32), np.zeros_like(words)
    for word in range(_WORDS):
        mine = words[:, word, None] >> bits & 1
        change = np.append(mine, np.zeros((1, 32), np.int64), axis=0)
        np.subtract.at(change, until, mine)
        on[:, word] = ((np.cumsum(change, axis=0)[: len(known)] > 0) << bits).sum(axis=1)
    return list(map(tuple, on.tolist())), ends, {until[i] for i in endless}


def _life_hooks() -> list[int]:
    return [*STARTS.values(), *(hook for hooks in LISTS.values() for hook in hooks)]


def _about_lbr(facts: _Facts) -> Iterator[Finding]:
    records = facts.hooks[LBR]
    if facts.hooks[PMC] and not records:
        yield make_finding("pmc without lbr", f"{facts.hooks[PMC]} PMC interrupts, no branch record")
    elif not records:
        yield make_finding("no branch stacks", "no event of the LBR provider", Severity.INFO, origin=Origin.WINDOWS)
    if facts.orphans:
        severity = Severity.ERROR if facts.orphans == records else None
        yield make_finding("lbr without trigger", f"{facts.orphans} of {records} branch records", severity)
    unknown = [(n, h) for h, n in facts.triggers.items() if "(" in "".join(kernel_names((h >> 8, h & 0xFF)))]
    for number, hook in sorted(unknown, reverse=True):
        name = "/".join(kernel_names((hook >> 8, hook & 0xFF)))
        yield make_finding("unknown trigger", f"{number} records after hook {hook:#06x} ({name})")
    for options, number in sorted(facts.options.items()):
        reason = no_ranges_because("etw", options)
        if reason:
            yield make_finding("no ranges", f"{number} of {records} branch records: {reason}", origin=Origin.WINDOWS)


def _about_triggers(facts: _Facts) -> Iterator[Finding]:
    """Triggers that were configured, of which there is no event. Configuring them succeeds all the same."""
    for bursts in facts.supplement.bursts:
        if bursts["Full"] < bursts["Records"]:
            seen = f"{bursts['Full']} of {bursts['Records']} records have {bursts['Depth']} branches"
            yield make_finding("short records", f"{seen}; bursts by end: {bursts['EndedBy']}")
    if facts.supplement.triggers and facts.supplement.has_targets is False:
        yield make_finding("no targets", "no process was ever named")
    for hook in facts.supplement.triggers:
        if facts.hooks[hook]:
            continue
        name, word, bit = _GROUP_OF.get(hook, ("", 0, 0))
        on = [m for m in facts.masks if m.words[word] & bit]
        event = f"{'/'.join(kernel_names((hook >> 8, hook & 0xFF)))} (hook {hook:#06x})"
        group = f"; the group {name} was {'on' if on else 'off'}" if name else ""
        yield make_finding("trigger off", f"no event {event}{group}", Severity.INFO if on else None)


def _about_losses(log: TraceLog, facts: _Facts) -> Iterator[Finding]:
    open_ = sum(not header.end_time for header in log.headers)
    if open_:
        yield make_finding("no end", f"EndTime is 0 in {open_} of {len(log.headers)} headers")
    if log.buffers_lost:
        yield make_finding("lost buffers", f"the header counts {log.buffers_lost}")
    if log.events_lost:
        many = log.events_lost * _MANY > facts.events
        seen = f"the header counts {log.events_lost}; the log has {facts.events}"
        yield make_finding("lost events", seen, Severity.ERROR if many else None)
    elif log.lossy and not log.buffers_lost:
        yield make_finding("lost events", f"{log.lossy} buffers are marked: data before them was lost")


def _about_rundown(facts: _Facts) -> Iterator[Finding]:
    sampled = any(facts.hooks[h] for h in (SAMPLE, PMC, SAMPLE_CACHE, LBR, *STARTS.values()))
    if not sampled or facts.supplement.recorded:
        return
    missing = [name for name, hooks in LISTS.items() if not any(facts.hooks[h] for h in hooks)]
    if missing:
        severity = Severity.ERROR if len(missing) == len(LISTS) else None
        yield make_finding("no rundown", f"no {' and no '.join(missing)} events DCStart or DCEnd", severity)
