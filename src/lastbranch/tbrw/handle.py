"""An open file for the calls of chapter 9: it joins the rules, the store and the unfinished parts.

Methods have the names of the guide's functions, and raise `TbrwError` where those return an error.
"""

from __future__ import annotations

from ..formats.tb5.layout import StreamSection
from ..formats.tb5.verification import verify
from .binding import StreamBinding
from .drafts import Drafts
from .reader import Reader
from .rules import Access, Rules
from .status import Status, TbrwError
from .store import Store, file_name, translated
from .structures import PLACES, Record

__all__ = ["Handle"]

_COPIED = 1 << 20


class Handle:
    """The object of a ``TBRW_PTR``. ``mode`` is made of `FileMode`. Several threads may use it."""

    def __init__(self, path: str, mode: int) -> None:
        flags = Rules.opening(mode)
        self.store = Store(path, flags)
        self.rules = Rules(flags, self.store.sections(), self.store.streams(), self.store.bound())
        self.drafts = Drafts(self.store)
        self.reader = Reader(self.store, self.rules)
        self.lock = self.store.lock
        self.closed = False

    # -- ends

    def close(self) -> None:
        """TBRW_close. If it is refused, the file stays open."""
        with self.lock:
            self.rules.closing()
            self._end()

    def abort(self) -> None:
        """TBRW_abort_cleanup_and_close: give up what is not complete. A new file without complete sections is removed,
        and the file that it was to replace stays."""
        with self.lock:
            if not self.closed:
                self._end(abort=True)

    def _end(self, *, abort: bool = False) -> None:
        self.closed = True
        self.drafts.close()
        self.store.close(abort=abort)

    def verify(self) -> None:
        """TBRW_verify: check the file as it was opened, and every block, string id, descriptor and bind index.

        Raises `TbrwError`: INVALID_SAMPLE_FILE with the first fault, INCOMPLETE_TB5_ENCOUNTERED for a sound file
        that was never closed.
        """
        with self.store.reading() as view:
            faults = [d for d in verify(view) if d not in view.damage]
            unfinished = self.store.damage
            if faults or (unfinished and self.store.closed_well):
                raise TbrwError(Status.INVALID_SAMPLE_FILE, f"{view.name}: {[*unfinished, *faults][0]}")
            if unfinished:
                raise TbrwError(Status.INCOMPLETE_TB5_ENCOUNTERED, f"{view.name}: {unfinished[0]}")

    # -- sections and streams

    def begin_section(self, section: int, access: Access, stream: int | None = None) -> None:
        """reading_section, writing_section, reading_stream_section, writing_stream_section."""
        with self.lock:
            self.rules.begin_section(section, access, stream)
            if access is Access.WRITING:
                self.drafts.begin_section(section, stream)

    def done_section(self, section: int, stream: int | None = None) -> None:
        """TBRW_done_section, TBRW_done_stream_section. An incomplete section that is written stays open."""
        with self.lock:
            sections = self.rules.open_sections(stream)
            if sections.access(section) is Access.WRITING:
                self.drafts.done_section(section, stream)
            sections.done(section)

    def begin_stream(self, stream: int, access: Access) -> None:
        """reading_stream, writing_stream."""
        with self.lock:
            self.rules.begin_stream(stream, access)

    def done_stream(self, stream: int) -> None:
        """TBRW_done_stream. An incomplete stream that is written stays open."""
        with self.lock:
            self.rules.completing_stream(stream)
            if self.rules.stream_access(stream) is Access.WRITING:
                self.drafts.done_stream(stream)
            self.rules.done_stream(stream)

    # -- writing

    def put(self, record: Record, stream: int | None = None, *, single: bool) -> None:
        """set_ (``single``) and add_ of a structure."""
        with self.lock, translated():
            self.rules.require(PLACES[record.declared.name].section, stream, Access.WRITING)
            self.drafts.add(record, stream, single=single)

    def put_bytes(self, section: int, stream: int | None, data: bytes) -> None:
        """set_user_defined_global, set_user_defined_stream."""
        with self.lock:
            self.rules.require(section, stream, Access.WRITING)
            self.drafts.set_bytes(section, stream, data)

    def add_data(self, stream: int, data: bytes) -> None:
        """TBRW_add_data: a record, a part of one, or whole records."""
        with self.lock:
            self.rules.require(StreamSection.DATA, stream, Access.WRITING)
            if not data:
                raise TbrwError(Status.UNSUPPORTED_DATA_SIZE, f"stream {stream}: 0 bytes of data are none")
            self.drafts.add_data(stream, [data])

    def add_data_from_file(self, stream: int, path: str) -> None:
        """TBRW_add_data_from_file: all bytes of a file, a pipe too, until its end."""
        with self.lock, translated(Status.FILE_OPEN_FAILED):
            self.rules.require(StreamSection.DATA, stream, Access.WRITING)
            with open(file_name(path), "rb") as file:
                self.drafts.add_data(stream, iter(lambda: file.read(_COPIED), b""))

    # -- binding

    def is_bound(self, stream: int) -> bool:
        """TBRW_is_bound."""
        with self.lock:
            self.rules.exists(stream)
            return stream in self.rules.bound

    def dobind(self, stream: int) -> None:
        """TBRW_dobind."""
        with self.lock:
            self.rules.binding(stream)
            if stream not in self.rules.bound:
                self.reader.require_addresses(stream)
                with self.store.adding() as writer:
                    StreamBinding(self.store.view, writer, stream).run()
                self.rules.bound_now(stream, True)

    def unbind(self, stream: int) -> None:
        """TBRW_unbind."""
        with self.lock:
            self.rules.binding(stream)
            self.rules.require_bound(stream)
            with self.store.adding() as writer:
                writer.unbind(stream)
            self.rules.bound_now(stream, False)
