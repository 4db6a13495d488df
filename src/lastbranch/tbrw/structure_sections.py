"""The section of each structure of the guide, and the table of the file that holds it."""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from ..formats.tb5.layout import Scope, Section, StreamSection, Table, struct_of

__all__ = ["PLACES", "REQUIRED", "VIEWABLE", "parts_of"]


class Place(NamedTuple):
    """A table inside a section of the file or of a stream."""

    scope: Scope
    section: Section | StreamSection
    part: int

    def table(self, stream: int | None = None) -> Table:
        """The key of the table; ``stream`` is the number of a stream, or ``None`` for the file itself."""
        return Table(self.scope, stream or 0, self.section, self.part)


def parts_of(scope: Scope, section: int) -> list[str]:
    """Names of the structures in a section, by part; empty for sections of bytes and data."""
    structs = (struct_of(Table(scope, 0, section, part)) for part in count())
    names = []
    for struct in structs:
        if struct is None:
            break
        names.append(struct.name)
    return names


_SECTIONS = [(Scope.GLOBAL, s) for s in Section] + [(Scope.STREAM, s) for s in StreamSection]

PLACES: dict[str, Place] = {
    name: Place(scope, section, part)
    for scope, section in _SECTIONS
    for part, name in enumerate(parts_of(scope, section))
}
"""Name of the structure -> its place."""

REQUIRED: dict[tuple[Scope, int], tuple[str, ...]] = {
    (Scope.GLOBAL, Section.HARDWARE): ("TBRW_SYSTEM",),
    (Scope.GLOBAL, Section.SOFTWARE): ("TBRW_HOST", "TBRW_OS", "TBRW_APPLICATION"),
    (Scope.GLOBAL, Section.VERSION_INFO): ("TBRW_VERSION_INFO",),
    (Scope.STREAM, StreamSection.STREAM_INFO): ("TBRW_STREAM_INFO",),
    (Scope.STREAM, StreamSection.DATA_DESCRIPTION): ("TBRW_SAMPREC_DESC_ENTRY",),
}
"""What a section must hold to be complete (tables 4 and 5, "required information"); other sections may be empty."""

VIEWABLE = {
    Scope.GLOBAL: (Section.HARDWARE, Section.SOFTWARE, Section.VERSION_INFO, Section.MODULE),
    Scope.STREAM: (
        StreamSection.EVENT_DESCRIPTION,
        StreamSection.STREAM_INFO,
        StreamSection.DATA_DESCRIPTION,
        StreamSection.DATA,
    ),
}
"""Sections that a file needs to be viewed as a sampling session (6.2)."""
