"""Heads of records: what stands twice is the same, is read where it is enough, and is not believed where it is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tbrw_recipe as recipe
from lastbranch import tbrw
from lastbranch.bind import bind
from lastbranch.formats.tb5.layout import HEADS, Scope, Table
from lastbranch.formats.tb5.profile_writer import ProfileWriter
from lastbranch.formats.tb5.reader import Tb5File
from lastbranch.formats.tb5.verification import verify
from lastbranch.formats.tb5.writer import Tb5Writer
from lastbranch.model import BRANCH, COLUMNS, Event, Profile, SampleBatch, concatenate
from lastbranch.opening import open_profile, open_source
from lastbranch.tbrw.interchange import load_exchange, save_exchange
from tb5_profiles import every_column
from tb5_reader import TB5

DATA, HEAD = Table(Scope.STREAM, 0, 2), Table(Scope.STORE, 0, HEADS)
STACK = {c.name for c in COLUMNS if c.group == BRANCH}
DEPTH = 64


def batch_of(samples: int) -> SampleBatch:
    batch = every_column(samples, DEPTH)
    batch.columns["event"][:] = 0
    return batch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Samples with every column, several blocks of heads."""
    writer = ProfileWriter(tmp_path / "a.tb5")
    stream = writer.stream([c.name for c in COLUMNS], depth=DEPTH)
    for _ in range(3):
        stream.write(batch_of(3000))
    writer.finish(bind(Profile("a", "test", events=[Event("cycles", 1)])))
    return tmp_path / "a.tb5"


def rewritten(path: Path, change: Callable[[np.ndarray], np.ndarray]) -> Path:
    """The file with other heads."""
    out = path.with_name("changed.tb5")
    with Tb5File(open_source(str(path))) as old, Tb5Writer.create(out) as new:
        for key in old.tables:
            rows = old.read(key)
            new.put(key, change(rows) if key == HEAD else rows)
    return out


def flip(path: Path, key: Table, block: int) -> None:
    at = int(Tb5File(open_source(str(path))).offsets(key)[block]) + 100
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def assert_same(path: Path, other: Path, wanted: set[str] | None) -> Profile:
    """Both give the same batches; the profile of ``other``."""
    one, two = (open_profile(p) for p in (path, other))
    expected, found = (concatenate(list(p.streams[0].batches(wanted))) for p in (one, two))
    assert set(found.columns) == set(expected.columns)
    for name, values in expected.columns.items():
        assert np.array_equal(found[name], values), name
    for group, offsets in expected.offsets.items():
        assert np.array_equal(found.offsets[group], offsets), group
    assert len(expected) == 9000
    return two


def test_heads_are_what_the_specification_says(path: Path) -> None:
    other = TB5(path)
    size, heads = other.tables[3, 0, HEADS, 0]
    record, data = other.tables[1, 0, 2, 0]
    assert 4 * size <= record
    assert heads == b"".join(data[at : at + size] for at in range(0, len(data), record))
    branches = [at for kind, _, at, _, name in other.descriptors(0) if kind == 12 and name != b"hw_idx"]
    assert min(branches) == size


@pytest.mark.parametrize(
    "wanted", [(), *(pytest.param(w, marks=pytest.mark.thorough) for w in (("hw_idx", "addr"), ("frame", "raw")))]
)
def test_without_branch_columns_only_heads_are_read(path: Path, tmp_path: Path, wanted: tuple[str, ...]) -> None:
    spoilt = tmp_path / "spoilt.tb5"
    spoilt.write_bytes(path.read_bytes())
    for block in range(Tb5File(open_source(str(path))).tables[DATA].blocks):
        flip(spoilt, DATA, block)
    profile = assert_same(path, spoilt, set(wanted))
    assert profile.damage == []
    every = {c for c in profile.streams[0].columns if c not in STACK}
    for batch in profile.streams[0].batches(every):  # what is asked for comes
        assert every <= set(batch.columns)
    assert profile.damage == []
    for column in STACK:
        assert list(open_profile(spoilt).streams[0].batches((column,))) == [], column


def test_damaged_heads_are_read_from_the_records(path: Path, tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt.tb5"
    spoilt.write_bytes(path.read_bytes())
    flip(spoilt, HEAD, 1)
    profile = assert_same(path, spoilt, set())
    assert [d.reason for d in profile.damage] == ["block 1 of heads of stream 0 is damaged"]
    flip(spoilt, DATA, 1)  # both gone: the rest of that block is lost, and both are told
    profile = open_profile(spoilt)
    assert 0 < sum(map(len, profile.streams[0].batches(()))) < 9000
    assert {d.reason for d in profile.damage} == {
        "block 1 of heads of stream 0 is damaged",
        "block 1 of stream 0 data is damaged",
    }


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda rows: rows[:-1], "heads of stream 0: the records do not match those of the stream"),
        (lambda rows: rows[:, :40].copy(), ""),
        (lambda rows: np.concatenate([rows, rows], axis=1), "heads of stream 0: record 0 differs"),
        (lambda rows: np.concatenate([rows[:5000], rows[5001:5002], rows[5001:]]), "record 5000 differs"),
    ],
    ids=["fewer", "shorter", "longer", "other"],
)
def test_heads_that_are_not_those_of_the_records(
    path: Path, change: Callable[[np.ndarray], np.ndarray], says: str
) -> None:
    """Their number and size are not believed; what they say is, until `verify` compares."""
    changed = rewritten(path, change)
    if "5000" not in says and "record 0" not in says:
        assert_same(path, changed, set())
    found = [d.reason for d in verify(Tb5File(open_source(str(changed))))]
    assert [says in reason for reason in found] == ([True] if says else [])


@pytest.mark.thorough
def test_the_programs_carry_heads_along(path: Path, tmp_path: Path) -> None:
    names, _ = save_exchange(str(path), str(tmp_path / "saved.dat"))
    assert (
        sum(Path(name).stat().st_size for name in names) < path.stat().st_size - TB5(path).tables[3, 0, 3, 0][0] * 8000
    )
    load_exchange(str(tmp_path / "saved.dat"), str(tmp_path / "again.tb5"))
    assert TB5(tmp_path / "again.tb5").tables[3, 0, HEADS, 0] == TB5(path).tables[3, 0, HEADS, 0]


def test_streams_of_other_writers_have_no_heads(path: Path, tmp_path: Path) -> None:
    """Neither in a file that a TBRW program made, and that went through both programs, nor where one was added."""
    recipe.write_recipe(tmp_path / "recipe.tb5")
    save_exchange(str(tmp_path / "recipe.tb5"), str(tmp_path / "saved.dat"))
    load_exchange(str(tmp_path / "saved.dat"), str(tmp_path / "again.tb5"))
    old, new = TB5(tmp_path / "recipe.tb5"), TB5(tmp_path / "again.tb5")
    assert old.texts == new.texts  # in segments of other sizes
    assert {k: v for k, v in new.tables.items() if k[0] != 3} == {k: v for k, v in old.tables.items() if k[0] != 3}
    assert {k[2] for k in new.tables if k[0] == 3} == {1}
    before = TB5(path)
    with tbrw.open_file(path, "a") as file, file.writing_stream() as stream:
        with stream.writing(tbrw.StreamSection.STREAM_INFO) as writer:
            writer.put(recipe.stream_info())
        with stream.writing(tbrw.StreamSection.DATA_DESCRIPTION) as writer:
            writer.put(
                tbrw.TBRW_SAMPREC_DESC_ENTRY(desc_type=tbrw.ST_IP, desc_data_size=8),
                tbrw.TBRW_SAMPREC_DESC_ENTRY(
                    desc_type=tbrw.ST_BRANCH_TRACE,
                    desc_subtype=tbrw.SST_LBR_FROM_TO,
                    desc_offset=8,
                    desc_data_size=512,
                ),
            )
        with stream.writing(tbrw.StreamSection.DATA) as writer:
            writer.write(np.arange(520, dtype=np.uint8))
    after = TB5(path)
    assert before.tables.items() <= after.tables.items()
    assert {k for k in after.tables if k[0] == 3 and k[2] == HEADS} == {(3, 0, HEADS, 0)}
    assert open_profile(path).streams[-1].samples == 1
