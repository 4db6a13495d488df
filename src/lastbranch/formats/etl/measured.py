"""Which fields of their Information the branch records of a profile told, for the log that is written of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...lbr import FLAG_FIELDS, flags_from_info
from ...model import BRANCH, SampleBatch
from .event import Event
from .information import information_of, is_extended
from .sample_words import Trigger
from .supplement_events import information_fields, supplement_event

__all__ = ["MEASURED", "Measured"]

_NAMES = {"prediction": ("mispred", "predicted"), "cycles": ("cycles",), "type": ("type", "new_type"),
          "transaction": ("in_tx", "abort"), "privilege": ("priv",), "speculation": ("spec",)}  # fmt: skip
MEASURED = {
    name: sum((1 << FLAG_FIELDS[part][1]) - 1 << FLAG_FIELDS[part][0] for part in parts)
    for name, parts in _NAMES.items()
}
"""What a record can have measured -> its bits of perf's flag word."""


class Measured:
    """What the branch records of each event of a profile told."""

    def __init__(self) -> None:
        self._union: dict[int, int] = {}
        """By event: flag words or-ed together."""
        self._extended: set[int] = set()

    def add(self, batch: SampleBatch) -> None:
        """Take in the entries of ``batch``."""
        owner = np.repeat(batch.event, np.diff(batch.offsets[BRANCH]))
        flags = batch["branch_flags"] if "branch_flags" in batch else flags_from_info(batch["branch_info"])
        info = batch.columns.get("branch_info")
        for event in np.unique(owner).tolist():
            words = flags[owner == event]
            self._union[event] = self._union.get(event, 0) | int(np.bitwise_or.reduce(words))
            own = information_of(words) if info is None else info[owner == event]
            if is_extended(own).any() and (info is None or (flags_from_info(own) != words).any()):
                self._extended.add(event)

    def events(self, triggers: Sequence[Trigger], time: int) -> list[Event]:
        """The Information events; none where an LBR_INFO word tells all that there is."""
        made = []
        for event, union in sorted(self._union.items()):
            if event in self._extended:
                said = [name for name, mask in MEASURED.items() if union & mask]
                fields = information_fields(triggers[event], said, extended=True)
                made.append(supplement_event("Information", time, fields))
        return made
