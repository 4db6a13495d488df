"""Sections of one kind and what they are open for: used for the file, and for each stream that is open."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, IntEnum

from .status import Status, TbrwError

__all__ = ["NOT_OPEN", "Access", "Sections"]


class Access(Enum):
    """What a section or stream is open for."""

    READING = "reading"
    WRITING = "writing"


NOT_OPEN = {Access.READING: Status.SECTION_NOT_READABLE, Access.WRITING: Status.SECTION_NOT_WRITEABLE}
"""What a call returns on a section that is not open for it."""


class Sections:
    """Sections of one ``kind``: those that exist, complete or ``generated`` by binding, and those that are open."""

    def __init__(self, kind: type[IntEnum], existing: Iterable[int] = (), where: str = "the file") -> None:
        self.kind, self.where = kind, where
        self.existing = set(existing)
        self.generated: set[int] = set()
        self.open: dict[int, Access] = {}

    def known(self, section: int) -> IntEnum:
        """The section of that number, which may come from a caller."""
        try:
            return self.kind(section)
        except ValueError:
            raise TbrwError(Status.UNKNOWN_SECTION_NUMBER, f"there is no section {section!r} in {self.where}") from None

    def begin(self, section: int, access: Access) -> None:
        """reading_ or writing_ of a section."""
        section = self.known(section)
        if section in self.open:
            now = self.open[section].value
            raise TbrwError(Status.SECTION_ALREADY_IN_USE, f"{section.name} of {self.where} is open for {now}")
        exists = section in self.existing or section in self.generated
        if access is Access.READING and not exists:
            raise TbrwError(Status.SECTION_NOT_EXIST, f"{self.where} has no {section.name} section")
        if access is Access.WRITING and exists:
            raise TbrwError(
                Status.SECTION_NOT_WRITEABLE, f"{section.name} of {self.where} exists and cannot be written again"
            )
        self.open[section] = access

    def require(self, section: int, access: Access) -> None:
        """set_, add_, get_, enumerate_: the section must be open for ``access``."""
        if self.open.get(section) is not access:
            name = self.known(section).name
            raise TbrwError(NOT_OPEN[access], f"{name} of {self.where} is not open for {access.value}")

    def access(self, section: int) -> Access:
        """What the section is open for. Raises `TbrwError` (BAD_PARAMETER) if it is not open: done_ without begin."""
        section = self.known(section)
        if section not in self.open:
            raise TbrwError(Status.BAD_PARAMETER, f"{section.name} of {self.where} is not open, so it cannot be done")
        return self.open[section]

    def done(self, section: int) -> None:
        """done_ of an open section; one that was written exists from now on."""
        if self.access(section) is Access.WRITING:
            self.existing.add(section)
        del self.open[section]
