"""The surface: every function, structure and number of chapters 8 and 9, as the guide has them."""

from __future__ import annotations

import ast
import ctypes
import inspect
import re
from pathlib import Path

import pytest

from lastbranch import tbrw
from lastbranch.tbrw.status import status_text

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "tbrw.md"

GUIDE = """
get_version(*major *minor) open(*ptr filename access_mode) close(ptr) error_string(error_code *error_string)
abort_cleanup_and_close(ptr) verify(ptr)
convert_uniqueid_to_string(ptr size_of_buffer string_id buffer *size_buffer_needed)
reading_section(ptr section) writing_section(ptr section) done_section(ptr section)
get_number_data_streams(ptr *numStreams) reading_stream(ptr stream) writing_stream(ptr stream) done_stream(ptr stream)
reading_stream_section(ptr stream section) writing_stream_section(ptr stream section)
done_stream_section(ptr stream section)
set_system(ptr system) get_system(ptr size_of_buffer buf_ptr *size_buffer_used)
set_host(ptr host) get_host(ptr size_of_buffer buf_ptr *size_buffer_used)
set_os(ptr os) get_os(ptr size_of_buffer buf_ptr *size_buffer_used)
set_application(ptr application) get_application(ptr size_of_buffer buf_ptr *size_buffer_used)
add_process(ptr process) get_one_pid(ptr pid_index *p_pid)
enumerate_processes(ptr callback_func user_ptr start_index)
add_thread(ptr thread) get_one_tid(ptr tid_index *p_tid) enumerate_threads(ptr callback_func user_ptr start_index)
bind_enumerate_threads(ptr callback_func user_ptr start_index)
get_size_of_tid_bind_entry(ptr data_stream *sizeof_tid_bind_entry)
add_module(ptr module) get_one_module(ptr module_index *p_module)
enumerate_modules(ptr callback_func user_ptr start_index) bind_enumerate_modules(ptr callback_func user_ptr start_index)
get_size_of_module_bind_entry(ptr data_stream *sizeof_module_bind_entry)
set_version_info(tbrw_ptr version_info) get_version_info(tbrw_ptr size_of_buffer buf_ptr *size_buffer_used)
set_user_defined_global(ptr size_of_data data_ptr)
get_user_defined_global(ptr size_of_buffer buf_ptr *size_buffer_used)
get_stream_info(tbrw_ptr stream size_of_buffer buf_ptr *size_buffer_used)
set_stream_info(tbrw_ptr stream stream_info)
add_event(ptr stream event_descriptor_entry) enumerate_events(ptr stream callback_func user_ptr start_index)
add_data_descriptor_entry(ptr stream data_descriptor_entry)
enumerate_data_descriptor_entries(ptr stream callback_func user_ptr)
add_data(ptr stream size_of_data_entry data_entry) add_data_from_file(ptr stream filename)
enumerate_data(ptr stream callback_func user_ptr start_index)
bind_enumerate_data(ptr data_stream callback_func user_ptr start_index)
get_size_of_data_bind_entry(ptr data_stream *sizeof_data_bind_entry)
is_bound(ptr data_stream *is_bound) dobind(ptr data_stream) unbind(ptr data_stream)
set_user_defined_stream(ptr stream size_of_data data_ptr)
get_user_defined_stream(ptr stream size_of_buffer buf_ptr *size_buffer_used)
convert_utf8_to_wcs(utf8 wcs wcs_size *wcs_size) convert_wcs_to_utf8(wcs utf8 utf8_size *utf8_size)
"""
"""Chapter 9, names and parameters in the guide's order; a star marks what is OUT (or INOUT, which is in both)."""
PROTOTYPES = {name: args.split() for name, args in re.findall(r"(\w+)\(([^)]*)\)", GUIDE)}

SIZES = {
    "TBRW_STRING_OR_ID": 8, "TBRW_SYSTEM": 16, "TBRW_NODE": 40, "TBRW_CPU": 64, "TBRW_CPU_ARCH": 16,
    "TBRW_CPUID_IA32": 24, "TBRW_CPUID_IA64": 24, "TBRW_HOST": 32, "TBRW_OS": 40, "TBRW_APPLICATION": 32,
    "TBRW_PID": 48,
    "TBRW_TID": 40, "TBRW_MODULE": 104, "TBRW_VERSION_INFO": 16, "TBRW_STREAM_INFO": 56, "TBRW_EVENT": 48,
    "TBRW_EVENT_DETAIL": 32, "TBRW_SAMPREC_DESC_ENTRY": 40, "DATA_BIND_STRUCT": 24, "MODULE_BIND_STRUCT": 8,
    "TID_BIND_STRUCT": 8, "TBRW_SampleRecordPC": 32, "TBRW_SampleRecordTSC": 8, "TBRW_CodeDescriptor": 8,
    "VTUNE_ANALYZER_FILETIME": 8,
}  # fmt: skip
"""Natural alignment with 8-byte pointers, computed by hand from chapter 8."""


@pytest.mark.parametrize("name", sorted(PROTOTYPES))
def test_function_has_the_guides_parameters(name: str) -> None:
    function = getattr(tbrw, f"TBRW_{name}")
    args = PROTOTYPES[name]
    signature = inspect.signature(function)
    assert list(signature.parameters) == [a for a in args if not a.startswith("*")]
    outs = [a for a in args if a.startswith("*")]
    returned = signature.return_annotation
    assert (len(returned.__args__) if outs else 1) == len(outs) + 1
    assert function.__name__ == f"TBRW_{name}"
    assert "Guide: 9." in function.__doc__
    assert f"``{', '.join(['status', *(o[1:] for o in outs)])}``" in function.__doc__


@pytest.mark.parametrize("name", sorted(PROTOTYPES))
def test_function_called_with_nothing_useful_returns_an_error_of_its_shape(name: str) -> None:
    """No pointer, no numbers: a status, and as many OUT values as the signature says."""
    if name == "get_version":
        assert tbrw.TBRW_get_version() == (0, 2, 3)
        return
    function = getattr(tbrw, f"TBRW_{name}")
    signature = inspect.signature(function)
    found = function(*[None] * len(signature.parameters))
    status, *outs = found if isinstance(found, tuple) else (found,)
    assert status in (tbrw.TBRW_BAD_PARAMETER, tbrw.TBRW_BUFFER_NULL)
    assert len(outs) == sum(a.startswith("*") for a in PROTOTYPES[name])
    assert all(out in (None, 0) for out in outs)


def test_every_function_is_of_the_guide() -> None:
    functions = {n for n in tbrw.__all__ if n.startswith("TBRW_") and inspect.isfunction(getattr(tbrw, n))}
    assert functions == {f"TBRW_{name}" for name in PROTOTYPES}


def test_names_are_sorted_and_there() -> None:
    assert tbrw.__all__ == sorted(set(tbrw.__all__))
    assert all(getattr(tbrw, name) is not None for name in tbrw.__all__)
    with pytest.raises(AttributeError, match="TBRW_unbbind"):
        tbrw.TBRW_unbbind  # noqa: B018


@pytest.mark.parametrize("name", sorted(SIZES))
def test_structure_has_the_size_of_the_c_structure(name: str) -> None:
    assert ctypes.sizeof(getattr(tbrw, name)) == SIZES[name]


@pytest.mark.parametrize(
    "name", sorted(SIZES.keys() - {"TBRW_STRING_OR_ID", "TBRW_CodeDescriptor", "VTUNE_ANALYZER_FILETIME"})
)
def test_structure_fields_stand_where_the_file_has_them(name: str) -> None:
    """ctypes lays out by its own rules; the declarations of the file by theirs."""
    kind = getattr(tbrw, name)
    nested = {"sampling_start_time": 16, "sampling_end_time": 24, "csd": 8}
    for field in kind.declared.fields:
        if hasattr(kind, field.name):
            assert getattr(kind, field.name).offset == field.offset, field.name
        elif field.code != "pointer":
            start = field.name.rpartition("_")[0]
            assert getattr(kind, start).offset == nested[start]
    made = kind()
    if kind.declared.fields[0].name.endswith("_size"):
        assert getattr(made, kind.declared.fields[0].name) == ctypes.sizeof(kind)


def test_bit_fields_have_their_places() -> None:
    sample = tbrw.TBRW_SampleRecordPC(cpuNum=0xABC, codeMode=3, mrIndex=0xFFFFF, eventIndex=0x12, IA64PC=1)
    assert (sample.cpuAndOS, sample.bitFields2) == (0xABC | 3 << 13, 0xFFFFF | 0x12 << 20 | 1 << 29)
    sample = tbrw.TBRW_SampleRecordPC(iip=0x1122334455667788, ipsr=0x99AABBCCDDEEFF00)
    assert (sample.eip, sample.eflags) == (0x55667788, 0x11223344)
    assert (sample.csd.lowWord, sample.csd.highWord) == (0xDDEEFF00, 0x99AABBCC)
    assert tbrw.TBRW_MODULE(module_segment_type=2).module_segment_type == 2


def test_basic_types_are_those_of_the_guide() -> None:
    sizes = {"CHAR": ctypes.sizeof(ctypes.c_wchar), "U8": 1, "U16": 2, "U32": 4, "U64": 8, "S32": 4, "S64": 8, "PTR": 8}
    assert {name: ctypes.sizeof(getattr(tbrw, f"TBRW_{name}")) for name in sizes} == sizes
    assert tbrw.TBRW_PSampleRecordPC(tbrw.TBRW_SampleRecordPC(eip=7)).contents.eip == 7
    assert (tbrw.TRUE, tbrw.FALSE) == (1, 0)


def test_both_spellings_of_the_guide_work() -> None:
    cpu = tbrw.TBRW_CPU(cpu_package_num=3)
    assert cpu.cpu_pacakge_num == 3
    cpu.cpu_pacakge_num = 4
    assert cpu.cpu_package_num == 4
    assert tbrw.TBRW_SAMPREC_DESC_ENTRY(desc_sub_type=32).desc_subtype == 32
    assert tbrw.ST_TIMESTAMP == tbrw.ST_TIME_STAMP == 7


def test_string_fields_take_strings_and_ids() -> None:
    host = tbrw.TBRW_HOST(host_name="one")
    host.host_ip_address = b"\xc3\xa4"
    assert (host.host_name.soi_ptr, host.host_ip_address.soi_ptr) == ("one", "ä")
    host.host_name.soi_ptr = "two"
    assert repr(host) == "TBRW_HOST(host_size=32, host_ip_address='ä', host_name='two', reserved=0)"
    host.host_name = 1 << 63 | 5
    assert host.host_name.soi_uniqueid == 1 << 63 | 5
    assert host.host_name.soi_ptr is None
    host.host_name = None
    assert host.host_name.soi_uniqueid == 0
    with pytest.raises(TypeError):
        host.host_name = 1.5


NUMBERS = {
    "VT_SUCCESS": 0, "TBRW_HARDWARE_SECTION": 0, "TBRW_SOFTWARE_SECTION": 1, "TBRW_PROCESS_THREAD_SECTION": 2,
    "TBRW_MODULE_SECTION": 3, "TBRW_USER_DEFINED_GLOBAL_SECTION": 4, "TBRW_VERSION_INFO_SECTION": 5,
    "TBRW_EVENT_DESCRIPTION_SECTION": 0, "TBRW_DATA_DESCRIPTION_SECTION": 1, "TBRW_DATA_SECTION": 2,
    "TBRW_USER_DEFINED_STREAM_SECTION": 3, "TBRW_STREAM_INFO_SECTION": 4, "TBRW_SAMPLING_STREAM": 1,
    "TBRW_AGGREGATED_STREAM": 2, "TBRW_BOOKMARK_STREAM": 3, "TBRW_BIND_DATA_INFORMATION_STREAM": 4,
    "TBRW_BIND_MODULE_INFORMATION_STREAM": 5, "TBRW_BIND_PID_INFORMATION_STREAM": 6,
    "TBRW_BIND_TID_INFORMATION_STREAM": 7, "TBRW_CUSTOM_STREAM": 8, "TBRW_OSFAMILY_WIN32": 1,
    "TBRW_OSFAMILY_LINUX64": 6,
    "ST_NONE": 0, "ST_LEGACY_SAMPLE_RECORD": 1, "ST_IP": 2, "ST_BRANCH_TRACE": 12, "ST_PMD_PHYSICAL": 19,
    "ST_SAMPLE_LAST": 21, "ST_PROCESS": 0x2000, "ST_END_EXT_SAMPLE_REC_ENTRIES": 0x2FFF,
    "ST_START_USER_DEFINED": 0x4000,
    "ST_END_USER_DEFINED": 0x7FFF, "ST_RESERVED_START": 0x8000, "ST_RESERVED_END": 0xFFFF, "SST_NONE": 0,
    "SST_BLANK_SPACE": 1, "SST_TS_NANOSECONDS": 7, "SST_LBR_TOS": 8, "SST_LBR_FROM_TO": 11, "SST_IIP": 28,
    "SST_TSC": 32,
    "SST_IFA": 36, "SST_RESERVED_START": 0x8000, "TBRW_MODE_16BIT": 1, "TBRW_MODE_32BIT": 2, "TBRW_MODE_64BIT": 3,
    "TBRW_GST_X86": 1, "TBRW_GST_ITANIUM": 2, "TBRW_GST_EM64T": 5, "TBRW_MODULE_IS_EXE": 1,
    "TBRW_MODULE_GLOBAL_LOAD": 2,
    "TBRW_MODULE_TSC_USED": 32, "TBRW_MODULE_1ST_MODULE_REC_IN_PROCESS": 512, "TBRW_SAM_ERROR": 22,
    "TBRW_INVALID_SAMPLE_FILE": 24, "TBRW_SECTION_ALREADY_IN_USE": 77, "TBRW_DATA_DESC_NOT_EXIST": 82,
    "TBRW_INVALID_STRING": 97, "TBRW_BUFFER_TOO_SMALL": 103, "TBRW_TB5_IS_NOT_BOUND": 113, "TBRW_STREAM_NOT_BOUND": 129,
    "TBRW_NO_DATA_TO_WRITE": 145,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(NUMBERS))
def test_number_is_that_of_the_guide_or_the_drivers(name: str) -> None:
    assert getattr(tbrw, name) == NUMBERS[name]


def test_every_status_has_a_text_of_its_own() -> None:
    texts = {status_text(code) for code in tbrw.Status}
    assert len(texts) == len(tbrw.Status)
    assert tbrw.TBRW_error_string(tbrw.TBRW_BUFFER_TOO_SMALL) == (0, "the buffer is too small")
    assert tbrw.TBRW_error_string(1) == (tbrw.TBRW_INVALID_ERROR_CODE, None)


@pytest.mark.parametrize("text", ["", "abc", "añb", "日本", "😀!"])
def test_strings_convert_both_ways(text: str) -> None:
    """9.4: size 0 asks for the size, in characters and in bytes, with the NUL."""
    data = text.encode()
    wide = ctypes.create_unicode_buffer(text)
    assert tbrw.TBRW_convert_utf8_to_wcs(data, None, 0) == (tbrw.TBRW_BUFFER_TOO_SMALL, len(wide))
    buffer = ctypes.create_unicode_buffer(len(wide))
    assert tbrw.TBRW_convert_utf8_to_wcs(data, buffer, len(wide)) == (0, len(wide))
    assert buffer.value == text
    assert tbrw.TBRW_convert_wcs_to_utf8(buffer, None, 0) == (tbrw.TBRW_BUFFER_TOO_SMALL, len(data) + 1)
    back = ctypes.create_string_buffer(len(data) + 1)
    assert tbrw.TBRW_convert_wcs_to_utf8(text, back, len(back)) == (0, len(data) + 1)
    assert back.value == data
    assert tbrw.TBRW_convert_utf8_to_wcs(b"\xff", buffer, 9) == (tbrw.TBRW_INVALID_STRING, 0)
    assert tbrw.TBRW_convert_wcs_to_utf8("\ud800", back, 9) == (tbrw.TBRW_INVALID_STRING, 0)
    assert tbrw.TBRW_convert_wcs_to_utf8(b"abc", back, 9) == (tbrw.TBRW_BAD_PARAMETER, 0)


# -- the documentation


def documented_tests() -> set[tuple[str, str]]:
    """(file, test) of all tests that the tables name."""
    return set(re.findall(r"`tbrw/(test_\w+)::(test_\w+|TestCalls)`", DOCS.read_text()))


def test_documentation_lists_every_function_structure_and_enumeration() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", DOCS.read_text(), re.M)
    named = {name for name, tests in rows if "tbrw/test_" in tests}
    functions = {f"TBRW_{name}" for name in PROTOTYPES}
    types = {
        "TBRW_SECTION_IDENTIFIER",
        "TBRW_STREAM_SECTION_IDENTIFIER",
        "TBRW_STREAM_TYPE",
        "TBRW_DESC_TYPE",
        "TBRW_DESC_SUBTYPE",
    }
    assert functions | SIZES.keys() | types <= named


def test_documentation_names_tests_that_exist() -> None:
    named = documented_tests()
    assert len(named) > 40
    for file, test in named:
        text = (Path(__file__).parent / f"{file}.py").read_text()
        assert re.search(rf"^(?:def {test}\(|class {test}\b|{test} = )", text, re.M), f"{file}::{test}"


def test_documentation_maps_each_status_that_a_rule_has() -> None:
    text = DOCS.read_text()
    for status in tbrw.Status:
        assert f"{status.name} {status.value}" in text, status.name


def test_every_name_has_a_type_in_the_stub() -> None:
    """tools/generate.py --check (another test) holds the stub against the tables."""
    tree = ast.parse(Path(tbrw.__file__ or "").with_suffix(".pyi").read_text())
    functions = {f.name: f for f in tree.body if isinstance(f, ast.FunctionDef)}
    assert sorted(functions) == sorted(f"TBRW_{name}" for name in PROTOTYPES)
    for name, function in functions.items():
        assert [a.arg for a in function.args.args] == list(inspect.signature(getattr(tbrw, name)).parameters), name
        assert all(a.annotation is not None for a in function.args.args), name
        assert "Any" not in ast.unparse(function.returns or ast.Name("Any")), name
    named = set(functions)
    for node in tree.body:
        match node:
            case ast.ClassDef(name) | ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]):
                named.add(name)
            case ast.ImportFrom():
                named |= {a.asname for a in node.names if a.asname}
    assert set(tbrw.__all__) == {n for n in named if not n.startswith("_")}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and hasattr(tbrw, node.name):
            fields = {n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
            assert all(hasattr(getattr(tbrw, node.name), f) for f in fields), node.name
