"""What .etl has no field for: our self-describing events bring it back, and other readers are none the worse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lastbranch.bind import bind
from lastbranch.formats.etl import TraceLog, TraceWriter, write_profile
from lastbranch.formats.etl.payload.tracelogging import describe
from lastbranch.formats.etl.profile.supplement import PROVIDER, load_bias
from lastbranch.lbr import flag, flags_from_info
from lastbranch.model import BytesSource, Change, Module, ModuleKind, Profile, Segment, concatenate
from lastbranch.opening import read_profile
from lbr_recordings import Recording, program

SEGMENTS = (Segment(0x0, 0x0, 0x800, False), Segment(0x401000, 0x1000, 0x5000, True))


def recorded() -> Profile:
    recording = Recording()
    program(recording)
    profile = read_profile(BytesSource(recording.data, "prog.data"))
    profile.recorder = "lastbranch software LBR"
    profile.header["not known"] = "mispredictions and cycles"
    profile.lost["triggers without a burst (duty limit)"] = 3
    profile.modules[0].segments = SEGMENTS
    return profile


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "prog.etl"
    assert write_profile(recorded(), path).notes == ("columns left out: addr, id",)
    return path


def opened(path: Path) -> Profile:
    return read_profile(BytesSource(path.read_bytes(), path.name))


def entries(profile: Profile) -> list[tuple[int, ...]]:
    found = []
    for batch in profile.batches(ordered=True):
        for i in range(len(batch)) if "branch_from" in batch else ():
            found += [tuple(map(int, entry)) for entry in zip(*batch.stack(i), strict=True)]
    return found


def threads(profile: Profile) -> list[tuple[object, ...]]:
    """Each once, with its process and its name. One that was there before has no begin."""
    binder = bind(profile).binder
    return sorted((binder.processes[t.process].pid, t.tid, t.name, t.start or 0, t.end or 0) for t in binder.threads)


def test_the_profile_comes_back(log: Path) -> None:
    before, after = recorded(), opened(log)
    assert entries(after) == entries(before)
    assert len(entries(after)) > 500
    for told, event in zip(after.events, before.events, strict=True):
        assert (told.name, told.period, told.branch_select, told.branch_select_kind, told.has_period) == (
            event.name,
            event.period,
            event.branch_select,
            event.branch_select_kind,
            True,
        )
        assert {**event.programming, "interval": event.period}.items() <= told.programming.items()
    identity = {(m.name, m.kind, m.build_id, m.segments) for m in before.modules}
    assert {(m.name, m.kind, m.build_id, m.segments) for m in after.modules} == identity
    assert (after.recorder, after.clock.name) == (before.recorder, before.clock.name)
    assert before.header.items() <= after.header.items()
    assert after.lost == before.lost
    assert after.header["branch records hold"] == "type, privilege"
    lives = [(p.pid, p.name, p.start, p.end) for p in bind(before).binder.processes]
    assert [(p.pid, p.name, p.start, p.end) for p in bind(after).binder.processes] == lives
    assert threads(after) == threads(before)


def test_what_was_not_measured_is_not_known(log: Path) -> None:
    """The type of a branch is; whether it was predicted, and its cycles, are not."""
    words = np.array([flags for *_, flags in entries(opened(log))], np.uint64)
    assert not flag(words, "mispred").any()
    assert not flag(words, "predicted").any()
    assert not flag(words, "cycles").any()
    assert set(flag(words, "type").tolist()) == {0, 1, 3, 4, 6, 9}


def test_elf_images_are_told_whole(log: Path) -> None:
    """Path, build id, load segments, and by how much each mapping was moved."""
    told: dict[str, list[dict[str, object]]] = {}
    for event in TraceLog(BytesSource(log.read_bytes())).events():
        described = describe(event) if event.provider == PROVIDER.bytes_le else None
        if described is not None:
            told.setdefault(described[0].name, []).append(described[0].layout.decode(described[2], 8))
    program_image = next(m for m in told["Module"] if m["Name"] == "/bin/prog")
    assert bytes(program_image["BuildId"]) == bytes(range(20))  # type: ignore[call-overload]
    (segments,) = [s for s in told["Segments"] if s["Module"] == program_image["Number"]]
    assert [list(segments[name]) for name in ("Address", "FileOffset", "Size", "Executable")] == [  # type: ignore[call-overload]
        [0, 0x401000],
        [0, 0x1000],
        [0x800, 0x5000],
        [0, 1],
    ]
    biases = {m["LoadBias"] for m in told["Mapping"] if m["Module"] == program_image["Number"]}
    assert biases == {0x400000 - 0x401000}


@pytest.mark.parametrize(
    ("start", "end", "offset", "bias"),
    [
        (0x401000, 0x407000, 0x1000, 0),
        (0x55550001000, 0x55550007000, 0x1000, 0x55550000000 - 0x400000),
        (0x1000, 0x7000, 0x1000, -0x400000),
        (0xFFFFFFFF80000000, 0xFFFFFFFF80006000, 0x1000, -0x80000000 - 0x401000),
        (0x9000, 0xA000, 0x9000, 0),
    ],
)
def test_load_bias(start: int, end: int, offset: int, bias: int) -> None:
    assert load_bias(Module("a", segments=SEGMENTS), start, end, offset) == bias


def without_ours(log: Path, path: Path) -> Path:
    """The same log as one that ignores our provider has it."""
    trace = TraceLog(BytesSource(log.read_bytes()))
    with TraceWriter(path, trace.header) as writer:
        for event in trace.events():
            if event.provider != PROVIDER.bytes_le and event.hook not in (0x0000, 0x0005, 0x0020):
                writer.add(event)
    return path


def test_readers_that_do_not_know_the_provider_lose_nothing_else(log: Path, tmp_path: Path) -> None:
    ours, theirs = opened(log), opened(without_ours(log, tmp_path / "plain.etl"))
    assert (theirs.samples, theirs.entries, theirs.deepest) == (ours.samples, ours.entries, ours.deepest)
    assert not theirs.damage
    both = [concatenate(list(p.batches(ordered=True))) for p in (ours, theirs)]
    for name in ("time", "ip", "tid", "cpu", "branch_from", "branch_to", "branch_info"):
        assert both[0][name].tolist() == both[1][name].tolist(), name
    # LBR_INFO alone: a word that says anything says "predicted". The types that it has are right.
    flags, known = both[1]["branch_flags"], both[1]["branch_info"] != 0
    assert flags.tolist() == flags_from_info(both[1]["branch_info"]).tolist()
    assert flag(flags, "predicted")[known].all()
    assert set(flag(flags, "type")[known].tolist()) == {0, 1, 3, 4, 6}
    assert [e.branch_select_kind for e in theirs.events] == ["etw", "etw"]


def test_a_log_of_a_log_says_the_same(log: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.etl"
    write_profile(opened(log), again)
    first, second = opened(log), opened(again)
    assert entries(first) == entries(second)
    assert [(e.name, e.period, e.branch_select) for e in first.events] == [
        (e.name, e.period, e.branch_select) for e in second.events
    ]
    assert [(m.name, m.build_id, m.segments) for m in first.modules] == [
        (m.name, m.build_id, m.segments) for m in second.modules
    ]


def test_statements_that_contradict_each_other_are_dropped(log: Path, tmp_path: Path) -> None:
    """Two recordings merged into one log: numbers of modules mean two things."""
    other = recorded()
    other.modules[0] = Module("/bin/third", ModuleKind.FILE, bytes(20))
    second = tmp_path / "second.etl"
    write_profile(other, second)
    merged = tmp_path / "merged.etl"
    from lastbranch.formats.etl import convert
    from lastbranch.opening import open_source

    convert([open_source(str(log)), open_source(str(second))], merged)
    profile = opened(merged)
    assert profile.samples == 2 * recorded().samples
    assert not any(m.build_id for m in profile.modules)
    maps = profile.timeline.columns()
    assert (maps["kind"] == Change.MAP).sum() >= 3
