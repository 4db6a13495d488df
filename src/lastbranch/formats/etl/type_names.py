"""What the types of events that a log counts are called: as `dump` calls them, from tables, manifests and the log."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import numpy as np

from .columns import EventBlock
from .decode import Decoder
from .event import Event
from .events import EventType, first_of_types
from .kernel_session import META_DATA
from .manifest_xml import MANIFEST_ID
from .materialise import events_of
from .providers import guid_text, kernel_names

__all__ = ["TypeNames"]

_META_DATA = UUID(META_DATA).bytes_le


class TypeNames:
    """Gathers, of each type of user events, the first one, and what the log says about its events."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._first: dict[EventType, Event] = {}
        self._taught = 0

    def gather(self, block: EventBlock, counts: Counter[EventType]) -> None:
        """Look at ``block``, whose events are in ``counts`` by now."""
        new = [kind for kind in counts if kind.hook < 0 and kind not in self._first]
        teaching = sum(n for kind, n in counts.items() if kind.id == MANIFEST_ID or kind.provider == _META_DATA)
        if not new and teaching == self._taught:
            return
        rest = block.take(np.flatnonzero(~block.is_kernel))
        if teaching != self._taught:
            self._taught = teaching
            meta = (rest.provider == np.frombuffer(_META_DATA, np.uint64)).all(axis=1)
            for event in events_of(rest.take(meta | (rest.id == MANIFEST_ID))):
                self._decoder.learn(event)
        kinds, rows = first_of_types(rest)
        fresh = [i for i, kind in enumerate(kinds) if kind not in self._first]
        events = events_of(rest.take(rows[fresh])) if fresh else []
        self._first.update(zip((kinds[i] for i in fresh), events, strict=True))

    def name(self, kind: EventType) -> str:
        """PROVIDER/TASK/OPCODE, as far as it is known. Self-describing events of one provider are one type."""
        if kind.hook >= 0:
            return "/".join(kernel_names((kind.hook >> 8, kind.hook & 0xFF)))
        first = self._first.get(kind)
        if first is None:
            return f"{guid_text(kind.provider)}/{kind.id or kind.opcode}"
        known = self._decoder.find(first)
        return f"{known.provider_name}/{'TraceLogging' if known.kind == 'tracelogging' else known.event_name}"
