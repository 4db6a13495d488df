"""The guide's usage rules (chapters 3 to 6) as a model, written from the guide's text alone; numbers are its own.

A model answers each call with the status that the call must return (docs/reference/tbrw.md, "Rules and their codes").
It knows nothing of files and does not import the package.
"""

from __future__ import annotations

from dataclasses import dataclass, field

READ, WRITE, CREATE = 1, 2, 4
HARDWARE, SOFTWARE, PROCESS_THREAD, MODULE, USER_GLOBAL, VERSION = range(6)
EVENTS, DESCRIPTORS, DATA, USER_STREAM, INFO = range(5)
GLOBALS, STREAM_SECTIONS = 6, 5

OK = 0
SAM_ERROR = 22
UNKNOWN_SECTION = 25
ENTRY_NOT_FOUND = 39
NO_WRITE_PERMISSION = 54
BAD_PARAMETER = 63
SECTION_IN_USE = 77
NO_SECTION = 78
NO_STREAM = 79
INVALID_STREAM = 80
STREAM_IN_USE = 81
NO_DESCRIPTOR = 82
INVALID_START = 86
BAD_SIZE = 98
NO_PERMISSION = 111
NOT_READABLE = 124
NOT_WRITEABLE = 125
GLOBAL_OPEN = 126
STREAM_SECTION_OPEN = 127
STREAM_OPEN = 128
BOTH_OPEN = 131
NO_DATA = 145
INCOMPLETE = 95
NO_BOUND_STREAM = 113
NOT_BOUND = 129
BIND_MISMATCH = 133
NO_ADDRESS = 85

RECORD = 8
NEEDED = {
    HARDWARE: {"system"},
    SOFTWARE: {"host", "os", "application"},
    VERSION: {"version_info"},
    USER_GLOBAL: {"bytes"},
}
NEEDED_IN_STREAM = {INFO: {"info"}, DESCRIPTORS: {"descriptor"}, USER_STREAM: {"bytes"}}


@dataclass
class Part:
    """A section: ``use`` is its open mode, ``held`` its contents so far, by kind -> how many (bytes of data)."""

    use: str | None = None
    exists: bool = False
    held: dict[str, int] = field(default_factory=dict)


@dataclass
class Shelf:
    """Sections that belong together."""

    size: int
    needed: dict[int, set[str]]
    parts: dict[int, Part] = field(default_factory=dict)

    def part(self, section: int) -> Part:
        return self.parts.setdefault(section, Part())

    def begin(self, section: int, use: str) -> int:
        if not 0 <= section < self.size:
            return UNKNOWN_SECTION
        part = self.part(section)
        if part.use:
            return SECTION_IN_USE
        if use == "read" and not part.exists:
            return NO_SECTION
        if use == "write" and part.exists:
            return NOT_WRITEABLE
        part.use = use
        return OK

    def give(self, section: int, kind: str, amount: int = 1) -> int:
        part = self.part(section)
        if part.use != "write":
            return NOT_WRITEABLE
        part.held[kind] = part.held.get(kind, 0) + amount
        return OK

    def look(self, section: int) -> int:
        return OK if self.part(section).use == "read" else NOT_READABLE

    def done(self, section: int, data_fits: bool = True) -> int:
        if not 0 <= section < self.size:
            return UNKNOWN_SECTION
        part = self.part(section)
        if part.use is None:
            return BAD_PARAMETER
        if part.use == "write":
            if not self.needed.get(section, set()) <= set(part.held):
                return NO_DATA
            if not data_fits:
                return BAD_SIZE
            part.exists = True
        part.use = None
        return OK

    @property
    def open(self) -> bool:
        return any(part.use for part in self.parts.values())

    @property
    def existing(self) -> set[int]:
        return {section for section, part in self.parts.items() if part.exists}

    def amount(self, section: int, kind: str) -> int:
        return self.part(section).held.get(kind, 0)


@dataclass
class Model:
    """The state of a file that is open under a handle."""

    mode: int
    file: Shelf = field(default_factory=lambda: Shelf(GLOBALS, NEEDED))
    complete: list[Shelf] = field(default_factory=list)
    opened: dict[int, tuple[str, Shelf]] = field(default_factory=dict)
    bound: set[int] = field(default_factory=set)
    changed: bool = False
    closed_well: bool = True
    """How the file was left; ``changed`` since it was opened."""

    def allowed(self, use: str) -> int:
        if use == "read":
            return OK if self.mode & READ else NO_PERMISSION
        return OK if self.mode & WRITE else NO_WRITE_PERMISSION

    # 5.1, 5.5

    def begin_section(self, section: int, use: str) -> int:
        if not 0 <= section < GLOBALS:
            return UNKNOWN_SECTION
        if refused := self.allowed(use):
            return refused
        part = self.file.part(section)
        if section == PROCESS_THREAD and self.bound and not part.exists and not part.use:  # 6.2: made by binding
            if use == "write":
                return NOT_WRITEABLE
            part.use = use
            return OK
        return self.file.begin(section, use)

    def done_section(self, section: int) -> int:
        writing = 0 <= section < GLOBALS and self.file.part(section).use == "write"
        status = self.file.done(section)
        self.changed |= writing and status == OK
        return status

    # 5.2, 5.6

    def begin_stream(self, number: int, use: str) -> int:
        if refused := self.allowed(use):
            return refused
        if number in self.opened:
            return STREAM_IN_USE
        if use == "read":
            if number >= len(self.complete):
                return NO_STREAM
            self.opened[number] = use, self.complete[number]
            return OK
        if number != len(self.complete) + len(self.being_written()):
            return INVALID_STREAM
        self.opened[number] = use, Shelf(STREAM_SECTIONS, NEEDED_IN_STREAM)
        return OK

    def being_written(self) -> list[int]:
        return [n for n, (use, _) in self.opened.items() if use == "write"]

    def done_stream(self, number: int) -> int:
        if number not in self.opened:
            return BAD_PARAMETER
        use, shelf = self.opened[number]
        if shelf.open:
            return STREAM_SECTION_OPEN
        if use == "write":
            if not shelf.part(INFO).exists:
                return NO_SECTION
            if not shelf.part(DESCRIPTORS).exists:
                return NO_DESCRIPTOR
            if number != len(self.complete):
                return STREAM_OPEN
            if shelf.amount(DATA, "data") % RECORD:
                return BAD_SIZE
            self.complete.append(shelf)
            self.changed = True
        del self.opened[number]
        return OK

    # 5.3, 5.7

    def shelf(self, number: int, use: str) -> Shelf | int:
        if number in self.opened and self.opened[number][0] == use:
            return self.opened[number][1]
        if number not in self.opened and number >= len(self.complete):
            return NO_STREAM
        return NOT_READABLE if use == "read" else NOT_WRITEABLE

    def begin_stream_section(self, number: int, section: int, use: str) -> int:
        shelf = self.shelf(number, use)
        return shelf if isinstance(shelf, int) else shelf.begin(section, use)

    def done_stream_section(self, number: int, section: int) -> int:
        if number not in self.opened:
            return BAD_PARAMETER
        use, shelf = self.opened[number]
        known = use == "write" and shelf.part(DESCRIPTORS).exists and section == DATA
        return shelf.done(section, data_fits=not known or not shelf.amount(DATA, "data") % RECORD)

    # 5.4

    def give(self, number: int | None, section: int, kind: str) -> int:
        shelf = self.file if number is None else self.shelf(number, "write")
        return shelf if isinstance(shelf, int) else shelf.give(section, kind)

    def add_data(self, number: int, size: int) -> int:
        shelf = self.shelf(number, "write")
        if isinstance(shelf, int):
            return shelf
        if shelf.part(DATA).use != "write":
            return NOT_WRITEABLE
        inside = shelf.amount(DATA, "data") % RECORD
        if not size:
            return BAD_SIZE
        if shelf.part(DESCRIPTORS).exists and inside + size > RECORD and (inside or size % RECORD):
            return BAD_SIZE
        return shelf.give(DATA, "data", size)

    # 5.8, 5.9

    def look(self, number: int | None, section: int) -> int:
        shelf = self.file if number is None else self.shelf(number, "read")
        return shelf if isinstance(shelf, int) else shelf.look(section)

    # 3.3, 5.10

    def binding(self, number: int) -> int:
        if refused := self.allowed("write"):
            return refused
        if number >= len(self.complete):
            return NO_STREAM
        if number in self.opened:
            return STREAM_IN_USE
        if self.file.part(MODULE).use or self.file.part(PROCESS_THREAD).use:
            return SECTION_IN_USE
        has_data = self.complete[number].part(DATA).exists
        return OK if self.file.part(MODULE).exists and has_data else NO_SECTION

    def dobind(self, number: int) -> int:
        status = self.binding(number)
        if status == OK and number not in self.bound:
            self.bound.add(number)
            self.changed = True
        return status

    def unbind(self, number: int) -> int:
        if status := self.binding(number):
            return status
        if number not in self.bound:
            return NOT_BOUND
        self.bound.remove(number)
        self.changed = True
        return OK

    def is_bound(self, number: int) -> int:
        return OK if number < len(self.complete) else NO_STREAM

    def bound_data(self, number: int) -> int:
        return self.look(number, DATA) or (OK if number in self.bound else NOT_BOUND)

    @property
    def generated(self) -> bool:
        """Whether processes and threads come from binding."""
        return bool(self.bound) and not self.file.part(PROCESS_THREAD).exists

    def bound_stream(self) -> int:
        if not self.bound:
            return NO_BOUND_STREAM
        read = [n for n in self.bound if n in self.opened]
        return BIND_MISMATCH if len(read) > 1 and self.generated else OK

    def verify(self) -> int:
        return OK if self.closed_well else INCOMPLETE

    # 3, 5.11

    def ended(self, *, abort: bool) -> None:
        if self.changed:
            self.closed_well = not abort
        self.changed = False

    def close(self) -> int:
        if self.file.open and self.opened:
            return BOTH_OPEN
        if self.file.open:
            return GLOBAL_OPEN
        for _, shelf in self.opened.values():
            return STREAM_SECTION_OPEN if shelf.open else STREAM_OPEN
        return OK

    def give_up(self) -> None:
        """abort: what is complete stays."""
        for part in self.file.parts.values():
            if not part.exists:
                part.held = {}
            part.use = None
        for _, shelf in self.opened.values():
            for part in shelf.parts.values():
                part.use = None
        self.opened = {}
