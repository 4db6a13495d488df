"""Sizes and offsets of the trace API's structures: the committed table, the facts, the compiler."""

from __future__ import annotations

import json
import shutil

import pytest

import make_etw_layouts as made
from lastbranch.etw.structures import LAYOUTS, layout_of, structure

SIZES_64 = {
    "WNODE_HEADER": 48, "EVENT_TRACE_PROPERTIES": 120, "EVENT_TRACE_PROPERTIES_V2": 144, "TRACE_LOGFILE_HEADER": 280,
    "EVENT_TRACE_LOGFILEW": 448, "EVENT_TRACE": 88, "EVENT_HEADER": 80, "EVENT_RECORD": 112, "PROFILE_SOURCE_INFO": 32,
    "TRACE_PROFILE_INTERVAL": 8, "CLASSIC_EVENT_ID": 24, "PERFINFO_GROUPMASK": 32, "TRACE_STACK_CACHING_INFO": 12,
}  # fmt: skip
"""As a program compiled for Windows printed them."""


def test_the_committed_table_is_what_the_declarations_give() -> None:
    assert json.loads(made.TABLE.read_text()) == made.table()


@pytest.mark.parametrize(("name", "size"), SIZES_64.items())
def test_sizes_are_windows(name: str, size: int) -> None:
    assert layout_of(name)["sizeof"] == size


def test_offsets_of_the_properties() -> None:
    wide, narrow = layout_of("EVENT_TRACE_PROPERTIES_V2"), layout_of("EVENT_TRACE_PROPERTIES_V2", 32)
    names = ("LogFileNameOffset", "LoggerNameOffset", "V2Control", "FilterDescCount", "FilterDesc", "V2Options")
    assert [wide[n] for n in names] == [0x70, 0x74, 0x78, 0x7C, 0x80, 0x88]
    assert [narrow[n] for n in names] == [0x6C, 0x70, 0x74, 0x78, 0x7C, 0x80]


def test_the_lbr_event_is_packed() -> None:
    assert layout_of("LBR_TRACE_EVENT_DATA")["Entries"] == 24
    assert layout_of("ETW_LBR_ENTRY", 32) == {"sizeof": 12, "FromAddress": 0, "ToAddress": 4, "Information": 8}


def test_two_names_of_one_value() -> None:
    properties = structure("EVENT_TRACE_PROPERTIES")()
    properties.FlushThreshold = 7
    assert properties.AgeLimit == 7
    properties.Wnode.TimeStamp = 9
    assert properties.Wnode.KernelHandle == 9


@pytest.mark.parametrize("bits", [64, 32])
def test_the_compiler_agrees(bits: int) -> None:
    if shutil.which(made.COMPILERS[bits]) is None:
        pytest.skip(f"{made.COMPILERS[bits]} is not installed")
    done = made.prove(bits)
    assert done.returncode == 0, done.stderr
    assert made.assertions(bits).count("_Static_assert") > 150


def test_the_compiler_would_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which(made.COMPILERS[64]) is None:
        pytest.skip(f"{made.COMPILERS[64]} is not installed")
    text = made.assertions(64).replace("sizeof(EVENT_RECORD) == 112", "sizeof(EVENT_RECORD) == 120")
    monkeypatch.setattr(made, "assertions", lambda bits: text)
    assert "EVENT_RECORD" in made.prove(64).stderr


def test_every_structure_is_in_the_table() -> None:
    assert set(made.table()) == set(LAYOUTS)


def test_the_processor_index_is_both_bytes() -> None:
    """A union in the header: ProcessorNumber and Alignment, or ProcessorIndex."""
    assert structure("ETW_BUFFER_CONTEXT")(3, 1, 9).ProcessorIndex == 0x103
