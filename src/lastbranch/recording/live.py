"""A recording that is looked at while it runs: its recorder or its viewer, in a process of its own, and what was
counted so far."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, NoReturn

from ..closing import Closing
from ..errors import FormatError, LastbranchError, UnavailableError
from ..long_waits import waiting

if TYPE_CHECKING:
    import subprocess
    from io import BufferedReader

    from ..analysis import Annotation, BranchTable, Namer, Place
    from ..analysis.running.counts import Snapshot
    from ..capture import Options, ProcessGroup, Summary
    from ..model import OpenFile, Profile
    from ..symbols import SymbolOptions

__all__ = ["KEPT", "LiveCapture", "LiveRecorder", "LiveViewer", "RecorderState", "StreamCopy"]

KEPT = 256 << 20
"""Bytes of records that are kept on disk for `LiveCapture.save`: the newest ones."""
_INTERVAL = 0.25
"""Seconds between two messages of a recorder."""
_COPIED = 1 << 20
"""Bytes of a stream that are copied at once."""
_LONGEST_WAIT = 0.1
"""Seconds after which a recorder that says nothing is looked at: one that was killed sends no message."""
_ENDING = 10
"""Seconds that a viewer has to end."""
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""For NumPy in the viewer's process: it would start threads for matrices, which is half of what its import takes, and
has none."""


# -- The recorder


@dataclass(slots=True)
class RecorderState:
    """The last reported state of a recorder."""

    engine: str = ""
    """Empty until the recording begins."""
    why: str = ""
    """Why this engine and no better one."""
    pid: int = 0
    """The process that records."""
    share: float | None = None
    """The share of wall time that the software engine's bursts took; ``None`` of the hardware engine."""
    skipped: int = 0
    """Triggers without a burst."""
    unrecorded: int = 0
    """Threads that could not be given a trigger."""
    summary: dict[str, Any] | None = None
    """The software engine's `Summary`, by field."""
    notes: tuple[str, ...] = ()
    ended: bool = False
    error: str = ""
    hint: str = ""
    status: int = 0


class LiveRecorder(Closing):
    """Records ``target`` (as `recorders.record_file` takes it) into `file`, a perf.data that
    grows, from construction until `stop`. Programs run on after that.

    A launched program reads nothing and writes to the file ``output``. Its recorder is in a process group of its own,
    so that Ctrl-C at the terminal is the caller's. Make a recorder before there are threads: making one forks.

    Raises `RunError` and `CollectorError` for what no engine can record; later failures are in the `state`.
    """

    def __init__(
        self,
        target: Sequence[str] | int | ProcessGroup | None,
        options: Options,
        *,
        engine: str = "auto",
        command_line: Sequence[str] = (),
        output: str = os.devnull,
    ) -> None:
        from ..capture import CollectorError, check_target

        try:
            check_target(target)
        except UnavailableError as error:
            raise CollectorError(str(error), hint=error.hint) from error
        self.state = RecorderState()
        self._options, self._rest = options, b""
        with ExitStack() as opened:
            self.file: IO[bytes] = opened.enter_context(tempfile.TemporaryFile(buffering=0))
            out = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
            self._open = opened.pop_all()
        self._messages, messages = os.pipe()
        ends, self._go_on = os.pipe()
        os.set_blocking(self._messages, False)
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._messages)
            os.close(self._go_on)
            _be_recorder(target, self.file.fileno(), options, engine, command_line, out, messages, ends)
        for fd in (messages, ends, out):
            os.close(fd)

    def poll(self) -> RecorderState:
        """The newest state."""
        with suppress(BlockingIOError):
            while part := os.read(self._messages, 1 << 16):
                self._rest += part
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            with suppress(ValueError):  # where the pipe was full, a message may be cut
                for name, value in json.loads(line).items():
                    setattr(self.state, name, tuple(value) if isinstance(value, list) else value)
        if self._pid and not self.state.ended:
            with suppress(ChildProcessError):
                done, _ = os.waitpid(self._pid, os.WNOHANG)
                if done:
                    self._pid = 0
                    self.poll()
                    if not self.state.ended:
                        self.state.ended, self.state.error = True, "the recorder was killed"
        return self.state

    def wait(self, seconds: float) -> RecorderState:
        """The newest state, after the next message, ``seconds`` or `_LONGEST_WAIT`, whichever comes first."""
        if not self.state.ended:
            select.select([self._messages], [], [], min(seconds, _LONGEST_WAIT))
        return self.poll()

    def stop(self) -> RecorderState:
        """End the recording, and wait until all of it is in the file."""
        if self._go_on >= 0:
            os.close(self._go_on)
            self._go_on = -1
        while not self.wait(_LONGEST_WAIT).ended:
            pass
        if self._pid:
            with suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._pid = 0
        return self.state

    def seconds_of_cpu(self) -> float:
        """CPU time of the process that records."""
        try:
            with open(f"/proc/{self.state.pid}/stat", "rb") as file:
                words = file.read().rpartition(b")")[2].split()
        except OSError:
            return 0.0
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def describe(self, profile: Profile) -> None:
        """Note in the profile how it was recorded."""
        from ..capture import HardwareSummary, Summary, describe, describe_hardware

        if self.state.summary is None:
            describe_hardware(profile, HardwareSummary(notes=self.state.notes))
        else:
            describe(profile, self._options, Summary(**self.state.summary))

    def close(self) -> None:
        self.stop()
        os.close(self._messages)
        self._open.close()


def _be_recorder(
    target: Sequence[str] | int | ProcessGroup | None,
    file: int,
    options: Options,
    engine: str,
    command_line: Sequence[str],
    out: int,
    messages: int,
    ends: int,
) -> NoReturn:
    """Record in this process, which was forked for it, and report to the pipe ``messages``. The recording ends when the
    other end of the pipe ``ends`` is closed, at the latest when the process that holds it ends."""
    from dataclasses import asdict

    last: dict[str, Any] = {"ended": True}
    try:
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, standard in ((null, 0), (out, 1), (out, 2)):
            os.dup2(fd, standard)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        from .recorders import record_growing

        os.set_blocking(messages, False)
        reporter = _Reporter(messages)
        done = record_growing(
            target,
            f"/proc/self/fd/{file}",
            options,
            engine=engine,
            command_line=command_line,
            say=reporter.say,
            began=reporter.began,
            stop=lambda: bool(select.select([ends], [], [], 0)[0]),
        )
        last |= {"notes": done.notes}
        if (summary := _software(done)) is not None:
            last |= _facts(summary) | {"summary": asdict(summary)}
    except LastbranchError as error:
        last |= {"error": str(error), "hint": error.hint or "", "status": error.exit_code}
    except BaseException as error:
        from ..crashes import crash_line

        last |= {"error": f"the recorder failed: {crash_line(error)}", "status": 70}
    finally:
        with suppress(OSError):
            os.set_blocking(messages, True)
            os.write(messages, b"\n" + json.dumps(last).encode() + b"\n")
        os._exit(0)


def _software(done: Any) -> Summary | None:
    from ..capture import Summary

    return done if isinstance(done, Summary) else None


def _facts(summary: Summary) -> dict[str, Any]:
    return {
        "engine": f"software: {summary.engine}; trigger {summary.trigger}",
        "share": round(summary.share, 4),
        "skipped": summary.throttled + sum(summary.skipped.values()),
        "unrecorded": summary.unrecorded,
    }


class _Reporter:
    """Writes the state of a recording to a pipe. A message that finds no room there is lost, so that nothing waits."""

    def __init__(self, pipe: int) -> None:
        self._pipe, self._sent = pipe, 0.0

    def _send(self, message: dict[str, Any]) -> None:
        with suppress(OSError):
            os.write(self._pipe, json.dumps(message).encode() + b"\n")

    def say(self, sentence: str) -> None:
        from .recorders import INSTEAD

        why = sentence.partition(INSTEAD)[2]
        self._send({"why": why} if why else {"notes": [sentence]})

    def began(self, summary: Any, _launched: int | None) -> None:
        if (now := time.monotonic()) - self._sent < _INTERVAL:
            return
        self._sent = now
        from dataclasses import asdict

        software = _software(summary)
        if software is None:
            self._send({"engine": "hardware: the processor's branch records", "pid": os.getpid()})
        else:
            facts = asdict(software) | {"losses": []}  # which grow, and are reported at the end
            self._send(_facts(software) | {"summary": facts, "pid": os.getpid()})


# -- The viewer


class LiveViewer(Closing):
    """The viewer of a recording that runs, in a process of its own, which starts beside the recorder; ``name`` is what
    the recording will be called, and ``browse`` opens the browser. `show` gives it the recording, and its address is
    printed to standard error; `close` ends it. If it fails, ``say`` gets the reason and the recording goes on.

    The viewer is in a process group of its own, so that Ctrl-C at the terminal is the program's and ours.
    """

    def __init__(self, name: str, browse: bool, say: Callable[[str], None]) -> None:
        self._name, self._shown = name, False
        self._process: subprocess.Popen[bytes] | None = None
        if sys.platform != "linux":
            return  # nor can a recording be watched elsewhere: the recorder says so
        import subprocess

        self._line, line = socket.socketpair()
        words = [name, "browse" if browse else ""]
        with line:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "lastbranch.view.live_process", *words],
                    stdin=line.fileno(),
                    stdout=2,
                    process_group=0,
                    env={**os.environ, **_ONE_THREAD},
                )
            except OSError as error:
                say(f"warning: the viewer cannot be started: {error.strerror}")

    @property
    def processes(self) -> tuple[int, ...]:
        """The process ids of the viewer."""
        return (self._process.pid,) if self._process is not None else ()

    def show(self, file: IO[bytes]) -> None:
        """Show the perf.data that is written to ``file``."""
        self._shown = True
        self._send(lambda: socket.send_fds(self._line, [b"\n"], [file.fileno()]))

    def finish(self) -> None:
        """The recording is complete: show the file of that name, until Ctrl-C, or until the viewer has ended."""
        self._send(lambda: self._line.sendall(json.dumps(self._name).encode() + b"\n"))
        with suppress(KeyboardInterrupt):
            if self._process is not None:
                self._process.wait()

    def _send(self, send: Callable[[], object]) -> None:
        if self._process is not None:
            with suppress(OSError):  # it has ended
                send()

    def close(self) -> None:
        if self._process is None:
            return
        import subprocess

        self._line.close()
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            self._process.wait(_ENDING if self._shown else 0)
        self._process.kill()
        self._process.wait()


# -- A recording that comes through a pipe


class StreamCopy(Closing):
    """Copies ``stream`` to a temporary file, `file`, as it comes, in a thread of its own."""

    def __init__(self, stream: BufferedReader) -> None:
        import threading

        with ExitStack() as opened:
            self.file: IO[bytes] = opened.enter_context(tempfile.TemporaryFile(buffering=0))
            self._open = opened.pop_all()
        self.error = ""
        """Why not all of it was copied."""
        self._stream, self._done = stream, threading.Event()
        threading.Thread(target=self._copy, name="stream", daemon=True).start()

    @property
    def ended(self) -> bool:
        """Whether all that comes is in the file."""
        return self._done.is_set()

    def wait(self, size: int) -> None:
        """Wait for the first ``size`` bytes, or the end. A long wait is told."""
        with waiting("data on standard input"):
            while os.fstat(self.file.fileno()).st_size < size and not self._done.wait(_LONGEST_WAIT / 10):
                pass

    def _copy(self) -> None:
        out = os.dup(self.file.fileno())
        try:
            while data := self._stream.read1(_COPIED):
                while data:
                    data = data[os.write(out, data) :]
        except OSError as error:
            self.error = error.strerror or str(error)
        finally:
            os.close(out)
            self._done.set()

    def close(self) -> None:
        self._open.close()


# -- What was recorded


class LiveCapture(Closing):
    """Counts the records that are added to a perf.data; its last ``kept`` bytes of records can be saved.

    ``source`` is read from its start on; `read` goes on where the last one ended. ``ours``: nobody else reads the file,
    so the disk gets space back that is not kept, and the file's header may still be missing.
    """

    def __init__(
        self,
        source: OpenFile,
        symbols: SymbolOptions | None = None,
        *,
        symfs: str | None = None,
        folders: Sequence[str] = (),
        kept: int = KEPT,
        ours: bool = False,
    ) -> None:
        from ..formats.perfdata.growing import GrowingPerfData

        self._source, self._symbols, self._symfs, self._folders = source, symbols, symfs, folders
        self._kept, self._ours, self._attached = kept, ours, 0
        self._begin: Callable[[], GrowingPerfData] = lambda: GrowingPerfData(source)
        self._growing: GrowingPerfData | None = None
        self._counts: Any = None
        self._first = 0
        """The beginning of the kept records."""
        self._marks: list[int] = []
        self._earlier: list[bytes] = []
        """Records before these that are no samples."""

    @property
    def profile(self) -> Profile | None:
        """The profile of the recording so far; ``None`` before its first samples."""
        return self._growing.profile if self._growing is not None and self._counts is not None else None

    @property
    def namer(self) -> Namer:
        namer: Namer = self._counts.namer
        return namer

    def read(self, *, last: bool = False) -> None:
        """Count what was added; ``last``: nothing more will be. Raises `FormatError` where the file is no perf.data, or
        is damaged."""
        if self._growing is None:
            try:
                self._growing = self._begin()
            except FormatError:
                if self._ours and not last:
                    return
                raise
            self._first = self._growing.start
        for batch in self._growing.batches(self._changed):
            if self._counts is not None:
                self._counts.add(batch)
        if self._ours:
            self._forget()

    def turn(self) -> Snapshot | None:
        """A snapshot of the counts until now (`RunningCounts.turn`); ``None`` before the first samples."""
        if self._counts is None:
            return None
        snapshot: Snapshot = self._counts.turn()
        return snapshot

    def hold(self) -> None:
        """Hide samples that come from here on until the next `turn` (`RunningCounts.hold`)."""
        if self._counts is not None:
            self._counts.hold()

    def hottest_branches(self, limit: int = 0) -> tuple[BranchTable, int]:
        """The hottest branches until the last `turn`, and how often all branches were taken
        (`RunningCounts.hottest_branches`)."""
        found: tuple[BranchTable, int] = self._counts.hottest_branches(limit)
        return found

    def annotate(self, place: Place) -> Annotation:
        """The code of ``place`` with what was counted until now (`RunningCounts.annotate`)."""
        found: Annotation = self._counts.annotate(place)
        return found

    def _changed(self) -> None:
        """The tables are other ones: bind anew."""
        from ..analysis import Namer
        from ..analysis.running.counts import RunningCounts
        from ..bind import bind
        from ..opening import attach_binaries, recorded_here
        from ..symbols import Symbolizer

        assert self._growing is not None
        profile = self._growing.profile
        if self._ours:
            recorded_here(profile)
        new = profile.modules[self._attached :]
        self._attached = len(profile.modules)
        attach_binaries(new, profile.machine.os_release, self._symfs, self._folders, time.time_ns())
        bind(profile)
        if self._counts is None:
            namer = Namer(profile, None if self._symbols is None else Symbolizer(profile, self._symbols))
            self._counts = RunningCounts(namer)
        self._counts.bind()

    # -- the kept records

    def _forget(self) -> None:
        """Give the disk back the oldest records, if there are too many."""
        assert self._growing is not None
        if self._growing.compressed:
            return
        if not self._marks or self._growing.at - self._marks[-1] > self._kept // 16:
            self._marks.append(self._growing.at)
        if self._growing.at - self._first <= self._kept:
            return
        first = next(mark for mark in [*self._marks, self._growing.at] if self._growing.at - mark <= self._kept)
        self._earlier.append(self._growing.record_bytes(self._first, first))
        _punch(self._source, self._growing.start, first)  # from the start: blocks are freed only as a whole
        self._first, self._marks = first, [mark for mark in self._marks if mark > first]

    def save(self, output: str, describe: Callable[[Profile], None] = lambda profile: None) -> None:
        """Write the kept records to ``output``, as `lastbranch record` writes: the name decides the format, an existing
        file becomes ``output.old``. ``describe`` completes the profile of formats other than perf.data.

        Raises `CollectorError` if writing is impossible.
        """
        from ..capture import save
        from ..model import PartFile

        assert self._growing is not None
        whole = self._first == self._growing.start
        with PartFile(output) as part:
            copy = part.file
            copy.write(self._bytes(0, self._growing.start) if whole else self._growing.open_header())
            for records in self._earlier:
                copy.write(records)
            at, end = self._first, self._source.size if whole and self._growing.complete else self._growing.at
            while at < end:
                data = self._bytes(at, min(end, at + (1 << 20)))
                if not data:
                    break
                copy.write(data)
                at += len(data)
            save(part, output, lambda profile: self._describe(profile, describe))

    def _describe(self, profile: Profile, describe: Callable[[Profile], None]) -> None:
        describe(profile)
        if self._earlier:
            profile.header["kept"] = f"the newest {self._kept >> 20} MiB of the records; of those before no samples"

    def _bytes(self, start: int, end: int) -> bytes:
        from ..model import read_at

        return read_at(self._source, start, end - start)

    def close(self) -> None:
        if self._counts is not None and self._counts.namer.symbols is not None:
            self._counts.namer.symbols.close()
        self._source.close()


_PUNCH_HOLE = 0x03
"""FALLOC_FL_PUNCH_HOLE with FALLOC_FL_KEEP_SIZE, of fallocate(2)."""


def _punch(source: OpenFile, start: int, end: int) -> None:
    """Free the blocks of a part of the file, which then reads as zeros. If the file system cannot free blocks, they
    stay."""
    if sys.platform == "linux":
        arguments = source.fileno(), _PUNCH_HOLE, ctypes.c_long(start), ctypes.c_long(end - start)
        ctypes.CDLL(None).fallocate(*arguments)
