"""Clusters of Dask's on this machine, and work whose workers, scheduler or driver are killed at a certain moment."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lastbranch.fleet import Certificates, Run, Store, in_turn
from lastbranch.fleet.objects import open_objects
from waiting import until

TOOLS = Path(__file__).parent


def parts_of(store: Path | str) -> dict[str, bytes]:
    """Name -> bytes of all that the manifest of a store in a folder lists."""
    return {name: (Path(store) / name).read_bytes() for name in Store(str(store)).state().parts}


# -- what other processes do: workers that are spawned import this module, but not those of tests


def create_object(url: str, name: str, number: int) -> bool:
    """Create an object whose bytes are ``number``; whether there was none."""
    return open_objects(url).create(name, f"{number}".encode() * 1000)


def add_captures(url: str, paths: list[str]) -> tuple[int, int]:
    """Add captures to a store: how many were counted, and how many it had before."""
    added = Store(url).add(paths)
    return added.captures, added.known


# -- who dies, and when


@dataclass(frozen=True)
class Killing:
    """A `Run` that does the work of another `Run`, during which a process is killed: the first task of each stage kills
    ``process`` (``None``: its own process) when its work is half done, or done and not yet reported."""

    run: Run
    folder: Path
    process: int | None = None
    when: str = "after"

    def __call__(self, function: Callable[[Any], Any], arguments: Sequence[Any]) -> Any:
        return self.run(partial(_killed_once, function, self), arguments)

    def __reduce__(self) -> Any:
        return Killing, (in_turn, self.folder, self.process, self.when)

    @property
    def kills(self) -> list[str]:
        """In which stages something was killed."""
        return sorted(path.name for path in self.folder.iterdir())


def _killed_once(function: Callable[[Any], Any], killing: Killing, argument: Any) -> Any:
    try:
        (killing.folder / function.__name__).touch(exist_ok=False)
    except FileExistsError:
        return function(argument)
    if killing.when == "half":  # objects are written to a part file first
        os.replace = partial(_die, killing.process)  # type: ignore[assignment]
    result = function(argument)
    _die(killing.process)
    return result


def _die(process: int | None, *_: object) -> None:
    os.kill(os.getpid() if process is None else process, signal.SIGKILL)
    if process is not None:
        time.sleep(1)


# -- a cluster


def make_certificates(folder: Path) -> Certificates:
    """An authority, and a certificate that it has signed, by the commands of the guide."""
    folder.mkdir(parents=True, exist_ok=True)
    guide = (TOOLS.parents[1] / "docs" / "guides" / "fleet-cluster.md").read_text()
    (commands,) = re.findall(r"```sh\n(openssl .*?)```", guide, re.DOTALL)
    subprocess.run(["sh", "-ec", commands], check=True, capture_output=True, cwd=folder)
    return Certificates(*(str(folder / f"{name}.pem") for name in ("ca", "cert", "key")))


@dataclass
class Cluster:
    """A scheduler and its workers, which run on this machine."""

    address: str
    certificates: Certificates
    scheduler: subprocess.Popen[str]
    workers: list[subprocess.Popen[str]]
    scratch: Path

    @property
    def words(self) -> list[str]:
        """Options of ``fleet add`` for it."""
        files = self.certificates
        tls = ["--tls-ca", files.authority, "--tls-cert", files.certificate, "--tls-key", files.key]
        return ["--scheduler", self.address, *tls]


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """A cluster with TLS, its files in ``folder``. It ends with the block."""
    files = make_certificates(folder / "tls")
    tls = ["--tls-ca-file", files.authority, "--tls-cert", files.certificate, "--tls-key", files.key]
    here = ["--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0", "--no-dashboard"]
    environment = {**os.environ, "PYTHONPATH": str(TOOLS), "DASK_DISTRIBUTED__DIAGNOSTICS__NVML": "false"}
    processes: list[subprocess.Popen[str]] = []
    scratch = folder / "scratch"

    def start(name: str, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "dask", *words, *tls, *here]
        with open(folder / f"{name}.log", "w") as log:
            processes.append(
                subprocess.Popen(command, stdout=log, stderr=log, text=True, env=environment, start_new_session=True)
            )
        return processes[-1]

    try:
        where = folder / "scheduler.json"
        scheduler = start("scheduler", "scheduler", "--protocol", "tls", "--port", "0", "--scheduler-file", str(where))

        def listening() -> str:
            assert scheduler.poll() is None, (folder / "scheduler.log").read_text()
            with suppress(OSError, ValueError):  # it is written in place
                return str(json.loads(where.read_text())["address"])
            return ""

        address = until(listening)
        work = ("--nworkers", "1", "--nthreads", "1", "--memory-limit", "1GB", "--local-directory", str(scratch))
        yield Cluster(
            address, files, scheduler, [start(f"worker{i}", "worker", address, *work) for i in range(workers)], scratch
        )
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
