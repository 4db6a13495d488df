"""From one kind of event to the sessions that take it: made once for a thread and a descriptor, then called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from ..kernel import EventDescriptor
from ..status import EtwError, Status
from .attachments import SessionKey, current
from .encode import NO_ACTIVITY, Put, put_for
from .registry import Registry
from .targets import Target

__all__ = ["route"]

Item = tuple[int, bytes]
"""Type and data of an extended item."""
_NONE_TAKEN = (Status.WMI_INSTANCE_NOT_FOUND, Status.ACCESS_DENIED)
"""The session has ended, or takes nothing of this process: no event is lost. Whatever else goes wrong loses events."""


def route(
    registry: Registry,
    provider: UUID,
    targets: Mapping[SessionKey, Target],
    descriptor: EventDescriptor,
    more: Sequence[Item] = (),
) -> Put:
    """What writes events of ``descriptor`` to all of ``targets`` that take them, with ``more`` extended items."""
    puts = []
    for session, target in targets.items():
        if not target.takes_event(descriptor):
            continue
        try:
            writer = current().writer(registry, session)
        except EtwError as error:
            if error.status not in _NONE_TAKEN:
                puts.append(_refused_by(session))
            continue
        puts.append(put_for(writer, provider, descriptor, _encoded([*target.items(), *more])))
    if len(puts) < 2:
        return puts[0] if puts else _nothing
    return lambda data, tail=NO_ACTIVITY: max([put(data, tail) for put in puts])


def _nothing(data: bytes, tail: bytes = NO_ACTIVITY) -> int:
    return 0


def _refused_by(session: SessionKey) -> Put:
    """For a session that has no room for another writer, or whose daemon does not answer as it should."""

    def refused(data: bytes, tail: bytes = NO_ACTIVITY) -> int:
        current().refuse(session)
        return Status.NOT_ENOUGH_MEMORY

    return refused


def _encoded(items: list[Item]) -> bytes:
    if not items:
        return b""
    from ...formats.etl.event import encode_items  # for the few events that have some: it takes NumPy

    return encode_items(items)
