"""What TraceConfigureLastBranchRecord was called with, as an event of the session.

`check` tells by it that a trigger was configured and not enabled.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID

from ...formats.etl.event import encode_event
from ...formats.etl.profile.supplement_events import supplement_event
from ..hooks import hook_ids
from ..status import EtwError
from .protocol import at_folder
from .registry import Registry
from .writer import connect_writer

__all__ = ["state_triggers"]


def state_triggers(registry: Registry, handle: int, flags: int, events: Sequence[tuple[UUID, int]]) -> None:
    """Write the event Triggers to a session, if it takes another writer."""
    entry = registry.find(handle)
    if entry is None:
        return
    fields = {"Flags": flags, "Hooks": hook_ids(events)}
    with (
        suppress(EtwError), registry.folder("sessions") as folder,
        connect_writer(at_folder(folder, entry.socket)) as writer,
    ):  # fmt: skip
        event = encode_event(supplement_event("Triggers", writer.clock.now(), fields))
        writer.write(event + bytes(-len(event) % 8))
