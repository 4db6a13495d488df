"""The header of a buffer as it is written: WMI_BUFFER_HEADER, 72 bytes before the events."""

from __future__ import annotations

from dataclasses import dataclass

from ..layout import BUFFER_FLAG, BUFFER_HEADER, BUFFER_HEADER_SIZE, BUFFER_STATE, BUFFER_TYPE, pack_fields

__all__ = ["BufferHeader"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferHeader:
    """What differs between buffers. The defaults are those of a buffer of events that is complete."""

    used: int
    """Bytes of events; of a compressed buffer after decompression."""
    size: int | None = None
    """Bytes that the buffer takes, this header included; ``None``: no more than it needs."""
    time: int = 0
    """When it was flushed, in ticks of the session's clock."""
    sequence: int = 0
    """The session's number of the buffer, from 1; the first of a file has 0."""
    cpu: int = 0
    logger_id: int = 0
    state: int = BUFFER_STATE.FLUSH
    flags: int = BUFFER_FLAG.PROC_INDEX
    kind: int = BUFFER_TYPE.GENERIC

    def encode(self) -> bytes:
        """The 72 bytes. Raises `ValueError` that names the field which cannot hold its value."""
        filled = BUFFER_HEADER_SIZE + self.used
        # SavedOffset is what some readers take for the used length.
        return pack_fields(
            BUFFER_HEADER,
            {
                "BufferSize": filled if self.size is None else self.size,
                "SavedOffset": filled,
                "CurrentOffset": filled,
                "ReferenceCount": 0,
                "TimeStamp": self.time,
                "SequenceNumber": self.sequence,
                "ClockTypeFrequency": 0,
                "ProcessorIndex": self.cpu,
                "LoggerId": self.logger_id,
                "State": self.state,
                "Offset": filled,
                "BufferFlag": self.flags,
                "BufferType": self.kind,
                "Reserved": bytes(16),
            },
        )
