"""The worker: what goes wrong in it costs names and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lastbranch.symbols import SymbolOptions, worker
from lastbranch.symbols.model import DebugFiles
from lastbranch.symbols.worker import WorkerClient, WorkerFailed
from symbol_workers import ADDRESS, children
from waiting import until


def test_a_worker_that_works(bad) -> None:  # type: ignore[no-untyped-def]
    client, files = bad("live")
    for _ in range(3):
        assert client.names(files, "auto", ADDRESS).frames(2)[0].function.name == "f"
    assert client.started == 1


def test_one_that_dies_is_tried_once_more_and_then_given_up(bad) -> None:  # type: ignore[no-untyped-def]
    client, files = bad("die")
    with pytest.raises(WorkerFailed, match="exit code 3"):
        client.names(files, "auto", ADDRESS)
    assert client.started == 2


def test_one_that_dies_once_gives_its_names(bad) -> None:  # type: ignore[no-untyped-def]
    client, files = bad("die once")
    assert len(client.names(files, "auto", ADDRESS)) == 3
    assert client.started == 2


def test_one_that_hangs_is_killed_with_its_children(bad, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    pids: list[int] = []
    kill = worker._kill

    def seen(process: subprocess.Popen[bytes]) -> None:
        pids.extend([process.pid, *children(process.pid)])
        kill(process)

    monkeypatch.setattr(worker, "_kill", seen)
    for seconds in (3, 12, 48):  # a loaded machine may not even have started it
        client, files = bad("hang", seconds=seconds)
        with pytest.raises(WorkerFailed, match=f"ran longer than {seconds} s"):
            client.names(files, "auto", ADDRESS)
        if len(pids) > 1:
            break
    assert len(pids) > 1
    until(lambda: not any(_runs(p) for p in pids))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of address space")
@pytest.mark.parametrize(("what", "says"), [("memory", "memory limit"), ("deep", "recursion")])
def test_limits_of_one_request_do_not_cost_the_worker(bad, what: str, says: str) -> None:  # type: ignore[no-untyped-def]
    client, files = bad(what)
    with pytest.raises(WorkerFailed, match=says) as failure:
        client.names(files, "auto", ADDRESS)
    assert not failure.value.fatal
    Path(files.binary).write_text("live")
    assert len(client.names(files, "auto", ADDRESS)) == 3
    assert client.started == 1


def test_what_a_library_prints_is_no_answer(bad) -> None:  # type: ignore[no-untyped-def]
    client, files = bad("print")
    assert len(client.names(files, "auto", ADDRESS)) == 3


@pytest.mark.parametrize("what", ["wrong", "fewer"])
def test_answers_that_are_not_sound_are_refused(bad, what: str) -> None:  # type: ignore[no-untyped-def]
    client, files = bad(what)
    with pytest.raises(WorkerFailed, match="answer is invalid"):
        client.names(files, "auto", ADDRESS)
    with pytest.raises(WorkerFailed, match="answer is invalid"):
        client.functions(files, "auto")


def test_the_worker_cannot_be_led_to_a_network(bad, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("DEBUGINFOD_URLS", "http://127.0.0.1:1")
    client, files = bad("environment")
    assert "DEBUGINFOD" not in client.names(files, "auto", ADDRESS).functions[0].name


def test_modules_of_the_current_folder_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numpy.py").write_text("open('imported', 'w')\nraise SystemExit")
    (tmp_path / "json.py").write_text("open('imported', 'w')\nraise SystemExit")
    (tmp_path / "p.map").write_text("1000 10 f\n")
    monkeypatch.chdir(tmp_path)
    client = WorkerClient(SymbolOptions(cache=None))
    names = client.names(DebugFiles("perfmap", str(tmp_path / "p.map")), "", ADDRESS)
    client.close()
    assert names.functions[0].name == "f"
    assert not (tmp_path / "imported").exists()


def test_a_file_that_is_gone_or_waits_costs_names_only(tmp_path: Path) -> None:
    client = WorkerClient(SymbolOptions(cache=None))
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "nothing", "."):
        with pytest.raises(WorkerFailed) as failure:
            client.names(DebugFiles("perfmap", str(tmp_path / name)), "", ADDRESS)
        assert not failure.value.fatal
    client.close()
    assert client.started == 1
