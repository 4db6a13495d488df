"""CreateMergedTraceFile: what it adds, against what Microsoft's merging wrote into a real trace; merging; refusals."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import etl_builder as build
from command_line import Ran, run_cli
from etl_oracle import real, sample, some_trace
from lastbranch.binaries import read_image
from lastbranch.errors import LastbranchError
from lastbranch.etw import Session
from lastbranch.etw.flags import MergeFlag
from lastbranch.etw.merging import CreateMergedTraceFile, Merged, create_merged_trace_file
from lastbranch.etw.status import EtwError
from lastbranch.formats.etl import Decoder, Event, LogHeader, TraceLog, TraceWriter, kernel_event
from lastbranch.formats.etl.payload.tracelogging import describe
from lastbranch.formats.etl.profile.supplement import EVENTS, module_fields, supplement_event
from lastbranch.model import BytesSource, Module
from lastbranch.opening import FileSource, open_profile
from made_binaries import OPTIONAL, PE, make_pe
from private_registry import registry_at

IMAGE_ID = UUID("b3e675d7-2554-4f18-830b-2762732560de").bytes_le
IMAGE, PROCESS = 0x14, 0x03
GUID = UUID("12345678-9abc-def0-1122-334455667788")


def pe(stamp: int, size: int, pdb: tuple[UUID, int, str] | None = (GUID, 3, "a.pdb")) -> bytes:
    """A PE file with TimeDateStamp and SizeOfImage (PE format: 8 bytes into the file header, 56 into the optional)."""
    record = b"" if pdb is None else b"RSDS" + pdb[0].bytes_le + struct.pack("<I", pdb[1]) + pdb[2].encode() + b"\0"
    data = bytearray(make_pe(record=record or b"RSDS" + bytes(20) + b"\0", entries=None if pdb else []))
    struct.pack_into("<I", data, PE + 8, stamp)
    struct.pack_into("<I", data, OPTIONAL + 56, size)
    return bytes(data)


def image_event(kind: int, time: int, name: str, stamp: int, base: int = 0x7FF0_0000_0000, pid: int = 8) -> Event:
    fields = {"ImageBase": base, "ImageSize": 0x5000, "ProcessID": pid, "TimeDateStamp": stamp, "FileName": name}
    return kernel_event((PROCESS if kind == 10 else IMAGE, kind), time, 8, fields, version=3)


def trace(path: Path, events: list[Event], **header: Any) -> str:
    begun = {"start_time": build.START_TIME} | header
    head = LogHeader(timestamp=1000, processors=8, buffer_size=4096, **begun)
    with TraceWriter(path, head) as writer:
        for event in events:
            writer.add(event)
    return str(path)


def events_of(path: str | Path) -> list[Event]:
    return list(TraceLog(FileSource(str(path))).events(ordered=True))[1:]


def merge(output: Path, *inputs: str, flags: int = MergeFlag.DEFAULT, **options: Any) -> Merged:
    return create_merged_trace_file(str(output), inputs, flags, **options)


# -- PE


def groups() -> Iterator[tuple[Event, Event, Event]]:
    """(ImageID, DbgID_RSDS, image event) as Microsoft's tool wrote them next to each other."""
    before: list[Event] = []
    for event in TraceLog(BytesSource(real("net.4.5.2.x64.etl"))).events(ordered=True):
        if event.provider == IMAGE_ID and event.opcode in (0, 36):
            before.append(event)
        elif event.hook in (0x1403, 0x030A) and [e.opcode for e in before] == [0, 36] and before[0].time == event.time:
            yield before[0], before[1], event
            before = []
        elif event.provider != IMAGE_ID:
            before = []


def ids(e: Event) -> tuple[Any, ...]:
    return e.header, e.time, e.pid, e.tid, e.cpu, e.provider, e.opcode, e.version, e.level


def test_identities_are_those_that_microsofts_tool_writes(tmp_path: Path) -> None:
    """The image events of a real trace alone, and PE files that say what the real ones said: the events that are added
    have the payloads, ids, processor, time and places of the real ones."""
    decoder, symfs, told, images = Decoder(), tmp_path / "symfs", [], []
    for named, rsds, image in groups():
        name = decoder.decode(image).fields["FileName"]
        n, r = decoder.decode(named).fields, decoder.decode(rsds).fields
        if "\\Windows\\" not in name or image.time == (images[-1].time if images else 0):
            continue
        path = symfs.joinpath(*name.partition("HarddiskVolume")[2].split("\\")[1:])
        if path.exists() or n["OriginalFileName"].lower() != path.name.lower():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pe(n["TimeDateStamp"], n["ImageSize"], (r["GuidSig"], r["Age"], r["PDBFileName"])))
        told.append((named, rsds))
        images.append(image)
        if len(images) == 40:
            break
    assert len(images) == 40
    header = TraceLog(BytesSource(real("net.4.5.2.x64.etl"))).header
    source = trace(tmp_path / "in.etl", [], perf_freq=header.frequency)
    with TraceWriter(
        source, LogHeader(timestamp=header.timestamp, start_time=build.START_TIME, processors=8)
    ) as writer:
        for image in images:
            writer.add(image)
    done = merge(tmp_path / "out.etl", source, symfs=str(symfs))
    assert (done.images, done.known, done.found, done.missing, done.added) == (40, 0, 40, {}, 80)
    found = events_of(tmp_path / "out.etl")
    expected = [event for pair, image in zip(told, images, strict=True) for event in (*pair, image)]
    names = [decoder.decode(event).fields.get("OriginalFileName", "") for event in found]
    assert len(found) == len(expected)
    for mine, theirs, name in zip(found, expected, names, strict=True):
        payload = mine.payload
        if name:  # the tool takes the name of the version resource, which may differ in case from that of the file
            payload = payload[: -2 * len(name) - 2] + theirs.payload[-2 * len(name) - 2 :]
        assert ids(mine) == ids(theirs)
        assert payload == theirs.payload


def test_the_reader_takes_them(tmp_path: Path) -> None:
    """By time stamp and size in a symbol store; another file of that name is not it."""
    store = tmp_path / "store" / "a.dll" / "5F0000005000"
    store.mkdir(parents=True)
    (store / "a.dll").write_bytes(pe(0x5F000000, 0x5000))
    other = tmp_path / "store" / "b.dll"
    other.mkdir()
    (other / "b.dll").write_bytes(pe(0x11111111, 0x5000))
    source = trace(
        tmp_path / "in.etl",
        [
            image_event(3, 2000, "C:\\x\\a.dll", 0x5F000000),
            image_event(10, 3000, "C:\\x\\b.dll", 0x22222222, base=0x10000),
            image_event(2, 4000, "C:\\x\\a.dll", 0x5F000000),
        ],
    )
    done = merge(tmp_path / "out.etl", source, folders=[str(tmp_path / "store")])
    assert (done.images, done.found, list(done.missing)) == (3, 2, ["C:\\x\\b.dll"])
    modules = {m.short: m for m in open_profile(tmp_path / "out.etl").modules}
    assert (modules["a.dll"].pdb_guid, modules["a.dll"].pdb_age, modules["a.dll"].pdb_name) == (GUID, 3, "a.pdb")
    assert modules["b.dll"].pdb_guid is None


def test_a_pe_without_a_pdb(tmp_path: Path) -> None:
    (tmp_path / "a.dll").write_bytes(pe(0x5F000000, 0x5000, None))
    source = trace(tmp_path / "in.etl", [image_event(3, 2000, "C:\\a.dll", 0x5F000000)])
    merge(tmp_path / "out.etl", source, folders=[str(tmp_path)])
    added = events_of(tmp_path / "out.etl")
    assert [(e.provider == IMAGE_ID, e.opcode) for e in added] == [(True, 0), (True, 32), (False, 3)]
    assert added[1].payload == struct.pack("<QI", 0x7FF0_0000_0000, 8)


def test_what_is_told_is_not_told_again(tmp_path: Path) -> None:
    (tmp_path / "a.dll").write_bytes(pe(0x5F000000, 0x5000))
    source = trace(tmp_path / "in.etl", [image_event(3, 2000 + n, "C:\\a.dll", 0x5F000000, pid=n) for n in range(5)])
    once = merge(tmp_path / "once.etl", source, folders=[str(tmp_path)])
    twice = merge(tmp_path / "twice.etl", str(tmp_path / "once.etl"), folders=[str(tmp_path)])
    assert (once.added, once.events) == (10, 15)
    assert (twice.added, twice.known, twice.events) == (0, 5, 15)
    assert [e.payload for e in events_of(tmp_path / "once.etl")] == [
        e.payload for e in events_of(tmp_path / "twice.etl")
    ]


def test_without_the_flag_nothing_is_added(tmp_path: Path) -> None:
    (tmp_path / "a.dll").write_bytes(pe(0x5F000000, 0x5000))
    source = trace(tmp_path / "in.etl", [image_event(3, 2000, "C:\\a.dll", 0x5F000000)])
    done = merge(tmp_path / "out.etl", source, flags=MergeFlag.ALL & ~MergeFlag.IMAGEID, folders=[str(tmp_path)])
    assert (done.added, done.events) == (0, 1)


# -- ELF


def elf_with_build_id() -> tuple[str, bytes]:
    for path in (sys.executable, "/bin/true", "/usr/bin/env", "/bin/sh"):
        try:
            image = read_image(FileSource(os.path.realpath(path)))
        except (OSError, LastbranchError):
            continue
        if image.format == "elf" and image.build_id:
            return os.path.realpath(path), image.build_id
    pytest.skip("no ELF program with a build id here")


def test_load_segments_of_an_elf_file(tmp_path: Path) -> None:
    """The recording has the build id; the segments come from the file, if it is that one."""
    path, build_id = elf_with_build_id()
    modules = [
        Module(path, build_id=build_id),
        Module("/bin/other", build_id=b"\1" * 20),
        Module(path, build_id=b"\2" * 20),
    ]
    events = []
    for n, module in enumerate(modules):
        base = 0x10000 + 0x1000000 * n
        mapping = dict(zip(EVENTS["Mapping"], (n, 8, base, 0, 8, base, base + 0x5000, 0, 0), strict=True))
        events += [
            supplement_event("Module", 2000, module_fields(n, module)),
            supplement_event("Mapping", 2000, mapping),
            image_event(3, 2000, module.name, 0, base=base),
        ]
    (tmp_path / "a.dll").write_bytes(pe(0x5F000000, 0x5000))
    source = trace(tmp_path / "in.etl", [*events, image_event(3, 3000, "C:\\a.dll", 0x5F000000)])
    done = merge(tmp_path / "out.etl", source, folders=[str(tmp_path)])
    assert (done.images, done.known, done.found, done.added) == (4, 0, 2, 3)
    assert done.missing[path] == "build id differs"
    said = [d for e in events_of(tmp_path / "out.etl") if (d := describe(e)) and d[0].name == "Segments"]
    (fields,) = (s[0].layout.decode(s[2], 8) for s in said)
    image = read_image(FileSource(path))
    assert fields["Module"] == 0
    assert list(fields["Address"]) == [s.vaddr for s in image.segments]
    assert list(fields["FileOffset"]) == [s.offset for s in image.segments]
    again = merge(tmp_path / "again.etl", str(tmp_path / "out.etl"))
    assert (again.known, again.added) == (2, 0)


# -- merging


def test_several_logs_in_one_time_line(tmp_path: Path) -> None:
    paths = []
    for number in range(3):
        made = build.Trace(header={"start": build.START_TIME, "lost": number})
        for n in range(100):
            made.add(n % 4, sample(made.begin + 1 + 3 * n + number, n % 9))
        path = tmp_path / f"{number}.etl"
        path.write_bytes(bytes(made))
        paths.append(str(path))
    done = merge(tmp_path / "out.etl", *paths)
    found = events_of(tmp_path / "out.etl")
    begin = build.Trace().begin
    assert [event.time - begin for event in found] == list(range(1, 301))
    assert (done.events, done.boots) == (300, 1)
    assert TraceLog(FileSource(str(tmp_path / "out.etl"))).header.events_lost == 3


@pytest.mark.skipif(sys.platform != "linux", reason="the portable kernel runs on Linux")
def test_sessions_of_one_uptime_are_known_as_such(tmp_path: Path) -> None:
    """Whatever their clocks: their process ids mean the same processes, and ticks are taken as they are."""
    paths = [str(tmp_path / f"{number}.etl") for number in range(3)]
    with registry_at(tmp_path / "etw"):
        for path, clock in zip(paths, (1, 1, 2), strict=True):
            with Session("session", path, clock=clock):
                pass
    assert merge(tmp_path / "out.etl", *paths).boots == 1


def test_a_log_without_wall_time_can_be_merged_alone(tmp_path: Path) -> None:
    path = tmp_path / "in.etl"
    path.write_bytes(bytes(some_trace(20, header={"start": 0})))
    assert merge(tmp_path / "out.etl", str(path)).events == 20
    (tmp_path / "a.dll").write_bytes(pe(0x5F000000, 0x5000))
    source = trace(tmp_path / "images.etl", [image_event(3, 2000, "C:\\a.dll", 0x5F000000)], start_time=0)
    done = merge(tmp_path / "out.etl", source, folders=[str(tmp_path)])
    assert (done.events, done.missing) == (1, {source: "without a start time no events can be added"})


def test_compression(tmp_path: Path) -> None:
    source = tmp_path / "in.etl"
    source.write_bytes(bytes(some_trace(2000)))
    merge(tmp_path / "out.etl", str(source), flags=MergeFlag.COMPRESS_TRACE)
    log = TraceLog(FileSource(str(tmp_path / "out.etl")))
    assert log.header.compressed
    assert [e.payload for e in events_of(source)] == [e.payload for e in events_of(tmp_path / "out.etl")]
    assert (tmp_path / "out.etl").stat().st_size < source.stat().st_size


@pytest.mark.parametrize(("modes", "umask"), [((0o644, 0o600), 0o022), ((0o644, 0o644), 0o077)])
def test_nobody_may_read_more_than_before(tmp_path: Path, modes: tuple[int, int], umask: int) -> None:
    paths = []
    for n, mode in enumerate(modes):
        path = tmp_path / f"{n}.etl"
        path.write_bytes(bytes(some_trace(5)))
        path.chmod(mode)
        paths.append(str(path))
    before = os.umask(umask)
    try:
        merge(tmp_path / "out.etl", *paths)
    finally:
        os.umask(before)
    assert (tmp_path / "out.etl").stat().st_mode & 0o777 == 0o600
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0.etl", "1.etl", "out.etl"]


def test_refusals(tmp_path: Path) -> None:
    good = tmp_path / "good.etl"
    good.write_bytes(bytes(some_trace(5)))
    bad = tmp_path / "bad.etl"
    bad.write_bytes(b"x" * 5000)
    (tmp_path / "folder").mkdir()
    out = str(tmp_path / "out.etl")
    cases: list[tuple[str, list[str], int, int]] = [
        (out, [], 1, 87),
        ("", [str(good)], 1, 87),
        (out, [""], 1, 87),
        (str(good), [str(good)], 1, 87),
        (out, [str(tmp_path / "none")], 1, 2),
        (out, [str(bad)], 1, 13),
        (out, [str(good), str(bad)], 0, 13),
        (str(tmp_path / "no" / "out.etl"), [str(good)], 1, 3),
        (str(tmp_path / "folder"), [str(good)], 1, 5),
        (out, [str(good)], MergeFlag.INJECT_ONLY, 50),
    ]
    for output, inputs, flags, status in cases:
        with pytest.raises(EtwError) as caught:
            create_merged_trace_file(output, inputs, flags)
        assert caught.value.status == status, (output, inputs)
        assert CreateMergedTraceFile(output, inputs, flags) == status
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.etl", "folder", "good.etl"]
    assert CreateMergedTraceFile(out, [str(good)], MergeFlag.DEFAULT) == 0


# -- the verb


def run(*arguments: str | Path) -> Ran:
    return run_cli("session", "merge", *arguments)


def test_the_verb(tmp_path: Path) -> None:
    (tmp_path / "a.dll").write_bytes(pe(0x5F000000, 0x5000))
    names = ["C:\\a.dll", *(f"C:\\no{n}.dll" for n in range(7))]
    source = trace(
        tmp_path / "in.etl",
        [image_event(3, 2000 + n, name, 0x5F000000, base=0x10000 * n) for n, name in enumerate(names)],
    )
    out = tmp_path / "out.etl"
    done = run(source, out, "--symbols", tmp_path)
    assert done.code == 0
    assert done.err.splitlines() == [
        "1 of 8 unknown images identified",
        *(f"note: C:\\no{n}.dll: not found" for n in range(5)),
        "note: 2 more images without a binary",
        f"10 events written to {out}, 2 of them added",
    ]
    assert run(source, out).code == 2
    assert "--force" in run(source, out).err
    assert run(source).code == 2
    plain = run(source, out, "--force", "--no-images", "--compress")
    assert (plain.code, plain.err) == (0, f"8 events written to {out}, 0 of them added\n")
    assert TraceLog(FileSource(str(out))).header.compressed
    broken = run(tmp_path / "none", out, "--force")
    assert (broken.code, "(code 2)" in broken.err) == (5, True)
