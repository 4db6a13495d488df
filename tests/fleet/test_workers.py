"""The work of a store done by processes and by a cluster, of which some die: the parts have the same bytes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fleet_faults
import lastbranch.fleet.store
from command_line import Ran
from fleet_faults import Killing, cluster, make_certificates, parts_of
from lastbranch.errors import UnavailableError
from lastbranch.fleet import Certificates, Cluster, Processes, Store, workers
from small_captures import build
from waiting import until

Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def small_batches() -> Iterator[None]:
    """Twelve captures are four batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lastbranch.fleet.store, "BATCH_CAPTURES", 3)
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("captures")
    return [str(build(folder / f"{i:02}.data", name=f"/bin/prog{i}")) for i in range(12)]


@pytest.fixture(scope="module")
def peace(
    small_batches: None, files: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """The parts of a store that nobody disturbs: of the captures, and merged."""
    store = Store(str(tmp_path_factory.mktemp("stores") / "peace"))
    store.add(files[:9])
    added = parts_of(store.url)
    store.add(files)
    store.compact()
    return added, parts_of(store.url)


def _same(store: Store, files: list[str], peace: tuple[dict[str, bytes], dict[str, bytes]]) -> None:
    """Whether the store does the same work as the one in peace."""
    store.add(files[:9])
    assert parts_of(store.url) == peace[0]
    store.add(files)
    store.compact()
    assert parts_of(store.url) == peace[1]
    assert store.verify().damaged == {}


def test_captures_are_cut_so_that_many_workers_have_work(
    files: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sizes: list[list[int]] = []

    class CutError(Exception):
        """They are cut: what comes of the batches is of no interest."""

    def watched(function: Callable[..., object], tasks: Sequence[Any]) -> Iterator[object]:
        if function.__name__ == "_count_task":
            sizes.append([sum(capture.size for capture in batch) for _url, batch in tasks])
            raise CutError
        return map(function, tasks)

    def cut(name: str) -> None:
        with pytest.raises(CutError):
            Store(str(tmp_path / name), watched).add(files)

    total, largest = sum(map(os.path.getsize, files)), max(map(os.path.getsize, files))
    monkeypatch.setattr(lastbranch.fleet.store, "BATCH_CAPTURES", 256)
    cut("one")  # too few bytes to be worth several batches
    for batches in (2, 5, 32):
        monkeypatch.setattr(lastbranch.fleet.store, "_LEAST_BATCH_BYTES", 1)
        monkeypatch.setattr(lastbranch.fleet.store, "_BATCHES", batches)
        cut(str(batches))
    assert [sum(batch) for batch in sizes] == [total] * 4
    assert [len(batch) for batch in sizes] == [1, 2, 6, 12]  # whole captures, so 5 even parts of 12 are 6
    assert all(max(batch) <= max(-(-total // n), largest) for n, batch in zip((1, 2, 5, 32), sizes, strict=True))


def test_each_stage_shows_how_far_it_is(files: list[str], small_batches: None, tmp_path: Path) -> None:
    seen: dict[str, list[tuple[int, int]]] = {}

    @contextmanager
    def stage(name: str) -> Iterator[Callable[[int, int], None]]:
        yield lambda done, whole: seen.setdefault(name, []).append((done, whole))

    store = Store(str(tmp_path / "store"), stages=stage)
    store.add(files)
    store.compact()
    store.verify()
    assert list(seen) == ["reading", "counting", "merging", "checking"]
    assert len(seen["counting"]) == 4
    for steps in seen.values():
        assert steps == sorted(steps)
        assert steps[-1][0] == steps[-1][1] > 0


# -- processes of this machine


@pytest.mark.parametrize("when", ["half", "after"])
@pytest.mark.thorough
def test_killed_processes_change_no_byte(files: list[str], peace, tmp_path: Path, when: str, monkeypatch) -> None:
    (temporary := tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr("tempfile.tempdir", None)
    (kills := tmp_path / "kills").mkdir()
    with Processes(2) as run:
        killing = Killing(run, kills, when=when)
        _same(Store(str(tmp_path / "store"), killing), files, peace)
        assert {"_count_task", "_reduce_task"} <= set(killing.kills)
    assert list(temporary.iterdir()) == []
    Store(str(tmp_path / "store")).sweep(0)
    assert {str(p.relative_to(tmp_path / "store")) for p in (tmp_path / "store").rglob("*.parquet*")} == set(peace[1])


def test_results_come_in_order_and_failures_as_they_are() -> None:
    here = os.getpid()
    with Processes(2) as run:
        found = [
            *run(eval, [f"({i}, __import__('time').sleep({i == 0}), __import__('os').getpid())" for i in range(9)])
        ]
        assert [number for number, _, _ in found] == [*range(9)]
        assert len({pid for _, _, pid in found} - {here}) == 2
        with pytest.raises(ZeroDivisionError):
            list(run(eval, ["1 / 0", "1"]))
    with Processes(2) as run, pytest.raises(UnavailableError, match=f"{workers.ATTEMPTS} times"):
        list(run(eval, ["__import__('os').kill(__import__('os').getpid(), 9)", "1"]))
    assert list(Processes(2)(eval, ["__import__('os').getpid()"])) == [here]


_DRIVER = """
import os, sys
sys.path[:0] = [{tools!r}]
open({log!r}, "a").write(f"{{os.getpid()}}\\n")
import lastbranch.fleet.store
from fleet_faults import Killing
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from lastbranch.fleet import Processes, Store
lastbranch.fleet.store.BATCH_CAPTURES = 3
with Processes(2) as run:
    store = Store({store!r}, Killing(run, Path({kills!r}), os.getpid()) if {kills!r} else run)
    store.add({files!r})
"""


def test_a_killed_driver_is_finished_by_the_same_call(files: list[str], peace, tmp_path: Path) -> None:
    """And its main module, which does not ask who it is, runs once: in no worker again."""
    (kills := tmp_path / "kills").mkdir()
    (temporary := tmp_path / "tmp").mkdir()
    store, script, log = str(tmp_path / "store"), tmp_path / "driver.py", tmp_path / "log"
    for attempt, folder in enumerate((str(kills), str(kills), "")):
        said = {"tools": str(fleet_faults.TOOLS), "log": str(log), "store": store, "kills": folder, "files": files[:9]}
        script.write_text(_DRIVER.format(**said))
        environment = {**os.environ, "TMPDIR": str(temporary)}
        done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == (0 if attempt == 2 else -9), done.stderr
        assert len(log.read_text().splitlines()) == attempt + 1
    assert parts_of(store) == peace[0]
    until(lambda: not list(temporary.iterdir()), 20)  # workers end with what they do


def test_a_full_disk_leaves_the_store_as_it_was(run: Run, files: list[str], peace, tmp_path: Path) -> None:
    """A file may have 2 kB, so that no part can be written."""
    resource = pytest.importorskip("resource", reason="this system has no such limit")
    store = tmp_path / "store"
    Store(str(store)).add([])
    words = [sys.executable, "-m", "lastbranch", "fleet", "add", str(store), *files[:9]]
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (2000, 2000))
    done = subprocess.run(words, preexec_fn=limit, capture_output=True, text=True, timeout=60)
    assert done.returncode == 5, done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert parts_of(store) == {}
    Store(str(store)).add(files[:9])
    assert parts_of(store) == peace[0]


@pytest.mark.thorough
def test_two_drivers_at_once(files: list[str], peace, tmp_path: Path) -> None:
    store, log = str(tmp_path / "store"), str(tmp_path / "log")
    said = {"tools": str(fleet_faults.TOOLS), "log": log, "store": store, "kills": "", "files": files[:9]}
    drivers = [
        subprocess.Popen([sys.executable, "-c", _DRIVER.format(**said)], stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for driver in drivers:
        assert driver.communicate(timeout=60)[1] == ""
        assert driver.returncode == 0
    assert parts_of(store) == peace[0]


# -- clusters


@pytest.fixture(scope="module")
def dask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fleet_faults.Cluster]:
    """Its last test kills the scheduler."""
    pytest.importorskip("distributed", reason="Dask is not installed: pip install 'lastbranch[fleet]'")
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: it makes the certificates")
    with cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def test_a_cluster_that_is_none_or_of_others(dask: fleet_faults.Cluster, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(workers, "_WAIT", 2)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with pytest.raises(UnavailableError, match=r"tcp|tls"):
            Cluster(f"tcp://127.0.0.1:{nobody.getsockname()[1]}")
    theirs: Certificates = make_certificates(tmp_path / "theirs")
    mixed = Certificates(dask.certificates.authority, theirs.certificate, theirs.key)
    for files in (theirs, mixed):
        with pytest.raises(UnavailableError, match=r"tcp|tls"):
            Cluster(dask.address, files)
    with pytest.raises(UnavailableError, match=r"tcp|tls"):
        Cluster(dask.address.replace("tls:", "tcp:"))


@pytest.mark.thorough
def test_a_cluster_that_loses_workers_and_then_its_scheduler(
    run: Run, files: list[str], peace, dask: fleet_faults.Cluster, tmp_path: Path
) -> None:
    store = str(tmp_path / "store")
    for name in ("workers", "scheduler"):
        (tmp_path / name).mkdir()
    with Cluster(dask.address, dask.certificates) as there:
        killing = Killing(there, tmp_path / "workers", when="half")
        _same(Store(store, killing), files, peace)
        assert {"_count_task", "_reduce_task"} <= set(killing.kills)
    other = tmp_path / "other"
    done = run("fleet", "add", other, *files[:9], *dask.words)
    assert done.code == 0, done.err
    assert done.err == "9 captures added\n"
    assert parts_of(other) == peace[0]
    with Cluster(dask.address, dask.certificates) as there:
        lost = Killing(there, tmp_path / "scheduler", dask.scheduler.pid)
        third = Store(str(tmp_path / "third"), lost)
        with pytest.raises(UnavailableError, match=r"tls://127") as raised:
            third.add(files[:9])
        assert "goes on" in str(raised.value.hint)
    assert third.state().parts == {}
    with Processes(2) as here:
        Store(third.url, here).add(files[:9])
    assert parts_of(third.url) == peace[0]


def test_what_is_not_safe_is_refused(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(*words: str) -> tuple[int, str]:
        done = run("fleet", "add", tmp_path / "store", tmp_path / "none", *words)
        return done.code, done.err

    code, text = said("--scheduler", "tcp://192.0.2.1:8786")
    assert code == 2
    assert "without TLS" in text
    for address in ("tls://192.0.2.1", "ucx://127.0.0.1:1", "192.0.2.1:8786", "tls://h:x"):
        assert said("--scheduler", address)[0] == 2
    assert said("--scheduler", "tls://192.0.2.1:8786") == (
        2,
        "error: tls://192.0.2.1:8786 needs the certificate of the authority, ours and its key\n",
    )
    assert said("--tls-ca", "x")[0] == said("--workers", "2", "--scheduler", "tls://h:1")[0] == 2
    files = [word for name in ("ca", "cert", "key") for word in (f"--tls-{name}", str(tmp_path / name))]
    code, text = said("--scheduler", "tls://192.0.2.1:8786", *files)
    assert code == 5
    assert "certificates cannot be used" in text
    assert not (tmp_path / "store").exists()


def test_a_worker_that_sees_another_folder_is_refused(files: list[str], tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="there is no store where this worker looks"):
        lastbranch.fleet.store._count_task((str(tmp_path / "elsewhere"), []))


def test_the_manifests_for_kubernetes_are_valid() -> None:
    program = Path(sys.executable).with_name("kubernetes-validate")
    if not program.exists():
        pytest.skip("kubernetes-validate is not installed: pip install kubernetes-validate")
    manifests = Path(__file__).parents[2] / "examples" / "fleet" / "kubernetes.yaml"
    done = subprocess.run([program, "--strict", manifests], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count(" passed for resource ") == manifests.read_text().count("apiVersion:")
