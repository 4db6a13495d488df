"""Judge a capture: can it answer the questions it was made for, and if not, what to do.

`analysis.checks.findings` says what there is to find, with its meaning and remedy. `profile` has the rules about every
profile; `RULES` those of a format, about what its profiles do not have.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from ...formats.interface import Reading
from ...formats.registry import format_of
from ...model import Profile, Source
from ...opening import open_source, read_profile
from ...symbols import SymbolOptions
from ..counting.availability import Origin
from .etl import check_events
from .findings import FINDINGS, Finding, Severity, damage_findings, make_finding
from .profile import (
    about_call_stacks,
    about_few_samples,
    about_names,
    about_outside_modules,
    about_profile,
    sample_hits,
)

__all__ = ["RULES", "check", "keep_findings"]

RULES: dict[str, Callable[[Source, Reading | None], list[Finding]] | None] = {
    "tb5": None,
    "perf.data": None,
    "etl": check_events,
    "perf script": None,
}
"""By name of each format: rules about what is in a file and not in its profile, damage included, which take the place
of those about profiles; ``None``: a profile says all."""


def check(
    path: str | os.PathLike[str],
    *,
    symfs: str | None = None,
    folders: Sequence[str] = (),
    symbols: SymbolOptions | None = None,
    reading: Reading | None = None,
) -> list[Finding]:
    """All findings about the capture at ``path`` (``-``: standard input), the worst first.

    ``symfs`` and ``folders`` say where binaries are, as for `open`, ``symbols`` where names come from, ``reading`` how
    a trace log is read. Raises `FormatError` if no part of the file is readable, `OSError` if the file cannot be
    opened.
    """
    source = open_source(os.fspath(path))
    profile = read_profile(source, reading=reading, symfs=symfs, folders=folders)
    hits, rules = sample_hits(profile), RULES[format_of(source).name]
    kept = _kept_findings(profile) if rules is None else rules(source, reading)
    found = [*about_profile(profile, hits)] if kept is None else [*kept, *about_outside_modules(profile, hits)]
    # Rules of a format have reported the damage in the file, but not of what the tables have no room for.
    found += damage_findings(profile.damage if rules is None else [d for d in profile.damage if profile.is_budget(d)])
    found += [*about_few_samples(profile, hits), *about_call_stacks(profile), *about_names(profile, hits, symbols)]
    return sorted(found, key=lambda f: (list(Severity).index(f.severity), f.name == "damage"))


def keep_findings(profile: Profile, source: Source, reading: Reading | None = None) -> None:
    """Have ``profile`` keep what the rules of its format find in ``source``, for files that only have a profile."""
    rules = RULES[format_of(source).name]
    if rules is not None:
        found = rules(source, reading)
        profile.findings = [(f.name, f.severity.value, f.seen, f.remedy == FINDINGS[f.name].windows) for f in found]


def _kept_findings(profile: Profile) -> list[Finding] | None:
    """The findings that `keep_findings` left in ``profile``; ``None`` if the profile holds none."""
    if profile.findings is None:
        return None
    severities = {severity.value: severity for severity in Severity}
    return [
        make_finding(name, seen, severities[severity], origin=Origin.WINDOWS if windows else Origin.PERF)
        for name, severity, seen, windows in profile.findings
        if name in FINDINGS and severity in severities
    ]
