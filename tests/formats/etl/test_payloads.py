"""Payloads of ETW events: layouts against what Microsoft's reader printed, byte identity, hostile bytes, LBR and PMC.

Oracle: the ``*.baseline.txt`` beside the captures, printed by TraceEvent's TraceLog. It prints the first five events of
a kind, cuts a value after 20 characters and groups digits by thousands; what it derives rather than reads is listed in
`DERIVED`, every other difference in `DIFFERENT`, each with its reason.
"""

import re
import shutil
import struct
import subprocess
import uuid
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import etl_builder
from etl_oracle import largest_thorough
from etl_payload_truth import BASELINES, RENAMED, baseline, captured, differences, learned, printed_lines, real_events
from lastbranch.errors import FormatError
from lastbranch.formats.etl import Decoded, Decoder, Event, kernel_layout, kernel_names, read_etl
from lastbranch.formats.etl.decode import PAYLOAD
from lastbranch.formats.etl.kernel.hooks import GROUPS, hook_provider, kernel_key
from lastbranch.formats.etl.kernel.layouts import LAYOUTS
from lastbranch.formats.etl.payload.layouts import REST, layout, newest
from lastbranch.formats.etl.payload.types import (
    ANSI,
    BOOL8,
    BOOL32,
    F32,
    F64,
    FILETIME,
    GUID,
    HEX64,
    I8,
    I16,
    I32,
    I64,
    IPV4,
    IPV6,
    PLAIN_SID,
    PORT,
    PTR,
    SID,
    SIZE,
    SYSTEMTIME,
    U8,
    U16,
    U32,
    U64,
    UTF8,
    UTF16,
    WIDE,
    Array,
    Bits,
    CountedBytes,
    CountedString,
    FileTime,
    FixedString,
    Hex,
    Named,
    PayloadRows,
    Rest,
    Short,
    Struct,
)
from lastbranch.model import BytesSource

FILES = (
    "AMSITrace", "SelfDescribingSingleEvent", "ShutdownPerfDiagLogger", "WindowsUpdate.20251008.140245.443.8",
    "diaghub.kernel.1", "gcevents.PerfViewData", "gcrundownevents.PerfViewData.clrRundown", "krabs.powershell",
    "lxcore_kernel", "net.4.5.2.x64", "primitive-types", "smallEtlFile", "syzygy.image_data_32_v0",
    "syzygy.image_data_32_v2", "syzygy.process_data_32_v1", "syzygy.process_data_64_v3",
    "waasmedic.20251005_113019_195",
)  # fmt: skip
LBR_HOOK, PMC_HOOK = 0x0C20, 0x0F2F


# A walker of its own, so that these tests hang on nothing but the decoder.


def kernel_event(hook, payload, *, version=2, pointer=8):
    return Event(
        17 if pointer == 8 else 16,
        pointer,
        0,
        -1,
        -1,
        0,
        hook,
        hook_provider(hook),
        0,
        version,
        hook & 255,
        payload=payload,
    )


# The baselines


KERNEL_PROVIDERS = ("Windows Kernel", "KernelTraceControl", "MSNT_SystemTrace")


@pytest.mark.parametrize("name", largest_thorough(BASELINES))
def test_baseline_kernel(name):
    """Every line about a kernel or merge event: its name and all fields that it prints."""
    checked, wrong = 0, []
    for time, title, size, cpu, printed in printed_lines(baseline(name)):
        if title.partition("/")[0] not in KERNEL_PROVIDERS:
            continue
        found = [(e, d) for e, d in captured(name).find(time, size, cpu) if d.name == RENAMED.get(title, title)]
        assert found, (time, title, size)
        assert all(d.layout == "kernel" and REST not in d.fields for _, d in found)
        results = [differences(name, e, d, printed) for e, d in found]
        wrong += [(time, title, results[0])] if all(results) else []
        checked += 1
    assert not wrong
    assert checked == {"net.4.5.2.x64": 186}.get(name, 1)


UNCOUNTED = {  # events that TraceLog keeps to itself
    "Thread/DCStart", "Thread/DCStop", "StackWalk/Stack", "StackWalk/StackKeyKernel", "StackWalk/StackKeyUser",
    "StackWalk/KeyDelete", "StackWalk/KeyRundown", "FileIO/FileCreate", "FileIO/FileDelete", "FileIO/FileRundown",
    "Image/HypercallPage", "SystemConfig/OpticalMedia", "SystemConfig/DPI", "EventTrace/PartitionInfo",
}  # fmt: skip


@pytest.mark.parametrize("name", largest_thorough(BASELINES))
def test_baseline_kernel_counts(name):
    """The COUNT lines of kernel events; TraceLog drops samples of the idle thread outside of DPCs and interrupts."""
    lines = re.findall(r"^COUNT (.*):(\d+)$", baseline(name), re.M)
    printed = {RENAMED.get(n, n): int(c) for n, c in lines if n.partition("/")[0] in KERNEL_PROVIDERS}
    ours = Counter()
    for event in captured(name).events:
        if kernel_key(event) is not None:
            decoded = captured(name).decoder.decode(event)
            idle = decoded.event_name == "PerfInfo/Sample" and decoded.fields["ThreadID"] == 0
            if idle and not decoded.fields["ExecutingDPC"] and not decoded.fields["ExecutingISR"]:
                continue
            ours[decoded.name] += decoded.event_name not in UNCOUNTED
    assert {n: c for n, c in ours.items() if c} == printed


@pytest.mark.thorough
def test_baseline_response_times():
    """The one derived field that shows whether the ticks are right: response time in ms of disk reads and writes."""
    name, checked = "net.4.5.2.x64", 0
    for time, title, size, cpu, printed in printed_lines(baseline(name)):
        if title in ("Windows Kernel/DiskIO/Read", "Windows Kernel/DiskIO/Write", "Windows Kernel/DiskIO/FlushBuffers"):
            (ticks,) = {
                d.fields["HighResResponseTime"] for _, d in captured(name).find(time, size, cpu) if d.name == title
            }
            assert abs(ticks * 1000 / captured(name).frequency - float(printed["ElapsedTimeMSec"])) < 0.00051
            checked += 1
    assert checked == 12


# Providers whose manifest is in no event of the files: the reader has them built in, or from its own system.
NO_MANIFEST = {
    "net.4.5.2.x64": {"Microsoft-Windows-DotNETRuntimePrivate"},
    "gcevents.PerfViewData": {"Microsoft-Windows-DotNETRuntime"},
    "gcrundownevents.PerfViewData.clrRundown": {"Microsoft-Windows-DotNETRuntimeRundown"},
}
# The reader has classes of its own for these, with names of its own and fields that it works out.
BUILT_IN = (
    "Microsoft-Windows-DotNETRuntime",
    "Microsoft-Windows-DotNETRuntimeRundown",
    "Microsoft-Windows-Kernel-File",
)
BUILT_IN_FIELDS = {
    "ObjectSize": "in later versions only", "ReJITID": "in later versions only",
    "OptimizationTier": "in later versions only", "ClientSequenceNumber": "in later versions only",
    "GenerationSize4": "in later versions only", "TotalPromotedSize4": "in later versions only",
    "ModuleILFileName": "last part of ModuleILPath", "TypeName": "looked up by TypeID",
    "TotalHeapSize": "sum of generations", "TotalPromoted": "sum of generations", "Depth": "of the collection's start",
    "TypeID_0": "first of Values", "TypeName_0": "first of Values",
    "IrpPtr": "Irp in the manifest", "CreateDisposition": "top byte of CreateOptions", "CreateOptions": "the rest",
    "FileAttributes": "CreateAttributes in the manifest", "ShareAccess": "named by System.IO.FileShare",
    "FileName": "as a DOS path",
}  # fmt: skip
MANIFEST_FIELDS = {("DnsServerForInterface", "Address"): "a SOCKADDR, shown as text", ("AssemblyFlags", "0"): "None"}


def test_baseline_manifest():
    """Lines about manifest events whose manifest the file has; the others stay raw."""
    name, checked, raw, wrong = "net.4.5.2.x64", 0, set(), []
    for time, title, size, cpu, printed in printed_lines(baseline(name)):
        provider = title.partition("/")[0]
        if provider in KERNEL_PROVIDERS:
            continue
        found = captured(name).find(time, size, cpu)
        found = [(e, d) for e, d in found if d.layout == "raw" or d.provider_name == provider]
        if provider not in BUILT_IN:
            found = [(e, d) for e, d in found if d.layout == "raw" or d.name == title]
        assert found, title
        if all(d.layout == "raw" for _, d in found):
            raw.add(provider)
            continue
        results = []
        for event, decoded in found:
            assert decoded.layout in ("manifest", "raw")
            left = differences(name, event, decoded, printed)
            if provider in BUILT_IN:
                left = [d for d in left if d[0] not in BUILT_IN_FIELDS]
            left = [d for d in left if (decoded.event_name, d[0]) not in MANIFEST_FIELDS]
            results.append([d for d in left if (d[0], d[2], d[1]) != ("AssemblyFlags", "0", "None")])
        wrong += [(title, results[0])] if all(results) else []
        checked += 1
    assert not wrong
    assert raw == NO_MANIFEST[name]
    assert checked == 236


@pytest.mark.parametrize("name", ["gcevents.PerfViewData", "gcrundownevents.PerfViewData.clrRundown"])
def test_without_manifest_events_stay_raw(name):
    titles = {title.partition("/")[0] for _, title, *_ in printed_lines(baseline(name))}
    assert titles - {"Windows Kernel"} == NO_MANIFEST[name]
    for event in captured(name).events[2:]:
        decoded = captured(name).decoder.decode(event)
        assert decoded.layout == "raw"
        assert decoded.provider_name == str(uuid.UUID(bytes_le=event.provider))
        assert decoded.event_name == f"EventID({event.id})"
        assert decoded.fields == {PAYLOAD: event.payload}
        assert decoded.reason


# Every event of every real file

COVERED = {  # events by layout: kernel, tracelogging, manifest, raw
    "AMSITrace": (2, 19, 0, 0),
    "SelfDescribingSingleEvent": (22, 1, 0, 0),
    "ShutdownPerfDiagLogger": (17078, 0, 0, 0),
    "WindowsUpdate.20251008.140245.443.8": (2, 80, 0, 0),
    "diaghub.kernel.1": (16334, 0, 0, 1),
    "gcevents.PerfViewData": (2, 0, 0, 69),
    "gcrundownevents.PerfViewData.clrRundown": (2, 0, 0, 110),
    "krabs.powershell": (2, 0, 0, 112),
    "lxcore_kernel": (2, 2, 0, 0),
    "net.4.5.2.x64": (111331, 0, 66516, 1627),
    "primitive-types": (2, 5, 0, 0),
    "smallEtlFile": (1, 0, 0, 1),
    "syzygy.image_data_32_v0": (27, 0, 0, 0),
    "syzygy.image_data_32_v2": (27, 0, 0, 0),
    "syzygy.process_data_32_v1": (3, 0, 0, 0),
    "syzygy.process_data_64_v3": (9, 0, 0, 0),
    "waasmedic.20251005_113019_195": (4, 17, 0, 0),
}
WRONG_POINTERS = "syzygy.process_data_64_v3"
"""Written by a 32-bit program with payloads of 64-bit systems (SOURCES.md there)."""


@pytest.mark.parametrize("name", largest_thorough(FILES))
def test_every_kernel_event_has_a_layout_and_comes_back_byte_for_byte(name):
    events = real_events(name)
    decoder = learned(events, pointer_size=8 if name == WRONG_POINTERS else None)
    layouts = Counter()
    for event in events:
        decoded = decoder.decode(event)
        layouts[decoded.layout] += 1
        if kernel_key(event) is not None:
            assert decoded.layout == "kernel", decoded
            assert REST not in decoded.fields, decoded
            assert decoder.encode(event, decoded) == event.payload
    assert tuple(layouts[kind] for kind in ("kernel", "tracelogging", "manifest", "raw")) == COVERED[name]


def test_wrong_pointer_size_still_comes_back():
    """Without the override the fields are wrong, the bytes are not."""
    decoder = Decoder()
    for event in real_events(WRONG_POINTERS):
        decoded = decoder.decode(event)
        assert decoder.encode(event, decoded) == event.payload
    assert REST in decoded.fields


def test_wrong_pointer_size_overridden():
    decoder = Decoder(pointer_size=8)
    start = next(e for e in real_events(WRONG_POINTERS) if e.opcode == 1)
    fields = decoder.decode(start).fields
    assert fields["ImageFileName"] == "notepad.exe"
    assert fields["UserSID"].startswith("S-1-5-21-")
    assert "notepad" in fields["CommandLine"]


def test_header_event_is_read_whole():
    head = real_events("waasmedic.20251005_113019_195")[0]
    fields = Decoder().decode(head).fields
    assert len(fields) == len(kernel_layout((0, 0), 2).names) == 30
    assert (fields["StandardName"], fields["DaylightBias"]) == ("@tzres.dll,-212", -60)
    assert fields["PointerSize"] == 8


# LBR and PMC events: no public file has them


def test_lbr_64():
    payload = bytes.fromhex(
        "15 81 e9 7d f4 10 22 11"  # 00 TimeStamp: that of the event that triggered it
        "1c 0d 00 00 e0 14 00 00"  # 08 ProcessId 3356, ThreadId 5344
        "c4 03 00 00 00 00 00 00"  # 10 Options: call stack, far branches, near jumps, JCC; Unused
        "10 10 40 00 00 00 00 00  00 20 40 00 00 00 00 00  2a 00 00 00 00 00 00 80"  # 18 newest: mispredict, 42 cycles
        "f0 1f 40 00 00 00 00 00  00 10 40 00 00 00 00 00  07 00 00 00 00 00 00 00"  # 30 the one before it
        "45 23 01 80 00 f8 ff ff  00 00 e0 80 00 f8 ff ff  00 00 00 00 00 00 00 00"  # 48 kernel to kernel
    )
    decoder, event = Decoder(), kernel_event(LBR_HOOK, payload)
    decoded = decoder.decode(event)
    assert decoded.name == "Windows Kernel/LastBranchRecording/Sample"
    assert decoded.fields == {
        "TimeStamp": 0x112210F47DE98115,
        "ProcessID": 3356,
        "ThreadID": 5344,
        "Options": 0x3C4,
        "Unused": 0,
        "FromAddress": [0x401010, 0x401FF0, 0xFFFFF80080012345],
        "ToAddress": [0x402000, 0x401000, 0xFFFFF80080E00000],
        "Information": [0x8000_0000_0000_002A, 7, 0],
    }
    assert str(decoded.fields["Options"]) == (
        "FILTER_JCC|FILTER_NEAR_IND_JMP|FILTER_NEAR_REL_JMP|FILTER_FAR_BRANCH|CALLSTACK_ENABLE"
    )
    assert decoder.encode(event, decoded) == payload


LBR_32 = bytes.fromhex(
    "15 81 e9 7d f4 10 22 11"  # 00 TimeStamp
    "1c 0d 00 00 e0 14 00 00"  # 08 ProcessId, ThreadId
    "03 00 00 00"  # 10 Options
    "%s"  # 14 Unused, or the entries at once
    "10 10 40 00 00 20 40 00 2a 00 00 00"
    "f0 1f 40 00 00 10 40 00 07 00 00 00".replace("%s", "")
)


@pytest.mark.parametrize("unused", [b"", b"\x01\0\0\0"], ids=["entries at 0x14", "documented"])
@pytest.mark.parametrize("entries", [0, 1, 2])
def test_lbr_32(unused, entries):
    """Both forms of 32-bit events: which it is follows from the size."""
    payload = LBR_32[:0x14] + unused + LBR_32[0x14 : 0x14 + 12 * entries]
    decoder, event = Decoder(), kernel_event(LBR_HOOK, payload, pointer=4)
    fields = decoder.decode(event).fields
    assert fields.get("Unused") == (1 if unused else None)
    assert fields["FromAddress"] == [0x401010, 0x401FF0][:entries]
    assert fields["ToAddress"] == [0x402000, 0x401000][:entries]
    assert fields["Information"] == [42, 7][:entries]
    assert REST not in fields
    assert decoder.encode(event, fields) == payload


@pytest.mark.parametrize("extra", [1, 3, 7, 11])  # 8 would make two whole entries of the other form
@pytest.mark.parametrize("pointer", [4, 8])
def test_lbr_with_broken_last_entry(extra, pointer):
    payload = LBR_32[:0x18] + bytes(range(1, 3 * pointer + 1)) + b"x" * extra
    decoder, event = Decoder(), kernel_event(LBR_HOOK, payload, pointer=pointer)
    fields = decoder.decode(event).fields
    assert len(fields["FromAddress"]) == 1
    assert fields[REST] == b"x" * extra
    assert decoder.encode(event, fields) == payload


def test_pmc_interrupt_and_names():
    payload = bytes.fromhex(
        "10 10 40 00 00 00 00 00"  # InstructionPointer
        "e0 14 00 00"  # ThreadId
        "06 00 00 00"  # ProfileSource: branch instructions; reserved
    )
    decoder, event = Decoder(), kernel_event(PMC_HOOK, payload)
    decoded = decoder.decode(event)
    assert decoded.name == "Windows Kernel/PerfInfo/PMCSample"
    assert decoded.fields == {"InstructionPointer": 0x401010, "ThreadID": 5344, "ProfileSource": 6, "Reserved": 0}
    assert decoder.encode(event, decoded) == payload
    names = bytes.fromhex("02 00 00 00") + "LbrInserts\0CacheMisses\0".encode("utf-16-le")
    config = kernel_event(0x0F30, names)
    assert decoder.decode(config).fields == {"Names": ["LbrInserts", "CacheMisses"]}
    assert decoder.encode(config, {"Names": ["LbrInserts", "CacheMisses"]}) == names
    lying = kernel_event(0x0F30, b"\xff\xff\xff\xff" + names[4:])
    assert decoder.decode(lying).fields == {REST: lying.payload}


PROGRAM = Path(__file__).parents[2] / "data" / "etl_documented_events.c"
COMPILERS = {  # what makes the object file, what takes a section out of it
    "gcc": (["gcc"], "objcopy", 8),
    "gcc -m32": (["gcc", "-m32"], "objcopy", 4),
    "mingw32": (["i686-w64-mingw32-gcc"], "i686-w64-mingw32-objcopy", 4),
    "mingw64": (["x86_64-w64-mingw32-gcc"], "x86_64-w64-mingw32-objcopy", 8),
}


@pytest.mark.parametrize(
    ("compiler", "unused"),
    # Only readers of 32-bit events leave Unused out.
    [(name, unused) for name, (*_, pointer) in COMPILERS.items() for unused in (True, False) if unused or pointer == 4],
)
def test_structures_as_a_compiler_lays_them_out(compiler, unused, tmp_path):
    """The documented structures as C data, compiled (never run) and read back as payloads."""
    command, copy, pointer = COMPILERS[compiler]
    if not shutil.which(command[0]) or not shutil.which(copy):
        pytest.skip(f"{command[0]} or {copy} is not installed")
    made = tmp_path / "events.o"
    options = ["-c", "-std=c11", "-ffreestanding", *([] if unused else ["-DWITHOUT_UNUSED"])]
    probe = subprocess.run(
        [*command, *options, "-xc", "-", "-o", made], input=b"#include <stdint.h>\n", capture_output=True
    )
    if probe.returncode:
        pytest.skip(f"{compiler} does not compile here: {probe.stderr.decode()[:200]}")
    subprocess.run([*command, *options, PROGRAM, "-o", made], check=True)
    payloads = {}
    for section in ("lbr", "pmc", "smp", "stk"):
        raw = tmp_path / section
        subprocess.run([copy, "-O", "binary", "-j", f".{section}", made, raw], check=True)
        size = {
            "lbr": 0x14 + 4 * unused + 3 * 3 * pointer,
            "pmc": pointer + 8,
            "smp": pointer + 8,
            "stk": 16 + 3 * pointer,
        }[section]
        payloads[section] = raw.read_bytes()
        assert not any(payloads[section][size:]), "more than the padding of the section"
        payloads[section] = payloads[section][:size]
    decoder = Decoder()
    lbr = kernel_event(LBR_HOOK, payloads["lbr"], pointer=pointer)
    high = 0xFFFFF80000000000 if pointer == 8 else 0
    fields = decoder.decode(lbr).fields
    assert decoder.encode(lbr, fields) == lbr.payload
    assert fields.pop("Unused", None) == (0 if unused else None)
    assert fields == {
        "TimeStamp": 0x0123456789ABCDEF,
        "ProcessID": 4242,
        "ThreadID": 4343,
        "Options": 0x200,
        "FromAddress": [0x401010, 0x401FF0, high | 0x80012345],
        "ToAddress": [0x402000, 0x401000, high | 0x80E00000],
        "Information": [42, 7, (1 << (8 * pointer - 1)) | 1],
    }
    assert decoder.decode(kernel_event(PMC_HOOK, payloads["pmc"], pointer=pointer)).fields == {
        "InstructionPointer": 0x401010,
        "ThreadID": 4343,
        "ProfileSource": 6,
        "Reserved": 0,
    }
    sample = decoder.decode(kernel_event(0x0F2E, payloads["smp"], pointer=pointer)).fields
    assert sample == {
        "InstructionPointer": 0x401010,
        "ThreadID": 4343,
        "Count": 3,
        "ExecutingDPC": True,
        "ExecutingISR": False,
        "FlagsReserved": False,
        "Priority": 9,
        "Rank": 5,
    }
    in_a_file(payloads, pointer, high)


def in_a_file(payloads, pointer, high):
    """The same bytes as the events of a log, read as a profile."""
    time, bits = 0x0123456789ABCDEF, 8 * pointer
    trace = etl_builder.Trace(bits=bits)
    later = {"pmc": (0x0F2F, 0), "stk": (0x1820, 50), "lbr": (0x0C20, 0)}  # a stack's own time is that of its writing
    for section, (hook, delay) in later.items():
        trace.add(1, etl_builder.perfinfo(hook, time + delay, payloads[section], bits=bits))
    profile = read_etl(BytesSource(bytes(trace)))
    (batch,) = profile.batches()
    (sample,) = zip(*(batch[name].tolist() for name in ("time", "ip", "tid", "cpu", "event")), strict=True)
    assert sample == (time, 0x401010, 4343, 1, 0)
    assert (profile.events[0].name, profile.events[0].branch_select) == ("BranchInstructions", 0x200)
    assert batch["branch_from"].tolist() == [0x401010, 0x401FF0, high | 0x80012345]
    assert batch["branch_to"].tolist() == [0x402000, 0x401000, high | 0x80E00000]
    assert batch["branch_info"].tolist() == [42, 7, 1 << (bits - 1) | 1]
    assert [flags & 3 for flags in batch["branch_flags"].tolist()] == ([2, 2, 1] if pointer == 8 else [0, 0, 0])
    assert batch.chain(0).tolist() == [0x401010, 0x401FF0, 0x402010]
    assert (profile.damage, profile.lost) == ([], {})


# Which layout an event gets


def test_unknown_version_takes_the_newest_lower_one():
    event = kernel_event(0x0F2E, bytes(16) + b"new", version=7)
    decoded = Decoder().decode(event)
    assert decoded.layout == "kernel"
    assert decoded.fields[REST] == b"new"
    assert Decoder().encode(event, decoded) == event.payload
    versions = {1: layout(A=U8), 3: layout(A=U16)}
    assert newest(versions, 0) is None
    assert [newest(versions, n) for n in (1, 2, 3, 9)] == [versions[n] for n in (1, 1, 3, 3)]


def test_what_has_no_layout_is_raw():
    decoder = Decoder()
    old = decoder.decode(kernel_event(0x0F2E, b"1234", version=1))
    assert (old.layout, old.name, old.fields) == ("raw", "Windows Kernel/PerfInfo/Sample", {PAYLOAD: b"1234"})
    assert "version 1" in old.reason
    unknown = kernel_event(0x0052, b"1234")
    assert decoder.decode(unknown).name == "Windows Kernel/EventTrace/Opcode(82)"
    assert decoder.encode(unknown, decoder.decode(unknown)) == b"1234"
    assert decoder.decode(kernel_event(0x3F01, b"")).name == "Windows Kernel/Group(0x3f)/Opcode(1)"
    with pytest.raises(FormatError, match="no layout"):
        decoder.encode(unknown, {"Value": 1})


def test_classic_headers_share_the_kernel_tables():
    image = bytes.fromhex("2cb15d1d5fc111d2abe100a0c911f518")
    assert image  # as text; the file has the first three parts turned round
    payload = struct.pack("<QI", 0x400000, 4096) + "a.dll\0".encode("utf-16-le")
    event = Event(20, 8, 0, 1, 2, 0, -1, uuid.UUID(bytes=image).bytes_le, 0, 0, 10, payload=payload)
    decoded = Decoder().decode(event)
    assert decoded.name == "Windows Kernel/Image/Load"
    assert decoded.fields == {"ImageBase": 0x400000, "ImageSize": 4096, "FileName": "a.dll"}
    assert hook_provider(0x030A) == uuid.UUID(bytes=image).bytes_le == hook_provider(0x1402)
    assert hook_provider(0x3F01) == bytes(16)


def test_tables_are_consistent():
    assert len({guid for guid, _ in GROUPS.values()}) == len(GROUPS) == 31
    for key, versions in LAYOUTS.items():
        assert "Opcode(" not in kernel_names(key)[1] or key == ("9b79ee91-b5fd-41c0-a243-4248e266e9d0", 37), key
        for known in versions.values():
            assert len(set(known.names)) == len(known.names)
            assert REST not in known.names


def test_offsets_of_the_fixed_fields():
    sample = kernel_layout((0x0F, 0x2E), 2)
    assert sample.offsets(8) == {
        "InstructionPointer": (0, "Q"),
        "ThreadID": (8, "I"),
        "Count": (12, "H"),
        "Flags": (14, "B"),
        "Rank": (15, "B"),
    }
    assert sample.offsets(4)["ThreadID"] == (4, "I")
    assert list(kernel_layout((0x14, 10), 2).offsets(8))[-1] == "Reserved4"


def test_values_out_of_range_are_refused():
    event = kernel_event(0x0F2E, bytes(16))
    fields = Decoder().decode(event).fields
    for change in ({"ThreadID": -1}, {"Count": 1 << 16}, {"Priority": 32}, {"InstructionPointer": "x"}):
        with pytest.raises(FormatError, match=r"cannot be written: (\w+): ") as refused:
            Decoder().encode(event, {**fields, **change})
        assert "argument" not in str(refused.value)
        assert "format" not in str(refused.value)
    del fields["Rank"], fields["Priority"]
    with pytest.raises(FormatError, match="Flags: 'Priority'"):  # one part of a number alone
        Decoder().encode(event, fields)
    with pytest.raises(FormatError):
        Decoder().encode(kernel_event(0x0F22, b""), {"Message": "a\0b"})


def test_strings_cut_by_the_event():
    """Half a name is shown, never what lies behind the event, and the same half comes back."""
    text = "\\Device\\HarddiskVolume2".encode("utf-16-le")
    for size in range(8, 8 + len(text) + 3):
        payload = (bytes(8) + text + b"\0\0")[:size]
        event = kernel_event(0x0424, payload)
        fields = Decoder().decode(event).fields
        assert "\\Device\\HarddiskVolume2".startswith(fields.get("FileName", ""))
        assert REST not in fields
        assert Decoder().encode(event, fields) == payload


def sid_block(pointer, *, head):
    return (head or b"\x10").ljust(2 * pointer, b"\0") + bytes.fromhex("01 01 00 00 00 00 00 05 12 00 00 00")


@pytest.mark.parametrize("pointer", [4, 8])
def test_sid_rule(pointer):
    """No SID: 4 zero bytes. A zero TOKEN_USER with a SID behind it is one all the same, as some writers have it."""
    for block, text in (
        (sid_block(pointer, head=b"\x10\x20"), "S-1-5-18"),
        (sid_block(pointer, head=b"\0"), "S-1-5-18"),
        (bytes(4), ""),
    ):
        data = block + b"notepad.exe\0" + bytes(32)
        value, after = SID.decode(data, 0, len(data), pointer)
        assert (value, after) == (text, len(block))
        assert SID.encode(value, pointer) == block
    assert SID.encode("S-1-5-18", pointer) == sid_block(pointer, head=b"\1")
    assert (
        PLAIN_SID.decode(bytes.fromhex("01 01 ff 00 00 00 00 05 12 00 00 00"), 0, 12, 8)[0] == "S-1-0xff0000000005-18"
    )


def test_values_show_themselves():
    assert str(Hex(255)) == "0xff"
    assert str(FileTime(132756587715170000)) == "2021-09-09T10:59:31.5170000Z"
    assert str(FileTime((1 << 64) - 1)) == "0xffffffffffffffff"
    assert str(Named(6, {0: "None", 2: "B", 4: "C", 6: "BC"}, True)) == "B|C"
    assert str(Named(9, {1: "A"}, True)) == "A|0x8"
    assert [str(Named(n, {0: "None", 1: "A"})) for n in (0, 1, 7)] == ["None", "A", "7"]
    assert Named(6, {}) == 6


# Properties

text = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)
any_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


def unsigned(bits):
    return st.integers(0, (1 << bits) - 1)


def signed(bits):
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


sids = st.builds(
    lambda authority, subs: "-".join(map(str, ("S", 1, authority, *subs))),
    unsigned(32),
    st.lists(unsigned(32), max_size=15),
)
moments = st.datetimes(datetime(1601, 1, 1), datetime(9999, 12, 31)).map(
    lambda m: f"{m.replace(microsecond=0).isoformat()}.{m.microsecond // 1000:03d}"
)
FLAGS = Bits(U8, Low=(0x07, 0), One=(0x08, 3), High=(0xF0, 4))
ROWS = PayloadRows(A=PTR, B=U16)
rows = st.lists(st.tuples(unsigned(32), unsigned(16)), min_size=1).map(lambda r: tuple(map(list, zip(*r, strict=True))))
TYPES = {
    "u8": (U8, unsigned(8)), "u16": (U16, unsigned(16)), "u32": (U32, unsigned(32)), "u64": (U64, unsigned(64)),
    "i8": (I8, signed(8)), "i16": (I16, signed(16)), "i32": (I32, signed(32)), "i64": (I64, signed(64)),
    "hex": (HEX64, unsigned(64)), "pointer": (PTR, unsigned(32)), "size": (SIZE, unsigned(32)),
    "bool8": (BOOL8, st.booleans()), "bool32": (BOOL32, st.booleans()), "port": (PORT, unsigned(16)),
    "f32": (F32, st.floats(width=32, allow_nan=False)), "f64": (F64, st.floats(allow_nan=False)),
    "guid": (GUID, st.uuids()), "filetime": (FILETIME, unsigned(64)), "systemtime": (SYSTEMTIME, moments),
    "ipv4": (IPV4, st.ip_addresses(v=4).map(str)), "ipv6": (IPV6, st.ip_addresses(v=6).map(str)),
    "wide": (WIDE, text), "ansi": (ANSI, text), "fixed": (FixedString(44, UTF16), text),
    "fixed ansi": (FixedString(88, UTF8), text), "counted": (CountedString(U16, UTF16), any_text),
    "counted ansi": (CountedString(U16, UTF8), any_text),
    "counted characters": (CountedString(U16, UTF16, 2), any_text),
    "sid": (PLAIN_SID, sids), "process sid": (SID, sids), "bytes": (CountedBytes(U16), st.binary(max_size=40)),
    "rest": (Rest(), st.binary()), "array": (Array(U32, U16), st.lists(unsigned(32))),
    "array of two": (Array(PTR, 2), st.lists(unsigned(32), min_size=2, max_size=2)),
    "array to the end": (Array(PTR), st.lists(unsigned(32))), "strings": (Array(WIDE, U32), st.lists(text)),
    "strings to the end": (Array(WIDE), st.lists(text)),
    "bits": (FLAGS, st.tuples(st.integers(0, 7), st.booleans(), st.integers(0, 15))), "rows": (ROWS, rows),
    "struct": (Struct({"A": U8, "B": WIDE}), st.fixed_dictionaries({"A": unsigned(8), "B": text})),
}  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_values_come_back(kind, data):
    type_, values = TYPES[kind]
    value, pointer = data.draw(values), data.draw(st.sampled_from([4, 8]))
    raw = type_.encode(value, pointer)
    assert type_.decode(b"\xa5" + raw, 1, 1 + len(raw), pointer) == (value, 1 + len(raw))


@pytest.mark.parametrize("kind", TYPES)
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_bytes_come_back_and_nothing_past_the_end_is_read(kind, data):
    type_, _ = TYPES[kind]
    raw, pointer = data.draw(st.binary(max_size=120)), data.draw(st.sampled_from([4, 8]))
    try:
        value, after = type_.decode(raw, 0, len(raw), pointer)
    except Short:
        with pytest.raises(Short):  # and so it is where other bytes follow
            type_.decode(raw + b"\0" * 64, 0, len(raw), pointer)
        return
    assert after <= len(raw)
    assert type_.encode(value, pointer) == raw[:after]
    again, same_after = type_.decode(raw + b"\xff" * 64, 0, len(raw), pointer)
    assert (repr(again), same_after) == (repr(value), after)


@given(st.sampled_from(sorted(LAYOUTS, key=str)), st.binary(max_size=900), st.sampled_from([4, 8]), st.data())
@settings(max_examples=600, deadline=None)
def test_any_payload_of_any_layout_comes_back(key, payload, pointer, data):
    known = LAYOUTS[key][data.draw(st.sampled_from(sorted(LAYOUTS[key])))]
    fields = known.decode(payload, pointer)
    assert set(fields) <= {*known.names, REST}
    assert known.encode(fields, pointer) == payload


def events(payloads):
    providers = [
        uuid.UUID(guid).bytes_le
        for guid in (
            "b3e675d7-2554-4f18-830b-2762732560de",
            "bbccf6c1-6cd1-48c4-80ff-839482e37671",
            "2cb15d1d-5fc1-11d2-abe1-00a0c911f518",
        )
    ]
    return st.builds(
        Event,
        header=st.sampled_from([1, 2, 3, 4, 10, 11, 16, 17, 18, 19, 20, 21]),
        pointer_size=st.sampled_from([4, 8]),
        time=st.just(0),
        pid=st.just(-1),
        tid=st.just(-1),
        cpu=st.just(0),
        hook=st.sampled_from([-1, -1, *(k[0] << 8 | k[1] for k in LAYOUTS if isinstance(k[0], int))]),
        provider=st.sampled_from([*providers, bytes(16)]),
        id=st.sampled_from([0, 1, 65534]),
        version=st.integers(0, 7),
        opcode=st.sampled_from([0, 1, 32, 33, 36, 64]),
        channel=st.sampled_from([0, 11]),
        payload=payloads,
        extended=st.lists(st.tuples(st.sampled_from([1, 11, 12]), payloads), max_size=3),
    )


@given(st.lists(events(st.binary(max_size=300)), max_size=8))
@settings(max_examples=400, deadline=None)
def test_no_event_makes_the_decoder_fail(found):
    decoder = learned(found)
    for event in found:
        decoded = decoder.decode(event)
        assert isinstance(decoded, Decoded)
        assert decoded.name
        for value in decoded.fields.values():
            str(value)
        if decoded.layout == "kernel" or kernel_key(event) is not None:
            assert decoder.encode(event, decoded) == event.payload
