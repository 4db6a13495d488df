"""Rules about a profile in any format: each examines one thing and yields findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

import numpy as np

from ...arrays import Sums, distinct
from ...lbr import no_ranges_because
from ...model import KERNEL, KERNEL_HALF, THROTTLES, Array, Change, Mode, ModuleKind, Profile, counted
from ...symbols import Symbolizer, SymbolOptions
from ..counting.availability import origin_of
from ..counting.count_tables import WeightCounter
from ..counting.cpu_time import cpu_time
from ..executions.estimate import basis_of_event
from ..naming import Namer
from ..statistics.bursts import bursts_of, whole_bursts
from ..statistics.significance import ENOUGH, time_to_halve
from .findings import Finding, Severity, make_finding, some

__all__ = [
    "about_call_stacks",
    "about_few_samples",
    "about_names",
    "about_outside_modules",
    "about_profile",
    "check_profile",
    "sample_hits",
]


_DELETED = " (deleted)"
"""The suffix that the kernel appends to the path of a deleted file."""
_MANY = 100
"""One in so many lost is an error."""
_OUTSIDE_MANY = 10
"""One in so many samples outside of all images is an error."""

_SPLIT = "-fsplit-stack"
"""In what a recording by software says of its call stacks, where it refused some."""

_LOST = {"records": "lost samples", "samples": "lost samples", "aux errors": "lost samples",
         "samples of unknown events": "lost samples", THROTTLES: "throttled",
         "stretches of the AUX area that were cut short": "trace cut short",
         "stretches of the AUX area with gaps": "trace cut short",
         "stretches of the AUX area with dropped operations": "operations dropped"}  # fmt: skip
"""Loss counters of a profile, and the findings they make."""


def check_profile(profile: Profile) -> Iterator[Finding]:
    """The findings that follow from the profile of a capture alone, except damage and names."""
    hits = sample_hits(profile)
    yield from about_profile(profile, hits)
    yield from about_few_samples(profile, hits)
    yield from about_call_stacks(profile)


def about_profile(profile: Profile, hits: SampleHits) -> Iterator[Finding]:
    yield from _about_losses(profile)
    yield from _about_cpu_times(profile)
    yield from _about_stacks(profile)
    yield from about_outside_modules(profile, hits)
    yield from _about_identity(profile, hits)


def _about_losses(profile: Profile) -> Iterator[Finding]:
    by_name: dict[str, list[tuple[str, int]]] = {}
    for counter, number in profile.lost.items():
        if counter in _LOST and number:
            by_name.setdefault(_LOST[counter], []).append((counter, number))
    for name, counters in by_name.items():
        seen = ", ".join(f"{number} {counter}" for counter, number in counters)
        many = name == "lost samples" and sum(n for _, n in counters) * _MANY > profile.samples
        said = f"{seen}; the capture has {profile.samples} samples"
        yield make_finding(name, said, Severity.ERROR if many else None, origin=origin_of(profile))


def _about_cpu_times(profile: Profile) -> Iterator[Finding]:
    """Threads that ended without a CPU time, in captures that have CPU times."""
    processes, rows = profile.processes, Counter[tuple[int, bool]]()
    for thread in profile.threads:
        if thread.cpu_ns is not None or thread.end is not None:
            rows[processes[thread.process].capture, thread.cpu_ns is None] += 1
    known = {capture for capture, lacks in rows if not lacks}
    missing = sum(rows[capture, True] for capture in known)
    if missing * _MANY > (total := missing + sum(rows[capture, False] for capture in known)):
        yield make_finding("CPU times missing", f"{missing} of {counted(total, 'thread')}", origin=origin_of(profile))


def _about_stacks(profile: Profile) -> Iterator[Finding]:
    if profile.decoded_by is not None and not profile.entries:
        yield make_finding("trace not decoded", profile.header["hardware trace"])
        return
    origin = origin_of(profile)
    asked = [event for event in profile.events if event.branch_select is not None]
    if not profile.samples:
        yield make_finding("no samples", "0 samples", origin=origin)
    elif not asked:
        yield make_finding("no branch stacks", f"none of {len(profile.events)} events requested them", origin=origin)
    elif not profile.entries:
        seen = f"requested, but {profile.samples} samples have none"
        yield make_finding("no branch stacks", seen, Severity.ERROR, origin=origin)
    for event in asked:
        reason = no_ranges_because(event.branch_select_kind, event.branch_select or 0)
        if reason:
            yield make_finding("no ranges", f"event {event.name}: {reason}", origin=origin)
    whole = [event for event in asked if not no_ranges_because(event.branch_select_kind, event.branch_select or 0)]
    cycles = [e.name for e in whole if "cycles" in e.name.lower() and basis_of_event(e) == "time"]
    if cycles and profile.entries:
        yield make_finding("counts follow time", f"event {some(cycles, ', ')}", origin=origin)


@dataclass(slots=True)
class SampleHits:
    """How many samples with an address fell into images, and how many outside."""

    samples: int = 0
    outside: int = 0
    """Samples whose address no image owned at their time."""
    kernel: int = 0
    """Samples outside of images and in the kernel of the host."""
    guest: int = 0
    """Samples outside of images and inside of a guest."""
    bursts: int = 0
    """Independent observations among all samples (`bursts.bursts_of`)."""
    stacks: int = 0
    """Independent observations among samples of events with branch stacks."""
    unsampled: str = ""
    """CPU time without samples; empty if the time is small, or not known."""
    times: tuple[int, int] | None = None
    """The first and the last tick."""
    places: tuple[Array, ...] = ()
    """(process, module row, module address, number) of samples that an image owned."""

    @property
    def modules(self) -> list[int]:
        """Rows of the modules that samples fell into, in order."""
        rows: list[int] = distinct(self.places[1]).tolist()
        return rows


def sample_hits(profile: Profile) -> SampleHits:
    binder, hits, places = profile.binder, SampleHits(), Sums([np.int64, np.int64, np.uint64], [np.int64])
    branching = np.array([event.branch_select is not None for event in profile.events] + [False], bool)
    spent = WeightCounter(profile, ("process",)) if any(p.cpu_ns is not None for p in profile.processes) else None
    for batch in whole_bursts(profile, profile.batches(())):
        if spent is not None:
            spent.add(batch)
        if len(batch):
            first = np.diff(bursts_of(profile, batch), prepend=-1) > 0
            hits.bursts += int(np.count_nonzero(first))
            hits.stacks += int(np.count_nonzero(first & branching[batch.event]))
            low, high = int(batch.time.min()), int(batch.time.max())
            hits.times = (min(low, hits.times[0]), max(high, hits.times[1])) if hits.times else (low, high)
        scope = binder.scopes(batch)
        module, address = binder.locate(scope, batch.ip)
        known = batch.ip != 0
        out = known & (module < 0)
        hits.samples += int(np.count_nonzero(known))
        hits.outside += int(np.count_nonzero(out))
        guest = out & (batch.mode >= Mode.GUEST_KERNEL)
        user = batch.mode <= Mode.USER  # or not known
        kernel = (batch.mode == Mode.KERNEL) | (user & binder.in_kernel(scope, batch.ip))
        hits.guest += int(np.count_nonzero(guest))
        hits.kernel += int(np.count_nonzero(out & kernel))
        inside = np.flatnonzero(known & ~out)
        process, once = binder.process_of(scope[inside]), np.ones(len(inside), np.int64)
        places.add(process, module[inside], address[inside], once)
    hits.places = tuple(places.result())
    if spent is not None and (times := cpu_time(profile, spent.result()[0], "process")) is not None:
        hits.unsampled = times.found
    return hits


def about_outside_modules(profile: Profile, hits: SampleHits) -> Iterator[Finding]:
    hidden = hits.kernel if hits.kernel and not _has_kernel(profile) else 0
    others = hits.outside - hidden - hits.guest
    if hidden:
        yield _share_finding("no kernel mapping", hidden, hits, "", profile)
    if hits.guest:
        yield _share_finding("no guest mapping", hits.guest, hits, "", profile)
    if others:
        yield _share_finding("outside", others, hits, f", {hits.kernel - hidden} of them in the kernel", profile)


def _share_finding(name: str, number: int, hits: SampleHits, more: str, profile: Profile) -> Finding:
    seen = _of_samples(number, hits.samples, hits) + more
    severity = Severity.ERROR if number * _OUTSIDE_MANY > hits.samples else None
    return make_finding(name, seen, severity, origin=origin_of(profile))


def _has_kernel(profile: Profile) -> bool:
    """Whether anything was ever mapped in the kernel."""
    changes = profile.timeline.columns()
    kernel = (changes["pid"] == KERNEL) | (changes["start"] >= np.uint64(KERNEL_HALF))
    return bool(((changes["kind"] == Change.MAP) & (changes["pid"] >= KERNEL) & kernel).any())


def _about_identity(profile: Profile, hits: SampleHits) -> Iterator[Finding]:
    used = [profile.modules[row] for row in hits.modules]
    binaries = [m for m in used if m.kind in (ModuleKind.FILE, ModuleKind.KERNEL)]
    without = [m.name for m in binaries if not m.build_id]
    if without:
        seen = f"{len(without)} of {len(binaries)} binaries with samples: {some(without, ', ')}"
        yield make_finding("no build ids", seen)


def about_few_samples(profile: Profile, hits: SampleHits) -> Iterator[Finding]:
    """Entries of one branch stack, and stacks of one burst, are neighbours in one run: one observation. And what has no
    sample at all."""
    recorded = sum(s.samples for s in profile.streams if s.entries)
    if number := min(hits.stacks, recorded) or hits.bursts:
        what = "sample" if not recorded else "burst" if number < recorded else "branch stack"
        seen = f"{counted(number, what)}; the standard error of a share of 10 % is {_error(0.1, number)}"
        first, last = map(profile.clock.to_ns, hits.times or (0, 0))  # 0 where the clock has no time
        if more := time_to_halve((last - first) / 1e9):
            seen += f", and {more}"
        yield make_finding("few samples" if number < ENOUGH else "sampling noise", seen, origin=origin_of(profile))
    if hits.unsampled:
        yield make_finding("time without samples", hits.unsampled, origin=origin_of(profile))


def _error(share: float, observations: int) -> str:
    """The standard error of a ``share`` (0 to 1) of so many."""
    points = f"{100 * sqrt(share * (1 - share) / max(1, observations)):.2g}"
    return f"{points} {'point' if points == '1' else 'points'}"


def _of_samples(number: int, samples: int, hits: SampleHits) -> str:
    """How many of the samples, and how far off that is by chance."""
    share = number / samples
    error = f", standard error {_error(share, min(hits.bursts, samples))}" if number < samples else ""
    return f"{number} of {counted(samples, 'sample')} ({100 * share:.2f} %{error})"


def about_call_stacks(profile: Profile) -> Iterator[Finding]:
    """Findings about the call stacks of a recording by software, as its header says."""
    if _SPLIT in (said := profile.header.get("call stacks", "")):
        yield make_finding("split stacks", said)


def about_names(profile: Profile, hits: SampleHits, symbols: SymbolOptions | None) -> Iterator[Finding]:
    """Findings about samples without names, and their causes."""
    yield from _about_deleted(profile, hits)
    yield from _about_nameless(profile, hits, symbols)


def _about_deleted(profile: Profile, hits: SampleHits) -> Iterator[Finding]:
    names = [profile.modules[row].name for row in hits.modules]
    gone = [name for name in names if name.endswith(_DELETED) and name.startswith("/") and "memfd:" not in name]
    if gone:
        yield make_finding("deleted binary", some(gone, ", "), origin=origin_of(profile))


def _about_nameless(profile: Profile, hits: SampleHits, symbols: SymbolOptions | None) -> Iterator[Finding]:
    """Samples in images of which no function is known; those outside of all images are another finding."""
    process, module, address, number = hits.places
    if not len(number):
        return
    with Symbolizer(profile, symbols) as symbolizer:
        namer = Namer(profile, symbolizer)
        rows = namer.rows(process, module, address)
        named = np.array([bool(label.function) for label in namer.labels], bool)[rows]
    without, total = int(number[~named].sum()), int(number.sum())
    if without * 2 > total:
        of_module = np.bincount(module[~named], number[~named], len(profile.modules))
        nameless = [profile.modules[row] for row in np.argsort(-of_module).tolist() if of_module[row]]
        heaviest = [f"{m.short} ({m.missing})" if m.missing else m.short for m in nameless]
        seen = f"{_of_samples(without, total, hits)}: {some(heaviest, ', ')}"
        yield make_finding("no names", seen, origin=origin_of(profile))
