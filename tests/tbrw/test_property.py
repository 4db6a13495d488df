"""Random legal and illegal sequences of calls, held against a model of the guide's rules (`tbrw_model`)."""

from __future__ import annotations

import ctypes
import errno
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import tbrw_model as guide
import tbrw_recipe as recipe
from lastbranch import tbrw
from lastbranch.formats.tb5.writer import write_at as write
from tb5_reader import TB5

SECTIONS = st.integers(-1, 6)
STREAM_SECTIONS = st.integers(-1, 5)
STREAMS = st.integers(0, 3)
USES = st.sampled_from(["read", "write"])
SINGLE = {
    "system": guide.HARDWARE, "host": guide.SOFTWARE, "os": guide.SOFTWARE, "application": guide.SOFTWARE,
    "version_info": guide.VERSION,
}  # fmt: skip
PORTIONS = st.sampled_from([0, 2, 6, 8, 16, 20])


class Calls(RuleBasedStateMachine):
    """Each rule makes one call, legal or not, and asks the model for the status."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "file.tb5"
        self.no_sync = mock.patch("os.fsync")
        self.no_sync.start()
        self.ptr: Any = None
        self.slots = b""
        self.contents: dict[tuple[int, int, int, int], tuple[int, bytes]] = {}

    @initialize(read=st.booleans())
    def create(self, read: bool) -> None:
        mode = guide.WRITE | guide.CREATE | (guide.READ if read else 0)
        status, self.ptr = tbrw.TBRW_open(self.path, mode)
        assert status == guide.OK
        self.model = guide.Model(mode)

    def teardown(self) -> None:
        if self.ptr is not None:
            tbrw.TBRW_abort_cleanup_and_close(self.ptr)
        self.no_sync.stop()
        self.folder.cleanup()

    @invariant()
    def the_file_holds_what_the_model_says(self) -> None:
        """Read by the specification's reader: what is complete is there and nothing else, and none of it changed. So
        what failed, was refused or was given up left no trace."""
        if self.ptr is None or not self.path.exists():
            return
        with open(self.path, "rb") as file:
            slots = file.read(4096)
        expected = {(0, 0, section) for section in self.model.file.existing}
        for number, shelf in enumerate(self.model.complete):
            expected |= {(1, number, section) for section in shelf.existing}
        expected |= {(2, number, kind) for number in self.model.bound for kind in range(4, 8)}
        if slots != self.slots:  # a commit, and nothing else, makes another file
            contents = TB5(self.path).tables if any(slots[512:1100]) else {}
            for key, table in self.contents.items():
                assert contents.get(key, table if key[0] == 2 else None) == table, key
            self.slots, self.contents = slots, contents
        assert {key[:3] for key in self.contents if key[0] != 3} == expected

    # -- global sections

    @rule(section=SECTIONS, use=USES)
    def begin_section(self, section: int, use: str) -> None:
        call = tbrw.TBRW_reading_section if use == "read" else tbrw.TBRW_writing_section
        assert call(self.ptr, section) == self.model.begin_section(section, use)

    @rule(section=SECTIONS)
    def done_section(self, section: int) -> None:
        assert tbrw.TBRW_done_section(self.ptr, section) == self.model.done_section(section)

    @rule(kind=st.sampled_from(sorted(SINGLE)))
    def set_single(self, kind: str) -> None:
        record = getattr(recipe, kind)()
        expected = self.model.give(None, SINGLE[kind], kind)
        assert getattr(tbrw, f"TBRW_set_{kind}")(self.ptr, record) == expected

    @rule(kind=st.sampled_from(sorted(SINGLE)))
    def get_single(self, kind: str) -> None:
        expected = self.model.look(None, SINGLE[kind])
        status, size = getattr(tbrw, f"TBRW_get_{kind}")(self.ptr, 0, None)
        assert status == (expected or 103)
        assert bool(size) == (not expected)

    @rule(kind=st.sampled_from(["module", "process", "thread"]))
    def add_record(self, kind: str) -> None:
        record = {"module": tbrw.TBRW_MODULE, "process": tbrw.TBRW_PID, "thread": tbrw.TBRW_TID}[kind]()
        section = guide.MODULE if kind == "module" else guide.PROCESS_THREAD
        assert getattr(tbrw, f"TBRW_add_{kind}")(self.ptr, record) == self.model.give(None, section, kind)

    @rule(kind=st.sampled_from(["modules", "processes", "threads"]), start=st.integers(0, 3))
    def enumerate_records(self, kind: str, start: int) -> None:
        section = guide.MODULE if kind == "modules" else guide.PROCESS_THREAD
        singular = {"modules": "module", "processes": "process", "threads": "thread"}[kind]
        held = self.model.file.amount(section, singular)
        expected = self.model.look(None, section)
        if section == guide.PROCESS_THREAD and self.model.generated and not expected:  # how many, binding decides
            expected = self.model.bound_stream()
            call = getattr(tbrw, f"TBRW_enumerate_{kind}")
            assert call(self.ptr, lambda *_: 1, None, 0) == expected
            return
        expected = expected or (guide.INVALID_START if start > held else 0)
        seen = self._enumerated(getattr(tbrw, f"TBRW_enumerate_{kind}"), (), expected, start)
        assert seen == (0 if expected else held - start)

    @rule(kind=st.sampled_from(["module", "pid", "tid"]), index=st.integers(0, 3))
    def get_one(self, kind: str, index: int) -> None:
        section = guide.MODULE if kind == "module" else guide.PROCESS_THREAD
        held = self.model.file.amount(section, {"module": "module", "pid": "process", "tid": "thread"}[kind])
        expected = self.model.look(None, section)
        if section == guide.PROCESS_THREAD and self.model.generated and not expected:
            expected = self.model.bound_stream()
            found = getattr(tbrw, f"TBRW_get_one_{kind}")(self.ptr, index)[0]
            assert found in ([expected] if expected else [guide.OK, guide.ENTRY_NOT_FOUND])
            return
        expected = expected or (guide.ENTRY_NOT_FOUND if index >= held else 0)
        status, record = getattr(tbrw, f"TBRW_get_one_{kind}")(self.ptr, index)
        assert status == expected
        assert (record is None) == bool(expected)

    @rule()
    def user_defined_global(self) -> None:
        expected = self.model.give(None, guide.USER_GLOBAL, "bytes")
        assert tbrw.TBRW_set_user_defined_global(self.ptr, 3, b"abc") == expected

    @rule()
    def get_user_defined_global(self) -> None:
        expected = self.model.look(None, guide.USER_GLOBAL)
        buffer = ctypes.create_string_buffer(3)
        assert tbrw.TBRW_get_user_defined_global(self.ptr, 3, buffer) == (expected, 0 if expected else 3)

    # -- streams

    @rule(stream=STREAMS, use=USES)
    def begin_stream(self, stream: int, use: str) -> None:
        call = tbrw.TBRW_reading_stream if use == "read" else tbrw.TBRW_writing_stream
        assert call(self.ptr, stream) == self.model.begin_stream(stream, use)

    @rule(stream=STREAMS)
    def done_stream(self, stream: int) -> None:
        assert tbrw.TBRW_done_stream(self.ptr, stream) == self.model.done_stream(stream)

    @rule()
    def number_of_streams(self) -> None:
        assert tbrw.TBRW_get_number_data_streams(self.ptr) == (0, len(self.model.complete))

    @rule(stream=STREAMS, section=STREAM_SECTIONS, use=USES)
    def begin_stream_section(self, stream: int, section: int, use: str) -> None:
        call = tbrw.TBRW_reading_stream_section if use == "read" else tbrw.TBRW_writing_stream_section
        assert call(self.ptr, stream, section) == self.model.begin_stream_section(stream, section, use)

    @rule(stream=STREAMS, section=STREAM_SECTIONS)
    def done_stream_section(self, stream: int, section: int) -> None:
        expected = self.model.done_stream_section(stream, section)
        assert tbrw.TBRW_done_stream_section(self.ptr, stream, section) == expected

    @precondition(lambda self: self.model.being_written())
    @rule(data=st.data())
    def write_a_stream(self, data: st.DataObject) -> None:
        """What random calls seldom come to: the two sections that every stream needs."""
        stream = data.draw(st.sampled_from(self.model.being_written()))
        for section in (guide.INFO, guide.DESCRIPTORS):
            self.begin_stream_section(stream, section, "write")
            if section == guide.INFO:
                self.set_stream_info(stream)
            else:
                self.add_descriptor(stream)
            self.done_stream_section(stream, section)

    @precondition(lambda self: self.model.mode & guide.WRITE)
    @rule(bind=st.booleans(), writes=st.integers(0, 12))
    def write_and_bind_a_stream(self, bind: bool, writes: int) -> None:
        """The same of what binding needs, first on a disk that is full after so many ``writes``."""
        self.begin_section(guide.MODULE, "write")
        self.done_section(guide.MODULE)
        stream = len(self.model.complete)
        self.begin_stream(stream, "write")
        for section in (guide.INFO, guide.DESCRIPTORS, guide.DATA):
            self.begin_stream_section(stream, section, "write")
            if section == guide.INFO:
                self.set_stream_info(stream)
            elif section == guide.DESCRIPTORS:
                self.add_descriptor(stream)
            else:
                self.add_data(stream, 2 * guide.RECORD)
            self.done_stream_section(stream, section)
        self.full_after(writes, tbrw.TBRW_done_stream, self.model.done_stream, stream)
        self.commit()
        self.done_stream(stream)
        if bind:
            self.full_after(writes, tbrw.TBRW_dobind, self.model.dobind, stream)
            self.commit()
            self.dobind(stream)

    def commit(self) -> None:
        """Make something part of the file: nothing of what failed before goes with it."""
        for section, kind in ((guide.VERSION, "version_info"), (guide.HARDWARE, "system")):
            if not self.model.file.part(section).exists:
                self.begin_section(section, "write")
                self.set_single(kind)
                self.done_section(section)
                break
        self.the_file_holds_what_the_model_says()

    @rule(stream=STREAMS)
    def set_stream_info(self, stream: int) -> None:
        expected = self.model.give(stream, guide.INFO, "info")
        assert tbrw.TBRW_set_stream_info(self.ptr, stream, recipe.stream_info()) == expected

    @rule(stream=STREAMS)
    def get_stream_info(self, stream: int) -> None:
        expected = self.model.look(stream, guide.INFO)
        assert tbrw.TBRW_get_stream_info(self.ptr, stream, 0, None) == (expected or 103, 0 if expected else 56)

    @rule(stream=STREAMS)
    def add_event(self, stream: int) -> None:
        shelf = self.model.shelf(stream, "write")
        number = 0 if isinstance(shelf, int) else shelf.amount(guide.EVENTS, "event")
        expected = self.model.give(stream, guide.EVENTS, "event")
        assert tbrw.TBRW_add_event(self.ptr, stream, recipe.event(number)) == expected

    @rule(stream=STREAMS)
    def add_descriptor(self, stream: int) -> None:
        """One entry, an address; more of them would lie behind it, so only the first is tried."""
        shelf = self.model.shelf(stream, "write")
        if not isinstance(shelf, int) and shelf.amount(guide.DESCRIPTORS, "descriptor"):
            return
        entry = tbrw.TBRW_SAMPREC_DESC_ENTRY(desc_type=tbrw.ST_IP, desc_data_size=guide.RECORD)
        expected = self.model.give(stream, guide.DESCRIPTORS, "descriptor")
        assert tbrw.TBRW_add_data_descriptor_entry(self.ptr, stream, entry) == expected

    @rule(stream=STREAMS, size=PORTIONS)
    def add_data(self, stream: int, size: int) -> None:
        expected = self.model.add_data(stream, size)
        assert tbrw.TBRW_add_data(self.ptr, stream, size, bytes(size)) == expected

    @rule(stream=STREAMS, size=PORTIONS)
    def add_data_from_file(self, stream: int, size: int) -> None:
        path = Path(self.folder.name) / "data"
        path.write_bytes(bytes(size))
        expected = self.model.add_data(stream, size)
        if not size and expected == guide.BAD_SIZE:  # of an empty file nothing is added
            expected = guide.OK
        assert tbrw.TBRW_add_data_from_file(self.ptr, stream, path) == expected

    @precondition(lambda self: self.model.mode & guide.WRITE)
    @rule(stream=STREAMS, section=SECTIONS, writes=st.integers(0, 12), bind=st.booleans())
    def write_to_a_full_disk(self, stream: int, section: int, writes: int, bind: bool) -> None:
        """done_ and dobind succeed, are refused, or fail and change nothing."""
        call, model, number = tbrw.TBRW_done_stream, self.model.done_stream, stream
        if bind:
            call, model = tbrw.TBRW_dobind, self.model.dobind
        elif section != -1:
            call, model, number = tbrw.TBRW_done_section, self.model.done_section, section
        self.full_after(writes, call, model, number)

    def full_after(self, writes: int, call: Any, model: Any, number: int) -> None:
        """A call on a disk that is full after so many writes."""
        left = [writes]

        def write_at(*args: Any) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, "no space left")
            write(*args)

        with mock.patch("lastbranch.formats.tb5.writer.write_at", write_at):
            status = call(self.ptr, number)
        if left[0] < 0:
            assert status == guide.SAM_ERROR
        else:
            assert status == model(number)

    # -- binding

    @rule(stream=STREAMS)
    def dobind(self, stream: int) -> None:
        assert tbrw.TBRW_dobind(self.ptr, stream) == self.model.dobind(stream)

    @rule(stream=STREAMS)
    def unbind(self, stream: int) -> None:
        assert tbrw.TBRW_unbind(self.ptr, stream) == self.model.unbind(stream)

    @rule(stream=STREAMS)
    def is_bound(self, stream: int) -> None:
        expected = self.model.is_bound(stream), int(stream in self.model.bound)
        assert tbrw.TBRW_is_bound(self.ptr, stream) == expected

    @rule(stream=STREAMS)
    def bind_enumerate_data(self, stream: int) -> None:
        expected = self.model.bound_data(stream)
        counts: list[int] = []

        def callback(_data: Any, _size: int, count: int, bind: Any, _bind_size: int, _user: Any) -> int:
            assert len(bind) == count
            counts.append(count)
            return 1

        assert tbrw.TBRW_bind_enumerate_data(self.ptr, stream, callback, None, 0) == expected
        if not expected:
            assert sum(counts) == self.model.complete[stream].amount(guide.DATA, "data") // guide.RECORD

    @rule()
    def bind_enumerate_modules(self) -> None:
        expected = self.model.look(None, guide.MODULE) or self.model.bound_stream()
        assert tbrw.TBRW_bind_enumerate_modules(self.ptr, lambda *_: 1, None, 0) == expected

    @rule()
    def bind_enumerate_threads(self) -> None:
        expected = self.model.look(None, guide.PROCESS_THREAD) or self.model.bound_stream()
        assert tbrw.TBRW_bind_enumerate_threads(self.ptr, lambda *_: 1, None, 0) == expected

    @rule()
    def verify(self) -> None:
        assert tbrw.TBRW_verify(self.ptr) == self.model.verify()

    @rule(stream=STREAMS, kind=st.sampled_from(["data", "events", "data_descriptor_entries"]))
    def enumerate_in_stream(self, stream: int, kind: str) -> None:
        section = {"data": guide.DATA, "events": guide.EVENTS, "data_descriptor_entries": guide.DESCRIPTORS}[kind]
        expected = self.model.look(stream, section)
        start = () if kind == "data_descriptor_entries" else (0,)
        seen = self._enumerated(getattr(tbrw, f"TBRW_enumerate_{kind}"), (stream,), expected, *start)
        if not expected:
            shelf = self.model.complete[stream]
            held = {
                "data": shelf.amount(guide.DATA, "data") // guide.RECORD,
                "events": shelf.amount(guide.EVENTS, "event"),
                "data_descriptor_entries": shelf.amount(guide.DESCRIPTORS, "descriptor"),
            }
            assert seen == held[kind]

    @rule(stream=STREAMS)
    def user_defined_stream(self, stream: int) -> None:
        expected = self.model.give(stream, guide.USER_STREAM, "bytes")
        assert tbrw.TBRW_set_user_defined_stream(self.ptr, stream, 2, b"xy") == expected

    def _enumerated(self, call: Any, stream: tuple[int, ...], expected: int, *start: int) -> int:
        counts: list[int] = []

        def callback(_buffer: Any, _size: int, count: int, user: Any) -> int:
            assert user == "user"
            counts.append(count)
            return 1

        assert call(self.ptr, *stream, callback, "user", *start) == expected
        return sum(counts)

    # -- ends

    @rule(mode=st.sampled_from([guide.READ, guide.WRITE, guide.READ | guide.WRITE]), abort=st.booleans())
    def end_and_open_again(self, mode: int, abort: bool) -> None:
        """Whatever was complete is there again."""
        expected = self.model.close()
        if abort:
            assert tbrw.TBRW_abort_cleanup_and_close(self.ptr) == guide.OK
            self.model.give_up()
            self.model.ended(abort=True)
        else:
            assert tbrw.TBRW_close(self.ptr) == expected
            if expected:
                return
            self.model.ended(abort=False)
        assert tbrw.TBRW_close(self.ptr) == guide.BAD_PARAMETER
        if not self.path.exists():  # aborted before anything was complete
            assert abort
            self.slots, self.contents = b"", {}
            assert not self.model.complete
            assert not any(part.exists for part in self.model.file.parts.values())
            mode |= guide.CREATE | guide.WRITE
            self.model.closed_well = True
        status, self.ptr = tbrw.TBRW_open(self.path, mode)
        assert status == guide.OK
        self.model.mode = mode


Calls.TestCase.settings = settings(
    max_examples=40, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestCalls = Calls.TestCase
