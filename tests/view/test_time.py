"""Rates over time: held against samples counted one by one, and the verbs under the same part of the time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import lastbranch
import perfdata_writer as pw
from command_line import Ran
from lastbranch import demo
from lastbranch.capture import Options, Summary
from lastbranch.capture.recording import describe
from lastbranch.formats.etl.events.reader import TraceLog
from lastbranch.opening import FileSource
from lastbranch.symbols import SymbolOptions
from lastbranch.view.loaded import MOMENTS, Loaded
from lastbranch.view.questions import ask
from perfdata_writer import Builder
from small_captures import build
from viewer import cells, loaded, looking_at, serving, settled

if TYPE_CHECKING:
    from playwright.sync_api import Browser

QUICK = ("--symfs", demo.symfs(), "--no-symbol-cache", "--symbol-backend", "tables")


@pytest.fixture(scope="module")
def shown() -> Loaded:
    """The demo's capture, with the names that are read most quickly."""
    return replace(loaded(demo.capture(), demo.symfs()), symbols=SymbolOptions(cache=None, backend="tables"))


def table(path: Path | str, **parameters: str) -> tuple[dict[str, np.ndarray], list[int], list[str]]:
    """(by name, a row for each group; their ids; their names)."""
    answer = ask(loaded(path), "time", parameters)
    rows = {name: np.asarray(answer.columns[name]) for name in ("samples", "branches", "mispredicted", "predicted")}
    ids = np.asarray(answer.columns["groups.id"]).tolist()
    return (
        {name: column.reshape(-1, MOMENTS) for name, column in rows.items()},
        ids,
        list(answer.columns["groups.name"]),
    )


def test_each_sample_counts_where_it_was_taken(tmp_path: Path) -> None:
    """30 samples a microsecond apart of two processes: one counted branch is mispredicted and one predicted in each."""
    path = build(tmp_path / "x.data")
    for by, of in (("process", "pid"), ("thread", "tid")):
        rows, ids, _ = table(path, by=by)
        wanted = {name: np.zeros((len(ids), MOMENTS), int) for name in rows}
        (batch,) = lastbranch.open(path).batches()
        first, last = int(batch.time[0]), int(batch.time[-1])
        for i, (time, owner) in enumerate(zip(batch.time.tolist(), batch[of].tolist(), strict=True)):
            part = (time - first) * MOMENTS // (last - first + 1)
            flags = batch["branch_flags"][2 * i : 2 * i + 2].tolist()
            for group in (0, ids.index(owner)):
                wanted["samples"][group, part] += 1
                wanted["branches"][group, part] += 2
                wanted["mispredicted"][group, part] += sum(word & 1 for word in flags)
                wanted["predicted"][group, part] += sum(word >> 1 & 1 for word in flags)
        for name, values in wanted.items():
            assert rows[name].tolist() == values.tolist(), (by, name)
        assert wanted["mispredicted"].sum() == wanted["predicted"].sum() == 60


@pytest.mark.parametrize("chosen", [{}, {"module": "0"}, {"from": "1000050000", "to": "1000200000"}])
def test_sums_are_those_of_the_other_screens(shown: Loaded, chosen: dict[str, str]) -> None:
    answer = ask(shown, "time", {**chosen, "by": "thread"})
    asked = {name: value for name, value in chosen.items() if name == "module"}  # the time is a part that is marked
    assert np.asarray(answer.columns["groups.samples"])[0] == sum(ask(shown, "hot", asked).columns["samples"])
    assert np.asarray(answer.columns["groups.branches"])[0] == ask(shown, "branches", asked).header["count"]
    for name in ("samples", "branches"):
        rows = np.asarray(answer.columns[name]).reshape(-1, MOMENTS)
        assert (rows[0] == rows[1:].sum(axis=0)).all()


@pytest.fixture
def lossy(tmp_path: Path) -> Path:
    """A capture that lost records at two moments."""
    b = Builder(sample_type=pw.IP | pw.TID | pw.TIME)
    for i in range(11):
        b.sample(ip=0x1000, pid=7, tid=7, time=1000 + 100 * i)
        if i in (2, 7):
            b.record("LOST", id=1, lost=10 * i, pid=7, tid=7, time=1001 + 100 * i)
    path = tmp_path / "lost.data"
    path.write_bytes(b.build())
    return path


def lost_in(path: Path) -> dict[int, int]:
    """How many were lost, by the part of the time."""
    lost = np.asarray(ask(loaded(path), "time", {}).columns["lost"])
    return {part: int(lost[part]) for part in np.flatnonzero(lost).tolist()}


def test_losses_are_where_the_source_says(lossy: Path, run: Callable[..., Ran], tmp_path: Path) -> None:
    assert lost_in(lossy) == {201 * MOMENTS // 1001: 20, 701 * MOMENTS // 1001: 70}
    header = ask(loaded(lossy), "time", {}).header
    assert (header["lost"], header["lost_in_time"]) == ({"records": 90}, 90)
    assert run("convert", lossy, tmp_path / "lost.tb5").code == 0
    assert lost_in(tmp_path / "lost.tb5") == lost_in(lossy)
    both = ask(Loaded(lastbranch.open([lossy, tmp_path / "lost.tb5"]), SymbolOptions(cache=None)), "time", {})
    assert both.header["lost_in_time"] == 180


def test_a_trace_log_marks_the_buffers_before_which_it_lost_events(
    lossy: Path, run: Callable[..., Ran], tmp_path: Path
) -> None:
    path = tmp_path / "lost.etl"
    assert run("convert", lossy, path).code == 0
    assert lost_in(path) == {}
    log = TraceLog(FileSource(str(path)))
    row = int(log.index().buffers.offset[-1])
    data = bytearray(path.read_bytes())
    data[row + 0x34] |= 2  # BufferFlag of WMI_BUFFER_HEADER, ETW_BUFFER_FLAG_EVENTS_LOST
    path.write_bytes(data)
    assert sum(lost_in(path).values()) == 1


def test_triggers_without_a_burst_have_their_times(lossy: Path) -> None:
    profile = lastbranch.open(lossy)
    profile.losses, summary = [], Summary(losses=[(1500, 3), (1900, 4)], throttled=7)
    describe(profile, Options(), summary)
    assert profile.losses == [(1500, 3), (1900, 4)]
    assert profile.lost["triggers without a burst (duty limit)"] == 7


def test_many_threads_leave_a_row_for_the_others(tmp_path: Path) -> None:
    b = Builder(sample_type=pw.IP | pw.TID | pw.TIME)
    for i in range(40):
        for tid in range(7, 7 + min(i, 20)):
            b.sample(ip=0x1000, pid=7, tid=tid, time=1000 + i)
    path = tmp_path / "threads.data"
    path.write_bytes(b.build())
    rows, ids, names = table(path, by="thread")
    assert ids == [-1, *range(7, 19), -1]
    assert (names[0], names[-1]) == ("All", "8 others")
    assert (rows["samples"][0] == rows["samples"][1:].sum(axis=0)).all()


def test_a_part_of_the_time_filters_every_screen(run: Callable[..., Ran], browser: Browser, shown: Loaded) -> None:
    with serving(shown) as at, looking_at(browser, f"{at}#/time?table=1") as page:
        parts = cells(page, "Parts of the time")
        samples = np.asarray(ask(shown, "time", {}).columns["samples"])
        assert [row["samples"] for row in parts] == [f"{n:,}" for n in samples[: len(parts)].tolist()]
        page.goto(f"{at}#/time?by=thread")
        settled(page)
        chart = page.locator("[data-group='1'] [data-measure=branches] svg")
        box, ticks = chart.bounding_box(), page.locator(".axis span")
        assert box is not None
        header = ask(shown, "time", {}).header
        for tick in (ticks.first, ticks.last):
            place, said = tick.bounding_box(), float(tick.inner_text().removesuffix(" s"))
            assert place is not None
            share = (said * 1e9 - header["from"]) / (header["to"] - header["from"])
            assert box["x"] + box["width"] * share == pytest.approx(place["x"], abs=1)
        page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 5)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 5)
        page.mouse.up()
        page.wait_for_url("**to=*")
        asked = dict(part.split("=") for part in page.url.partition("?")[2].split("&"))
        page.get_by_role("link", name="Hot").click()
        page.locator("main .answered:not(.pending) [role=grid]").wait_for()
        found = {row["function"]: row["samples"] for row in cells(page, "Functions")}
    span = "..".join(f"{int(asked[name]) / 1e9:.9f}" for name in ("from", "to"))
    words = ("report", demo.capture(), *QUICK, "--by", "function", "--format", "json", "--time", span)
    rows = json.loads(run(*words).out)
    assert found == {row["function"]: f"{row['samples']:,}" for row in rows}
    assert 0 < sum(row["samples"] for row in rows) < shown.profile.samples
