"""The long check of sessions: whatever can befall them, at random moments, in random company.

python tests/tools/fuzz_sessions.py [--seconds 600] [--seed N]

Controllers, providers and daemons are killed or stand still, the disk is full, the log is removed or cut, garbage is
sent to the daemon, and a hostile writer scribbles over all memory that it shares. After each round: every listed
session can be stopped, its name can be used again, nothing of the session is left, flushed events are readable, only
killed providers have ended; and if the daemon lived, the offered events are in the file or counted as lost, except the
event that a killed provider may have been writing, and the false counts of a liar. Some rounds run 64 sessions. Others
record all that the system does while a program makes hostile system calls (`hostile_calls`): no source of the session
ends, and nothing is lost because it could not be written.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

import hostile_calls
from lastbranch.analysis.checks import check
from lastbranch.errors import FormatError
from lastbranch.etw.flags import Control, EnableProvider, LogFileMode
from lastbranch.etw.portable.pool import PAGE, Geometry
from lastbranch.etw.portable.protocol import Kind, encode, pack
from lastbranch.etw.portable.session.source_processes import SOURCE_TIMEOUT
from lastbranch.etw.portable.session_registry import MAX_SESSIONS
from lastbranch.etw.status import EtwError, Status
from lastbranch.formats.etl import TraceLog
from lastbranch.model import BytesSource
from lastbranch.opening import open_profile
from portable_sessions import Sessions, code_of, processes_of, sessions_in, until
from provider_process import PROVIDER, Provider

M = LogFileMode
EXACT = [M.FILE_MODE_SEQUENTIAL, M.FILE_MODE_SEQUENTIAL | M.NO_PER_PROCESSOR_BUFFERING,
         M.FILE_MODE_SEQUENTIAL | M.COMPRESSED_MODE]  # fmt: skip
"""Modes in which every event that was taken is in the file."""
MODES = [*EXACT, M.FILE_MODE_CIRCULAR, M.FILE_MODE_CIRCULAR | M.COMPRESSED_MODE, M.FILE_MODE_NEWFILE,
         M.REAL_TIME_MODE, M.BUFFERING_MODE, M.FILE_MODE_SEQUENTIAL | M.SYSTEM_LOGGER_MODE]  # fmt: skip
BODIES = [
    "write_while(lambda: counts[0] < 10_000)",
    """
    while counts[0] < 10_000 and time.monotonic() < end:
        until = counts[0] + 500
        thread = threading.Thread(target=write_while, args=(lambda: counts[0] < until,))
        thread.start()
        thread.join()
    """,
    """
    write_while(lambda: counts[0] < 2_000)
    child = os.fork()
    if not child:
        counts = counts[512:]
    write_while(lambda: counts[0] < 5_000)
    if not child:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    """,
]
_CONTROLLER = """
    from uuid import UUID
    from lastbranch.etw.flags import EnableProvider, LogFileMode
    from lastbranch.etw.portable.kernel import PortableKernel
    from lastbranch.etw.properties import SessionRequest
    kernel = PortableKernel()
    request = SessionRequest(
        "fuzz", file={file!r}, mode=LogFileMode({mode}), maximum_file_size={size}, buffer_size=4, clock={clock},
        enable_flags={flags},
    )
    state = kernel.start(request)
    kernel.enable(state.handle, UUID("{provider}"), EnableProvider.ENABLE, 0, 0, 0, 0, None)
    print("started", flush=True)
    input()
"""


class Round:
    """One session, its controller and its providers, and all accidents of the round."""

    def __init__(self, sessions: Sessions, chance: random.Random) -> None:
        self.sessions, self.chance = sessions, chance
        self.mode = chance.choice(MODES)
        self.file = sessions.file("x%d.etl" if self.mode & M.FILE_MODE_NEWFILE else "x.etl")
        self.what: Counter[str] = Counter()
        self.providers = [Provider(sessions, chance.choice(BODIES)) for _ in range(2)]
        self.killed: set[Provider] = set()
        code = _CONTROLLER.format(
            file="" if self.mode & M.BUFFERING_MODE else str(self.file),
            mode=int(self.mode),
            provider=PROVIDER,
            size=0 if self.mode in EXACT else 1,
            clock=chance.choice([1, 2]),
            flags=0x11 if self.mode & M.SYSTEM_LOGGER_MODE and os.geteuid() == 0 else 0,  # process, context switches
        )
        self.controller = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(os.environ) | {"LASTBRANCH_ETW_DIR": str(sessions.root)},
        )

    @property
    def daemon(self) -> int:
        """Its process id. `AssertionError` if there is no session."""
        return self.sessions.pid("fuzz")

    def befall(self) -> None:
        """One of `FAULTS`."""
        names = [name for name in FAULTS if name != "source_killed"]
        what = self.chance.choice(names + ["source_killed"] * (6 if self.mode & M.SYSTEM_LOGGER_MODE else 0))
        try:
            FAULTS[what](self)
        except (AssertionError, EtwError, OSError):  # no session (any more), or not that soon
            what += " (missed)"
        self.what[what] += 1

    # -- faults

    def garbage(self) -> None:
        with self.sessions.connected("fuzz") as connection:
            kinds = [kind for kind in Kind if kind not in (Kind.STOP, Kind.CONVERT_TO_REALTIME, Kind.ATTACH)]
            body = self.chance.randbytes(self.chance.randrange(200))
            whole = encode(self.chance.choice(kinds), body)
            connection.stream.settimeout(1)
            connection.stream.sendall(self.chance.choice([body, whole, whole[: self.chance.randrange(16)]]))
            connection.stream.shutdown(socket.SHUT_WR)

    def flush(self) -> None:
        self.sessions.control(Control.FLUSH, "fuzz", file=str(self.sessions.file("snapshot.etl")))

    def controller_killed(self) -> None:
        self.controller.kill()

    def stopped_and_gone(self) -> None:
        with self.sessions.connected("fuzz") as connection:
            connection.send(Kind.STOP)

    def provider_killed(self) -> None:
        one = self.chance.choice(self.providers)
        self.killed.add(one)
        one.process.kill()

    def provider_stands_still(self) -> None:
        one = self.chance.choice(self.providers)
        one.send(signal.SIGSTOP)
        time.sleep(self.chance.uniform(0, 0.2))
        one.send(signal.SIGCONT)

    def daemon_stands_still(self) -> None:
        os.kill(daemon := self.daemon, signal.SIGSTOP)
        time.sleep(self.chance.uniform(0, 0.2))
        os.kill(daemon, signal.SIGCONT)

    def source_killed(self) -> None:
        sources = processes(self.sessions, "sources")
        for pid in sources:
            os.kill(pid, signal.SIGKILL)
        assert sources

    def daemon_killed(self) -> None:
        os.kill(self.daemon, signal.SIGKILL)

    def disk_full(self) -> None:
        _, most = resource.prlimit(daemon := self.daemon, resource.RLIMIT_FSIZE)
        # A header that is there can be written over on a full disk.
        resource.prlimit(daemon, resource.RLIMIT_FSIZE, (self.chance.randrange(1 << 16, 1 << 18), most))
        time.sleep(self.chance.uniform(0, 0.2))
        resource.prlimit(daemon, resource.RLIMIT_FSIZE, (most, most))

    def log_cut(self) -> None:
        os.truncate(self.file, self.chance.choice([0, 100, 5000]))

    def log_removed(self) -> None:
        self.file.unlink()

    def scribbled(self) -> None:
        with self.sessions.connected("fuzz") as connection:
            _, fds = connection.call(Kind.ATTACH, pack(0xFFFF))
            geometry = Geometry.read(fds[0])
            with mmap.mmap(fds[1], geometry.size) as memory:
                reach = geometry.buffer(40)
                if self.chance.random() < 0.5:
                    pages = list(range(0, reach, PAGE))
                    for at in self.chance.sample(pages, self.chance.choice([1, 3, len(pages)])):
                        memory[at : at + PAGE] = self.chance.randbytes(PAGE)
                        if self.chance.random() < 0.1:
                            os.eventfd_write(fds[2], 1)
                for _ in range(self.chance.randrange(3000)):
                    place = self.chance.choice([0, PAGE * (1 + self.chance.randrange(4)), geometry.buffer(0)])
                    at = min(place + 8 * self.chance.randrange(1 << self.chance.randrange(3, 13)), reach - 8)
                    word = self.chance.getrandbits(self.chance.choice([4, 10, 33, 64]))
                    memory[at : at + 8] = word.to_bytes(8, "little")
            os.set_blocking(fds[2], self.chance.random() < 0.5)
            for fd in fds:
                os.close(fd)

    # -- the end

    def finish(self) -> None:
        """Let the providers come to their end; see that the session can be stopped and leaves nothing behind."""
        sessions, touched = self.sessions, {name for name in self.what if "missed" not in name}
        whole = not touched & {"daemon_killed", "stopped_and_gone", "log_cut", "log_removed"}
        orphan = self.what["controller_killed"] or self.controller.poll() is not None  # it may have enabled nobody
        for one in self.providers if whole else ():
            if one.offered or not orphan:
                until(lambda one=one: one.process.poll() is not None, 90)
        ended = [one.process.poll() for one in self.providers if one not in self.killed]
        assert all(code in (None, 0) for code in ended), (ended, self.what)
        offered = sum(one.offered for one in self.providers)
        for one in self.providers:
            one.kill()
        self.controller.kill()
        self.controller.communicate()
        until(lambda: len(sessions.kernel.sessions()) == len(processes(sessions, "session.daemon")))
        for state in sessions.kernel.sessions():
            try:
                final = sessions.stop(state.handle)
            except EtwError as error:
                if error.status == Status.WMI_INSTANCE_NOT_FOUND:
                    continue  # a controller that was killed had asked for it
                raise
            if whole and None not in ended and self.mode in EXACT:
                found = delivered(self.file)
                most = offered if "scribbled" not in touched else 1 << 64
                assert offered - len(self.killed) <= found + final.events_lost <= most, (
                    found,
                    final.events_lost,
                    offered,
                    self.what,
                )
                self.what["accounts"] += 1
        until(lambda: not processes_of(sessions.root))
        for path in sessions.folder.glob("*.etl"):
            harmed = touched & {"log_cut", "log_removed"} or path.name == "snapshot.etl"
            with suppress(*[FormatError] if harmed else []):
                names = {finding.name for finding in check(str(path))} if path.stat().st_size else set()
                assert harmed or self.what["daemon_killed"] or "no end" not in names, (path, names, self.what)
                delivered(path)
            path.unlink()
        assert sessions.names() == []
        left = os.listdir(sessions.root / "sessions")
        assert not left, (left, self.what)


FAULTS: dict[str, Callable[[Round], None]] = {
    call.__name__: call
    for call in (
        Round.garbage,
        Round.flush,
        Round.controller_killed,
        Round.stopped_and_gone,
        Round.provider_killed,
        Round.provider_stands_still,
        Round.daemon_stands_still,
        Round.source_killed,
        Round.daemon_killed,
        Round.disk_full,
        Round.log_cut,
        Round.log_removed,
        Round.scribbled,
    )
}


def processes(sessions: Sessions, module: str) -> list[int]:
    """Processes that run this module of the portable kernel."""
    found = []
    for pid in processes_of(sessions.root):
        with suppress(OSError):
            if f"lastbranch.etw.portable.{module}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                found.append(pid)
    return found


def delivered(file: Path) -> int:
    """Events of providers in a file."""
    if not file.exists() or not file.stat().st_size:
        return 0
    log = TraceLog(BytesSource(file.read_bytes(), str(file)))
    return sum(int(np.count_nonzero(block.hook < 0)) for block in log.blocks())


def as_many_as_there_may_be(sessions: Sessions, chance: random.Random) -> None:
    """64 sessions that all take the same provider, and no 65th; half of their daemons are killed."""
    handles = {sessions.start(f"many {n}", f"many{n}.etl", buffer_size=4).handle for n in range(MAX_SESSIONS)}
    assert handles == set(range(1, MAX_SESSIONS + 1))
    assert code_of(lambda: sessions.start("one more", "more.etl")) == Status.NO_SYSTEM_RESOURCES
    for handle in handles:
        sessions.kernel.enable(handle, PROVIDER, EnableProvider.ENABLE, 0, 0, 0, 0, None)
    one = Provider(sessions, "write_while(lambda: counts[0] < 100)\ntime.sleep(60)")
    until(lambda: one.offered == 100, 120)
    killed = set(chance.sample(sorted(handles), MAX_SESSIONS // 2))
    for pid in [sessions.pid(handle) for handle in killed]:
        os.kill(pid, signal.SIGKILL)
    until(lambda: len(processes_of(sessions.root)) == MAX_SESSIONS - len(killed) + 1)
    assert {state.handle for state in sessions.kernel.sessions()} == handles - killed
    assert one.process.poll() is None
    for handle in sorted(handles - killed):
        final = sessions.stop(handle)
        assert delivered(sessions.file(f"many{handle - 1}.etl")) + final.events_lost == 100
    one.kill()
    assert sessions.names() == os.listdir(sessions.root / "sessions") == []


_ALL = (
    0x3
    | 0x4
    | 0x8
    | 0x10
    | 0x20
    | 0x40
    | 0x80
    | 0x100
    | 0x200
    | 0x400
    | 0x4000
    | 0x8000
    | 0x10000
    | 0x200000
    | 0x2000000
    | 0x4000000
)
"""EnableFlags of everything that Linux has."""


def hostile_programs(sessions: Sessions, chance: random.Random) -> bool:
    """A session of all that the system does, beside hostile system calls; False where that may not be recorded."""
    flags = chance.choice([_ALL, _ALL & chance.getrandbits(32) | 0x7]) | 0x100
    mode = M.SYSTEM_LOGGER_MODE | M.FILE_MODE_SEQUENTIAL
    try:
        sessions.start("hostile", mode=mode, enable_flags=flags, buffer_size=64, maximum_buffers=512)
    except EtwError as error:
        if error.status in (Status.PRIVILEGE_NOT_HELD, Status.NOT_SUPPORTED):
            return False
        raise
    sources = processes(sessions, "sources")
    seconds, seed = chance.uniform(0.5, 4), chance.getrandbits(32)
    command = [sys.executable, hostile_calls.__file__, "--seconds", str(seconds), "--seed", str(seed)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert processes(sessions, "sources") == sources, (hex(flags), seed)
    began = time.monotonic()
    sessions.stop("hostile")
    in_time = time.monotonic() - began < SOURCE_TIMEOUT  # else a source that writes on and on was killed
    profile = open_profile(str(sessions.file()))
    assert not profile.damage, (profile.damage[:3], hex(flags), seed)
    assert "Windows Kernel/Process/DCStop" in profile.records or not in_time, (hex(flags), seed)
    assert not [name for name in profile.lost if "written" in name], (profile.lost, hex(flags), seed)
    check(str(sessions.file()))
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="Sessions that suffer.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--verbose", action="store_true", help="a line a round")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by way of what ends the daemons
    counts: Counter[str] = Counter()
    end = time.monotonic() + arguments.seconds
    for number in range(1 << 30):
        if time.monotonic() > end:
            break
        chance, begin = random.Random(f"{arguments.seed}/{number}"), time.monotonic()
        with tempfile.TemporaryDirectory() as name, sessions_in(Path(name)) as sessions:
            if number % 5 == 3:
                counts["hostile programs"] += hostile_programs(sessions, chance)
                continue
            if number % 50 == 25:
                as_many_as_there_may_be(sessions, chance)
                counts["64 sessions"] += 1
                continue
            made = Round(sessions, chance)
            if chance.random() < 0.7:
                assert made.controller.stdout is not None
                made.controller.stdout.readline()
            for _ in range(chance.randrange(5)):
                time.sleep(chance.uniform(0, 0.2))
                made.befall()
            made.finish()
            counts += made.what
        counts["rounds"] += 1
        if arguments.verbose:
            print(number, repr(made.mode), dict(made.what), f"{time.monotonic() - begin:.1f} s", flush=True)
    print(dict(sorted(counts.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
