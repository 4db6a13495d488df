"""A capture that is open in the viewer, and what its answers share: names, code, filters, tables that were counted."""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..analysis import BranchTable, Estimate, Key, Namer, WeightTable, branches
from ..analysis.counting.count_tables import weights_by
from ..analysis.counting.over_time import Rates, rates_over_time, samples_over_time
from ..errors import SelectionError, UnavailableError
from ..model import Profile, SampleFilter, visible
from ..symbols import Symbolizer, SymbolOptions
from .function_counts import MOMENTS, WEIGHED, FunctionCounts, FunctionTables

if TYPE_CHECKING:
    from ..analysis import Annotation, Difference, Place, Sources, Thing
    from ..formats.etl import Reading

__all__ = ["FILTERS", "MOMENTS", "Loaded", "Parameters", "parameters_of", "whole_number"]

Parameters = Mapping[str, str]
"""The parameters of a question by name, as in the address of a page."""

FILTERS = ("pid", "tid", "event", "module", "from", "to")
"""Parameters of every question: ids and rows of tables, separated by commas, and nanoseconds since the first event."""

_NS = 1_000_000_000
_KEPT = 8
_DIGITS = 19
_T = TypeVar("_T")


@dataclass
class Loaded:
    """One capture. Ask one question after the other: nothing here is for several threads at once."""

    profile: Profile
    symbols: SymbolOptions
    paths: tuple[str, ...] = ()
    """The paths of the captures, for answers that read the files again; ``-`` is standard input, which cannot be read
    again."""
    symfs: str | None = None
    folders: tuple[str, ...] = ()
    source_roots: tuple[str, ...] = ()
    reading: Reading | None = None
    """How a trace log is read, where it has to be said."""
    before: Loaded | None = None
    """The capture that this one is compared with."""
    recording: str = ""
    """``live`` while it is recorded, ``ended`` after that, empty for what was a file from the beginning."""
    growth: Callable[[int, Namer, Estimate], FunctionTables] | None = None
    """Gives `functions` of all samples of a recording that grows: most of them were counted for earlier states."""
    _kept: OrderedDict[Hashable, object] = field(init=False, default_factory=OrderedDict)
    _counted: dict[tuple[Place, SampleFilter | None, bool], Callable[[Place], Annotation]] = field(
        init=False, default_factory=dict
    )
    _identities: list[tuple[int, ...] | None] = field(init=False)

    def __post_init__(self) -> None:
        self._identities = [*map(_identity, self.paths)]

    def check_unchanged(self) -> None:
        """Raises `UnavailableError` where another file is at one of the ``paths`` now, or none: what is counted of it
        would not go with what was counted before."""
        for path, before in zip(self.paths, self._identities, strict=True):
            now = _identity(path)
            if now != before:
                raise UnavailableError(
                    f"{path} {'is not there any more' if now is None else 'was changed or replaced'} since the viewer "
                    "was started",
                    hint="put it back, or end the viewer and start it again",
                )
        if self.before is not None:
            self.before.check_unchanged()

    @cached_property
    def symbolizer(self) -> Symbolizer:
        return Symbolizer(self.profile, self.symbols)

    @cached_property
    def namer(self) -> Namer:
        return Namer(self.profile, self.symbolizer)

    @cached_property
    def sources(self) -> Sources:
        from ..analysis import Sources

        return Sources(self.profile, self.source_roots)

    def once(self, key: Hashable, make: Callable[[], _T]) -> _T:
        """The result of ``make`` for ``key``, kept from an earlier call if possible; only the newest few results are
        kept."""
        if key not in self._kept:
            self._kept[key] = make()
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]  # type: ignore[return-value]

    def estimate(self, parameters: Parameters) -> Estimate:
        """The estimate for counts that ``parameters`` ask for: ``estimate`` is ``executions``, or absent. Raises
        `SelectionError` for another, and what `estimate_executions` raises."""
        chosen, asked = self.filter(parameters), parameters.get("estimate") or "observed"
        if asked == "executions":
            from ..analysis import estimate_executions

            return self.once(("estimate", chosen), lambda: estimate_executions(self.profile, sample_filter=chosen))
        if asked != "observed":
            raise SelectionError(f"estimate = {asked[:40]!r}: choose from 'observed', 'executions'")
        return Estimate.observed(self.profile, chosen)

    def branches(self, chosen: SampleFilter | None, estimate: Estimate) -> BranchTable:
        """`analysis.branches`, counted once for each filter and kind of counts."""
        return self.once(
            ("branches", chosen, estimate.replaced),
            lambda: branches(self.profile, sample_filter=chosen, estimate=estimate),
        )

    def weights(self) -> list[WeightTable]:
        """`analysis.weights_by` process and module, of all samples."""
        return self.once("weights", lambda: weights_by(self.profile, WEIGHED))

    def timeline(self, chosen: SampleFilter | None) -> NDArray[np.int64] | None:
        """`samples_over_time`, `MOMENTS` numbers."""
        return self.once(("timeline", chosen), lambda: samples_over_time(self.profile, MOMENTS, sample_filter=chosen))

    def rates(self, chosen: SampleFilter | None, by: Key) -> Rates | None:
        """`rates_over_time` of `MOMENTS` parts."""
        return self.once(
            ("rates", chosen, by), lambda: rates_over_time(self.profile, MOMENTS, by, sample_filter=chosen)
        )

    def functions(self, chosen: SampleFilter | None, parts: int, estimate: Estimate) -> FunctionTables:
        """`FunctionTables` of the samples that ``chosen`` keeps. They have what the other methods give as well, which
        the page asks for next."""
        profile = self.profile
        if self.growth is not None and chosen is None:
            found = self.growth(parts, self.namer, estimate)
        else:
            counts = FunctionCounts(profile, parts, chosen)
            counts.add(profile)
            found = counts.tables(profile, self.namer, estimate)
        if len(found.functions.branches) == 1:  # only one event has branches
            self.once(("branches", chosen, estimate.replaced), lambda: next(iter(found.functions.branches.values())))
        if chosen is None:
            self.once("weights", lambda: found.weights)
        self.once(("timeline", chosen), lambda: found.timeline)
        return found

    def differences(self, by: Thing, parameters: Parameters) -> Difference:
        """`compare` of the capture `before` with this one, under the filters of ``parameters``. Raises
        `UnavailableError` without one, and what `compare` and `filter` raise."""
        from ..analysis import compare

        before = self.other
        filters = before.filter(self.translated(parameters)), self.filter(parameters)
        return self.once(
            ("differences", by, filters), lambda: compare([before.namer, self.namer], by, sample_filters=filters)
        )

    @property
    def other(self) -> Loaded:
        """The capture `before`. Raises `UnavailableError` where there is none."""
        if self.before is None:
            raise UnavailableError(
                "there is only one capture here", hint="`lastbranch view --diff BEFORE AFTER` compares two"
            )
        return self.before

    def translated(self, parameters: Parameters) -> dict[str, str]:
        """The filters of ``parameters`` as the capture `before` has them: events and modules by their names, ids and
        times as they are. Raises `SelectionError` where it has none of these."""
        mine, other = self.profile, self.other.profile
        tables: dict[str, tuple[list[str], list[str]]] = {
            "event": ([event.name for event in mine.events], [event.name for event in other.events]),
            "module": ([module.short for module in mine.modules], [module.short for module in other.modules]),
        }
        made = {name: parameters[name] for name in FILTERS if parameters.get(name)}
        for name, (here, there) in tables.items():
            wanted = {here[row] for row in _rows(parameters, name, len(here))}
            rows = [row for row, called in enumerate(there) if called in wanted]
            if wanted and not rows:
                raise SelectionError(f"{other.name} has no {name} {', '.join(map(visible, sorted(wanted)))}")
            made |= {name: ",".join(map(str, rows))} if rows else {}
        return made

    def annotate(self, place: Place, chosen: SampleFilter | None, estimate: Estimate) -> Annotation:
        """`analysis.annotate`, without a pass over the samples for a place that was counted by `count_places`."""
        from ..analysis import annotate

        counted = self._counted.get((place, chosen, estimate.replaced))
        return counted(place) if counted else annotate(self.profile, place, sample_filter=chosen, estimate=estimate)

    def count_places(self, places: Sequence[Place], chosen: SampleFilter | None, estimate: Estimate) -> None:
        """Count all of ``places`` in one pass, for `annotate`."""
        from ..analysis.function.annotation import annotate_each

        counted = annotate_each(self.profile, places, sample_filter=chosen, estimate=estimate)
        self._counted.update({(place, chosen, estimate.replaced): counted for place in places})

    def filter(self, parameters: Parameters) -> SampleFilter | None:
        """The samples that ``parameters`` (`FILTERS`) ask for. Raises `SelectionError` for what means nothing."""
        profile = self.profile
        zero, clock = profile.start or 0, profile.clock
        first, last = (
            zero + clock.ticks(Fraction(whole_number(parameters, name), _NS)) if parameters.get(name) else None
            for name in ("from", "to")
        )
        made = SampleFilter(
            pids=_numbers(parameters, "pid"),
            tids=_numbers(parameters, "tid"),
            events=_rows(parameters, "event", len(profile.events)),
            first=first,
            last=last,
            modules=_rows(parameters, "module", len(profile.modules)),
        )
        return made or None


def _identity(path: str) -> tuple[int, ...] | None:
    """The identity of the regular file at ``path``, `None` for anything else."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def parameters_of(profile: Profile, chosen: SampleFilter | None) -> dict[str, str]:
    """The parameters that `Loaded.filter` makes ``chosen`` of (times to the nanosecond)."""
    if chosen is None:
        return {}
    zero, clock = profile.start or 0, profile.clock
    columns = {"pid": chosen.pids, "tid": chosen.tids, "event": chosen.events, "module": chosen.modules}
    made = {name: ",".join(map(str, sorted(values))) for name, values in columns.items() if values}
    times = {"from": chosen.first, "to": chosen.last}
    return made | {name: str(clock.to_ns(at - zero)) for name, at in times.items() if at is not None}


def whole_number(parameters: Parameters, name: str, default: int | None = None) -> int:
    """The parameter ``name`` as a number. Raises `SelectionError` where it is none, or missing without a default."""
    text = parameters.get(name, "")
    if not text and default is not None:
        return default
    if not (text.isascii() and text.removeprefix("-").isdecimal() and len(text) <= _DIGITS):
        raise SelectionError(f"{name} = {text[:_DIGITS]!r}: not a whole number")
    return int(text)


def _numbers(parameters: Parameters, name: str) -> frozenset[int]:
    text = parameters.get(name, "")
    return frozenset(whole_number({name: part}, name) for part in text.split(",")) if text else frozenset()


def _rows(parameters: Parameters, name: str, count: int) -> frozenset[int]:
    rows = _numbers(parameters, name)
    for row in rows:
        if not 0 <= row < count:
            raise SelectionError(f"{name} = {row}: there are {count}, from 0")
    return rows
