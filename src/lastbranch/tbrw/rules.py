"""The usage rules of the guide's chapters 3 to 6 as a state machine: which call is allowed now.

A `Rules` object gets what a file holds and how it was opened, and touches no file. Each method is one call of the API.
A call changes the state, or raises `TbrwError` with the status of the broken rule and changes nothing. `drafts` decides
what a section must contain; this module decides when it may be used.

    section   absent --writing--> open for writing --done--> complete <--done-- open for reading <--reading-- complete
    stream    the same, and inside it, while it is open, its sections
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, IntEnum, IntFlag

from ..formats.tb5.layout import Section, StreamSection
from .status import Status, TbrwError

__all__ = ["Access", "FileMode", "Rules", "Sections"]


# -- sections of the file, or of an open stream


class Access(Enum):
    """The purpose for which a section or stream is open."""

    READING = "reading"
    WRITING = "writing"


NOT_OPEN = {Access.READING: Status.SECTION_NOT_READABLE, Access.WRITING: Status.SECTION_NOT_WRITEABLE}
"""Status of a call on a section that is not open for it."""


class Sections:
    """The sections of one ``kind``: existing sections, which are complete or ``generated`` by binding, and open
    sections."""

    def __init__(self, kind: type[IntEnum], existing: Iterable[int] = (), where: str = "the file") -> None:
        self.kind, self.where = kind, where
        self.existing = set(existing)
        self.generated: set[int] = set()
        self.open: dict[int, Access] = {}

    def known(self, section: int) -> IntEnum:
        """The section of a number that may come from a caller."""
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
        """The purpose for which the section is open. Raises `TbrwError` (BAD_PARAMETER) if it is not open: done_
        without begin."""
        section = self.known(section)
        if section not in self.open:
            raise TbrwError(Status.BAD_PARAMETER, f"{section.name} of {self.where} is not open, so it cannot be done")
        return self.open[section]

    def done(self, section: int) -> None:
        """done_ of an open section; one that was written exists from now on."""
        if self.access(section) is Access.WRITING:
            self.existing.add(section)
        del self.open[section]


class FileMode(IntFlag):
    """The access modes of ``TBRW_open``. The guide has the names; the values are ours."""

    READ = 1
    WRITE = 2
    CREATE_ALWAYS = 4


class _OpenStream(Sections):
    def __init__(self, number: int, access: Access, existing: Iterable[int]) -> None:
        super().__init__(StreamSection, existing, f"stream {number}")
        self.use = access


class Rules:
    """The state of one open file; ``bound`` are the numbers of the bound streams."""

    def __init__(
        self,
        mode: FileMode,
        sections: Iterable[Section] = (),
        streams: Iterable[Iterable[StreamSection]] = (),
        bound: Iterable[int] = (),
    ) -> None:
        self.mode = mode
        self.sections = Sections(Section, sections)
        self._streams: list[set[int]] = [set(s) for s in streams]
        self._open: dict[int, _OpenStream] = {}
        self.bound: set[int] = set()
        for number in bound:
            self.bound_now(number, True)

    # -- opening and closing

    @staticmethod
    def opening(mode: int) -> FileMode:
        """The mode as flags. Raises `TbrwError` (INVALID_ACCESS_PERMS) for an unknown one."""
        if not 0 < mode <= FileMode.READ | FileMode.WRITE | FileMode.CREATE_ALWAYS:
            raise TbrwError(
                Status.INVALID_ACCESS_PERMS, f"access mode {mode:#x} is not made of READ, WRITE, CREATE_ALWAYS"
            )
        if mode & FileMode.CREATE_ALWAYS and not mode & FileMode.WRITE:
            raise TbrwError(Status.INVALID_ACCESS_PERMS, "CREATE_ALWAYS needs WRITE beside it")
        return FileMode(mode)

    def closing(self) -> None:
        """close: every reading_ and writing_ must have had its done_ (3, 9.1)."""
        left = [f"section {Section(s).name}" for s in self.sections.open]
        if left and self._open:
            left += [f"stream {n}" for n in self._open]
            raise TbrwError(Status.NOT_ALL_SECTIONS_CLOSED, f"still open: {', '.join(left)}")
        if left:
            raise TbrwError(Status.GLOBAL_SECTION_NOT_CLOSED, f"still open: {', '.join(left)}")
        for n, stream in self._open.items():
            self._sections_closed(stream)
            raise TbrwError(Status.STREAM_NOT_CLOSED, f"stream {n} is still open for {stream.use.value}")

    # -- streams

    @property
    def count(self) -> int:
        """Number of complete streams: what get_number_data_streams returns."""
        return len(self._streams)

    @property
    def next_stream(self) -> int:
        """The only number that a new stream can have, after the complete streams and those that are being written."""
        return self.count + sum(s.use is Access.WRITING for s in self._open.values())

    def being_read(self) -> set[int]:
        """Numbers of the streams that are open for reading."""
        return {n for n, stream in self._open.items() if stream.use is Access.READING}

    def existing(self, number: int) -> frozenset[int]:
        """The sections of a complete stream."""
        self.exists(number)
        return frozenset(self._streams[number])

    def begin_stream(self, number: int, access: Access) -> None:
        """reading_stream and writing_stream."""
        self._check_access(access)
        if number in self._open:
            use = self._open[number].use.value
            raise TbrwError(Status.STREAM_ALREADY_IN_USE, f"stream {number} is open for {use}")
        if access is Access.READING:
            existing = set(self.existing(number))
        else:
            if number != self.next_stream:
                raise TbrwError(
                    Status.INVALID_STREAM, f"stream {number} cannot be written: the next is {self.next_stream}"
                )
            existing = set()
        self._open[number] = _OpenStream(number, access, existing)

    def exists(self, number: int) -> None:
        """Raises `TbrwError` (STREAM_NOT_EXIST) unless stream ``number`` is complete."""
        if not 0 <= number < self.count:
            raise TbrwError(Status.STREAM_NOT_EXIST, f"stream {number} does not exist; the file has {self.count}")

    def stream_access(self, number: int) -> Access:
        """The purpose for which a stream is open. Raises `TbrwError` (BAD_PARAMETER) for done_ without begin."""
        if number not in self._open:
            raise TbrwError(Status.BAD_PARAMETER, f"stream {number} is not open, so it cannot be done")
        return self._open[number].use

    def completing_stream(self, number: int) -> None:
        """The rules of done_stream (5.2): no open section; if it was written, stream info and data descriptor
        complete, and all lower streams too, because numbers are dense."""
        use = self.stream_access(number)
        stream = self._open[number]
        self._sections_closed(stream)
        if use is Access.READING:
            return
        if StreamSection.STREAM_INFO not in stream.existing:
            raise TbrwError(Status.SECTION_NOT_EXIST, f"stream {number} has no stream info section")
        if StreamSection.DATA_DESCRIPTION not in stream.existing:
            raise TbrwError(Status.DATA_DESC_NOT_EXIST, f"stream {number} has no data description section")
        if number != self.count:
            raise TbrwError(Status.STREAM_NOT_CLOSED, f"stream {self.count} must be done before stream {number}")

    def done_stream(self, number: int) -> None:
        """done_stream."""
        self.completing_stream(number)
        stream = self._open.pop(number)
        if stream.use is Access.WRITING:
            self._streams.append(stream.existing)

    def stream_sections(self, number: int, access: Access) -> Sections:
        """The sections of a stream that is open for ``access``."""
        stream = self._open.get(number)
        if stream is None:
            self.exists(number)
        if stream is None or stream.use is not access:
            raise TbrwError(NOT_OPEN[access], f"stream {number} is not open for {access.value}")
        return stream

    def begin_section(self, section: int, access: Access, stream: int | None) -> None:
        """reading_section, writing_section; of a ``stream`` reading_stream_section and writing_stream_section."""
        if stream is not None:
            self.stream_sections(stream, access).begin(section, access)
            return
        self.sections.known(section)
        self._check_access(access)
        self.sections.begin(section, access)

    def open_sections(self, stream: int | None) -> Sections:
        """The sections of the file, or of an open stream."""
        return self.sections if stream is None else self.stream_sections(stream, self.stream_access(stream))

    def require(self, section: int, stream: int | None, access: Access) -> None:
        """set_, add_, get_, enumerate_: the section of a stream, or of the file, must be open for ``access``."""
        (self.sections if stream is None else self.stream_sections(stream, access)).require(section, access)

    # -- binding

    def binding(self, number: int) -> None:
        """The rules of dobind and unbind (5): permission to write, samples and modules, and none of them in use."""
        self._check_access(Access.WRITING)
        self.exists(number)
        if number in self._open:
            raise TbrwError(Status.STREAM_ALREADY_IN_USE, f"stream {number} is in use and cannot be bound or unbound")
        for section in (Section.MODULE, Section.PROCESS_THREAD):
            if section in self.sections.open:
                raise TbrwError(Status.SECTION_ALREADY_IN_USE, f"{section.name} is in use; binding needs it")
        if Section.MODULE not in self.sections.existing:
            raise TbrwError(Status.SECTION_NOT_EXIST, "the file has no MODULE section to bind to")
        if StreamSection.DATA not in self._streams[number]:
            raise TbrwError(Status.SECTION_NOT_EXIST, f"stream {number} has no DATA section")

    def bound_now(self, number: int, bound: bool) -> None:
        """A stream was bound or unbound. Sections that binding generates are read like sections of the file (6.2)."""
        (self.bound.add if bound else self.bound.discard)(number)
        self.sections.generated = {Section.PROCESS_THREAD} if self.bound else set()

    def require_bound(self, number: int) -> None:
        """Raises `TbrwError` (STREAM_NOT_BOUND) unless the stream is bound."""
        self.exists(number)
        if number not in self.bound:
            raise TbrwError(Status.STREAM_NOT_BOUND, f"stream {number} is not bound")

    def _check_access(self, access: Access) -> None:
        if access is Access.READING and not self.mode & FileMode.READ:
            raise TbrwError(Status.INVALID_ACCESS_PERMS, "the file was not opened with READ")
        if access is Access.WRITING and not self.mode & FileMode.WRITE:
            raise TbrwError(Status.NO_WRITE_PERMISSION, "the file was not opened with WRITE")

    @staticmethod
    def _sections_closed(stream: Sections) -> None:
        if stream.open:
            names = ", ".join(StreamSection(s).name for s in stream.open)
            raise TbrwError(Status.STREAM_SECTION_NOT_CLOSED, f"still open in {stream.where}: {names}")
