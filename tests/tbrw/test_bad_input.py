"""Arguments and files that are wrong: a specific status, no crash, nothing complete lost."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tbrw_recipe as recipe
from lastbranch import tbrw
from lastbranch.tbrw import *  # noqa: F403  (as a C program includes tbrw.h)
from tbrw_recipe import ok

# ruff: noqa: F405

NEW = TBRW_FILE_READ | TBRW_FILE_WRITE | TBRW_FILE_CREATE_ALWAYS


@pytest.fixture
def ptr(tmp_path: Path) -> Iterator[Any]:
    handle = ok(TBRW_open(tmp_path / "new.tb5", NEW))
    yield handle
    TBRW_abort_cleanup_and_close(handle)


@pytest.fixture
def describing(ptr: Any) -> Any:
    """A data description section of stream 0 that is open, with an entry at 8 to 16."""
    ok(TBRW_writing_stream(ptr, 0))
    ok(TBRW_writing_stream_section(ptr, 0, TBRW_DATA_DESCRIPTION_SECTION))
    ok(TBRW_add_data_descriptor_entry(ptr, 0, entry(8, 8)))
    return ptr


def entry(offset: int, size: int, kind: int = ST_POWER, subtype: int = 0) -> Any:
    return TBRW_SAMPREC_DESC_ENTRY(desc_type=kind, desc_offset=offset, desc_data_size=size, desc_subtype=subtype)


# -- data descriptors (8.11)


@pytest.mark.parametrize("span", [(0, 9), (15, 1), (8, 8), (0, 24), (10, 2), (12, 100)])
def test_descriptors_do_not_overlap(describing: Any, span: tuple[int, int]) -> None:
    assert TBRW_add_data_descriptor_entry(describing, 0, entry(*span)) == TBRW_UNEXPECTED_VALUE
    ok(TBRW_add_data_descriptor_entry(describing, 0, entry(0, 8)))
    ok(TBRW_add_data_descriptor_entry(describing, 0, entry(16, 1)))
    ok(TBRW_done_stream_section(describing, 0, TBRW_DATA_DESCRIPTION_SECTION))


@pytest.mark.parametrize("span", [(1 << 31, 1 << 31), ((1 << 32) - 1, 1), (16, 0), (16, (1 << 32) - 1), (1 << 26, 1)])
def test_descriptors_do_not_exceed_a_record(describing: Any, span: tuple[int, int]) -> None:
    assert TBRW_add_data_descriptor_entry(describing, 0, entry(*span)) == TBRW_UNSUPPORTED_DATA_SIZE


@pytest.mark.parametrize("kind", [0x2000, 0x2FFF, ST_PROCESS, ST_EVENT_ID, 0x8000, 0xFFFF])
def test_computed_and_reserved_types_stand_in_no_record(describing: Any, kind: int) -> None:
    assert TBRW_add_data_descriptor_entry(describing, 0, entry(16, 4, kind)) == TBRW_UNEXPECTED_VALUE


@pytest.mark.parametrize("subtype", [0x8000, 0xFFFF])
def test_reserved_subtypes_are_an_error(describing: Any, subtype: int) -> None:
    assert TBRW_add_data_descriptor_entry(describing, 0, entry(16, 4, ST_POWER, subtype)) == TBRW_UNEXPECTED_VALUE


def test_user_defined_types_and_fields_inside_a_legacy_record_are_fine(ptr: Any) -> None:
    ok(TBRW_writing_stream(ptr, 0))
    ok(TBRW_writing_stream_section(ptr, 0, TBRW_DATA_DESCRIPTION_SECTION))
    for one in (
        entry(0, 32, ST_LEGACY_SAMPLE_RECORD),
        entry(0, 8, ST_IP, SST_IIP),
        entry(20, 4, ST_TID),
        entry(32, 8, ST_START_USER_DEFINED),
        entry(40, 256, ST_BRANCH_TRACE, SST_LBR_FROM_TO),
    ):
        ok(TBRW_add_data_descriptor_entry(ptr, 0, one))
    assert TBRW_add_data_descriptor_entry(ptr, 0, entry(8, 8, ST_TIME_STAMP)) == TBRW_UNEXPECTED_VALUE
    assert TBRW_add_data_descriptor_entry(ptr, 0, entry(400, 31, ST_LEGACY_SAMPLE_RECORD)) == TBRW_UNSUPPORTED_DATA_SIZE


# -- structures, strings and pointers (8)


def test_the_size_field_is_the_version_of_a_structure(ptr: Any) -> None:
    ok(TBRW_writing_section(ptr, TBRW_SOFTWARE_SECTION))
    host = TBRW_HOST()
    host.host_size = 28
    assert TBRW_set_host(ptr, host) == TBRW_INCOMPATIBLE_VERSION
    ok(TBRW_writing_section(ptr, TBRW_HARDWARE_SECTION))
    system = recipe.system()
    system.node_array[0].cpu_array[0].cpu_size = 0
    assert TBRW_set_system(ptr, system) == TBRW_INCOMPATIBLE_VERSION


@pytest.mark.parametrize("word", [5, 0xDEADBEEF, (1 << 63) - 8, 1 << 63 | 1, (1 << 64) - 1])
def test_what_is_neither_string_nor_id_is_refused(ptr: Any, word: int) -> None:
    ok(TBRW_writing_section(ptr, TBRW_SOFTWARE_SECTION))
    host = TBRW_HOST()
    host.host_name.soi_uniqueid = word
    assert TBRW_set_host(ptr, host) == TBRW_INVALID_STRING


def test_an_id_of_the_file_is_as_good_as_its_string(ptr: Any) -> None:
    recipe.section(ptr, TBRW_MODULE_SECTION, lambda: TBRW_add_module(ptr, recipe.module(path="C:\\a.exe")))
    ok(TBRW_reading_section(ptr, TBRW_MODULE_SECTION))
    name = ok(TBRW_get_one_module(ptr, 0)).module_name
    ok(TBRW_writing_section(ptr, TBRW_PROCESS_THREAD_SECTION))
    process = TBRW_PID()
    process.pid_name = name
    ok(TBRW_add_process(ptr, process))
    process.pid_name.soi_uniqueid = name.soi_uniqueid + 100
    assert TBRW_add_process(ptr, process) == TBRW_INVALID_STRING
    ok(TBRW_done_section(ptr, TBRW_PROCESS_THREAD_SECTION))
    ok(TBRW_reading_section(ptr, TBRW_PROCESS_THREAD_SECTION))
    assert ok(TBRW_get_one_pid(ptr, 0)).pid_name.soi_uniqueid == name.soi_uniqueid


@pytest.mark.parametrize("unique_id", [0, 1, 1 << 63, 1 << 63 | 999, (1 << 64) - 1, -1])
def test_string_ids_out_of_range_are_invalid_strings(ptr: Any, unique_id: int) -> None:
    """0 is the NULL string (7.6)."""
    recipe.section(ptr, TBRW_MODULE_SECTION, lambda: TBRW_add_module(ptr, recipe.module()))
    buffer = ctypes.create_unicode_buffer(10)
    assert TBRW_convert_uniqueid_to_string(ptr, 40, unique_id, buffer) == (TBRW_INVALID_STRING, 0)
    assert TBRW_convert_uniqueid_to_string(ptr, 40, TBRW_STRING_OR_ID(unique_id), buffer) == (TBRW_INVALID_STRING, 0)
    assert TBRW_convert_uniqueid_to_string(ptr, 40, None, buffer) == (TBRW_UNEXPECTED_NULL_PTR, 0)


def test_pointers_lead_to_as_many_entries_as_their_count_says(ptr: Any) -> None:
    ok(TBRW_writing_section(ptr, TBRW_HARDWARE_SECTION))
    system = recipe.system()
    system.system_num_nodes = 2
    assert TBRW_set_system(ptr, system) == TBRW_UNEXPECTED_NULL_PTR
    node = TBRW_NODE(node_num_available=1)
    assert TBRW_set_system(ptr, TBRW_SYSTEM(system_num_nodes=1, node_array=node)) == TBRW_UNEXPECTED_NULL_PTR
    system = recipe.system()
    ctypes.c_uint64.from_address(ctypes.addressof(system) + TBRW_SYSTEM.node_array.offset).value = 0x1234
    assert TBRW_set_system(ptr, system) == TBRW_UNEXPECTED_NULL_PTR
    assert TBRW_done_section(ptr, TBRW_HARDWARE_SECTION) == TBRW_NO_DATA_TO_WRITE
    ok(TBRW_set_system(ptr, recipe.system()))


def test_what_a_pointer_leads_to_lives_as_long_as_the_structure(ptr: Any) -> None:
    import gc

    system, host = recipe.system(), recipe.host()  # the arrays and strings were locals of these functions
    gc.collect()
    recipe.section(ptr, TBRW_HARDWARE_SECTION, lambda: TBRW_set_system(ptr, system))
    ok(TBRW_writing_section(ptr, TBRW_SOFTWARE_SECTION))
    ok(TBRW_set_host(ptr, host))
    assert system.node_array[0].cpu_array[0].cpu_arch_array[0].cpuid_ia32_array[0].cpuid_ebx == 0x756E6547


def test_itanium_has_its_own_cpuid_and_unknown_architectures_are_refused(ptr: Any) -> None:
    ok(TBRW_writing_section(ptr, TBRW_HARDWARE_SECTION))

    def system(arch: Any) -> Any:
        cpu = TBRW_CPU(num_cpu_arch_array=1, cpu_arch_array=arch)
        return TBRW_SYSTEM(system_num_nodes=1, node_array=TBRW_NODE(node_num_available=1, cpu_array=cpu))

    assert TBRW_set_system(ptr, system(TBRW_CPU_ARCH(arch_type=77))) == TBRW_UNSUPPORTED_ARCH_TYPE
    arch = TBRW_CPU_ARCH(arch_type=TBRW_GST_ITANIUM, arch_num_cpuid=2)
    arch.cpuid_ia64_array = [TBRW_CPUID_IA64(cpuid_select=i, cpuid_val=10 * i) for i in (1, 2)]
    ok(TBRW_set_system(ptr, system(arch)))
    ok(TBRW_done_section(ptr, TBRW_HARDWARE_SECTION))
    ok(TBRW_reading_section(ptr, TBRW_HARDWARE_SECTION))
    buffer = ctypes.create_string_buffer(TBRW_get_system(ptr, 0, None)[1])
    ok(TBRW_get_system(ptr, len(buffer), buffer))
    read = TBRW_SYSTEM.from_buffer(buffer).node_array[0].cpu_array[0].cpu_arch_array[0]
    assert [read.cpuid_ia64_array[i].cpuid_val for i in range(read.arch_num_cpuid)] == [10, 20]


@pytest.mark.parametrize(
    ("section", "call", "record", "status"),
    [
        (TBRW_SOFTWARE_SECTION, TBRW_set_os, TBRW_OS(), TBRW_UNEXPECTED_VALUE),
        (TBRW_SOFTWARE_SECTION, TBRW_set_os, TBRW_OS(os_platform=7), TBRW_UNEXPECTED_VALUE),
        (TBRW_SOFTWARE_SECTION, TBRW_set_os, TBRW_OS(os_platform=0x200), TBRW_UNEXPECTED_VALUE),
        (
            TBRW_VERSION_INFO_SECTION,
            TBRW_set_version_info,
            TBRW_VERSION_INFO(sample_file_version=15),
            TBRW_INCOMPATIBLE_VERSION,
        ),
        (
            TBRW_MODULE_SECTION,
            TBRW_add_module,
            TBRW_MODULE(module_load_address=1 << 63, module_length=(1 << 63) + 1),
            TBRW_BAD_MODULE,
        ),
        (TBRW_SOFTWARE_SECTION, TBRW_set_os, None, TBRW_UNEXPECTED_NULL_PTR),
        (TBRW_SOFTWARE_SECTION, TBRW_set_os, TBRW_HOST(), TBRW_BAD_PARAMETER),
        (TBRW_SOFTWARE_SECTION, TBRW_set_os, "os", TBRW_BAD_PARAMETER),
    ],
)
def test_values_that_the_guide_forbids(ptr: Any, section: int, call: Any, record: Any, status: int) -> None:
    ok(TBRW_writing_section(ptr, section))
    assert call(ptr, record) == status


def test_operating_systems_of_other_makers_have_numbers_of_their_own(ptr: Any) -> None:
    ok(TBRW_writing_section(ptr, TBRW_SOFTWARE_SECTION))
    for platform in (0x100, 0x1FF, TBRW_OSFAMILY_LINUX64):
        ok(TBRW_set_os(ptr, TBRW_OS(os_platform=platform)))


def test_event_ids_are_a_sequence_and_stream_types_the_callers(ptr: Any) -> None:
    ok(TBRW_writing_stream(ptr, 0))
    ok(TBRW_writing_stream_section(ptr, 0, TBRW_EVENT_DESCRIPTION_SECTION))
    assert TBRW_add_event(ptr, 0, recipe.event(1)) == TBRW_UNEXPECTED_VALUE
    ok(TBRW_add_event(ptr, 0, recipe.event(0)))
    assert TBRW_add_event(ptr, 0, recipe.event(0)) == TBRW_UNEXPECTED_VALUE
    ok(TBRW_add_event(ptr, 0, recipe.event(1)))
    ok(TBRW_writing_stream_section(ptr, 0, TBRW_STREAM_INFO_SECTION))
    for kind in (0, TBRW_BIND_DATA_INFORMATION_STREAM, TBRW_BIND_TID_INFORMATION_STREAM, 9):
        assert TBRW_set_stream_info(ptr, 0, TBRW_STREAM_INFO(stream_type=kind)) == TBRW_UNEXPECTED_VALUE


def test_events_with_and_without_details_keep_theirs(ptr: Any) -> None:
    ok(TBRW_writing_stream(ptr, 0))
    counts = [2, 2, 0, 1, 0, 0, 3]
    events = []
    for i, n in enumerate(counts):
        details = [TBRW_EVENT_DETAIL(detail_address=10 * i + j) for j in range(n)]
        events.append(TBRW_EVENT(event_id=i, event_num_details=n, event_detail_array=details, event_name=f"event {i}"))
    recipe.stream_section(
        ptr, 0, TBRW_EVENT_DESCRIPTION_SECTION, *(lambda e=e: TBRW_add_event(ptr, 0, e) for e in events)
    )
    recipe.stream_section(ptr, 0, TBRW_STREAM_INFO_SECTION, lambda: TBRW_set_stream_info(ptr, 0, recipe.stream_info()))
    recipe.stream_section(
        ptr, 0, TBRW_DATA_DESCRIPTION_SECTION, lambda: TBRW_add_data_descriptor_entry(ptr, 0, entry(0, 8))
    )
    ok(TBRW_done_stream(ptr, 0))
    ok(TBRW_reading_stream(ptr, 0))
    ok(TBRW_reading_stream_section(ptr, 0, TBRW_EVENT_DESCRIPTION_SECTION))
    for start in range(len(counts) + 1):
        found: list[tuple[int, list[int]]] = []

        def callback(buffer: Any, size: int, count: int, user: Any) -> int:
            details = sum(event.event_num_details for event in buffer)
            assert size == len(bytes(buffer)) == 48 * count + 32 * details
            for event in buffer:
                user.append(
                    (
                        event.event_id,
                        [event.event_detail_array[j].detail_address for j in range(event.event_num_details)],
                    )
                )
            return 1

        ok(TBRW_enumerate_events(ptr, 0, callback, found, start))
        assert found == [(i, [10 * i + j for j in range(n)]) for i, n in enumerate(counts)][start:]


# -- arguments


def test_arguments_of_a_wrong_kind_are_bad_parameters(ptr: Any) -> None:
    assert TBRW_open(None, NEW) == (TBRW_BAD_PARAMETER, None)
    assert TBRW_open(5, NEW) == (TBRW_BAD_PARAMETER, None)
    assert TBRW_open("a.tb5", "r") == (TBRW_BAD_PARAMETER, None)
    assert TBRW_reading_section(ptr, "0") == TBRW_BAD_PARAMETER
    assert TBRW_error_string(None) == (TBRW_BAD_PARAMETER, None)
    with pytest.raises(TypeError):
        TBRW_close()
    with pytest.raises(TypeError, match="unexpected"):
        TBRW_close(ptr, wrong=1)
    assert TBRW_reading_section(ptr=ptr, section=TBRW_MODULE_SECTION) == TBRW_SECTION_NOT_EXIST


def test_data_is_as_long_as_it_is_said_to_be(ptr: Any) -> None:
    ok(TBRW_writing_section(ptr, TBRW_USER_DEFINED_GLOBAL_SECTION))
    assert TBRW_set_user_defined_global(ptr, 4, b"abc") == TBRW_BUFFER_OVERFLOW
    assert TBRW_set_user_defined_global(ptr, 4, None) == TBRW_BUFFER_NULL
    assert TBRW_set_user_defined_global(ptr, 4, 12345) == TBRW_BAD_PARAMETER
    assert TBRW_set_user_defined_global(ptr, -1, b"abc") == TBRW_BUFFER_OVERFLOW
    for data in (
        b"abcd",
        bytearray(b"abcd"),
        memoryview(b"abcd"),
        np.frombuffer(b"abcd", "<u4"),
        (ctypes.c_char * 4)(*b"abcd"),
        ctypes.c_uint32(0x64636261),
    ):
        ok(TBRW_set_user_defined_global(ptr, 3, data))
    ok(TBRW_done_section(ptr, TBRW_USER_DEFINED_GLOBAL_SECTION))
    ok(TBRW_reading_section(ptr, TBRW_USER_DEFINED_GLOBAL_SECTION))
    buffer = bytearray(3)
    assert TBRW_get_user_defined_global(ptr, 3, buffer) == (VT_SUCCESS, 3)
    assert buffer == b"abc"


def test_data_of_a_file_that_is_not_there_or_not_whole_records(ptr: Any, tmp_path: Path) -> None:
    ok(TBRW_writing_stream(ptr, 0))
    recipe.stream_section(
        ptr, 0, TBRW_DATA_DESCRIPTION_SECTION, lambda: TBRW_add_data_descriptor_entry(ptr, 0, entry(0, 8))
    )
    ok(TBRW_writing_stream_section(ptr, 0, TBRW_DATA_SECTION))
    assert TBRW_add_data_from_file(ptr, 0, tmp_path / "none") == TBRW_FILE_OPEN_FAILED
    (tmp_path / "odd").write_bytes(bytes(20))
    assert TBRW_add_data_from_file(ptr, 0, tmp_path / "odd") == TBRW_UNSUPPORTED_DATA_SIZE
    (tmp_path / "even").write_bytes(bytes(24))
    ok(TBRW_add_data_from_file(ptr, 0, str(tmp_path / "even")))
    ok(TBRW_done_stream_section(ptr, 0, TBRW_DATA_SECTION))


# -- files


def test_what_is_no_tb5_file_is_not_opened(tmp_path: Path) -> None:
    for name, content in (("empty", b""), ("text", b"PERFILE2" * 100), ("zeros", bytes(9000))):
        (tmp_path / name).write_bytes(content)
        for mode in (TBRW_FILE_READ, TBRW_FILE_READ | TBRW_FILE_WRITE):
            assert TBRW_open(tmp_path / name, mode) == (TBRW_INVALID_SAMPLE_FILE, None)
        assert (tmp_path / name).read_bytes() == content
    for mode in (TBRW_FILE_READ, TBRW_FILE_READ | TBRW_FILE_WRITE):
        assert TBRW_open(tmp_path, mode) == (TBRW_FILE_OPEN_FAILED, None)
    assert TBRW_open(tmp_path / "no" / "folder.tb5", NEW) == (TBRW_FILE_OPEN_FAILED, None)


def test_a_file_that_is_being_written_has_one_writer(ptr: Any, tmp_path: Path) -> None:
    assert TBRW_open(tmp_path / "new.tb5", TBRW_FILE_READ | TBRW_FILE_WRITE) == (TBRW_FILE_OPEN_FAILED, None)


def everything(ptr: Any) -> None:
    """All reading calls, whatever they return."""

    def callback(*_: Any) -> int:
        return 1

    for section in range(6):
        if TBRW_reading_section(ptr, section) == VT_SUCCESS:
            for noun in ("system", "host", "os", "application", "version_info", "user_defined_global"):
                status, needed = getattr(tbrw, f"TBRW_get_{noun}")(ptr, 0, None)
                if status == TBRW_BUFFER_TOO_SMALL and needed < 1 << 20:
                    getattr(tbrw, f"TBRW_get_{noun}")(ptr, needed, ctypes.create_string_buffer(needed))
            for noun in ("processes", "threads", "modules"):
                getattr(tbrw, f"TBRW_enumerate_{noun}")(ptr, callback, None, 0)
            TBRW_bind_enumerate_modules(ptr, callback, None, 0)
            TBRW_bind_enumerate_threads(ptr, callback, None, 0)
            TBRW_get_one_module(ptr, 0)
            TBRW_done_section(ptr, section)
    for stream in range(min(3, TBRW_get_number_data_streams(ptr)[1])):
        TBRW_reading_stream(ptr, stream)
        for section in range(5):
            if TBRW_reading_stream_section(ptr, stream, section) == VT_SUCCESS:
                TBRW_enumerate_events(ptr, stream, callback, None, 0)
                TBRW_enumerate_data_descriptor_entries(ptr, stream, callback, None)
                TBRW_enumerate_data(ptr, stream, callback, None, 0)
                TBRW_bind_enumerate_data(ptr, stream, callback, None, 0)
                TBRW_done_stream_section(ptr, stream, section)
        TBRW_done_stream(ptr, stream)
    TBRW_verify(ptr)


@pytest.fixture(scope="module")
def bound_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("bound") / "bound.tb5"
    recipe.write_recipe(path)
    with open_file(path, "a") as file:
        file.bind(0)
    return path.read_bytes()


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_files_end_in_a_status(bound_file: bytes, tmp_path: Path, data: st.DataObject) -> None:
    """Bytes changed, or the end cut off: no exception gets out of any call, whatever the damage."""
    broken = bytearray(bound_file)
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(broken) - 1))
        broken[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        broken = broken[: data.draw(st.integers(0, len(broken)))]
    path = tmp_path / "broken.tb5"
    path.write_bytes(broken)
    status, ptr = TBRW_open(path, TBRW_FILE_READ)
    if status == VT_SUCCESS:
        everything(ptr)
        TBRW_abort_cleanup_and_close(ptr)
    else:
        assert status == TBRW_INVALID_SAMPLE_FILE


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_lying_tables_end_in_a_status(tmp_path: Path, data: st.DataObject) -> None:
    """Blocks are intact, but records hold any numbers: counts, rows, ids, offsets, types."""
    from lastbranch.formats.tb5.layout import Scope, Table, struct_of
    from lastbranch.formats.tb5.writer import Tb5Writer

    words = st.sampled_from([0, 1, 2, 7, 32, 1 << 20, 1 << 31, (1 << 32) - 1, 1 << 63, (1 << 64) - 1])
    tables: list[tuple[Table, Any]] = []
    places = (
        [(Scope.GLOBAL, s) for s in range(7)]
        + [(Scope.STREAM, s) for s in range(6)]
        + [(Scope.BIND, s) for s in (4, 5, 6, 7)]
    )
    for scope, section in places:
        for part in range(6):
            key = Table(scope, 0, section, part)
            struct = struct_of(key)
            if not data.draw(st.booleans()) or (struct is None and part):
                continue
            size = struct.dtype if struct is not None else np.dtype(("u1", data.draw(st.sampled_from([1, 8, 40]))))
            rows = np.zeros(data.draw(st.integers(0, 3)), size)
            for name in (struct.dtype.names or ()) if struct is not None else ():
                for i in range(len(rows)):
                    mask = (1 << 8 * rows.dtype[name].itemsize) - 1
                    rows[name][i : i + 1] = np.array([data.draw(words) & mask], "<u8").astype(rows.dtype[name])
            tables.append((key, rows))
    with Tb5Writer.create(tmp_path / "lying.tb5") as writer:
        for text in ("one", "two"):
            writer.string(text)
        for key, rows in tables:
            writer.put(key, rows)
    status, ptr = TBRW_open(tmp_path / "lying.tb5", TBRW_FILE_READ | TBRW_FILE_WRITE)
    if status == VT_SUCCESS:
        everything(ptr)
        TBRW_dobind(ptr, 0)
        TBRW_abort_cleanup_and_close(ptr)
    assert status in (VT_SUCCESS, TBRW_INVALID_SAMPLE_FILE)
