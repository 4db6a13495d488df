"""Recordings of real containers, control groups and all processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from capture_tools import FREESTANDING, Recorded, build, needs_ptrace, record
from lastbranch.capture.cgroups import Hierarchy, hierarchies
from lastbranch.model.atomic_output import token
from lastbranch.opening import build_id_at, open_profile
from lastbranch.symbols import Symbolizer
from waiting import until

pytestmark = [
    needs_ptrace,
    pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="containers are made by root"),
]
SOFTWARE = ("--engine", "software", "--duty", "50", "--period", "500000")
INNER = "/app/inner"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("inner"), "shares", *FREESTANDING, "-Wl,--build-id")


@pytest.fixture
def root(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root folder in which the program has another path, and its names are in a debug file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = tmp_path / "files" / INNER.lstrip("/")
    word = build_id_at(str(program)).hex()
    debug = tmp_path / f"files/usr/lib/debug/.build-id/{word[:2]}/{word[2:]}.debug"
    for path in (place, debug, tmp_path / "files/proc/none"):
        path.parent.mkdir(parents=True)
    shutil.copy2(program, debug)
    subprocess.run(["strip", "-o", place, program], check=True)
    return tmp_path / "files"


@dataclass(slots=True)
class Running:
    """A container that computes: what it is called, its first process, and what ends it."""

    name: str
    pid: int
    kill: list[str]


def of_runc(root: Path, tmp_path: Path) -> Iterator[Running]:
    runc = shutil.which("runc")
    if runc is None:
        pytest.skip("runc is not installed")
    name = f"lastbranch-{token()}"
    subprocess.run([runc, "spec"], cwd=tmp_path, check=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["process"] |= {"args": [INNER, "1000000000"], "terminal": False}
    config["root"]["path"] = str(root)
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = tmp_path / "said"
    with open(said, "wb") as log:  # the container keeps it open
        made = subprocess.run([runc, "run", "-d", name], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    if made.returncode:
        pytest.skip(f"runc makes no container here: {said.read_text().strip()[-200:]}")
    (tmp_path / "config.json").unlink()
    state = subprocess.run([runc, "state", name], check=True, capture_output=True).stdout
    yield Running(name, json.loads(state)["pid"], [runc, "kill", name, "KILL"])
    subprocess.run([runc, "delete", "--force", name], check=True, stderr=subprocess.DEVNULL)


def of_podman(root: Path, tmp_path: Path) -> Iterator[Running]:
    """Its files are in a folder of their own, so only the command line of its monitor has its name."""
    podman, runc = shutil.which("podman"), shutil.which("runc")
    if podman is None or runc is None:
        pytest.skip(f"{'runc' if podman else 'podman'} is not installed")
    with tempfile.TemporaryDirectory(prefix="lb-") as folder:  # it refuses long names
        yield from in_podman(podman, folder, root)


def in_podman(podman: str, folder: str, root: Path) -> Iterator[Running]:
    where = [f"--{name}={folder}/{name}" for name in ("root", "runroot", "tmpdir")]
    podman_here = [
        podman,
        *where,
        "--runtime=runc",
        "--cgroup-manager=cgroupfs",
        "--storage-driver=vfs",
        "--events-backend=none",
    ]
    name = f"lastbranch-{token()}"
    limits = ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1000:1000"]  # the defaults are more than root has here
    run = [*podman_here, "run", "-d", "--name", name, "--network=none", *limits, "--rootfs", str(root)]
    made = subprocess.run([*run, INNER, "1000000000"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"podman makes no container here: {made.stderr.strip()[-200:]}")
    state = [*podman_here, "inspect", "--format={{.State.Pid}}", name]
    pid = int(subprocess.run(state, check=True, capture_output=True).stdout)
    yield Running(name, pid, [*podman_here, "kill", name])
    subprocess.run([*podman_here, "rm", "--force", "--time=0", name], check=True, capture_output=True)


@pytest.fixture(params=[of_runc, of_podman])
def container(request: pytest.FixtureRequest, root: Path, tmp_path: Path) -> Iterator[Running]:
    yield from request.param(root, tmp_path)


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """The folder of an empty control group."""
    folder = next(filter(None, map(made_below, hierarchies())), None)
    if folder is None:
        pytest.skip("no control group can be made here")
    yield folder
    until(lambda: not (folder / "cgroup.procs").read_text())
    folder.rmdir()


def made_below(hierarchy: Hierarchy) -> Path | None:
    folder = Path(hierarchy.folder) / f"lastbranch-{token()}"
    try:
        folder.mkdir()
    except OSError:
        return None
    return folder


def traced(pid: int) -> bool:
    return "TracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text()


def computed(pid: int) -> int:
    """ns of CPU time."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def programs(done: Recorded) -> set[int]:
    """The processes that have samples."""
    return {pid for stream in done.profile().streams for batch in stream.batches() for pid in batch.pid.tolist()}


def test_a_container_is_recorded_until_it_ends_and_has_its_names(container: Running, tmp_path: Path) -> None:
    output = tmp_path / "it.data"
    command = [sys.executable, "-m", "lastbranch", "record", "--no-progress", "-o", str(output), *SOFTWARE]
    with subprocess.Popen([*command, "--container", container.name], stderr=subprocess.PIPE) as ours:
        until(lambda: any(INNER.encode() in part.read_bytes() for part in tmp_path.glob("it.data.part-*")))
        subprocess.run(container.kill, check=True, stdout=subprocess.DEVNULL)
        assert ours.wait(60) == 0
        assert ours.stderr is not None
        done = ours.stderr.read().decode()
        assert f"recording container {container.name}" in done
        assert ": 1 process now" in done
    profile = open_profile(output)
    assert INNER in {module.name for module in profile.modules}
    assert container.pid in {process.pid for process in profile.processes}
    shutil.rmtree(tmp_path / "files")
    row = next(row for row, module in enumerate(profile.modules) if module.name == INNER)
    with Symbolizer(open_profile(output)) as symbolizer:
        names = {function.name for function in symbolizer.functions(row).functions}
    assert {"mixes", "divides"} <= names, symbolizer.notes


def test_processes_join_and_leave_a_cgroup_while_it_is_recorded(program: Path, cgroup: Path, tmp_path: Path) -> None:
    output = tmp_path / "it.data"
    command = [sys.executable, "-m", "lastbranch", "record", "--no-progress", "-o", str(output), *SOFTWARE]
    command += ["--cgroup", str(cgroup)]

    def joined(*command: str | Path) -> subprocess.Popen[bytes]:
        made = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        (cgroup / "cgroup.procs").write_text(f"{made.pid}\n")
        return made

    with joined("sleep", "1000") as first, subprocess.Popen(command, stderr=subprocess.PIPE) as ours:
        until(lambda: traced(first.pid))
        first.kill()
        first.wait()
        with joined(program, "1000000000") as second, subprocess.Popen(["sleep", "1000"]) as other:
            until(lambda: traced(second.pid))
            begun = computed(second.pid)
            until(lambda: computed(second.pid) > begun + 1e8)
            assert not traced(other.pid)
            ours.send_signal(signal.SIGINT)
            assert ours.wait(60) == 0
            until(lambda: not traced(second.pid))
            second.kill()
            other.kill()
        done = Recorded(0, b"", ours.stderr.read().decode() if ours.stderr else "", output)
    assert second.pid in programs(done)
    assert other.pid not in programs(done)
    (stated,) = [process.cpu_ns for process in done.profile().processes if process.pid == second.pid]
    assert stated is not None
    assert stated > 5e7, "of the tenth of a second that it computed while it was recorded"


def test_processes_that_may_not_be_traced_are_named_and_the_others_recorded(tmp_path: Path) -> None:
    with (
        subprocess.Popen(["sleep", "1000"]) as one,
        subprocess.Popen(["sleep", "1000"]) as traced,
    ):
        tracer = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "from lastbranch.capture import ptrace; import sys, time\n"
                f"ptrace.seize({traced.pid}, 0); print(flush=True); sys.stdin.read()",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert tracer.stdout is not None
        assert tracer.stdout.readline()
        both = f"{one.pid},{traced.pid}"
        done = record(tmp_path / "it.data", *SOFTWARE, "--duration", "0.2", "-p", both)
        none = record(tmp_path / "no.data", *SOFTWARE, "--duration", "0.2", "-p", f"{traced.pid},{os.getpid()}")
        tracer.communicate()
        for process in (one, traced):
            process.kill()
    assert done.code == 0, done.err
    assert f"note: process {traced.pid} (sleep" in done.err
    assert f"already traced by process {tracer.pid}" in done.err
    assert one.pid in {process.pid for process in done.profile().processes}
    assert (none.code, "no process can be recorded" in none.err) == (125, True), none.err


def test_all_processes_are_those_of_the_namespace_but_never_ours(tmp_path: Path) -> None:
    """In a process id namespace of its own: the others' tests are not to be traced."""
    if subprocess.run(["unshare", "-pf", "--mount-proc", "true"], capture_output=True).returncode:
        pytest.skip("no process id namespace can be made here")
    output = tmp_path / "it.data"
    for seconds in ("0.5", "4", "32"):  # on a busy machine, the loop may have to wait for a processor
        ours = f"{sys.executable} -m lastbranch record --no-progress -o {output} {' '.join(SOFTWARE)}"
        line = (
            f"sleep 1000 & sh -c 'while :; do :; done' & {ours} --duration {seconds} -a"  # both end with the namespace
        )
        done = subprocess.run(["unshare", "-pf", "--mount-proc", "sh", "-c", line], capture_output=True, text=True)
        profile = Recorded(0, b"", "", output).profile()
        if loop := sum(p.cpu_ns or 0 for p in profile.processes if p.name == "sh"):
            break
    assert "recording all processes: " in done.stderr
    assert "not lastbranch, the processes that it descends from, and the kernel's threads" in done.stderr
    assert "note: lastbranch and the processes that it descends from are not recorded: 1, " in done.stderr
    assert {p.pid for p in profile.processes if p.name == "sleep"} == {2}
    assert loop, "the loop has its CPU time"
