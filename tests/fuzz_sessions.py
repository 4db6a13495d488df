"""The long check of sessions: controllers, providers and daemons killed at random moments, and garbage sent to daemons.

python tests/fuzz_sessions.py [--seconds 600] [--seed N]

After each round: every session that is listed can be stopped, its name can be used again, what was flushed reads, and
where nobody was killed the events that were offered are those in the file and those counted as lost.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from lastbranch.etw.consumed import consume
from lastbranch.etw.flags import Control, LogFileMode
from lastbranch.etw.portable.protocol import Kind, encode
from lastbranch.etw.status import EtwError
from portable_sessions import Sessions, processes_of, sessions_in, until

PROVIDER = UUID("11111111-2222-3333-4444-555555555555")
MODES = {
    LogFileMode.FILE_MODE_SEQUENTIAL: "x.etl", LogFileMode.FILE_MODE_CIRCULAR: "x.etl",
    LogFileMode.FILE_MODE_NEWFILE: "x%d.etl", LogFileMode.REAL_TIME_MODE: "x.etl", LogFileMode.BUFFERING_MODE: "",
    LogFileMode.FILE_MODE_SEQUENTIAL | LogFileMode.NO_PER_PROCESSOR_BUFFERING: "x.etl",
}  # fmt: skip
_CONTROLLER = """
    from uuid import UUID
    from lastbranch.etw.flags import EnableProvider, LogFileMode
    from lastbranch.etw.portable.kernel import PortableKernel
    from lastbranch.etw.properties import SessionRequest
    kernel = PortableKernel()
    request = SessionRequest("fuzz", file={file!r}, mode=LogFileMode({mode}), maximum_file_size={size}, buffer_size=4)
    state = kernel.start(request)
    kernel.enable(state.handle, UUID({provider!r}), EnableProvider.ENABLE, 0, 0, 0, 0, None)
    print("started", flush=True)
    input()
"""
_PROVIDER = """
    import time
    from uuid import UUID
    from lastbranch.etw.kernel import EventDescriptor
    from lastbranch.etw.portable.kernel import PortableKernel
    registered = PortableKernel().register(UUID({provider!r}), None)
    offered, event = 0, EventDescriptor(1)
    end = time.monotonic() + 60
    while offered < {events} and time.monotonic() < end:
        if registered.enabled:
            registered.write(event, b"x" * 40)
            offered += 1
    print(offered, flush=True)
    input()
    registered.close()
"""


def _python(sessions: Sessions, text: str, **values: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text).format(**values)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env=dict(os.environ) | {"LASTBRANCH_ETW_DIR": str(sessions.root)},
    )  # fmt: skip


def _garbage(sessions: Sessions, chance: random.Random) -> None:
    with suppress(AssertionError, EtwError, OSError), sessions.connected("fuzz") as connection:
        kinds = [kind for kind in Kind if kind not in (Kind.STOP, Kind.CONVERT_TO_REALTIME)]
        body = chance.randbytes(chance.randrange(200))
        data = chance.choice([body, encode(chance.choice(kinds), body), encode(Kind.QUERY)[: chance.randrange(16)]])
        connection.stream.settimeout(1)
        connection.stream.sendall(data)
        connection.stream.shutdown(socket.SHUT_WR)


def round_of(sessions: Sessions, chance: random.Random, counts: dict[str, int]) -> None:
    """One session, and what befalls it."""
    mode, file = chance.choice(list(MODES.items()))
    values = {"provider": str(PROVIDER), "mode": int(mode), "size": 1, "events": 20_000}
    people = [_python(sessions, _PROVIDER, **values) for _ in range(2)]
    controller = _python(sessions, _CONTROLLER, file=str(sessions.file(file)) if file else "", **values)
    people.append(controller)
    unharmed = True
    if chance.random() < 0.5:
        assert controller.stdout is not None
        controller.stdout.readline()
    for _ in range(chance.randrange(4)):
        time.sleep(chance.uniform(0, 0.3))
        what = chance.choice(["garbage", "garbage", "controller", "provider", "daemon", "flush"])
        counts[what] = counts.get(what, 0) + 1
        unharmed &= what in ("garbage", "flush")
        if what == "garbage":
            _garbage(sessions, chance)
        elif what == "flush":
            with suppress(EtwError):
                sessions.control(Control.FLUSH, "fuzz", file=str(sessions.file("snapshot.etl")))
        elif what == "daemon":
            with suppress(AssertionError, ProcessLookupError, EtwError):
                os.kill(sessions.pid("fuzz"), signal.SIGKILL)
        else:
            (controller if what == "controller" else people[chance.randrange(2)]).kill()
    offered = _finish(people) if unharmed else 0
    for one in people:
        one.kill()
        one.wait()
    until(lambda: len(sessions.kernel.sessions()) == len(processes_of(sessions.root)))
    for state in sessions.kernel.sessions():
        final = sessions.stop(state.handle)
        if unharmed and mode == LogFileMode.FILE_MODE_SEQUENTIAL and offered:
            delivered = sum(found.event.provider == PROVIDER.bytes_le for found in consume(sessions.file(file)))
            assert delivered + final.events_lost == offered, (delivered, final.events_lost, offered)
            counts["accounts"] = counts.get("accounts", 0) + 1
    until(lambda: not processes_of(sessions.root))
    for path in sessions.folder.glob("*.etl"):
        if path.stat().st_size:
            for _ in consume(path):
                pass
        path.unlink()
    left = os.listdir(sessions.root / "sessions")
    assert not left, left


def _finish(people: list[subprocess.Popen[bytes]]) -> int:
    """Events that the providers offered, when they have offered all; 0 if the session was not there for them."""
    controller = people[-1]
    offered = 0
    for one in people[:-1]:
        assert one.stdout is not None
        offered += int(one.stdout.readline())
    for one in people[:-1]:
        one.communicate(b"\n")
    assert controller.poll() is None
    return offered


def main() -> int:
    parser = argparse.ArgumentParser(description="Sessions whose processes are killed.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    chance, counts, rounds = random.Random(arguments.seed), {}, 0
    end = time.monotonic() + arguments.seconds
    with tempfile.TemporaryDirectory() as name, sessions_in(Path(name)) as sessions:
        while time.monotonic() < end:
            round_of(sessions, chance, counts)
            rounds += 1
    print(f"{rounds} rounds, {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
