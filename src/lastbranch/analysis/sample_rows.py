"""Samples, branch entries and frames as rows of tables: their recorded columns, and the columns that binding adds."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..arrays import positions
from ..lbr import type_name
from ..model import FRAME, Array, Profile, SampleBatch
from .sample_filtering import period_of

__all__ = ["TYPE_NAMES", "BoundRows", "recorded_address"]

TYPE_NAMES = np.array([None, *map(type_name, range(1, 256))], object)
"""Names of the types of branches by their code; ``None`` where the record does not say."""

_ENDS = {"from": "branch_from", "to": "branch_to"}


def recorded_address(group: str, end: str) -> str:
    """The recorded column of the addresses that ``end_module`` and ``end_address`` bind, in a table of ``group``."""
    return _ENDS.get(end) or ("frame" if group == FRAME else "ip")


class BoundRows:
    """The samples of ``batch``, the first of which has number ``first``; `entries` has what they hold several of.

    Beside the recorded columns there are ``sample`` (its number) and ``depth`` of the branch stack, int64; ``time_ns``
    int64 since the start of the capture; ``process`` and ``thread`` int64 rows, -1 unknown; ``module`` int64 row, -1
    nothing mapped, and uint64 module ``address`` of the sample or frame, and the same of both ends of a branch:
    ``from_module``... ``period`` is what `period_of` says. Entries have the ``position`` in their sample.
    """

    def __init__(self, profile: Profile, batch: SampleBatch, first: int) -> None:
        self.batch, self._profile, self._first = batch, profile, first
        self._group = "sample"
        self._each: Array | slice = slice(None)
        self._places: dict[str, tuple[Array, Array]] = {}

    def __len__(self) -> int:
        return len(self.batch) if isinstance(self._each, slice) else len(self._each)

    def entries(self, group: str) -> BoundRows:
        """One row for each entry of a ragged group that the batch has."""
        sizes = np.diff(self.batch.offsets[group])
        made = copy(self)  # with what is known of the samples
        made._group, made._each, made._places = group, np.repeat(np.arange(len(sizes)), sizes), {}
        return made

    def column(self, name: str) -> Array | None:
        """A column, ``None`` where the batch lacks what it is made from."""
        if name in _OF_SAMPLE:
            return np.asarray(_OF_SAMPLE[name](self)[self._each])
        if name == "position" and self._group != "sample":
            return positions(self.batch.offsets[self._group])
        end, _, part = name.rpartition("_")
        if part in ("module", "address"):
            place = self.place(end)
            return place and place[part == "address"]
        return self.batch.columns.get(name)

    def place(self, end: str = "") -> tuple[Array, Array] | None:
        """(module, address) of one end of the branches (``from``, ``to``), or of the samples or frames."""
        source = recorded_address(self._group, end)
        if source in self.batch and source not in self._places:
            self._places[source] = self._profile.binder.locate(self.scope[self._each], self.batch[source])
        return self._places.get(source)

    @cached_property
    def scope(self) -> NDArray[np.int64]:
        return self._profile.binder.scopes(self.batch)

    @cached_property
    def _process(self) -> NDArray[np.int64]:
        return self._profile.binder.process_of(self.scope)

    @cached_property
    def _thread(self) -> NDArray[np.int64]:
        return self._profile.binder.threads_of(self.batch, self.scope)

    def _time_ns(self) -> NDArray[np.int64]:
        return self._profile.clock.to_ns_array(self.batch.time - (self._profile.start or 0))


_OF_SAMPLE: dict[str, Callable[[BoundRows], Array]] = {
    "sample": lambda rows: np.arange(rows._first, rows._first + len(rows.batch)),
    "time_ns": BoundRows._time_ns,
    "event": lambda rows: rows.batch.event,
    "period": lambda rows: period_of(rows._profile, rows.batch),
    "process": lambda rows: rows._process,
    "thread": lambda rows: rows._thread,
    "depth": lambda rows: rows.batch.depth,
}
