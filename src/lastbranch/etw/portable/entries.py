"""What the registry's files say: a session, and how a session enabled a provider."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from ..properties import NO_GUID, Filter
from .processes import ProcessKey

__all__ = ["EnableState", "Entry"]


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One session."""

    handle: int
    name: str
    guid: UUID
    owner: ProcessKey
    """The daemon; the process that starts it, until the daemon is `ready`."""
    system: bool
    ready: bool
    key: str = field(repr=False)
    """Of the name: file name of the entry, without suffix."""

    @property
    def socket(self) -> str:
        """File name of the daemon's socket in the directory of sessions."""
        return f"{self.key}.sock"

    def of_daemon(self, daemon: ProcessKey) -> Entry:
        """The entry when its daemon has started."""
        return replace(self, owner=daemon, ready=True)

    def to_json(self) -> dict[str, Any]:
        return {
            "handle": self.handle, "name": self.name, "guid": str(self.guid), "owner": list(self.owner),
            "system": self.system, "ready": self.ready, "key": self.key,
        }  # fmt: skip

    @classmethod
    def of(cls, value: Any) -> Entry | None:
        """The entry of a file's content; ``None`` if it is none."""
        try:
            return cls(
                int(value["handle"]), str(value["name"]), UUID(value["guid"]), ProcessKey(*map(int, value["owner"])),
                bool(value["system"]), bool(value["ready"]), str(value["key"]),
            )  # fmt: skip
        except (TypeError, KeyError, ValueError, AttributeError):
            return None


@dataclass(frozen=True, slots=True)
class EnableState:
    """How session ``handle`` takes events of a provider."""

    handle: int
    owner: ProcessKey
    """The session's daemon."""
    socket: str
    """File name of its socket, in the directory of sessions."""
    level: int = 0
    match_any: int = 0
    match_all: int = 0
    property: int = 0
    """EVENT_ENABLE_PROPERTY_* bits."""
    source: UUID = NO_GUID
    """SourceId of ENABLE_TRACE_PARAMETERS, for the provider's callback."""
    filters: tuple[Filter, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "handle": self.handle, "owner": list(self.owner), "socket": self.socket, "level": self.level,
            "any": self.match_any, "all": self.match_all, "property": self.property, "source": str(self.source),
            "filters": [[f.kind, f.data.hex()] for f in self.filters],
        }  # fmt: skip

    @classmethod
    def of(cls, value: Any) -> EnableState | None:
        """The state in a file's content; ``None`` if it is none."""
        try:
            return cls(
                int(value["handle"]), ProcessKey(*map(int, value["owner"])), str(value["socket"]), int(value["level"]),
                int(value["any"]), int(value["all"]), int(value["property"]), UUID(value["source"]),
                tuple(Filter(int(kind), bytes.fromhex(data)) for kind, data in value["filters"]),
            )  # fmt: skip
        except (TypeError, KeyError, ValueError, AttributeError):
            return None
