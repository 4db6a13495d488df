"""Recordings in several files: each is whole, and together they are what one would be."""

from __future__ import annotations

import io
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from capture_tools import FREESTANDING, build, needs_ptrace
from lastbranch.capture.full_disk import Overflow
from lastbranch.capture.options import Summary, SwitchOutput
from lastbranch.capture.software.record_writer import RECORDS, BurstSample, RecordWriter
from lastbranch.capture.switch_output import CarriedState, Parts, Switcher
from lastbranch.errors import SelectionError
from lastbranch.formats.perfdata.writer import MappedCode
from lastbranch.lbr import PERF_SELECT
from lastbranch.model import Profile
from lastbranch.model.atomic_output import PartFile
from lastbranch.opening import open_profile
from waiting import until


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("100M", SwitchOutput(size=100 << 20)),
        ("1G", SwitchOutput(size=1 << 30)),
        ("4096B", SwitchOutput(size=4096)),
        ("1.5K", SwitchOutput(size=1536)),
        ("30s", SwitchOutput(seconds=30)),
        ("5m", SwitchOutput(seconds=300)),
        ("2h", SwitchOutput(seconds=7200)),
        ("1d", SwitchOutput(seconds=86400)),
        ("", None),
        ("10", None),
        ("0s", None),
        ("5B", None),
        ("-1s", None),
        ("1 s", None),
        ("s", None),
        ("1e9s", None),
        ("1KB", None),
    ],
)
def test_sizes_and_times_are_perfs(text: str, wanted: SwitchOutput | None) -> None:
    if wanted is not None:
        assert SwitchOutput.parse(text) == wanted
        return
    with pytest.raises(SelectionError, match=re.escape(repr(text)) + "|too"):
        SwitchOutput.parse(text)


# -- what a file begins with


class History:
    """Records of a few processes that fork, execute, map over each other and end, and samples of them."""

    def __init__(self, seed: int) -> None:
        self.random, self.time, self.next = random.Random(seed), 1000, 10
        self.lives: dict[int, set[int]] = {}
        self.events: list[tuple[int, Callable[[RecordWriter], object]]] = []
        self.samples: list[tuple[int, Callable[[RecordWriter], object]]] = []
        for pid in (5, 6):
            self.lives[pid] = {pid}
            self._add(lambda out, when, pid=pid: out.write(RECORDS.fork(pid, 1, pid, 1, when, alone=True)))
            self._add(lambda out, when, pid=pid: out.write(RECORDS.comm(pid, pid, f"p{pid}", when)))
            self._map(pid)
        for _ in range(120):
            self._step()

    def _add(self, make: Callable[[RecordWriter, int], object]) -> None:
        when = self.time
        self.time += self.random.randrange(1, 5)
        self.events.append((when, lambda out: make(out, when)))

    def _map(self, pid: int) -> None:
        start, pages = self.random.randrange(16) << 12, self.random.randrange(1, 6)
        name, end = f"/m{self.time}", start + (pages << 12)
        mapped = MappedCode(start, end, 0, name, prot=5, flags=2)
        self._add(lambda out, when: out.write(RECORDS.mmap2(pid, mapped, time=when)))

    def _step(self) -> None:
        pid = self.random.choice(sorted(self.lives))
        tid = self.random.choice(sorted(self.lives[pid]))
        self.next += 1
        new = self.next
        match self.random.randrange(12):
            case 0:
                self.lives[new] = {new}
                self._add(lambda out, when: out.write(RECORDS.fork(new, pid, new, tid, when)))
            case 1:
                self.lives[pid].add(new)
                self._add(lambda out, when: out.write(RECORDS.fork(pid, pid, new, tid, when)))
            case 2:
                self.lives[pid] = {pid}
                self._add(lambda out, when: out.write(RECORDS.comm(pid, pid, f"x{when}", when, exec=True)))
                self._map(pid)
            case 3 if len(self.lives[pid]) > 1 or len(self.lives) > 2:
                self.lives[pid].discard(tid)
                if not self.lives[pid]:
                    del self.lives[pid]
                self._add(lambda out, when: out.write(RECORDS.exit(pid, tid, when)))
            case 4 | 5:
                self._map(pid)
            case _:
                ip = self.random.randrange(20 << 12)
                self._add(lambda out, when: out.sample(BurstSample(when, pid, tid, 0, ip, ip, 1), [(ip, ip, 1)]))
                self.samples.append(self.events[-1])


def written(path: Path, fill: Callable[[RecordWriter], None]) -> Profile:
    with open(path, "wb") as file:
        out = RecordWriter(file, PERF_SELECT["ANY"], 1, 1)
        out.begin([7], ["test"])
        fill(out)
    return open_profile(path)


def owners(profile: Profile, since: int) -> list[tuple[int, int, int, str, str]]:
    """(time, process, thread, its module, its process's name) of each sample at ``since`` or later."""
    found = []
    for batch in profile.batches():
        scopes = profile.binder.scopes(batch)
        modules, _ = profile.binder.locate(scopes, batch.ip)
        rows = zip(batch.time.tolist(), batch.pid.tolist(), batch.tid.tolist(), modules.tolist(), strict=True)
        for when, pid, tid, module in rows:
            name = next((p.name for p in reversed(profile.processes) if p.pid == pid), "")
            if when >= since:
                found.append((when, pid, tid, profile.modules[module].name if module >= 0 else "", name))
    return sorted(found)


@pytest.mark.parametrize("seed", range(4))
def test_a_file_that_begins_in_the_middle_knows_what_the_whole_one_does(seed: int, tmp_path: Path) -> None:
    history = History(seed)
    moment = history.events[len(history.events) * (seed + 1) // 8][0]
    early = [one for one in history.events if one[0] < moment]
    late = [one for one in history.events if one[0] >= moment]
    window = late[: seed * 5]  # another ring was read first: its events are in the file before
    taken = [one for one in window if one not in history.samples]
    rest = [one for one in late if one not in taken]

    def second(out: RecordWriter) -> None:
        state = CarriedState(RECORDS)
        noted = RecordWriter(io.BytesIO(), PERF_SELECT["ANY"], 1, 1)
        noted.write = state.note
        for _, make in (*taken, *early):
            make(noted)
        for record in state.at(moment):
            out.write(record)
        for _, make in rest:
            make(out)

    whole = written(tmp_path / "whole.data", lambda out: [make(out) for _, make in history.events] and None)
    wanted = owners(whole, moment)
    assert len(wanted) > 5
    assert owners(written(tmp_path / "second.data", second), moment) == wanted


def test_the_newest_files_stay(tmp_path: Path) -> None:
    output = str(tmp_path / "it.data")
    wanted = SwitchOutput(size=1024, keep=2)
    seen = []

    def save(part: PartFile, name: str, summary: Summary) -> None:
        part.file.seek(0)
        seen.append((part.file.read(), summary.bursts, summary.ended))
        part.move(name)

    with PartFile(output) as first:
        first.file.write(b"0")
        parts = Parts(wanted, output, Overflow(first), save, print)
        switcher = Switcher(wanted, output, parts.switcher.connection.dup(), print)
        parts.start()
        for number in (1, 2, 3):
            counts = {"full": number * 5, "system call": 1}
            with closing(switcher.next_file(Summary(bursts=number * 10, seconds=number, ended=counts))) as file:
                file.write(b"%d" % number)
        switcher.connection.close()
        parts.finish(Summary(bursts=37, seconds=4))
    assert seen[:2] == [(b"0", 10, {"full": 5, "system call": 1}), (b"1", 10, {"full": 5})]
    assert [bursts for _, bursts, _ in seen] == [10, 10, 10, 7]
    assert [Path(name).read_bytes() for name in parts.names] == [b"2", b"3"]
    assert sorted(os.listdir(tmp_path)) == [os.path.basename(name) for name in parts.names]
    assert all(re.fullmatch(r"it\.\d{16}\.data", name) for name in os.listdir(tmp_path))


@needs_ptrace
def test_all_that_is_recorded_is_in_one_of_the_files(tmp_path: Path) -> None:
    program = build(tmp_path, "shares", *FREESTANDING, "-Wl,--build-id")
    command = [
        sys.executable,
        "-m",
        "lastbranch",
        "record",
        "--no-progress",
        "--engine",
        "software",
        "--duty",
        "50",
        "--switch-output",
        "4K",
        "-o",
        str(tmp_path / "it.data"),
    ]
    with subprocess.Popen([program, "1000000000"], stdout=subprocess.DEVNULL) as target:
        with subprocess.Popen([*command, "-p", str(target.pid)], stderr=subprocess.PIPE, text=True) as ours:
            until(lambda: len(list(tmp_path.glob("it.*.data"))) >= 2)
            ours.send_signal(signal.SIGINT)
            said = ours.communicate()[1]
        target.kill()
    assert ours.returncode == 0, said
    files = sorted(tmp_path.glob("it.*.data"))
    found = re.search(r"(\d+) branches in (\d+) bursts? .* written to (.*) and (\d+) files? before it", said)
    assert found is not None, said
    assert (found[3], int(found[4])) == (str(files[-1]), len(files) - 1)
    profiles = [open_profile(file) for file in files]
    assert sum(profile.entries for profile in profiles) == int(found[1])
    for profile in profiles:
        assert {p.name for p in profile.processes if p.pid == target.pid} == {program.name[:15]}
        assert all(module for *_, module, _ in owners(profile, 0))
    assert not list(tmp_path.glob("*.part-*"))
