"""What the guide itself shows: the recipe of chapter 6, the example of chapter 10, the sample of figures 1 and 2."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest

import tbrw_recipe as recipe
from lastbranch.tbrw import *  # noqa: F403  (as a C program includes tbrw.h)
from tbrw_recipe import ok

# ruff: noqa: F405

NEW = TBRW_FILE_READ | TBRW_FILE_WRITE | TBRW_FILE_CREATE_ALWAYS


def text_of(ptr: Any, string: Any) -> str:
    needed = TBRW_convert_uniqueid_to_string(ptr, 0, string, None)[1]
    buffer = ctypes.create_unicode_buffer(needed)
    ok(TBRW_convert_uniqueid_to_string(ptr, needed, string, buffer))
    return buffer.value


def collected(call: Any, *arguments: Any, start: tuple[int, ...] = (0,)) -> list[Any]:
    """Everything that an enumerate_ function gives."""
    found: list[Any] = []

    def callback(buffer: Any, size: int, count: int, user: list[Any]) -> int:
        assert len(bytes(buffer)) == size
        user += [buffer[i] for i in range(count)]
        return 1

    ok(call(*arguments, callback, found, *start))
    return found


# -- chapter 6


def test_recipe_reads_back_field_by_field(tmp_path: Path) -> None:
    path = tmp_path / "recipe.tb5"
    recipe.write_recipe(path)
    ptr = ok(TBRW_open(path, TBRW_FILE_READ))
    assert ok(TBRW_get_number_data_streams(ptr)) == 1

    ok(TBRW_reading_section(ptr, TBRW_HARDWARE_SECTION))
    status, needed = TBRW_get_system(ptr, 0, None)
    assert (status, needed) == (TBRW_BUFFER_TOO_SMALL, 16 + 40 + 64 + 16 + 24)
    buffer = ctypes.create_string_buffer(needed)
    assert ok(TBRW_get_system(ptr, needed, buffer)) == needed
    system = TBRW_SYSTEM.from_buffer(buffer)
    node = system.node_array[0]
    cpu = node.cpu_array[0]
    arch = cpu.cpu_arch_array[0]
    cpuid = arch.cpuid_ia32_array[0]
    assert (system.system_num_nodes, node.node_id, node.node_physical_memory) == (1, 1, 1024)
    assert (cpu.cpu_speed_mhz, cpu.cpu_fsb_mhz, cpu.cpu_cache_L2, cpu.cpu_cache_L3) == (3000, 1333, 4096, 128)
    assert (cpu.cpu_intel_processor_number, cpu.cpu_threads_per_core) == (8086, 1)
    assert (arch.arch_type, arch.arch_num_cpuid) == (TBRW_GST_X86, 1)
    registers = cpuid.cpuid_ebx, cpuid.cpuid_edx, cpuid.cpuid_ecx
    assert b"".join(r.to_bytes(4, "little") for r in registers) == b"GenuineIntel"
    ok(TBRW_done_section(ptr, TBRW_HARDWARE_SECTION))

    ok(TBRW_reading_section(ptr, TBRW_SOFTWARE_SECTION))
    host, os, application = TBRW_HOST(), TBRW_OS(), TBRW_APPLICATION()
    for get, record in ((TBRW_get_host, host), (TBRW_get_os, os), (TBRW_get_application, application)):
        assert ok(get(ptr, ctypes.sizeof(record), record)) == ctypes.sizeof(record)
    texts = [text_of(ptr, s) for s in (host.host_ip_address, host.host_name, os.os_name, os.os_name_extra)]
    assert texts == ["10.10.10.10", "testhost.intel.com", "Windows XP", "32-bit"]
    assert (os.os_platform, os.os_major, os.os_minor, os.os_build) == (1, 5, 1, 0xA28)
    assert (application.app_page_size, application.app_alloc_granularity) == (1024, 2048)
    assert (application.app_min_app_addr, application.app_max_app_addr) == (0xFFFFF, 0xFFFFFFFF)
    ok(TBRW_done_section(ptr, TBRW_SOFTWARE_SECTION))

    ok(TBRW_reading_section(ptr, TBRW_VERSION_INFO_SECTION))
    version = TBRW_VERSION_INFO()
    ok(TBRW_get_version_info(ptr, 16, version))
    assert (version.sampling_driver_version, version.bind_version, version.sample_file_version) == (0xFFFFFFFF, 0, 16)
    ok(TBRW_done_section(ptr, TBRW_VERSION_INFO_SECTION))

    ok(TBRW_reading_section(ptr, TBRW_MODULE_SECTION))
    (module,) = collected(TBRW_enumerate_modules, ptr)
    assert (module.module_load_address, module.module_length, module.module_associated_pid) == (
        0x616000,
        0x2000,
        0x1000,
    )
    assert (module.module_segment_type, module.module_unload_tsc) == (TBRW_MODE_32BIT, (1 << 64) - 1)
    assert text_of(ptr, module.module_path) == "C:\\sample\\sample.exe"
    assert text_of(ptr, module.module_segment_name) == ""
    ok(TBRW_done_section(ptr, TBRW_MODULE_SECTION))

    ok(TBRW_reading_stream(ptr, 0))
    ok(TBRW_reading_stream_section(ptr, 0, TBRW_STREAM_INFO_SECTION))
    info = TBRW_STREAM_INFO()
    ok(TBRW_get_stream_info(ptr, 0, ctypes.sizeof(info), info))
    assert (info.sampling_duration, info.stream_type, info.sampling_interval) == (20000, TBRW_SAMPLING_STREAM, 1000)
    assert info.sampling_start_time.dwLowDateTime == 1526932352
    assert info.sampling_end_time.dwHighDateTime == 29849313
    assert [text_of(ptr, s) for s in (info.command_line, info.cpu_mask)] == ["unknown", "none"]
    ok(TBRW_done_stream_section(ptr, 0, TBRW_STREAM_INFO_SECTION))

    ok(TBRW_reading_stream_section(ptr, 0, TBRW_EVENT_DESCRIPTION_SECTION))
    (event,) = collected(TBRW_enumerate_events, ptr, 0)
    assert (event.event_id, event.event_sav, event.event_flags) == (0, 2000000, TBRW_EVENT_EBS)
    assert (text_of(ptr, event.event_name), text_of(ptr, event.event_arch_name)) == ("SampleEvent", "Core 2")
    detail = event.event_detail_array[0]
    assert (detail.detail_address, detail.detail_value, detail.detail_access_size) == (0x21, 0xFFE17B80, 32)
    ok(TBRW_done_stream_section(ptr, 0, TBRW_EVENT_DESCRIPTION_SECTION))

    ok(TBRW_reading_stream_section(ptr, 0, TBRW_DATA_DESCRIPTION_SECTION))
    entries = collected(TBRW_enumerate_data_descriptor_entries, ptr, 0, start=())
    assert [(e.desc_type, e.desc_subtype, e.desc_offset, e.desc_data_size) for e in entries] == [
        (1, 0, 0, 32),
        (7, 32, 32, 8),
    ]
    ok(TBRW_done_stream_section(ptr, 0, TBRW_DATA_DESCRIPTION_SECTION))

    ok(TBRW_reading_stream_section(ptr, 0, TBRW_DATA_SECTION))
    records: list[bytes] = []
    ok(TBRW_enumerate_data(ptr, 0, lambda data, size, count, user: records.append(bytes(data)) or 1, None, 0))
    assert records == [bytes(recipe.sample()) + bytes(recipe.time_stamp())]
    assert len(records[0]) == 40
    ok(TBRW_done_stream_section(ptr, 0, TBRW_DATA_SECTION))
    ok(TBRW_done_stream(ptr, 0))
    ok(TBRW_verify(ptr))
    ok(TBRW_close(ptr))


def test_recipe_sample_record_has_the_bytes_of_the_drivers_layout() -> None:
    """sampfile.h (facts of the open driver): eip, eflags, csd, cs, cpu word, tid, pid, index word."""
    record = recipe.sample()
    expected = (
        (0x617000).to_bytes(4, "little")
        + (0x246).to_bytes(4, "little")
        + (0xFFFF).to_bytes(4, "little")
        + (0xCF9B00).to_bytes(4, "little")
        + (0x1B).to_bytes(2, "little")
        + (2 << 13).to_bytes(2, "little")
        + bytes(4)
        + (0x1000).to_bytes(4, "little")
        + (1 << 28 | 1 << 30).to_bytes(4, "little")
    )
    assert bytes(record) == expected


def test_recipe_has_every_section_that_viewing_needs(tmp_path: Path) -> None:
    """6.2; one section less, and it is named."""
    recipe.write_recipe(tmp_path / "whole.tb5")
    with open_file(tmp_path / "whole.tb5") as file:
        assert file.missing() == []
    with open_file(tmp_path / "partial.tb5", "w") as file:
        recipe.section(
            file.handle, TBRW_VERSION_INFO_SECTION, lambda: TBRW_set_version_info(file.handle, recipe.version_info())
        )
        assert file.missing() == ["HARDWARE", "SOFTWARE", "MODULE"] + [
            f"{name} of stream 0" for name in ("EVENT_DESCRIPTION", "STREAM_INFO", "DATA_DESCRIPTION", "DATA")
        ]


def test_recipe_with_the_printed_tsc_offset_is_refused(tmp_path: Path) -> None:
    """6.9 has desc_offset 0 for both entries, which would lay the TSC over the program counter."""
    ptr = ok(TBRW_open(tmp_path / "a.tb5", NEW))
    ok(TBRW_writing_stream(ptr, 0))
    ok(TBRW_writing_stream_section(ptr, 0, TBRW_DATA_DESCRIPTION_SECTION))
    record, tsc = recipe.descriptors(tsc_offset=0)
    ok(TBRW_add_data_descriptor_entry(ptr, 0, record))
    assert TBRW_add_data_descriptor_entry(ptr, 0, tsc) == TBRW_UNEXPECTED_VALUE
    ok(TBRW_abort_cleanup_and_close(ptr))


# -- chapter 10


def chapter_10(path: Path, access_mode: int, printed: list[str], *, describe: bool) -> int:
    """The program of 10.1; ``describe`` adds the data descriptor that 5.2 demands and 10.1 leaves out."""
    stream = 0
    stream_info = recipe.stream_info()

    def failed(ret_val: int, what: str) -> int:
        _, err_text = TBRW_error_string(ret_val)
        printed.append(f'{what} number {stream} returned error "{err_text}"')
        TBRW_abort_cleanup_and_close(tbrw_ptr)
        return 1

    ret_val, tbrw_ptr = TBRW_open(path, access_mode)
    if ret_val != VT_SUCCESS:
        printed.append("TBRW_open failed")
        return 1
    ret_val = TBRW_writing_stream(tbrw_ptr, stream)
    if ret_val != VT_SUCCESS:
        return failed(ret_val, "TBRW_writing_stream")
    ret_val = TBRW_writing_stream_section(tbrw_ptr, stream, TBRW_STREAM_INFO_SECTION)
    if ret_val != VT_SUCCESS:
        return failed(ret_val, "TBRW_writing_stream_section")
    ret_val = TBRW_set_stream_info(tbrw_ptr, stream, stream_info)
    if ret_val != VT_SUCCESS:
        return failed(ret_val, "TBRW_set_stream_info")
    ret_val = TBRW_done_stream_section(tbrw_ptr, stream, TBRW_STREAM_INFO_SECTION)
    if ret_val != VT_SUCCESS:
        return failed(ret_val, "TBRW_done_stream_section")
    if describe:
        entries = recipe.descriptors()
        recipe.stream_section(
            tbrw_ptr,
            stream,
            TBRW_DATA_DESCRIPTION_SECTION,
            *(lambda e=e: TBRW_add_data_descriptor_entry(tbrw_ptr, stream, e) for e in entries),
        )
    ret_val = TBRW_done_stream(tbrw_ptr, stream)
    if ret_val != VT_SUCCESS:
        return failed(ret_val, "TBRW_done_stream")
    ret_val = TBRW_close(tbrw_ptr)
    if ret_val != VT_SUCCESS:
        printed.append("TBRW_close failed")
    return 0


def test_chapter_10_writes_a_stream(tmp_path: Path) -> None:
    printed: list[str] = []
    assert chapter_10(tmp_path / "a.tb5", NEW, printed, describe=True) == 0
    assert printed == []
    with (
        open_file(tmp_path / "a.tb5") as file,
        file.reading_stream(0) as stream,
        stream.reading(StreamSection.STREAM_INFO) as section,
    ):
        assert file.text(section.get(TBRW_STREAM_INFO).comment) == "sample_comment"


def test_chapter_10_as_printed_lacks_what_chapter_5_demands(tmp_path: Path) -> None:
    printed: list[str] = []
    assert chapter_10(tmp_path / "a.tb5", NEW, printed, describe=False) == 1
    assert printed == ['TBRW_done_stream number 0 returned error "the stream has no data descriptor"']
    assert not (tmp_path / "a.tb5").exists(), "nothing was complete"


def test_chapter_10_without_create_always_does_not_make_a_file(tmp_path: Path) -> None:
    printed: list[str] = []
    assert chapter_10(tmp_path / "a.tb5", TBRW_FILE_READ | TBRW_FILE_WRITE, printed, describe=True) == 1
    assert printed == ["TBRW_open failed"]


def test_chapter_10_a_second_time_finds_stream_0_there(tmp_path: Path) -> None:
    printed: list[str] = []
    assert chapter_10(tmp_path / "a.tb5", NEW, printed, describe=True) == 0
    assert chapter_10(tmp_path / "a.tb5", TBRW_FILE_READ | TBRW_FILE_WRITE, printed, describe=True) == 1
    assert printed == [
        "TBRW_writing_stream number 0 returned error "
        '"a stream of that number cannot be written, or cannot hold this data"'
    ]
    with open_file(tmp_path / "a.tb5") as file:
        assert file.streams == 1


# -- figures 1 and 2

NAVIGATOR, PROCESS = 0x630E0000, 428


@pytest.fixture
def figure(tmp_path: Path) -> Any:
    """The module, and samples in it, before it, at its last byte, behind it, and in another process."""
    path = tmp_path / "figure.tb5"
    ptr = ok(TBRW_open(path, NEW))
    other = recipe.module(0x10000, 0x1000, 500, "C:\\other.exe")
    recipe.write_globals(ptr, [other, recipe.module(NAVIGATOR, 0x27000, PROCESS, "C:\\ProjNavigator.dll")])
    at = [
        (0x630E5907, PROCESS, 7),
        (NAVIGATOR - 1, PROCESS, 7),
        (NAVIGATOR, PROCESS, 7),
        (0x63107000 - 1, PROCESS, 8),
        (0x63107000, PROCESS, 7),
        (0x630E5907, 500, 9),
    ]
    recipe.write_stream(ptr, [(recipe.sample(*one), recipe.time_stamp(1000 + i)) for i, one in enumerate(at)])
    yield ptr
    TBRW_abort_cleanup_and_close(ptr)


def bound_rows(ptr: Any, start: int = 0) -> list[tuple[int, int, int]]:
    rows: list[tuple[int, int, int]] = []

    def callback(data: Any, size: int, count: int, table: Any, table_size: int, user: Any) -> int:
        assert (len(data), table_size, data.readonly) == (size, count * 24, True)
        assert size == count * 40
        rows.extend((b.module_index, b.pid_index, b.tid_index) for b in table)
        return 1

    ok(TBRW_reading_stream(ptr, 0))
    ok(TBRW_reading_stream_section(ptr, 0, TBRW_DATA_SECTION))
    ok(TBRW_bind_enumerate_data(ptr, 0, callback, None, start))
    ok(TBRW_done_stream_section(ptr, 0, TBRW_DATA_SECTION))
    ok(TBRW_done_stream(ptr, 0))
    return rows


def test_figure_1_binds_to_the_module_of_process_428(figure: Any) -> None:
    assert ok(TBRW_is_bound(figure, 0)) == 0
    ok(TBRW_dobind(figure, 0))
    assert ok(TBRW_is_bound(figure, 0)) == 1
    assert ok(TBRW_get_number_data_streams(figure)) == 1, "bind information is outside of the numbering"
    none = (1 << 64) - 1
    rows = bound_rows(figure)
    assert [module for module, _, _ in rows] == [1, none, 1, 1, none, none]
    ok(TBRW_reading_section(figure, TBRW_PROCESS_THREAD_SECTION))
    ok(TBRW_reading_section(figure, TBRW_MODULE_SECTION))
    module = ok(TBRW_get_one_module(figure, rows[0][0]))
    process, thread = ok(TBRW_get_one_pid(figure, rows[0][1])), ok(TBRW_get_one_tid(figure, rows[0][2]))
    assert text_of(figure, module.module_name) == "ProjNavigator.dll"
    assert (process.pid_id, thread.tid_associated_pid, thread.tid_id) == (PROCESS, PROCESS, 7)
    assert ok(TBRW_get_one_tid(figure, rows[3][2])).tid_id == 8
    assert ok(TBRW_get_one_pid(figure, rows[5][1])).pid_id == 500
    ok(TBRW_done_section(figure, TBRW_PROCESS_THREAD_SECTION))
    ok(TBRW_done_section(figure, TBRW_MODULE_SECTION))


def test_a_sample_may_have_the_index_of_its_process(tmp_path: Path) -> None:
    """6.10: pidRecIndex is a process id only if pidRecIndexRaw says so."""
    sample = recipe.sample(0x630E5907, 1)
    sample.pidRecIndexRaw = 0
    with open_file(tmp_path / "a.tb5", "w") as file:
        recipe.write_globals(file.handle, [recipe.module(NAVIGATOR, 0x27000, PROCESS)])
        with file.writing(Section.PROCESS_THREAD) as section:
            section.put(TBRW_PID(pid_id=500), TBRW_PID(pid_id=PROCESS))
        recipe.write_stream(file.handle, [(sample, recipe.time_stamp())])
        file.bind(0)
        assert [row[:2] for row in bound_rows(file.handle)] == [(0, 1)]


def test_figure_1_bind_tables_of_modules_and_threads(figure: Any) -> None:
    ok(TBRW_dobind(figure, 0))
    sizes = [
        ok(call(figure, 0))
        for call in (
            TBRW_get_size_of_data_bind_entry,
            TBRW_get_size_of_module_bind_entry,
            TBRW_get_size_of_tid_bind_entry,
        )
    ]
    assert sizes == [24, 8, 8]
    ok(TBRW_reading_section(figure, TBRW_PROCESS_THREAD_SECTION))
    ok(TBRW_reading_section(figure, TBRW_MODULE_SECTION))
    processes = [p.pid_id for p in collected(TBRW_enumerate_processes, figure)]
    found: list[tuple[int, int]] = []

    def modules(records: Any, size: int, count: int, table: Any, table_size: int, user: Any) -> int:
        assert (size, table_size) == (count * 104, count * 8)
        found.extend((m.module_associated_pid, processes[b.pid_index]) for m, b in zip(records, table, strict=True))
        return 1

    def threads(records: Any, size: int, count: int, table: Any, table_size: int, user: Any) -> int:
        assert (size, table_size) == (count * 40, count * 8)
        found.extend((t.tid_associated_pid, processes[b.pid_index]) for t, b in zip(records, table, strict=True))
        return 1

    ok(TBRW_bind_enumerate_modules(figure, modules, None, 0))
    assert len(found) == 2
    ok(TBRW_bind_enumerate_modules(figure, modules, None, 1))
    assert found[2:] == found[1:2]
    ok(TBRW_bind_enumerate_threads(figure, threads, None, 0))
    assert len(found) == 6
    assert all(own == bound for own, bound in found)


def test_figure_1_bound_enumeration_starts_where_it_is_told(figure: Any) -> None:
    ok(TBRW_dobind(figure, 0))
    assert bound_rows(figure, 2) == bound_rows(figure)[2:]


def test_unbind_takes_everything_away_that_binding_added(figure: Any, tmp_path: Path) -> None:
    """The original never implemented it (9.3.4)."""
    ok(TBRW_dobind(figure, 0))
    before = (tmp_path / "figure.tb5").read_bytes()
    ok(TBRW_dobind(figure, 0))  # a bound stream stays as it is
    assert (tmp_path / "figure.tb5").read_bytes() == before
    ok(TBRW_unbind(figure, 0))
    assert ok(TBRW_is_bound(figure, 0)) == 0
    assert TBRW_unbind(figure, 0) == TBRW_STREAM_NOT_BOUND
    assert TBRW_reading_section(figure, TBRW_PROCESS_THREAD_SECTION) == TBRW_SECTION_NOT_EXIST
    assert TBRW_get_size_of_data_bind_entry(figure, 0) == (TBRW_STREAM_NOT_BOUND, 0)
    ok(TBRW_reading_section(figure, TBRW_MODULE_SECTION))
    assert TBRW_bind_enumerate_modules(figure, lambda *_: 1, None, 0) == TBRW_TB5_IS_NOT_BOUND
    ok(TBRW_done_section(figure, TBRW_MODULE_SECTION))
    ok(TBRW_dobind(figure, 0))
    assert bound_rows(figure)[0][0] == 1


def test_binding_stays_in_the_file(figure: Any, tmp_path: Path) -> None:
    ok(TBRW_dobind(figure, 0))
    rows = bound_rows(figure)
    ok(TBRW_close(figure))
    ptr = ok(TBRW_open(tmp_path / "figure.tb5", TBRW_FILE_READ))
    assert bound_rows(ptr) == rows
    assert TBRW_unbind(ptr, 0) == TBRW_NO_WRITE_PERMISSION
    ok(TBRW_close(ptr))
    with open_file(tmp_path / "figure.tb5") as file, file.reading_stream(0) as stream:
        assert stream.bound()["module_index"].tolist() == [row[0] for row in rows]


def test_each_bound_stream_has_processes_of_its_own(figure: Any) -> None:
    """Calls without a stream show the binding of the stream that is being read, else of the first that is bound."""
    begin = TBRW_writing_stream(figure, 1)
    ok(begin)
    recipe.stream_section(
        figure, 1, TBRW_STREAM_INFO_SECTION, lambda: TBRW_set_stream_info(figure, 1, recipe.stream_info())
    )
    fields = [(ST_IP, 8), (ST_TIME_STAMP, 8), (ST_PID, 4), (ST_TID, 4)]
    recipe.stream_section(
        figure,
        1,
        TBRW_DATA_DESCRIPTION_SECTION,
        *(
            lambda i=i, kind=kind, size=size: TBRW_add_data_descriptor_entry(
                figure,
                1,
                TBRW_SAMPREC_DESC_ENTRY(desc_type=kind, desc_offset=sum(s for _, s in fields[:i]), desc_data_size=size),
            )
            for i, (kind, size) in enumerate(fields)
        ),
    )
    record = (0x10800).to_bytes(8, "little") + (5).to_bytes(8, "little") + b"\x07\x00\x00\x00\x09\x00\x00\x00"
    recipe.stream_section(figure, 1, TBRW_DATA_SECTION, lambda: TBRW_add_data(figure, 1, 24, record))
    ok(TBRW_done_stream(figure, 1))
    ok(TBRW_dobind(figure, 1))
    ok(TBRW_dobind(figure, 0))
    ok(TBRW_reading_section(figure, TBRW_PROCESS_THREAD_SECTION))
    assert [p.pid_id for p in collected(TBRW_enumerate_processes, figure)] == [428, 500]
    ok(TBRW_reading_stream(figure, 1))
    assert 7 in [p.pid_id for p in collected(TBRW_enumerate_processes, figure)]
    ok(TBRW_done_stream(figure, 1))
    ok(TBRW_done_section(figure, TBRW_PROCESS_THREAD_SECTION))


def test_examples_of_the_guide_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2] / "docs" / "guides" / "tbrw.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    assert len(blocks) >= 5
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks), str(page), "exec"), {})
