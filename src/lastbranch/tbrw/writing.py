"""Sections and streams that are being written: from the first set_ or add_ to the commit."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import numpy as np

from ..formats.tb5.constants import Section, StreamSection
from ..formats.tb5.layout import Scope, Table
from ..model import Array
from .checks import CHECKS, check_descriptor, record_size_of
from .data_draft import DataDraft
from .drafts import BytesDraft, RecordsDraft
from .places import PLACES
from .store import Store, translated
from .structures import Record

__all__ = ["Drafts"]

_DATA = Table(Scope.STREAM, 0, StreamSection.DATA)


class Drafts:
    """Everything of one handle that is not in the file yet. A global section is committed when it is done, a stream
    when it is done, as a whole."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sections: dict[int, RecordsDraft | BytesDraft] = {}
        self._streams: dict[int, dict[int, RecordsDraft | BytesDraft]] = {}
        self._data: dict[int, DataDraft] = {}
        self._record_sizes: dict[int, int] = {}

    # -- begin

    def begin_section(self, section: int, stream: int | None) -> None:
        """writing_section, writing_stream_section."""
        if stream is None:
            name = Section(section).name
            self._sections[section] = (
                BytesDraft(name) if section == Section.USER_DEFINED_GLOBAL
                else RecordsDraft(Scope.GLOBAL, section, name, self._store.text)
            )  # fmt: skip
            return
        where = f"{StreamSection(section).name} of stream {stream}"
        if section == StreamSection.DATA:
            self._data[stream] = DataDraft(stream, os.path.dirname(self._store.path) or os.curdir)
        else:
            self._streams.setdefault(stream, {})[section] = (
                BytesDraft(where) if section == StreamSection.USER_DEFINED_STREAM
                else RecordsDraft(Scope.STREAM, section, where, self._store.text)
            )  # fmt: skip

    # -- contents

    def _draft(self, section: int, stream: int | None) -> RecordsDraft | BytesDraft:
        return self._sections[section] if stream is None else self._streams[stream][section]

    def set_bytes(self, section: int, stream: int | None, data: bytes) -> None:
        """The content of a user-defined section."""
        draft = self._draft(section, stream)
        assert isinstance(draft, BytesDraft)
        draft.set(data)

    def add(self, record: Record, stream: int | None, *, single: bool) -> None:
        """A record of its section; a ``single`` one takes the place of what was set before."""
        name = record.declared.name
        draft = self._draft(PLACES[name].section, stream)
        assert isinstance(draft, RecordsDraft)
        if name in CHECKS:
            CHECKS[name](record, len(draft.rows[name]), stream or 0)
        if name == "TBRW_SAMPREC_DESC_ENTRY":
            entry = np.frombuffer(bytes(record), record.declared.dtype)
            check_descriptor(np.concatenate([self._entries(draft), entry]), stream or 0)
        draft.add(record, instead=single)

    def add_data(self, stream: int, portions: Iterable[bytes]) -> None:
        """Records, all of them or none."""
        with self._store.lock, translated():
            self._data[stream].add(portions, self._record_sizes.get(stream, 0))

    # -- done

    def done_section(self, section: int, stream: int | None) -> None:
        """Check that what was given is complete; commit a global section."""
        if stream is not None and section == StreamSection.DATA:
            self._data[stream].check_complete(self._record_sizes.get(stream, 0))
            return
        draft = self._draft(section, stream)
        draft.check_complete()
        if stream is None:
            self._store.put(self._tables(Scope.GLOBAL, 0, section, draft))
            del self._sections[section]
        elif section == StreamSection.DATA_DESCRIPTION and isinstance(draft, RecordsDraft):
            self._record_sizes[stream] = record_size_of(self._entries(draft))

    def done_stream(self, stream: int) -> None:
        """Commit a stream; the rules have seen that it may be done."""
        data, size = self._data.get(stream), self._record_sizes[stream]
        if data is not None:
            data.check_complete(size)
        with self._store.adding() as writer:
            if data is not None:
                table = writer.table(_DATA._replace(stream=stream), size)
                for piece in data.pieces():
                    table.write(piece)
                table.done()
            for section, draft in self._streams[stream].items():
                for key, records in self._tables(Scope.STREAM, stream, section, draft):
                    writer.put(key, records)
        if data is not None:
            data.close()
        for held in (self._streams, self._data, self._record_sizes):
            held.pop(stream, None)

    def close(self) -> None:
        """Give up temporary files."""
        for data in self._data.values():
            data.close()

    def _tables(
        self, scope: Scope, stream: int, section: int, draft: RecordsDraft | BytesDraft
    ) -> Iterator[tuple[Table, Array]]:
        for part, records in draft.tables(self._store.writer.string):
            yield Table(scope, stream, section, part), records

    # -- data and its descriptor

    @staticmethod
    def _entries(draft: RecordsDraft) -> Array:
        return draft.rows["TBRW_SAMPREC_DESC_ENTRY"].array(lambda _text: 0)
