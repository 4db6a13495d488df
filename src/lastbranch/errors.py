"""Everything that lastbranch raises on purpose.

    LastbranchError
    ├── FormatError        the bytes are not what the file claims to be
    ├── NotRecordedError   the capture is fine, but does not hold the requested data
    ├── SelectionError     the request contradicts itself or the rules of the facility
    └── UnavailableError   this machine or installation lacks what the call needs

A message says what was found and where (file, offset, field, value); ``hint`` says what to do about it.
Damage that a reader can step over is not raised: it is collected as `Damage` on the profile.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Damage", "FormatError", "LastbranchError", "NotRecordedError", "SelectionError", "UnavailableError"]


class LastbranchError(Exception):
    """Root of all expected failures. ``exit_code`` is what the command line ends with."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class FormatError(LastbranchError):
    """Bytes that cannot be read as the format they should be in.

    ``file`` is the name of the source, ``offset`` its byte offset, ``field`` the name of the field in the format's
    specification and ``value`` its contents; each may be ``None`` where it has no meaning.
    """

    exit_code = 3

    def __init__(
        self,
        reason: str,
        *,
        file: str | None = None,
        offset: int | None = None,
        field: str | None = None,
        value: object = None,
        hint: str | None = None,
    ) -> None:
        self.reason, self.file, self.offset, self.field, self.value = reason, file, offset, field, value
        super().__init__(locate(reason, file, offset, field, value), hint=hint)


class NotRecordedError(LastbranchError):
    """The capture does not hold what the question needs, for example branch stacks."""

    exit_code = 4


class SelectionError(LastbranchError):
    """A selection of branches that its notation does not allow; the message names the bits."""

    exit_code = 2


class UnavailableError(LastbranchError):
    """Something outside the capture is missing: a library, a permission, a facility of the machine."""

    exit_code = 5


@dataclass(frozen=True, slots=True)
class Damage:
    """An unreadable place of a file, which was skipped.

    ``offset`` counts bytes of the file, ``lost`` the bytes that were given up (0 where no byte was).
    """

    reason: str
    offset: int
    field: str | None = None
    value: object = None
    lost: int = 0
    file: str | None = None
    """Its name, where several were opened together."""

    def __str__(self) -> str:
        text = locate(self.reason, None, self.offset, self.field, self.value)
        return f"{text} ({self.lost} bytes skipped)" if self.lost else text


def locate(reason: str, file: str | None, offset: int | None, field: str | None, value: object) -> str:
    """``file: reason (at offset 0x10, field = 7)``, leaving out what is not known."""
    where = [] if offset is None else [f"at offset {offset:#x}"]
    if field is not None:
        shown = f"{value:#x}" if isinstance(value, int) and abs(value) > 9 else str(value)
        where.append(field if value is None else f"{field} = {shown}")
    text = f"{reason} ({', '.join(where)})" if where else reason
    return f"{file}: {text}" if file else text
