"""The same API in Python's own terms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tbrw_recipe as recipe
from lastbranch import tbrw
from lastbranch.errors import LastbranchError
from lastbranch.tbrw import Section, StreamSection, TbrwError, open_file
from lastbranch.tbrw.files import record_dtype

INFO = tbrw.TBRW_STREAM_INFO(stream_type=tbrw.TBRW_CUSTOM_STREAM)
ENTRY = tbrw.TBRW_SAMPREC_DESC_ENTRY


def add_stream(file: tbrw.Tb5, entries: list[ENTRY], data: np.ndarray) -> int:
    with file.writing_stream() as stream:
        with stream.writing(StreamSection.STREAM_INFO) as section:
            section.put(INFO)
        with stream.writing(StreamSection.DATA_DESCRIPTION) as section:
            section.put(*entries)
        with stream.writing(StreamSection.DATA) as section:
            section.write(data)
        return stream.number


def test_arrays_come_back_as_they_were_written(tmp_path: Path) -> None:
    layout = np.dtype([("ip", "<u8"), ("lbr", "<u8", (4, 2)), ("small", "u1"), ("odd", "V3"), ("mine", "<u4")])
    records = np.zeros(50_000, layout)
    records["ip"] = np.arange(len(records))
    records["lbr"] = np.arange(len(records) * 8).reshape(-1, 4, 2)
    records["mine"] = records["ip"] * 3
    entries = [
        ENTRY(desc_type=tbrw.ST_IP, desc_offset=0, desc_data_size=8),
        ENTRY(
            desc_type=tbrw.ST_BRANCH_TRACE,
            desc_subtype=tbrw.SST_LBR_FROM_TO,
            desc_offset=8,
            desc_data_size=64,
            desc_name="lbr",
        ),
        ENTRY(desc_type=tbrw.ST_POWER, desc_offset=72, desc_data_size=1, desc_name="small"),
        ENTRY(desc_type=tbrw.ST_NONE, desc_offset=73, desc_data_size=3, desc_name="odd"),
        ENTRY(desc_type=0x4001, desc_offset=76, desc_data_size=4),
    ]
    with open_file(tmp_path / "a.tb5", "w") as file:
        assert add_stream(file, entries, records) == 0
        with file.reading_stream(0) as stream:
            found = stream.array()
            assert found.dtype.names == ("IP", "lbr", "small", "odd", "type_0x4001")
            assert found["IP"].tolist() == records["ip"].tolist()
            assert (found["lbr"] == records["lbr"]).all()
            assert (found["type_0x4001"] == records["mine"]).all()
            assert len(stream.array(49_990)) == 10
            assert sum(len(batch) for batch in stream.batches(7)) == 49_993


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.booleans())
def test_dtype_covers_exactly_what_is_described(sizes: list[int], named: bool) -> None:
    ends = np.cumsum(sizes)
    entries = np.concatenate(
        [
            np.frombuffer(
                bytes(ENTRY(desc_type=2, desc_offset=int(end) - size, desc_data_size=size)), ENTRY.declared.dtype
            )
            for end, size in zip(ends, sizes, strict=True)
        ]
    )
    found = record_dtype(entries, ["same" if named else ""] * len(sizes))
    assert found.itemsize == sum(sizes)
    assert [found.fields[n][0].itemsize for n in found.names] == sizes


def test_tables_come_as_arrays_and_records(tmp_path: Path) -> None:
    recipe.write_recipe(tmp_path / "a.tb5")
    with open_file(tmp_path / "a.tb5") as file:
        with file.reading(Section.MODULE) as section:
            modules = section.array(tbrw.TBRW_MODULE)
            assert modules["module_load_address"].tolist() == [recipe.MODULE_AT]
            assert file.text(int(modules["module_name"][0])) == "sample.exe"
            assert [file.text(m.module_name) for m in section.records(tbrw.TBRW_MODULE)] == ["sample.exe"]
        with file.reading(Section.HARDWARE) as section:
            system = section.get(tbrw.TBRW_SYSTEM)
        assert system.node_array[0].cpu_array[0].cpu_speed_mhz == 3000
        assert [child.node_id for child, _ in system.children()] == [1]
        assert file.text(0) == ""
        with file.reading_stream(0) as stream:
            assert stream.array()["eip"].tolist() == [recipe.SAMPLE_AT]


def test_an_exception_gives_up_what_is_not_done_and_keeps_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "a.tb5"

    def fail() -> None:
        with open_file(path, "w") as file:
            with file.writing(Section.USER_DEFINED_GLOBAL) as section:
                section.write(b"kept")
            with file.writing(Section.MODULE) as section:
                section.put(recipe.module())
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with open_file(path) as file:
        with file.reading(Section.USER_DEFINED_GLOBAL) as section:
            assert section.bytes() == b"kept"
        with pytest.raises(TbrwError), file.reading(Section.MODULE):
            pass


def test_a_reading_section_is_done_whatever_happens(tmp_path: Path) -> None:
    recipe.write_recipe(tmp_path / "a.tb5")
    with open_file(tmp_path / "a.tb5") as file:
        with pytest.raises(ZeroDivisionError), file.reading_stream(0) as stream, stream.reading(StreamSection.DATA):
            raise ZeroDivisionError
        with file.reading_stream(0):
            pass


def test_errors_are_of_the_package_and_say_what_and_where(tmp_path: Path) -> None:
    with pytest.raises(LastbranchError, match=r"no\.tb5.*FILE_OPEN_FAILED, 44"):
        open_file(tmp_path / "no.tb5")
    with pytest.raises(ValueError, match="mode 'x' is none of r, a, w"):
        open_file(tmp_path / "no.tb5", "x")
    recipe.write_recipe(tmp_path / "a.tb5")
    with open_file(tmp_path / "a.tb5") as file:
        with (
            pytest.raises(TbrwError, match="stream 3 does not exist; the file has 1") as caught,
            file.reading_stream(3),
        ):
            pass
        assert caught.value.status == tbrw.TBRW_STREAM_NOT_EXIST
        file.verify()


def test_bind_and_unbind(tmp_path: Path) -> None:
    recipe.write_recipe(tmp_path / "a.tb5")
    with open_file(tmp_path / "a.tb5", "a") as file:
        file.bind(0)
        assert file.is_bound(0)
        with file.reading_stream(0) as stream:
            assert stream.bound().tolist() == [(0, 0, 0)]
        with file.reading(Section.PROCESS_THREAD) as section:
            assert section.array(tbrw.TBRW_PID)["pid_id"].tolist() == [recipe.PID]
        file.unbind(0)
        assert not file.is_bound(0)


def test_a_handle_serves_both_faces(tmp_path: Path) -> None:
    with open_file(tmp_path / "a.tb5", "w") as file:
        assert tbrw.TBRW_writing_section(file.handle, tbrw.TBRW_MODULE_SECTION) == tbrw.VT_SUCCESS
        with pytest.raises(TbrwError, match="SECTION_ALREADY_IN_USE"), file.writing(Section.MODULE):
            pass
        assert tbrw.TBRW_done_section(file.handle, tbrw.TBRW_MODULE_SECTION) == tbrw.VT_SUCCESS
