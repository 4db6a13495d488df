"""Judge a capture: is what it was made for in it, and if not, what to do.

A rule looks at one thing and yields findings; what a finding means and its remedy stand in `findings`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from ..bind import binder_of
from ..errors import Damage
from ..formats.etl import TraceLog
from ..lbr import no_ranges_because
from ..model import Change, ModuleKind, Profile, Source
from ..opening import open_source, read_profile
from .check_etl import check_log
from .counting import of_windows
from .findings import FINDINGS, Finding, Severity, finding

__all__ = ["check", "check_events", "check_profile", "kept_findings"]

_SHOWN = 3
_KERNEL = np.uint64(1 << 63)
_MANY = 100
"""One in so many lost is an error."""
_OUTSIDE_MANY = 10
"""One in so many samples outside of all images is an error."""

_LOST = {"records": "lost samples", "samples": "lost samples", "aux errors": "lost samples",
         "samples of unknown events": "lost samples", "throttles": "throttled"}  # fmt: skip
"""Loss counters of a profile, and the findings they make."""


def check(path: str) -> list[Finding]:
    """All findings about the capture at ``path`` (``-``: standard input), the worst first.

    Raises `FormatError` where nothing can be read of it, `OSError` where it cannot be opened.
    """
    source = open_source(path)
    profile = read_profile(source)
    if profile.format == "etl":
        found = [*check_events(source), *_outside(profile, _hits(profile))]
    else:
        kept = kept_findings(profile)
        found = list(check_profile(profile)) if kept is None else [*kept, *_outside(profile, _hits(profile))]
        found += _damage(profile.damage)
    return sorted(found, key=lambda f: (list(Severity).index(f.severity), f.name == "damage"))


def check_events(source: Source) -> list[Finding]:
    """What the events of the .etl ``source`` tell, and its profile does not; damage too."""
    log = TraceLog(source)
    found = list(check_log(log))
    return found + _damage(log.damage)


def kept_findings(profile: Profile) -> list[Finding] | None:
    """What `check_events` found when a .tb5 was made of an .etl; ``None`` where nothing says so."""
    if profile.findings is None:
        return None
    severities = {severity.value: severity for severity in Severity}
    return [
        finding(name, seen, severities[severity], windows=windows)
        for name, severity, seen, windows in profile.findings
        if name in FINDINGS and severity in severities
    ]


def _damage(damage: list[Damage]) -> list[Finding]:
    return [finding("damage", _some([str(d) for d in damage], "; "))] if damage else []


def check_profile(profile: Profile) -> Iterator[Finding]:
    """The findings about a capture that its profile alone tells, damage excepted."""
    hits = _hits(profile)
    yield from _losses(profile)
    yield from _stacks(profile)
    yield from _outside(profile, hits)
    yield from _identity(profile, hits)


def _losses(profile: Profile) -> Iterator[Finding]:
    by_name: dict[str, list[tuple[str, int]]] = {}
    for counter, number in profile.lost.items():
        if counter in _LOST and number:
            by_name.setdefault(_LOST[counter], []).append((counter, number))
    for name, counters in by_name.items():
        seen = ", ".join(f"{number} {counter}" for counter, number in counters)
        many = name == "lost samples" and sum(n for _, n in counters) * _MANY > profile.samples
        yield finding(name, f"{seen}; {profile.samples} samples are there", Severity.ERROR if many else None)


def _stacks(profile: Profile) -> Iterator[Finding]:
    windows = of_windows(profile)
    asked = [event for event in profile.events if event.branch_select is not None]
    if not profile.samples:
        yield finding("no samples", "0 samples", windows=windows)
    elif not asked:
        yield finding("no branch stacks", f"none of {len(profile.events)} events asked for them", windows=windows)
    elif not profile.entries:
        seen = f"asked for, but {profile.samples} samples have none"
        yield finding("no branch stacks", seen, Severity.ERROR, windows=windows)
    for event in asked:
        reason = no_ranges_because(event.branch_select_kind, event.branch_select or 0)
        if reason:
            yield finding("no ranges", f"event {event.name}: {reason}", windows=windows)


@dataclass(slots=True)
class _Hits:
    """Where the samples fell that have an address."""

    samples: int = 0
    outside: int = 0
    """Those whose address no image owned at their time."""
    kernel: int = 0
    """Those of them that are kernel addresses."""
    modules: set[int] = field(default_factory=set)


def _hits(profile: Profile) -> _Hits:
    binder, hits = binder_of(profile), _Hits()
    for batch in profile.batches(()):
        module, _ = binder.locate(binder.scopes(batch), batch.ip)
        known = batch.ip != 0
        out = known & (module < 0)
        hits.samples += int(np.count_nonzero(known))
        hits.outside += int(np.count_nonzero(out))
        hits.kernel += int(np.count_nonzero(out & (batch.ip >= _KERNEL)))
        hits.modules.update(np.unique(module[known & ~out]).tolist())
    return hits


def _outside(profile: Profile, hits: _Hits) -> Iterator[Finding]:
    hidden = hits.kernel if hits.kernel and not _has_kernel(profile) else 0
    others = hits.outside - hidden
    if hidden:
        yield _share("no kernel mapping", hidden, hits, "", profile)
    if others:
        yield _share("outside", others, hits, f", {hits.kernel - hidden} of them in the kernel", profile)


def _share(name: str, number: int, hits: _Hits, more: str, profile: Profile) -> Finding:
    seen = f"{number} of {hits.samples} samples ({100 * number / hits.samples:.2f} %){more}"
    severity = Severity.ERROR if number * _OUTSIDE_MANY > hits.samples else None
    return finding(name, seen, severity, windows=of_windows(profile))


def _has_kernel(profile: Profile) -> bool:
    """Whether anything was ever mapped at a kernel address."""
    changes = profile.timeline.columns()
    return bool(((changes["kind"] == Change.MAP) & (changes["start"] >= _KERNEL)).any())


def _identity(profile: Profile, hits: _Hits) -> Iterator[Finding]:
    used = [profile.modules[row] for row in sorted(hits.modules)]
    binaries = [m for m in used if m.kind in (ModuleKind.FILE, ModuleKind.KERNEL)]
    without = [m.name for m in binaries if not m.build_id]
    if without:
        seen = f"{len(without)} of {len(binaries)} binaries with samples: {_some(without, ', ')}"
        yield finding("no build ids", seen)


def _some(texts: list[str], between: str) -> str:
    rest = len(texts) - _SHOWN
    return between.join(texts[:_SHOWN]) + (f"{between}{rest} more" if rest > 0 else "")
