"""Each usage rule of the guide's chapters 3 to 6 broken once: the status, and that nothing complete is lost.

The names of these tests stand in the table "Rules and their codes" of docs/reference/tbrw.md.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

import tbrw_recipe as recipe
from lastbranch import tbrw
from lastbranch.tbrw import *  # noqa: F403  (as a C program includes tbrw.h)
from tbrw_recipe import ok

# ruff: noqa: F405

NEW = TBRW_FILE_READ | TBRW_FILE_WRITE | TBRW_FILE_CREATE_ALWAYS
BOTH = TBRW_FILE_READ | TBRW_FILE_WRITE


@pytest.fixture
def ptr(tmp_path: Path) -> Iterator[Any]:
    """A new file, open for everything."""
    handle = ok(TBRW_open(tmp_path / "new.tb5", NEW))
    yield handle
    TBRW_abort_cleanup_and_close(handle)


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Any]:
    """The file of chapter 6, open to read and to add to."""
    recipe.write_recipe(tmp_path / "whole.tb5")
    handle = ok(TBRW_open(tmp_path / "whole.tb5", BOTH))
    yield handle
    TBRW_abort_cleanup_and_close(handle)


def begin_stream(ptr: Any, stream: int = 0, *sections: int) -> None:
    ok(TBRW_writing_stream(ptr, stream))
    for section in sections:
        ok(TBRW_writing_stream_section(ptr, stream, section))


def entry(kind: int, offset: int, size: int, subtype: int = 0) -> Any:
    return TBRW_SAMPREC_DESC_ENTRY(desc_type=kind, desc_offset=offset, desc_data_size=size, desc_subtype=subtype)


# -- opening and closing (3, 5, 9.1)


def test_a_new_file_needs_create_always(tmp_path: Path) -> None:
    assert TBRW_open(tmp_path / "no.tb5", BOTH) == (TBRW_FILE_OPEN_FAILED, None)
    assert TBRW_open(tmp_path / "no.tb5", TBRW_FILE_READ) == (TBRW_FILE_OPEN_FAILED, None)
    assert not (tmp_path / "no.tb5").exists()


@pytest.mark.parametrize("mode", [0, 8, TBRW_FILE_CREATE_ALWAYS, TBRW_FILE_READ | TBRW_FILE_CREATE_ALWAYS, -1])
def test_an_access_mode_must_mean_something(tmp_path: Path, mode: int) -> None:
    assert TBRW_open(tmp_path / "no.tb5", mode) == (TBRW_INVALID_ACCESS_PERMS, None)


def test_create_always_replaces_what_is_there(whole: Any, tmp_path: Path) -> None:
    ok(TBRW_close(whole))
    ptr = ok(TBRW_open(tmp_path / "whole.tb5", NEW))
    assert ok(TBRW_get_number_data_streams(ptr)) == 0
    ok(TBRW_close(ptr))


def test_reading_needs_the_read_mode(whole: Any, tmp_path: Path) -> None:
    ok(TBRW_close(whole))
    ptr = ok(TBRW_open(tmp_path / "whole.tb5", TBRW_FILE_WRITE))
    assert TBRW_reading_section(ptr, TBRW_MODULE_SECTION) == TBRW_INVALID_ACCESS_PERMS
    assert TBRW_reading_stream(ptr, 0) == TBRW_INVALID_ACCESS_PERMS
    ok(TBRW_close(ptr))


def test_writing_needs_the_write_mode(whole: Any, tmp_path: Path) -> None:
    ok(TBRW_close(whole))
    ptr = ok(TBRW_open(tmp_path / "whole.tb5", TBRW_FILE_READ))
    assert TBRW_writing_section(ptr, TBRW_USER_DEFINED_GLOBAL_SECTION) == TBRW_NO_WRITE_PERMISSION
    assert TBRW_writing_stream(ptr, 1) == TBRW_NO_WRITE_PERMISSION
    assert TBRW_dobind(ptr, 0) == TBRW_NO_WRITE_PERMISSION
    ok(TBRW_close(ptr))


def test_close_wants_every_section_and_stream_done(whole: Any) -> None:
    ok(TBRW_reading_section(whole, TBRW_MODULE_SECTION))
    assert TBRW_close(whole) == TBRW_GLOBAL_SECTION_NOT_CLOSED
    ok(TBRW_reading_stream(whole, 0))
    assert TBRW_close(whole) == TBRW_NOT_ALL_SECTIONS_CLOSED
    ok(TBRW_done_section(whole, TBRW_MODULE_SECTION))
    assert TBRW_close(whole) == TBRW_STREAM_NOT_CLOSED
    ok(TBRW_reading_stream_section(whole, 0, TBRW_DATA_SECTION))
    assert TBRW_close(whole) == TBRW_STREAM_SECTION_NOT_CLOSED
    ok(TBRW_done_stream_section(whole, 0, TBRW_DATA_SECTION))
    ok(TBRW_done_stream(whole, 0))
    ok(TBRW_close(whole))


def test_a_closed_file_takes_no_calls(ptr: Any) -> None:
    ok(TBRW_close(ptr))
    assert TBRW_close(ptr) == TBRW_BAD_PARAMETER
    assert TBRW_abort_cleanup_and_close(ptr) == TBRW_BAD_PARAMETER
    assert TBRW_get_number_data_streams(ptr) == (TBRW_BAD_PARAMETER, 0)
    assert TBRW_reading_section(None, 0) == TBRW_BAD_PARAMETER


def test_abort_keeps_what_is_complete_and_nothing_else(ptr: Any, tmp_path: Path) -> None:
    recipe.write_globals(ptr, [recipe.module()])
    recipe.write_stream(ptr, [(recipe.sample(), recipe.time_stamp())])
    begin_stream(ptr, 1, TBRW_DATA_DESCRIPTION_SECTION, TBRW_DATA_SECTION)
    ok(TBRW_add_data_descriptor_entry(ptr, 1, entry(ST_START_USER_DEFINED, 0, 4)))
    ok(TBRW_done_stream_section(ptr, 1, TBRW_DATA_DESCRIPTION_SECTION))
    ok(TBRW_add_data(ptr, 1, 4, b"abcd"))
    ok(TBRW_writing_section(ptr, TBRW_USER_DEFINED_GLOBAL_SECTION))
    ok(TBRW_set_user_defined_global(ptr, 1, b"x"))
    ok(TBRW_abort_cleanup_and_close(ptr))
    assert [p.name for p in tmp_path.iterdir()] == ["new.tb5"], "no temporary files"
    with open_file(tmp_path / "new.tb5") as file:
        assert file.streams == 1
        with pytest.raises(TbrwError, match="SECTION_NOT_EXIST"), file.reading(Section.USER_DEFINED_GLOBAL):
            pass
        with file.reading_stream(0) as stream:
            assert len(stream.array()) == 1
        with pytest.raises(TbrwError) as caught:
            file.verify()
        assert caught.value.status == TBRW_INCOMPLETE_TB5_ENCOUNTERED


def test_abort_of_a_new_file_with_nothing_complete_leaves_none(ptr: Any, tmp_path: Path) -> None:
    begin_stream(ptr, 0, TBRW_DATA_SECTION)
    ok(TBRW_add_data(ptr, 0, 8, bytes(8)))
    ok(TBRW_abort_cleanup_and_close(ptr))
    assert list(tmp_path.iterdir()) == []


def test_verify_finds_a_changed_byte(whole: Any, tmp_path: Path) -> None:
    ok(TBRW_verify(whole))
    ok(TBRW_close(whole))
    path = tmp_path / "whole.tb5"
    data = bytearray(path.read_bytes())
    at = data.index(bytes(recipe.sample()))
    data[at] ^= 1
    path.write_bytes(data)
    ptr = ok(TBRW_open(path, TBRW_FILE_READ))
    assert TBRW_verify(ptr) == TBRW_INVALID_SAMPLE_FILE
    ok(TBRW_reading_stream(ptr, 0))
    ok(TBRW_reading_stream_section(ptr, 0, TBRW_DATA_SECTION))
    assert TBRW_enumerate_data(ptr, 0, lambda *_: 1, None, 0) == TBRW_INVALID_SAMPLE_FILE
    ok(TBRW_abort_cleanup_and_close(ptr))


# -- global sections (5.1, 5.4, 5.5)


@pytest.mark.parametrize("call", [TBRW_reading_section, TBRW_writing_section, TBRW_done_section])
@pytest.mark.parametrize("section", [6, -1, 1 << 40])
def test_there_are_six_global_sections(ptr: Any, call: Any, section: int) -> None:
    assert call(ptr, section) == TBRW_UNKNOWN_SECTION_NUMBER


def test_a_section_that_exists_cannot_be_written(whole: Any) -> None:
    for section in (TBRW_HARDWARE_SECTION, TBRW_SOFTWARE_SECTION, TBRW_MODULE_SECTION, TBRW_VERSION_INFO_SECTION):
        assert TBRW_writing_section(whole, section) == TBRW_SECTION_NOT_WRITEABLE


def test_a_section_that_does_not_exist_cannot_be_read(whole: Any) -> None:
    assert TBRW_reading_section(whole, TBRW_USER_DEFINED_GLOBAL_SECTION) == TBRW_SECTION_NOT_EXIST
    assert TBRW_reading_section(whole, TBRW_PROCESS_THREAD_SECTION) == TBRW_SECTION_NOT_EXIST


def test_the_same_section_is_not_opened_twice(ptr: Any, whole: Any) -> None:
    ok(TBRW_writing_section(ptr, TBRW_MODULE_SECTION))
    assert TBRW_writing_section(ptr, TBRW_MODULE_SECTION) == TBRW_SECTION_ALREADY_IN_USE
    assert TBRW_reading_section(ptr, TBRW_MODULE_SECTION) == TBRW_SECTION_ALREADY_IN_USE
    ok(TBRW_reading_section(whole, TBRW_MODULE_SECTION))
    assert TBRW_reading_section(whole, TBRW_MODULE_SECTION) == TBRW_SECTION_ALREADY_IN_USE


def test_done_needs_a_beginning(ptr: Any) -> None:
    assert TBRW_done_section(ptr, TBRW_MODULE_SECTION) == TBRW_BAD_PARAMETER
    assert TBRW_done_stream(ptr, 0) == TBRW_BAD_PARAMETER
    assert TBRW_done_stream_section(ptr, 0, TBRW_DATA_SECTION) == TBRW_BAD_PARAMETER
    ok(TBRW_writing_stream(ptr, 0))
    assert TBRW_done_stream_section(ptr, 0, TBRW_DATA_SECTION) == TBRW_BAD_PARAMETER


def test_writing_calls_need_their_section_open_for_writing(whole: Any) -> None:
    assert TBRW_set_host(whole, recipe.host()) == TBRW_SECTION_NOT_WRITEABLE
    ok(TBRW_reading_section(whole, TBRW_MODULE_SECTION))
    assert TBRW_add_module(whole, recipe.module()) == TBRW_SECTION_NOT_WRITEABLE
    assert TBRW_add_event(whole, 0, recipe.event()) == TBRW_SECTION_NOT_WRITEABLE
    assert TBRW_add_data(whole, 7, 1, b"x") == TBRW_STREAM_NOT_EXIST


def test_reading_calls_need_their_section_open_for_reading(whole: Any) -> None:
    assert TBRW_get_one_module(whole, 0) == (TBRW_SECTION_NOT_READABLE, None)
    assert TBRW_enumerate_modules(whole, lambda *_: 1, None, 0) == TBRW_SECTION_NOT_READABLE
    assert TBRW_get_host(whole, 0, None) == (TBRW_SECTION_NOT_READABLE, 0)
    assert TBRW_enumerate_events(whole, 0, lambda *_: 1, None, 0) == TBRW_SECTION_NOT_READABLE
    assert TBRW_get_stream_info(whole, 7, 0, None) == (TBRW_STREAM_NOT_EXIST, 0)


@pytest.mark.parametrize(
    ("section", "part"),
    [
        (TBRW_HARDWARE_SECTION, None),
        (TBRW_SOFTWARE_SECTION, "host"),
        (TBRW_SOFTWARE_SECTION, "os"),
        (TBRW_SOFTWARE_SECTION, "application"),
        (TBRW_VERSION_INFO_SECTION, None),
        (TBRW_USER_DEFINED_GLOBAL_SECTION, None),
    ],
)
def test_done_section_wants_what_the_section_must_hold(ptr: Any, section: int, part: str | None) -> None:
    """Table 4, "required information". The section stays open, so that what is missing can follow."""
    ok(TBRW_writing_section(ptr, section))
    if section == TBRW_SOFTWARE_SECTION:
        for name in {"host", "os", "application"} - {part}:
            ok(getattr(tbrw, f"TBRW_set_{name}")(ptr, getattr(recipe, name)()))
    assert TBRW_done_section(ptr, section) == TBRW_NO_DATA_TO_WRITE
    if part:
        ok(getattr(tbrw, f"TBRW_set_{part}")(ptr, getattr(recipe, part)()))
        ok(TBRW_done_section(ptr, section))


@pytest.mark.parametrize(
    ("part", "record"),
    [
        ("system", TBRW_SYSTEM()),
        ("host", TBRW_HOST()),
        ("host", TBRW_HOST(host_name="", host_ip_address="")),
        ("application", TBRW_APPLICATION()),
    ],
)
def test_done_section_wants_structures_that_say_something(ptr: Any, part: str, record: Any) -> None:
    """Table 4: nodes, a host, what memory applications have."""
    section = TBRW_HARDWARE_SECTION if part == "system" else TBRW_SOFTWARE_SECTION
    ok(TBRW_writing_section(ptr, section))
    for name in ["system"] if part == "system" else ["host", "os", "application"]:
        ok(getattr(tbrw, f"TBRW_set_{name}")(ptr, record if name == part else getattr(recipe, name)()))
    assert TBRW_done_section(ptr, section) == TBRW_NO_DATA_TO_WRITE
    ok(getattr(tbrw, f"TBRW_set_{part}")(ptr, getattr(recipe, part)()))
    ok(TBRW_done_section(ptr, section))


def test_a_set_call_before_done_replaces_the_one_before(ptr: Any) -> None:
    recipe.section(
        ptr,
        TBRW_HARDWARE_SECTION,
        lambda: TBRW_set_system(ptr, recipe.system()),
        lambda: TBRW_set_system(
            ptr, TBRW_SYSTEM(system_num_nodes=2, node_array=[TBRW_NODE(node_id=n) for n in (5, 6)])
        ),
    )
    ok(TBRW_reading_section(ptr, TBRW_HARDWARE_SECTION))
    buffer = ctypes.create_string_buffer(16 + 2 * 40)
    assert ok(TBRW_get_system(ptr, len(buffer), buffer)) == len(buffer)
    nodes = TBRW_SYSTEM.from_buffer(buffer).node_array
    assert [nodes[i].node_id for i in range(2)] == [5, 6]


def test_a_section_is_there_as_soon_as_it_is_done(ptr: Any, tmp_path: Path) -> None:
    """Read by the same handle, and by another while the first still writes."""
    recipe.section(ptr, TBRW_USER_DEFINED_GLOBAL_SECTION, lambda: TBRW_set_user_defined_global(ptr, 3, b"abc"))
    ok(TBRW_reading_section(ptr, TBRW_USER_DEFINED_GLOBAL_SECTION))
    with open_file(tmp_path / "new.tb5") as file, file.reading(Section.USER_DEFINED_GLOBAL) as section:
        assert section.bytes() == b"abc"


# -- streams (3.2.2, 5.2, 5.6)


def test_stream_numbers_are_dense(whole: Any) -> None:
    assert TBRW_writing_stream(whole, 0) == TBRW_INVALID_STREAM
    assert TBRW_writing_stream(whole, 2) == TBRW_INVALID_STREAM
    ok(TBRW_writing_stream(whole, 1))
    assert TBRW_writing_stream(whole, 1) == TBRW_STREAM_ALREADY_IN_USE
    assert TBRW_writing_stream(whole, 3) == TBRW_INVALID_STREAM
    ok(TBRW_writing_stream(whole, 2))


def test_a_stream_is_added_to_a_file_that_exists(whole: Any) -> None:
    begin_stream(whole, 1, TBRW_STREAM_INFO_SECTION, TBRW_DATA_DESCRIPTION_SECTION)
    ok(TBRW_set_stream_info(whole, 1, TBRW_STREAM_INFO(stream_type=TBRW_AGGREGATED_STREAM, comment="sums")))
    ok(TBRW_add_data_descriptor_entry(whole, 1, entry(ST_IP, 0, 8)))
    ok(TBRW_done_stream_section(whole, 1, TBRW_STREAM_INFO_SECTION))
    ok(TBRW_done_stream_section(whole, 1, TBRW_DATA_DESCRIPTION_SECTION))
    assert ok(TBRW_get_number_data_streams(whole)) == 1
    ok(TBRW_done_stream(whole, 1))
    assert ok(TBRW_get_number_data_streams(whole)) == 2


def test_lower_streams_are_done_first(ptr: Any) -> None:
    for stream in (0, 1):
        begin_stream(ptr, stream)
        recipe.stream_section(
            ptr, stream, TBRW_STREAM_INFO_SECTION, lambda s=stream: TBRW_set_stream_info(ptr, s, recipe.stream_info())
        )
        recipe.stream_section(
            ptr,
            stream,
            TBRW_DATA_DESCRIPTION_SECTION,
            lambda s=stream: TBRW_add_data_descriptor_entry(ptr, s, entry(ST_IP, 0, 8)),
        )
    for stream in (1, 0):  # the higher one has data first
        data = bytes([stream + 1]) * 8
        recipe.stream_section(ptr, stream, TBRW_DATA_SECTION, lambda s=stream, d=data: TBRW_add_data(ptr, s, 8, d))
    assert TBRW_done_stream(ptr, 1) == TBRW_STREAM_NOT_CLOSED
    ok(TBRW_done_stream(ptr, 0))
    ok(TBRW_done_stream(ptr, 1))
    for stream in (0, 1):
        ok(TBRW_reading_stream(ptr, stream))
        ok(TBRW_reading_stream_section(ptr, stream, TBRW_DATA_SECTION))
        found: list[bytes] = []
        ok(TBRW_enumerate_data(ptr, stream, lambda d, *_, f=found: f.append(bytes(d)) or 1, None, 0))
        assert found == [bytes([stream + 1]) * 8]


def test_done_stream_wants_stream_info_and_descriptor(ptr: Any) -> None:
    begin_stream(ptr)
    assert TBRW_done_stream(ptr, 0) == TBRW_SECTION_NOT_EXIST
    ok(TBRW_writing_stream_section(ptr, 0, TBRW_STREAM_INFO_SECTION))
    assert TBRW_done_stream(ptr, 0) == TBRW_STREAM_SECTION_NOT_CLOSED
    assert TBRW_done_stream_section(ptr, 0, TBRW_STREAM_INFO_SECTION) == TBRW_NO_DATA_TO_WRITE
    ok(TBRW_set_stream_info(ptr, 0, recipe.stream_info()))
    ok(TBRW_done_stream_section(ptr, 0, TBRW_STREAM_INFO_SECTION))
    assert TBRW_done_stream(ptr, 0) == TBRW_DATA_DESC_NOT_EXIST
    ok(TBRW_writing_stream_section(ptr, 0, TBRW_DATA_DESCRIPTION_SECTION))
    assert TBRW_done_stream_section(ptr, 0, TBRW_DATA_DESCRIPTION_SECTION) == TBRW_NO_DATA_TO_WRITE
    ok(TBRW_add_data_descriptor_entry(ptr, 0, entry(ST_IP, 0, 8)))
    ok(TBRW_done_stream_section(ptr, 0, TBRW_DATA_DESCRIPTION_SECTION))
    ok(TBRW_done_stream(ptr, 0))
    ok(TBRW_reading_stream(ptr, 0))
    assert TBRW_reading_stream_section(ptr, 0, TBRW_DATA_SECTION) == TBRW_SECTION_NOT_EXIST


def test_a_stream_that_does_not_exist_cannot_be_read(whole: Any) -> None:
    assert TBRW_reading_stream(whole, 1) == TBRW_STREAM_NOT_EXIST
    assert TBRW_is_bound(whole, 1) == (TBRW_STREAM_NOT_EXIST, 0)
    assert TBRW_dobind(whole, -1) == TBRW_STREAM_NOT_EXIST


def test_legacy_sample_records_belong_into_stream_0(whole: Any) -> None:
    begin_stream(whole, 1, TBRW_DATA_DESCRIPTION_SECTION)
    assert TBRW_add_data_descriptor_entry(whole, 1, recipe.descriptors()[0]) == TBRW_INVALID_STREAM


# -- stream sections (5.3, 5.7)


@pytest.mark.parametrize("call", [TBRW_reading_stream_section, TBRW_writing_stream_section, TBRW_done_stream_section])
def test_there_are_five_stream_sections(whole: Any, call: Any) -> None:
    ok(
        (TBRW_reading_stream if call is TBRW_reading_stream_section else TBRW_writing_stream)(
            whole, 0 if call is TBRW_reading_stream_section else 1
        )
    )
    assert call(whole, 0 if call is TBRW_reading_stream_section else 1, 5) == TBRW_UNKNOWN_SECTION_NUMBER


def test_a_stream_section_needs_its_stream_open(whole: Any) -> None:
    assert TBRW_reading_stream_section(whole, 0, TBRW_DATA_SECTION) == TBRW_SECTION_NOT_READABLE
    assert TBRW_writing_stream_section(whole, 0, TBRW_USER_DEFINED_STREAM_SECTION) == TBRW_SECTION_NOT_WRITEABLE
    ok(TBRW_reading_stream(whole, 0))
    assert TBRW_writing_stream_section(whole, 0, TBRW_USER_DEFINED_STREAM_SECTION) == TBRW_SECTION_NOT_WRITEABLE
    assert TBRW_reading_stream_section(whole, 1, TBRW_DATA_SECTION) == TBRW_STREAM_NOT_EXIST


def test_a_stream_section_is_written_once(ptr: Any) -> None:
    begin_stream(ptr)
    recipe.stream_section(
        ptr, 0, TBRW_USER_DEFINED_STREAM_SECTION, lambda: TBRW_set_user_defined_stream(ptr, 0, 2, b"ab")
    )
    assert TBRW_writing_stream_section(ptr, 0, TBRW_USER_DEFINED_STREAM_SECTION) == TBRW_SECTION_NOT_WRITEABLE


def test_stream_sections_are_written_in_any_order_and_at_once(ptr: Any) -> None:
    """5.2: here the data come before their descriptor, in portions that no descriptor could explain yet."""
    begin_stream(ptr, 0, TBRW_DATA_SECTION, TBRW_STREAM_INFO_SECTION, TBRW_DATA_DESCRIPTION_SECTION)
    records = bytes(range(40)) * 3
    for at in range(0, 120, 7):
        ok(TBRW_add_data(ptr, 0, len(records[at : at + 7]), records[at : at + 7]))
    ok(TBRW_done_stream_section(ptr, 0, TBRW_DATA_SECTION))
    for description in recipe.descriptors():
        ok(TBRW_add_data_descriptor_entry(ptr, 0, description))
    ok(TBRW_set_stream_info(ptr, 0, recipe.stream_info()))
    ok(TBRW_done_stream_section(ptr, 0, TBRW_STREAM_INFO_SECTION))
    ok(TBRW_done_stream_section(ptr, 0, TBRW_DATA_DESCRIPTION_SECTION))
    ok(TBRW_done_stream(ptr, 0))
    ok(TBRW_reading_stream(ptr, 0))
    ok(TBRW_reading_stream_section(ptr, 0, TBRW_DATA_SECTION))
    found: list[bytes] = []
    ok(TBRW_enumerate_data(ptr, 0, lambda data, *_: found.append(bytes(data)) or 1, None, 0))
    assert b"".join(found) == records


@pytest.mark.parametrize("sizes", [(33,), (32, 9), (40, 48), (39,), (0,)])
def test_data_entries_have_the_size_of_their_descriptor(ptr: Any, sizes: tuple[int, ...]) -> None:
    """3.2.2: all entries of a stream have one size. The last portion, or done, is refused."""
    begin_stream(ptr, 0, TBRW_DATA_DESCRIPTION_SECTION, TBRW_DATA_SECTION)
    for description in recipe.descriptors():
        ok(TBRW_add_data_descriptor_entry(ptr, 0, description))
    ok(TBRW_done_stream_section(ptr, 0, TBRW_DATA_DESCRIPTION_SECTION))
    statuses = [TBRW_add_data(ptr, 0, size, bytes(size)) for size in sizes]
    statuses.append(TBRW_done_stream_section(ptr, 0, TBRW_DATA_SECTION))
    assert TBRW_UNSUPPORTED_DATA_SIZE in statuses


def test_half_a_record_before_its_descriptor_is_found_at_the_end(ptr: Any) -> None:
    begin_stream(ptr, 0, TBRW_DATA_SECTION, TBRW_STREAM_INFO_SECTION, TBRW_DATA_DESCRIPTION_SECTION)
    ok(TBRW_add_data(ptr, 0, 41, bytes(41)))
    ok(TBRW_done_stream_section(ptr, 0, TBRW_DATA_SECTION))
    ok(TBRW_set_stream_info(ptr, 0, recipe.stream_info()))
    ok(TBRW_done_stream_section(ptr, 0, TBRW_STREAM_INFO_SECTION))
    for description in recipe.descriptors():
        ok(TBRW_add_data_descriptor_entry(ptr, 0, description))
    ok(TBRW_done_stream_section(ptr, 0, TBRW_DATA_DESCRIPTION_SECTION))
    assert TBRW_done_stream(ptr, 0) == TBRW_UNSUPPORTED_DATA_SIZE


# -- reading calls (5.8, 5.9)


def test_get_tells_the_size_that_is_needed(whole: Any) -> None:
    ok(TBRW_reading_section(whole, TBRW_SOFTWARE_SECTION))
    assert TBRW_get_os(whole, 0, None) == (TBRW_BUFFER_TOO_SMALL, 40)
    assert TBRW_get_os(whole, 39, ctypes.create_string_buffer(39)) == (TBRW_BUFFER_TOO_SMALL, 40)
    assert TBRW_get_os(whole, 100, ctypes.create_string_buffer(100)) == (VT_SUCCESS, 40)
    assert TBRW_get_os(whole, 40, None) == (TBRW_BUFFER_NULL, 0)
    assert TBRW_get_os(whole, 40, bytearray(10)) == (TBRW_BUFFER_OVERFLOW, 0)
    assert TBRW_get_os(whole, 40, bytes(40)) == (TBRW_BAD_PARAMETER, 0)


def test_callbacks_go_on_stop_or_fail(ptr: Any) -> None:
    number = 3000
    modules = (recipe.module(0x1000 * i, 0x1000, i) for i in range(number))
    recipe.section(ptr, TBRW_MODULE_SECTION, *(lambda m=m: TBRW_add_module(ptr, m) for m in modules))
    ok(TBRW_reading_section(ptr, TBRW_MODULE_SECTION))
    calls: list[int] = []

    def callback(buffer: Any, size: int, count: int, user: Any) -> Any:
        assert size == count * ctypes.sizeof(TBRW_MODULE)
        calls.extend(buffer[i].module_associated_pid for i in range(count))
        return user

    ok(TBRW_enumerate_modules(ptr, callback, 1, 0))
    assert calls == list(range(number))
    calls.clear()
    ok(TBRW_enumerate_modules(ptr, callback, True, 2990))
    assert calls == list(range(2990, number))
    calls.clear()
    ok(TBRW_enumerate_modules(ptr, callback, 0, 0))
    assert 0 < len(calls) < number, "0 stops"
    assert TBRW_enumerate_modules(ptr, callback, 4711, 0) == 4711
    assert TBRW_enumerate_modules(ptr, callback, None, 0) == TBRW_BAD_PARAMETER
    assert TBRW_enumerate_modules(ptr, None, None, 0) == TBRW_UNEXPECTED_NULL_PTR
    calls.clear()
    ok(TBRW_enumerate_modules(ptr, callback, 1, number))
    assert calls == [], "past the last entry there is nothing to enumerate"
    assert TBRW_enumerate_modules(ptr, callback, 1, number + 1) == TBRW_INVALID_READ_START
    assert TBRW_get_one_module(ptr, number) == (TBRW_ENTRY_NOT_FOUND, None)


def test_an_error_of_the_callers_own_comes_out_of_the_callback(whole: Any) -> None:
    ok(TBRW_reading_section(whole, TBRW_MODULE_SECTION))

    def callback(*_: Any) -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        TBRW_enumerate_modules(whole, callback, None, 0)
    ok(TBRW_done_section(whole, TBRW_MODULE_SECTION))


def test_other_calls_can_be_made_from_a_callback(whole: Any) -> None:
    """Even abort: what is under way ends where it is."""
    ok(TBRW_reading_stream(whole, 0))
    ok(TBRW_reading_stream_section(whole, 0, TBRW_DATA_SECTION))
    seen: list[Any] = []

    def callback(data: Any, size: int, count: int, user: Any) -> int:
        seen.append(ok(TBRW_get_number_data_streams(whole)))
        ok(TBRW_abort_cleanup_and_close(whole))
        return 1

    ok(TBRW_enumerate_data(whole, 0, callback, None, 0))
    assert seen == [1]


# -- concurrency (5)


def test_several_files_are_used_at_once(tmp_path: Path) -> None:
    recipe.write_recipe(tmp_path / "from.tb5")
    source, target = ok(TBRW_open(tmp_path / "from.tb5", TBRW_FILE_READ)), ok(TBRW_open(tmp_path / "to.tb5", NEW))
    ok(TBRW_reading_section(source, TBRW_HARDWARE_SECTION))
    ok(TBRW_writing_section(target, TBRW_HARDWARE_SECTION))
    buffer = ctypes.create_string_buffer(160)
    ok(TBRW_get_system(source, 160, buffer))
    ok(TBRW_set_system(target, TBRW_SYSTEM.from_buffer(buffer)))
    ok(TBRW_done_section(target, TBRW_HARDWARE_SECTION))
    ok(TBRW_reading_section(target, TBRW_HARDWARE_SECTION))
    copy = ctypes.create_string_buffer(160)
    ok(TBRW_get_system(target, 160, copy))
    assert TBRW_SYSTEM.from_buffer(copy).node_array[0].cpu_array[0].cpu_fsb_mhz == 1333
    for ptr in (source, target):
        ok(TBRW_abort_cleanup_and_close(ptr))


def test_streams_are_read_and_a_third_written_at_once(tmp_path: Path) -> None:
    """5: two streams are read, from two threads, and combined into a third; they cannot be opened again meanwhile."""
    rows = 30_000
    path = tmp_path / "streams.tb5"
    with open_file(path, "w") as file:
        for number in range(2):
            with file.writing_stream() as stream:
                with stream.writing(StreamSection.STREAM_INFO) as section:
                    section.put(TBRW_STREAM_INFO(stream_type=TBRW_CUSTOM_STREAM))
                with stream.writing(StreamSection.DATA_DESCRIPTION) as section:
                    section.put(entry(ST_START_USER_DEFINED, 0, 64))
                with stream.writing(StreamSection.DATA) as section:
                    section.write(bytes([number + 1]) * 64 * rows)
    ptr = ok(TBRW_open(path, BOTH))
    begin_stream(ptr, 2, TBRW_STREAM_INFO_SECTION, TBRW_DATA_DESCRIPTION_SECTION, TBRW_DATA_SECTION)
    ok(TBRW_set_stream_info(ptr, 2, recipe.stream_info()))
    ok(TBRW_add_data_descriptor_entry(ptr, 2, entry(ST_START_USER_DEFINED, 0, 64)))
    together, failures = Barrier(2), []

    def copy(number: int) -> None:
        try:
            together.wait(10)
            ok(TBRW_reading_stream(ptr, number))
            assert TBRW_reading_stream(ptr, number) == TBRW_STREAM_ALREADY_IN_USE
            ok(TBRW_reading_stream_section(ptr, number, TBRW_DATA_SECTION))
            assert TBRW_dobind(ptr, number) == TBRW_STREAM_ALREADY_IN_USE

            def take(data: Any, size: int, count: int, user: Any) -> int:
                assert set(bytes(data)) == {number + 1}
                return 1 if TBRW_add_data(ptr, 2, size, data) == VT_SUCCESS else 99

            for _ in range(3):
                ok(TBRW_enumerate_data(ptr, number, take, None, 0))
            ok(TBRW_done_stream_section(ptr, number, TBRW_DATA_SECTION))
            ok(TBRW_done_stream(ptr, number))
        except BaseException as error:
            failures.append(error)

    threads = [Thread(target=copy, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    for section in (TBRW_DATA_SECTION, TBRW_STREAM_INFO_SECTION, TBRW_DATA_DESCRIPTION_SECTION):
        ok(TBRW_done_stream_section(ptr, 2, section))
    ok(TBRW_done_stream(ptr, 2))
    ok(TBRW_close(ptr))
    with open_file(path) as file, file.reading_stream(2) as stream:
        first = stream.array().view("V64").view("u1").reshape(-1, 64)
        assert (first == first[:, :1]).all()
        assert [int((first[:, 0] == n).sum()) for n in (1, 2)] == [3 * rows, 3 * rows]


def test_a_section_in_use_is_not_bound(whole: Any) -> None:
    ok(TBRW_reading_section(whole, TBRW_MODULE_SECTION))
    assert TBRW_dobind(whole, 0) == TBRW_SECTION_ALREADY_IN_USE
    ok(TBRW_done_section(whole, TBRW_MODULE_SECTION))
    ok(TBRW_reading_stream(whole, 0))
    assert TBRW_dobind(whole, 0) == TBRW_STREAM_ALREADY_IN_USE
    ok(TBRW_done_stream(whole, 0))
    ok(TBRW_dobind(whole, 0))
    ok(TBRW_reading_section(whole, TBRW_PROCESS_THREAD_SECTION))
    assert TBRW_unbind(whole, 0) == TBRW_SECTION_ALREADY_IN_USE
    assert TBRW_writing_section(whole, TBRW_PROCESS_THREAD_SECTION) == TBRW_SECTION_ALREADY_IN_USE
    ok(TBRW_done_section(whole, TBRW_PROCESS_THREAD_SECTION))
    assert TBRW_writing_section(whole, TBRW_PROCESS_THREAD_SECTION) == TBRW_SECTION_NOT_WRITEABLE


def test_binding_needs_modules_data_and_addresses(ptr: Any) -> None:
    """3.3, 6.1: samples are bound to modules by their address."""
    recipe.write_stream(ptr, [(recipe.sample(), recipe.time_stamp())])
    assert TBRW_dobind(ptr, 0) == TBRW_SECTION_NOT_EXIST
    recipe.section(ptr, TBRW_MODULE_SECTION, lambda: TBRW_add_module(ptr, recipe.module()))
    for kind, expected in ((ST_POWER, TBRW_LEGACY_DATA_NOT_EXIST), (ST_IP, TBRW_SECTION_NOT_EXIST)):
        stream = ok(TBRW_get_number_data_streams(ptr))
        begin_stream(ptr, stream)
        recipe.stream_section(
            ptr, stream, TBRW_STREAM_INFO_SECTION, lambda s=stream: TBRW_set_stream_info(ptr, s, recipe.stream_info())
        )
        recipe.stream_section(
            ptr,
            stream,
            TBRW_DATA_DESCRIPTION_SECTION,
            lambda s=stream, k=kind: TBRW_add_data_descriptor_entry(ptr, s, entry(k, 0, 8)),
        )
        if kind == ST_POWER:
            recipe.stream_section(ptr, stream, TBRW_DATA_SECTION, lambda s=stream: TBRW_add_data(ptr, s, 8, bytes(8)))
        ok(TBRW_done_stream(ptr, stream))
        assert TBRW_dobind(ptr, stream) == expected
    ok(TBRW_dobind(ptr, 0))


@pytest.mark.parametrize("subtype", [SST_NONE, SST_IIP, SST_EIP])
@pytest.mark.parametrize("size", [4, 8])
def test_every_kind_of_instruction_pointer_is_bound(ptr: Any, subtype: int, size: int) -> None:
    """8.11: ST_IP with SST_EIP is the address of a 32-bit program."""
    recipe.write_globals(ptr, [recipe.module(pid=0)])
    begin_stream(ptr, 0)
    recipe.stream_section(ptr, 0, TBRW_STREAM_INFO_SECTION, lambda: TBRW_set_stream_info(ptr, 0, recipe.stream_info()))
    address = TBRW_SAMPREC_DESC_ENTRY(desc_type=ST_IP, desc_subtype=subtype, desc_data_size=size)
    recipe.stream_section(
        ptr, 0, TBRW_DATA_DESCRIPTION_SECTION, lambda: TBRW_add_data_descriptor_entry(ptr, 0, address)
    )
    samples = b"".join(at.to_bytes(size, "little") for at in (recipe.SAMPLE_AT, recipe.MODULE_AT - 1))
    recipe.stream_section(ptr, 0, TBRW_DATA_SECTION, lambda: TBRW_add_data(ptr, 0, 2 * size, samples))
    ok(TBRW_done_stream(ptr, 0))
    ok(TBRW_dobind(ptr, 0))
    rows: list[int] = []
    ok(TBRW_reading_stream(ptr, 0))
    ok(TBRW_reading_stream_section(ptr, 0, TBRW_DATA_SECTION))
    ok(
        TBRW_bind_enumerate_data(
            ptr, 0, lambda d, s, n, table, *_: rows.extend(b.module_index for b in table) or 1, 0, 0
        )
    )
    assert rows == [0, (1 << 64) - 1]


def test_bound_calls_need_a_bound_stream(whole: Any) -> None:
    for call in (TBRW_get_size_of_data_bind_entry, TBRW_get_size_of_module_bind_entry, TBRW_get_size_of_tid_bind_entry):
        assert call(whole, 0) == (TBRW_STREAM_NOT_BOUND, 0)
    ok(TBRW_reading_stream(whole, 0))
    ok(TBRW_reading_stream_section(whole, 0, TBRW_DATA_SECTION))
    assert TBRW_bind_enumerate_data(whole, 0, lambda *_: 1, None, 0) == TBRW_STREAM_NOT_BOUND
    ok(TBRW_reading_section(whole, TBRW_MODULE_SECTION))
    assert TBRW_bind_enumerate_modules(whole, lambda *_: 1, None, 0) == TBRW_TB5_IS_NOT_BOUND
