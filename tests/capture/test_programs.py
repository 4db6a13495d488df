"""Programs of all kinds do what they do without recording: output, exit code, signals."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from capture_tools import DENY, FREESTANDING, Recorded, build, needs_ptrace, record
from command_line import run_cli
from lastbranch.capture.perf_events.ring_records import HEAD, records_in
from lastbranch.capture.software import RECORDS
from lastbranch.formats.perfdata.layout import PIPE_HEADER_SIZE, RECORD

pytestmark = needs_ptrace
DENSE = ("--engine", "software", "--duty", "30", "--period", "2000000")
Runs = Callable[..., Recorded]


@pytest.fixture
def assert_unchanged(tmp_path: Path) -> Runs:
    """Runs a command alone and recorded, asserts that output and exit code are the same, and gives the recording.

    On a busy machine a short program may see few bursts: it is recorded again, a few times.
    """

    def run(*words: str | Path, least: int = 1, options: tuple[str, ...] = DENSE) -> Recorded:
        alone = subprocess.run([str(w) for w in words], capture_output=True, timeout=60)
        code = alone.returncode if alone.returncode >= 0 else 128 - alone.returncode
        for _ in range(15):
            done = record(tmp_path / "it.data", *options, "--", *words)
            assert (done.code, done.out) == (code, alone.stdout), done.err
            if done.bursts() >= least:
                return done
        raise AssertionError(f"never {least} bursts: {done.err}")

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.mark.parametrize("flags", [("-no-pie",), ("-static",), ("-static-pie", "-s")], ids=" ".join)
@pytest.mark.parametrize("name", ["timer"])
def test_however_it_is_linked(name: str, flags: tuple[str, ...], folder: Path, assert_unchanged: Runs) -> None:
    assert_unchanged(build(folder, name, *flags), least=5)


def test_a_build_id_that_no_note_segment_has(folder: Path, tmp_path: Path) -> None:
    """As in Go's programs, where the kernel does not find it."""
    whole = build(folder, "timer", "-Wl,--build-id=sha1", "-no-pie")
    data, changed = bytearray(whole.read_bytes()), tmp_path / "program"
    (offset,), size, number = struct.unpack_from("<Q", data, 0x20), *struct.unpack_from("<HH", data, 0x36)
    for header in range(offset, offset + size * number, size):
        if struct.unpack_from("<I", data, header) == (4,):  # PT_NOTE
            struct.pack_into("<I", data, header, 0)
    changed.write_bytes(data)
    changed.chmod(0o755)
    notes = subprocess.run(["readelf", "-n", whole], capture_output=True, text=True, check=True).stdout
    build_id = notes.split("Build ID: ")[1].split()[0]
    found = {m.name: m.build_id.hex() for m in record(tmp_path / "it.data", *DENSE, "--", changed).profile().modules}
    assert found[str(changed)] == build_id
    assert all(len(found[name]) == 40 for name in found if "/libc" in name)


def test_threads_have_bursts_of_their_own(folder: Path, assert_unchanged: Runs) -> None:
    profile = assert_unchanged(build(folder, "threads"), least=8).profile()
    assert len({tid for batch in profile.streams[-1].batches() for tid in batch.tid.tolist()}) >= 2


def test_a_program_that_blocks_all_signals(folder: Path, assert_unchanged: Runs) -> None:
    assert_unchanged(build(folder, "blocked"), least=5)


def test_a_program_that_uses_traps_and_stops(folder: Path, assert_unchanged: Runs) -> None:
    assert_unchanged(build(folder, "traps"), least=5)


@pytest.mark.parametrize(
    "words", [["cont", "20"], ["block", "20"], ["urg", "winch", "20"], ["urg", "chld", "20"]], ids=" ".join
)
def test_a_program_gets_its_own_signals_and_no_others(words: list[str], folder: Path, assert_unchanged: Runs) -> None:
    assert_unchanged(build(folder, "signals"), *words, least=2)


def test_a_program_lives_where_no_more_signals_may_wait(folder: Path, tmp_path: Path) -> None:
    """The kernel sends SIGIO then, which ends a program that does not handle it."""
    program, output = build(folder, "signals"), tmp_path / "it.data"
    words = [sys.executable, "-m", "lastbranch", "record", "--no-progress", *DENSE, "-o", output, "--", program, "20"]
    done = subprocess.run(["prlimit", "--sigpending=0", *words], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "0 handled, 0 taken\n"), done.stderr


def test_forks_vforks_and_execs_are_followed(folder: Path, assert_unchanged: Runs) -> None:
    profile = assert_unchanged(build(folder, "storm"), least=0, options=(*DENSE[:-1], "200000")).profile()
    assert len(profile.processes) == 151
    assert sum(process.name == "true" for process in profile.processes) == 100


@pytest.mark.parametrize(
    "script",
    ["exit 3", "kill -SEGV $$", "seq 1 20000 | sort -n | tail -1", "true", "(kill -CONT $PPID); kill -TERM $$"],
)
def test_shells(script: str, assert_unchanged: Runs) -> None:
    assert_unchanged("sh", "-c", script, least=0)


def test_a_stopped_program_stays_stopped_until_it_is_continued(assert_unchanged: Runs) -> None:
    clock = "$(date +%s%N)"
    script = (
        f"(sleep 0.4; kill -CONT $$) & t={clock}; kill -STOP $$; [ $((({clock} - t) / 1000000)) -ge 300 ] && echo so"
    )
    assert assert_unchanged("sh", "-c", script, least=0).out == b"so\n"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("python3", ("-c", "print(sum(i * i % 7 for i in range(300000)))")),
        ("node", ("-e", "let s = 0; for (let i = 0; i < 1e7; i++) s = (s + i * i) % 1000003; console.log(s)")),
        ("java", ("-Xcomp", "-XX:TieredStopAtLevel=1", "-version")),
    ],
)
def test_interpreters_and_compilers_at_run_time(program: str, words: tuple[str, ...], assert_unchanged: Runs) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    assert_unchanged(program, *words, least=2)


def test_without_perf_events_the_process_table_and_the_mappings_are_told_by_ptrace(
    folder: Path, tmp_path: Path
) -> None:
    """perf_event_open is refused by a seccomp filter, as containers do."""
    program = build(folder, "branches", *FREESTANDING)
    output = tmp_path / "filtered.data"
    words = ["record", *DENSE, "--no-progress", "-o", str(output), "--", str(program), "15000"]
    done = subprocess.run([sys.executable, "-c", DENY.format(298), *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    profile = Recorded(0, b"", "", output).profile()
    assert profile.samples > 3
    assert any(module.name == str(program) for module in profile.modules)


LATE = (
    "import time; from types import SimpleNamespace;"
    "from lastbranch.capture.software import collector, sampler, tracing;"
    "cont = collector.ptrace.cont; late = lambda *words: (cont(*words), time.sleep(0.01));"
    "late_ptrace = SimpleNamespace(**{**vars(collector.ptrace), 'cont': late});"
    "collector.ptrace = sampler.ptrace = tracing.ptrace = late_ptrace;"
    "from lastbranch.cli import main; main()"
)
"""``python -c`` this: a collector that comes late to whatever it does after it let a thread run. Stops of a burst are
not late."""


@pytest.mark.parametrize("wrapped", [LATE, DENY.format(298)], ids=["perf events", "/proc"])
def test_branches_belong_to_the_file_that_was_mapped_when_they_were_taken(
    wrapped: str, folder: Path, tmp_path: Path
) -> None:
    program, output = build(folder, "replaced"), tmp_path / "it.data"
    loop = bytes.fromhex("48ffcf 75fb c3")  # dec rdi; jnz to it; ret
    files = [tmp_path / "first", tmp_path / "second"]
    for which, file in enumerate(files, 1):
        file.write_bytes((bytes(256 * which) + loop).ljust(4096, b"\0"))
    counts, returns = {"first+0x103": 0, "second+0x203": 0}, {"first+0x105", "second+0x205"}
    for _ in range(12):  # a busy machine may give few bursts
        words = ["record", *DENSE, "--no-progress", "-o", str(output), "--", str(program), *map(str, files)]
        subprocess.run([sys.executable, "-c", wrapped, *words], check=True, capture_output=True, timeout=60)
        listed = csv.DictReader(run_cli("branches", output, "--format", "csv").out.splitlines())
        found = {row["from"]: int(row["count"]) for row in listed if row["from"].startswith(("first", "second"))}
        assert found.keys() <= counts.keys() | returns
        counts = {name: count + found.get(name, 0) for name, count in counts.items()}
        if min(counts.values()) > 300:
            return
    raise AssertionError(f"too few bursts: {counts}")


def test_many_threads_have_triggers_where_few_files_may_be_open(folder: Path, tmp_path: Path) -> None:
    """The program keeps the limit that it was given."""
    program, output = build(folder, "crowd"), tmp_path / "it.tb5"
    command = f'ulimit -Sn 128; exec "$@" -- sh -c "ulimit -Sn; {program} 200"'
    words = ["sh", "-c", command, "sh", sys.executable, "-m", "lastbranch", "record", *DENSE, "-o", str(output)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "128\n200\n"), done.stderr
    assert "no trigger" not in run_cli("info", output).out


def test_threads_are_recorded_where_fewer_files_may_be_open_than_threads_run(folder: Path, tmp_path: Path) -> None:
    """They run until more of them have had bursts than the recorder has events open: where files suffice, every thread
    has one. They run in turns, so that the recorder need not wait for all of them where it gets a processor late."""
    program, output, threads, limit = build(folder, "in_turns"), tmp_path / "it.tb5", 16, 32
    options = ["--engine", "software", "--duty", "50", "--period", "5000000", "--burst", "8-16"]
    ours = [sys.executable, "-m", "lastbranch", "record", *options, "-o", output, "--"]
    words = ["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh", *ours, program, str(threads), "10000000"]
    for patience in (20, 60, 200):  # on a busy machine, a recorder that begins badly may take no further burst for long
        recorder = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            enough = wait_for_threads(recorder, output, patience)
            recorder.send_signal(signal.SIGTERM)  # which goes to the program
            _, said = recorder.communicate(timeout=60)
        finally:
            recorder.kill()
        assert recorder.returncode == 128 + signal.SIGTERM, said
        assert "not recorded" not in said
        if enough:
            return
    raise AssertionError("too few threads have bursts")


def wait_for_threads(recorder: subprocess.Popen[str], output: Path, seconds: float) -> bool:
    """Whether more threads had bursts than the recorder has events open, within ``seconds``."""
    end = time.monotonic() + seconds
    while recorder.poll() is None and time.monotonic() < end:
        if len(threads_with_bursts(output)) > open_events(recorder.pid):
            return True
        time.sleep(0.05)
    return False


def open_events(recorder: int) -> int:
    """How many perf events the processes have open that ``recorder`` started."""
    found = 0
    for child in Path(f"/proc/{recorder}/task/{recorder}/children").read_text().split():
        for link in Path(f"/proc/{child}/fd").iterdir():
            with suppress(FileNotFoundError):  # it was closed meanwhile
                found += os.readlink(link) == "anon_inode:[perf_event]"
    return found


def threads_with_bursts(output: Path) -> set[int]:
    """Those in the recording that will become ``output``, as far as it has grown beside that."""
    found = set()
    for part in output.parent.glob(f"{output.name}.*"):
        records = part.read_bytes()[PIPE_HEADER_SIZE:]
        for at, kind, size in records_in(records):
            if kind == RECORD["SAMPLE"] and at + size <= len(records):
                identifier, _, _, tid = struct.unpack_from("=QQii", records, at + HEAD.size)
                if identifier == RECORDS.identifier:
                    found.add(tid)
    return found


def test_a_thread_that_cannot_be_recorded_is_named(folder: Path, tmp_path: Path) -> None:
    refused = (
        "from lastbranch.capture.software.schedule import syscall; opened, open = [], syscall.open_event\n"
        "def refuse(attr, tid, *cpu):\n"
        "  opened.extend([tid] * (not cpu))\n"
        "  if len(opened) == 3 and not cpu: raise PermissionError(13, 'Permission denied')\n"
        "  return open(attr, tid, *cpu)\n"
        "syscall.open_event = refuse\n"
        "from lastbranch.cli import main; main()"
    )
    program, output = build(folder, "crowd"), tmp_path / "it.tb5"
    words = ["record", *DENSE, "-o", str(output), "--", str(program), "4", "1000"]
    done = subprocess.run([sys.executable, "-c", refused, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for said in (done.stderr, run_cli("info", output).out):
        assert "1 thread not recorded (Permission denied): " in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "it is traced during bursts only"),
        (("--no-follow", "none"), "threads began faster than the duty limit allows"),
    ],
    ids=["drawn", "traced"],
)
def test_a_surge_of_threads_is_not_followed_but_those_that_last_are_found(
    options: tuple[str, ...], said: str, folder: Path, tmp_path: Path
) -> None:
    program = build(folder, "surge")
    words = (*DENSE[: DENSE.index("--duty")], "--duty", "2", *options, "--", program, "3000")
    done = record(tmp_path / "it.tb5", *words)
    assert done.code == 0, done.err
    assert said in done.err
    found = {tid for b in done.profile().streams[-1].batches() for tid in b.tid.tolist()}
    assert int(done.out) in found
