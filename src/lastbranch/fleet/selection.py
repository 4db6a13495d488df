"""The captures, and modules of these captures, that a question is about: in the user's words, and as SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from ..closed_database import text
from .schema import LABELS

__all__ = ["Selection"]


@dataclass(frozen=True, slots=True)
class Selection:
    """The captures that match all of these fields; an empty field does not restrict. Texts are patterns: ``*`` is any
    text.

    ``days`` are the first and the last day (``YYYY-MM-DD``, UTC), either may be empty. ``modules`` are build ids (the
    beginning is enough, from four digits on), identities, paths, or the last parts of these. ``weights`` multiply the
    counts of services.
    """

    services: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    days: tuple[str, str] = ("", "")
    modules: tuple[str, ...] = ()
    weights: Mapping[str, int] = field(default_factory=dict)

    def has_day(self, day: str) -> bool:
        first, last = self.days
        return (not first or day >= first) and (not last or day <= last)

    def of_events(self, events: Iterable[str]) -> Selection:
        """The same of these events alone, by their names."""
        exactly = (e.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]") for e in events)
        return replace(self, events=tuple(exactly))

    @property
    def where(self) -> str:
        """A condition on the columns of labels and event: SQL."""
        columns = (*((name, getattr(self, f"{name}s")) for name in LABELS), ("event", self.events))
        said = [" OR ".join(f'"{name}" GLOB {text(p)}' for p in patterns) for name, patterns in columns if patterns]
        return " AND ".join(f"({part})" for part in said) or "true"

    @property
    def weight(self) -> str:
        """SQL of the weight of a row: an expression of the column of services."""
        cases = " ".join(f"WHEN {text(service)} THEN {weight}" for service, weight in sorted(self.weights.items()))
        return f"(CASE service {cases} ELSE 1 END)" if cases else "1"

    def weighted(self, value: str) -> str:
        """SQL of the sum of ``value``, an expression, with the weights: exact, wider than 64 bits."""
        return f"sum(({value})::HUGEINT * {self.weight})" if self.weights else f"sum({value})"

    def has_module(self, identity: str, name: str, build_id: str) -> bool:
        """Whether the modules that were asked for include this one."""
        short = name.replace("\\", "/").rpartition("/")[2]
        return not self.modules or any(
            wanted in (identity, name, short)
            or (len(wanted) >= _LEAST_DIGITS and build_id.startswith(wanted.lower()))
            or fnmatchcase(name, wanted)
            or fnmatchcase(short, wanted)
            for wanted in self.modules
        )


_LEAST_DIGITS = 4
