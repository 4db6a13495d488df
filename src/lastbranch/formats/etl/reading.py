"""How a log is read where it does not say enough of itself, or says it wrong."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from ...model import Source
from .decode import Decoder
from .events import TraceLog
from .manifest_xml import Manifests

__all__ = ["AS_IT_SAYS", "Reading"]


@dataclass(frozen=True, slots=True)
class Reading:
    """``pointer_size`` (4 or 8 bytes) is that of all payloads, whatever the headers of their events say; ``None``: what
    these say."""

    pointer_size: int | None = None
    manifests: Manifests | None = None
    """Descriptions of events that the log itself does not describe."""

    def __bool__(self) -> bool:
        return self != AS_IT_SAYS

    def provider_of(self, name: str) -> UUID | None:
        """The provider of that name, in upper or lower case, by the manifests."""
        names = self.manifests.names if self.manifests is not None else {}
        return next((UUID(bytes_le=guid) for guid, own in names.items() if own.lower() == name.lower()), None)

    def log(self, source: Source) -> TraceLog:
        """The log in ``source``. Raises `FormatError` where nothing can be had of it."""
        return TraceLog(source, pointer_size=self.pointer_size)

    def decoder(self) -> Decoder:
        """A decoder for its events."""
        return Decoder(pointer_size=self.pointer_size, manifests=self.manifests)


AS_IT_SAYS = Reading()
