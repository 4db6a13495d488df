"""What goes wrong outside: full disks, other writers, damaged files, odd inputs. A refused call changes nothing."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tbrw_recipe as recipe
from lastbranch import tbrw
from lastbranch.tbrw import *  # noqa: F403  (as a C program includes tbrw.h)
from tbrw_recipe import ok

# ruff: noqa: F405

RW = TBRW_FILE_READ | TBRW_FILE_WRITE
NEW = RW | TBRW_FILE_CREATE_ALWAYS
RECORD = bytes(recipe.sample()) + bytes(recipe.time_stamp())

resource = pytest.importorskip("resource")


@contextmanager
def disk_full_at(size: int) -> Iterator[None]:
    """No file can grow beyond ``size``. No compiled module is written meanwhile: it would be cut short."""
    import signal

    old, limit = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limit[1]))
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, old)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.tb5"


@pytest.fixture
def ptr(path: Path) -> Iterator[Any]:
    handle = ok(TBRW_open(path, NEW))
    yield handle
    TBRW_abort_cleanup_and_close(handle)


def complete(path: Path) -> bytes:
    recipe.write_recipe(path)
    return path.read_bytes()


def ready_stream(ptr: Any, stream: int, records: int) -> None:
    """A stream of which only done_stream is missing."""
    ok(TBRW_writing_stream(ptr, stream))
    recipe.stream_section(
        ptr, stream, TBRW_STREAM_INFO_SECTION, lambda: TBRW_set_stream_info(ptr, stream, recipe.stream_info())
    )
    entry = TBRW_SAMPREC_DESC_ENTRY(desc_type=ST_START_USER_DEFINED, desc_data_size=40)
    recipe.stream_section(
        ptr, stream, TBRW_DATA_DESCRIPTION_SECTION, lambda: TBRW_add_data_descriptor_entry(ptr, stream, entry)
    )
    data = RECORD * records
    recipe.stream_section(ptr, stream, TBRW_DATA_SECTION, lambda: TBRW_add_data(ptr, stream, len(data), data))


def data_of(ptr: Any, stream: int) -> bytes:
    found: list[bytes] = []
    ok(TBRW_reading_stream(ptr, stream))
    ok(TBRW_reading_stream_section(ptr, stream, TBRW_DATA_SECTION))
    ok(TBRW_enumerate_data(ptr, stream, lambda data, *_: bool(found.append(bytes(data)) or 1), None, 0))
    ok(TBRW_done_stream_section(ptr, stream, TBRW_DATA_SECTION))
    ok(TBRW_done_stream(ptr, stream))
    return b"".join(found)


# -- full disks


def test_close_on_a_full_disk_keeps_what_is_complete(path: Path) -> None:
    recipe.write_recipe(path)
    ptr = ok(TBRW_open(path, RW))
    ok(TBRW_writing_section(ptr, TBRW_USER_DEFINED_GLOBAL_SECTION))
    ok(TBRW_set_user_defined_global(ptr, 3, b"abc"))
    ok(TBRW_done_section(ptr, TBRW_USER_DEFINED_GLOBAL_SECTION))
    with disk_full_at(path.stat().st_size):
        assert TBRW_close(ptr)  # its last commit has no room
    again = ok(TBRW_open(path, TBRW_FILE_READ))
    assert TBRW_verify(again) == TBRW_INCOMPLETE_TB5_ENCOUNTERED  # its writer has not closed it
    ok(TBRW_reading_section(again, TBRW_USER_DEFINED_GLOBAL_SECTION))
    assert TBRW_get_user_defined_global(again, 0, None)[1] == 3
    ok(TBRW_done_section(again, TBRW_USER_DEFINED_GLOBAL_SECTION))
    ok(TBRW_close(again))


@pytest.mark.parametrize("room", [0, 100, 4096, 20_000, 40_100])
def test_done_stream_on_a_full_disk_is_undone_and_can_be_repeated(ptr: Any, path: Path, room: int) -> None:
    ready_stream(ptr, 0, 1000)
    ok(TBRW_writing_section(ptr, TBRW_USER_DEFINED_GLOBAL_SECTION))
    ok(TBRW_set_user_defined_global(ptr, 3, b"abc"))
    with disk_full_at(path.stat().st_size + room):
        assert TBRW_done_stream(ptr, 0) == TBRW_SAM_ERROR
    assert TBRW_get_number_data_streams(ptr) == (0, 0)
    ok(TBRW_done_section(ptr, TBRW_USER_DEFINED_GLOBAL_SECTION))  # what is committed next has nothing of the stream
    other = ok(TBRW_open(path, TBRW_FILE_READ))
    assert TBRW_get_number_data_streams(other) == (0, 0)
    ok(TBRW_close(other))
    ok(TBRW_done_stream(ptr, 0))
    assert data_of(ptr, 0) == RECORD * 1000
    ok(TBRW_verify(ptr))
    ok(TBRW_close(ptr))


def test_a_failed_section_takes_nothing_from_streams_that_are_being_written(ptr: Any, path: Path) -> None:
    ready_stream(ptr, 0, 30_000)  # more than is kept in memory
    ok(TBRW_writing_section(ptr, TBRW_USER_DEFINED_GLOBAL_SECTION))
    ok(TBRW_set_user_defined_global(ptr, 50_000, bytes(50_000)))
    with disk_full_at(path.stat().st_size + 100):
        assert TBRW_done_section(ptr, TBRW_USER_DEFINED_GLOBAL_SECTION) == TBRW_SAM_ERROR
    ok(TBRW_done_section(ptr, TBRW_USER_DEFINED_GLOBAL_SECTION))
    ok(TBRW_done_stream(ptr, 0))
    assert data_of(ptr, 0) == RECORD * 30_000
    ok(TBRW_close(ptr))


def test_strings_of_a_failed_section_are_asked_for_anew(ptr: Any, path: Path) -> None:
    ok(TBRW_writing_section(ptr, TBRW_MODULE_SECTION))
    ok(TBRW_add_module(ptr, recipe.module(path="/first")))
    with disk_full_at(path.stat().st_size):
        assert TBRW_done_section(ptr, TBRW_MODULE_SECTION) == TBRW_SAM_ERROR
    recipe.section(ptr, TBRW_VERSION_INFO_SECTION, lambda: TBRW_set_version_info(ptr, recipe.version_info()))
    ok(TBRW_done_section(ptr, TBRW_MODULE_SECTION))
    ok(TBRW_reading_section(ptr, TBRW_MODULE_SECTION))
    ok(TBRW_verify(ptr))
    text = bytearray(100)
    ok(TBRW_convert_uniqueid_to_string(ptr, 100, ok(TBRW_get_one_module(ptr, 0)).module_path, text))
    assert text.decode("utf-32-le").startswith("/first\0")


def test_dobind_on_a_full_disk_is_undone_and_can_be_repeated(path: Path) -> None:
    complete(path)
    ptr = ok(TBRW_open(path, RW))
    with disk_full_at(path.stat().st_size):
        assert TBRW_dobind(ptr, 0) == TBRW_SAM_ERROR
    assert TBRW_is_bound(ptr, 0) == (0, 0)
    ok(TBRW_dobind(ptr, 0))
    with disk_full_at(path.stat().st_size):
        assert TBRW_unbind(ptr, 0) == TBRW_SAM_ERROR
    assert TBRW_is_bound(ptr, 0) == (0, 1)
    ok(TBRW_verify(ptr))
    ok(TBRW_close(ptr))


def test_add_data_on_a_full_disk_adds_all_or_nothing(ptr: Any, path: Path) -> None:
    ready_stream(ptr, 0, 1)
    ok(TBRW_writing_stream(ptr, 1))
    ok(TBRW_writing_stream_section(ptr, 1, TBRW_DATA_SECTION))
    one, many = b"x" * 40, b"y" * 40 * 50_000
    ok(TBRW_add_data(ptr, 1, 40, one))
    with disk_full_at(1_500_000):
        assert TBRW_add_data(ptr, 1, len(many), many) == TBRW_SAM_ERROR
    ok(TBRW_add_data(ptr, 1, len(many), many))
    with disk_full_at(2_000_100):
        assert TBRW_add_data(ptr, 1, len(many), many) == TBRW_SAM_ERROR
    ok(TBRW_add_data(ptr, 1, 40, one))
    ok(TBRW_done_stream_section(ptr, 1, TBRW_DATA_SECTION))
    for section, write in (
        (TBRW_STREAM_INFO_SECTION, lambda: TBRW_set_stream_info(ptr, 1, recipe.stream_info())),
        (
            TBRW_DATA_DESCRIPTION_SECTION,
            lambda: TBRW_add_data_descriptor_entry(
                ptr, 1, TBRW_SAMPREC_DESC_ENTRY(desc_type=ST_START_USER_DEFINED, desc_data_size=40)
            ),
        ),
    ):
        recipe.stream_section(ptr, 1, section, write)
    ok(TBRW_done_stream(ptr, 0))
    ok(TBRW_done_stream(ptr, 1))
    assert data_of(ptr, 1) == one + many + one
    assert [p.name for p in path.parent.iterdir()] == [path.name], "no temporary file is left"


# -- CREATE_ALWAYS


def test_create_always_leaves_alone_what_another_writes(ptr: Any, path: Path) -> None:
    assert TBRW_open(path, NEW) == (TBRW_FILE_OPEN_FAILED, None)
    recipe.section(ptr, TBRW_MODULE_SECTION, lambda: TBRW_add_module(ptr, recipe.module()))
    assert TBRW_open(path, NEW) == (TBRW_FILE_OPEN_FAILED, None)
    ok(TBRW_close(ptr))
    with tbrw.open_file(path) as file, file.reading(tbrw.Section.MODULE):
        pass


def test_create_always_and_abort_keep_the_older_file(path: Path) -> None:
    before = complete(path)
    ptr = ok(TBRW_open(path, NEW))
    assert TBRW_open(path, RW) == (TBRW_FILE_OPEN_FAILED, None)
    assert ok(TBRW_get_number_data_streams(ptr)) == 0
    ok(TBRW_abort_cleanup_and_close(ptr))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_create_always_replaces_the_older_file_when_something_is_done(path: Path) -> None:
    before = complete(path)
    ptr = ok(TBRW_open(path, NEW))
    ok(TBRW_writing_section(ptr, TBRW_MODULE_SECTION))
    assert path.read_bytes() == before
    with disk_full_at(0):
        assert TBRW_done_section(ptr, TBRW_MODULE_SECTION) == TBRW_SAM_ERROR
    assert path.read_bytes() == before
    ok(TBRW_done_section(ptr, TBRW_MODULE_SECTION))
    assert TBRW_open(path, RW) == (TBRW_FILE_OPEN_FAILED, None)
    ok(TBRW_abort_cleanup_and_close(ptr))
    with tbrw.open_file(path) as file:
        assert file.streams == 0
        assert file.handle.rules.sections.existing == {tbrw.Section.MODULE}
    assert list(path.parent.iterdir()) == [path]


def test_abort_leaves_a_file_alone_that_came_in_the_place_of_its_own(ptr: Any, path: Path) -> None:
    other = path.with_name("other.tb5")
    before = complete(other)
    other.replace(path)
    ok(TBRW_abort_cleanup_and_close(ptr))
    assert path.read_bytes() == before


# -- damaged files


def test_opening_for_writing_hides_no_damage(path: Path) -> None:
    data = complete(path)
    path.write_bytes(data[:-1])  # an older commit is read
    reader = ok(TBRW_open(path, TBRW_FILE_READ))
    expected = TBRW_verify(reader)
    assert expected in (TBRW_INVALID_SAMPLE_FILE, TBRW_INCOMPLETE_TB5_ENCOUNTERED)
    ok(TBRW_close(reader))
    for _ in range(2):
        ptr = ok(TBRW_open(path, RW))
        assert TBRW_verify(ptr) == expected
        ok(TBRW_close(ptr))


def test_opening_and_closing_changes_nothing(path: Path) -> None:
    before = complete(path)
    for end in (TBRW_close, TBRW_abort_cleanup_and_close):
        ok(end(ok(TBRW_open(path, RW))))
        assert path.read_bytes() == before


# -- odd arguments


@pytest.mark.parametrize("name", ["a\0b", "\ud800x", ""])
def test_names_that_no_file_can_have(ptr: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for mode in (TBRW_FILE_READ, NEW):
        assert TBRW_open(name, mode) == (TBRW_FILE_OPEN_FAILED, None)
    ok(TBRW_writing_stream(ptr, 0))
    ok(TBRW_writing_stream_section(ptr, 0, TBRW_DATA_SECTION))
    assert TBRW_add_data_from_file(ptr, 0, name) == TBRW_FILE_OPEN_FAILED


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_is_read_to_its_end(ptr: Any, path: Path) -> None:
    ready_stream(ptr, 0, 1)
    ok(TBRW_writing_stream(ptr, 1))
    ok(TBRW_writing_stream_section(ptr, 1, TBRW_DATA_SECTION))
    pipe = path.with_name("pipe")
    os.mkfifo(pipe)
    feeder = threading.Thread(target=lambda: pipe.write_bytes(RECORD * 2))
    feeder.start()
    ok(TBRW_add_data_from_file(ptr, 1, pipe))
    feeder.join()
    assert ptr.drafts._data[1].size == 80


def test_the_size_of_an_empty_section_is_0(ptr: Any) -> None:
    recipe.section(ptr, TBRW_USER_DEFINED_GLOBAL_SECTION, lambda: TBRW_set_user_defined_global(ptr, 0, b""))
    ok(TBRW_reading_section(ptr, TBRW_USER_DEFINED_GLOBAL_SECTION))
    assert TBRW_get_user_defined_global(ptr, 0, None) == (VT_SUCCESS, 0)


def test_a_pointer_to_the_first_of_an_array_leads_to_all(ptr: Any) -> None:
    import ctypes

    cpus = (TBRW_CPU * 2)(TBRW_CPU(cpu_number=0), TBRW_CPU(cpu_number=1))
    system = recipe.system()
    ok(TBRW_writing_section(ptr, TBRW_HARDWARE_SECTION))
    for first, number, expected in ((0, 2, VT_SUCCESS), (1, 1, VT_SUCCESS), (1, 2, TBRW_UNEXPECTED_NULL_PTR)):
        node = TBRW_NODE(node_num_available=number, cpu_array=ctypes.pointer(cpus[first]))
        system.node_array, system.system_num_nodes = [node], 1
        assert TBRW_set_system(ptr, system) == expected


def test_what_was_read_into_a_bytearray_can_be_written(ptr: Any, tmp_path: Path) -> None:
    recipe.section(ptr, TBRW_HARDWARE_SECTION, lambda: TBRW_set_system(ptr, recipe.system()))
    ok(TBRW_reading_section(ptr, TBRW_HARDWARE_SECTION))
    buffer = bytearray(TBRW_get_system(ptr, 0, None)[1])
    ok(TBRW_get_system(ptr, len(buffer), buffer))
    other = ok(TBRW_open(tmp_path / "other.tb5", NEW))
    ok(TBRW_writing_section(other, TBRW_HARDWARE_SECTION))
    system = TBRW_SYSTEM.from_buffer(buffer)
    ok(TBRW_set_system(other, system))
    system.system_num_nodes = 1000  # leads out of the buffer
    assert TBRW_set_system(other, system) == TBRW_UNEXPECTED_NULL_PTR
    ok(TBRW_abort_cleanup_and_close(other))


@pytest.mark.parametrize("one", [np.int64(1), np.uint8(1), True])
def test_callbacks_may_return_any_integer(ptr: Any, one: Any) -> None:
    recipe.section(ptr, TBRW_MODULE_SECTION, lambda: TBRW_add_module(ptr, recipe.module()))
    ok(TBRW_reading_section(ptr, TBRW_MODULE_SECTION))
    assert TBRW_enumerate_modules(ptr, lambda *_: one, None, 0) == VT_SUCCESS
    assert TBRW_enumerate_modules(ptr, lambda *_: np.int64(7), None, 0) == 7


def test_two_bound_streams_at_once_show_nobodys_threads(path: Path) -> None:
    with tbrw.open_file(path, "w") as file:
        with file.writing(tbrw.Section.MODULE) as section:
            section.put(recipe.module())
        for stream in range(2):
            _ip_stream(file, pid=5 + stream)
    with tbrw.open_file(path, "a") as file:
        for stream in range(2):
            file.bind(stream)
        ptr = file.handle
        ok(TBRW_reading_section(ptr, TBRW_PROCESS_THREAD_SECTION))
        for stream in range(2):
            ok(TBRW_reading_stream(ptr, stream))
            if not stream:
                assert ok(TBRW_get_one_pid(ptr, 0)).pid_id == 5
        assert TBRW_get_one_pid(ptr, 0) == (TBRW_UNEXPECTED_BIND_MISMATCH, None)
        assert TBRW_enumerate_processes(ptr, lambda *_: 1, None, 0) == TBRW_UNEXPECTED_BIND_MISMATCH
        ok(TBRW_done_stream(ptr, 0))
        assert ok(TBRW_get_one_pid(ptr, 0)).pid_id == 6
        ok(TBRW_done_stream(ptr, 1))
        ok(TBRW_done_section(ptr, TBRW_PROCESS_THREAD_SECTION))


def _ip_stream(file: Any, pid: int) -> None:
    with file.writing_stream() as stream:
        with stream.writing(tbrw.StreamSection.STREAM_INFO) as section:
            section.put(recipe.stream_info())
        with stream.writing(tbrw.StreamSection.DATA_DESCRIPTION) as section:
            section.put(
                TBRW_SAMPREC_DESC_ENTRY(desc_type=ST_IP, desc_data_size=8),
                TBRW_SAMPREC_DESC_ENTRY(desc_type=ST_PID, desc_data_size=4, desc_offset=8),
            )
        with stream.writing(tbrw.StreamSection.DATA) as section:
            section.write(recipe.SAMPLE_AT.to_bytes(8, "little") + pid.to_bytes(4, "little"))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no list of open files")
@pytest.mark.parametrize("end", [TBRW_abort_cleanup_and_close, TBRW_close])
def test_no_temporary_file_stays_open(tmp_path: Path, end: Any) -> None:
    """Data of a stream that is not done stand in a file without a name, which holds space until it is closed."""
    ptr = ok(TBRW_open(tmp_path / "a.tb5", TBRW_FILE_WRITE | TBRW_FILE_CREATE_ALWAYS))
    ok(TBRW_writing_stream(ptr, 0))
    ok(TBRW_writing_stream_section(ptr, 0, TBRW_DATA_SECTION))
    ok(TBRW_add_data(ptr, 0, 2 << 20, bytes(2 << 20)))
    assert any("a.tb5" not in name for name in _open_in(tmp_path))
    if end is TBRW_close:
        recipe.stream_section(
            ptr,
            0,
            TBRW_DATA_DESCRIPTION_SECTION,
            *(lambda d=d: TBRW_add_data_descriptor_entry(ptr, 0, d) for d in recipe.descriptors()[:1]),
        )
        ok(TBRW_done_stream_section(ptr, 0, TBRW_DATA_SECTION))
        recipe.stream_section(
            ptr, 0, TBRW_STREAM_INFO_SECTION, lambda: TBRW_set_stream_info(ptr, 0, recipe.stream_info())
        )
        ok(TBRW_done_stream(ptr, 0))
    ok(end(ptr))
    assert _open_in(tmp_path) == []


def _open_in(folder: Path) -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [name for name in found if name.startswith(str(folder))]
