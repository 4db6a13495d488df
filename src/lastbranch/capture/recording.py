"""A software recording from end to end: the collector in a process of its own, then a bound profile in a file.

The collector's process detaches from everything and ends; the kernel then releases threads that are still attached. If
the collector crashes, its written records are kept.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import select
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from importlib import import_module
from typing import IO, TYPE_CHECKING, NoReturn

from ..errors import LastbranchError
from ..formats.perfdata.record_file import Sink
from ..model import FULL, PartFile, PartFolder, keep_old, unused_name
from .full_disk import Overflow, Say, copy_whole
from .launch import Repeats, end_with_parent, held_signals, interruptible, received
from .options import Callbacks, Options, SoftwareRequest, Summary, SwitchOutput, Targets
from .procfs import spare_processor
from .switch_output import Parts, Switcher
from .traceable import CollectorError, RunError

if TYPE_CHECKING:
    from ..model import Profile

__all__ = ["also", "collect", "describe", "keep", "notes_of", "record", "save"]

_EMPTY = 4096
"""Bytes, roughly, of records without any sample."""
_COPIED = 1 << 20
_NOT_RUN = (126, 127)


def record(
    target: Sequence[str] | int | Targets,
    options: Options,
    output: str,
    command: Sequence[str],
    say: Say,
    progress: Callable[[Summary], None] = lambda summary: None,
    growing: Callable[[IO[bytes]], None] | None = None,
) -> Summary:
    """Record ``target``, a command, a process id or `Targets`, into the file ``output``; an existing one becomes
    ``output.old``.

    The name decides the format: .data is perf.data (pipe form), .etl a trace log, any other TB5. ``say`` gets sentences
    about what tracing changes, ``progress`` the state twice a second; both are called in the collector's process.
    ``growing`` is called in this process when the recording begins, with the perf.data that it fills.

    Raises `UnavailableError` where recording is impossible, `RunError` where the command cannot be executed,
    `CollectorError` where the collector crashed; its records are written nevertheless.
    """
    request, callbacks = SoftwareRequest(target, options, command), Callbacks(say, progress)
    with held_signals(), PartFile(output) as spill:
        if options.switch is not None:
            return _record_parts(request, options.switch, output, callbacks, spill)
        overflow = Overflow(spill)
        with closing(overflow.writer(overflow.tells(say, growing is not None))) as file:
            summary, failure = collect(
                request,
                file,
                callbacks,
                running=lambda pid: growing(spill.file) if growing is not None else None,
                converts=not output.endswith(".data"),
            )
        if failure is None or overflow.size > _EMPTY:
            with also(failure), overflow.whole(output) as whole:
                save(whole, output, lambda profile: describe(profile, options, summary))
        if failure is not None:
            raise failure
        return summary


@contextmanager
def also(failure: LastbranchError | None) -> Iterator[None]:
    """Have an error of the block mention the earlier ``failure``, if any."""
    try:
        yield
    except CollectorError as error:
        if failure is None:
            raise
        raise CollectorError(f"{failure}; {error}", hint=error.hint) from error


def _record_parts(
    request: SoftwareRequest, switch: SwitchOutput, output: str, callbacks: Callbacks, first: PartFile
) -> Summary:
    """`record` into several files, which are stored while the recording goes on; their names are in the summary."""

    def store(part: PartFile, name: str, summary: Summary) -> None:
        save(part, name, lambda profile: describe(profile, request.options, summary), interrupts=False)

    begun = Overflow(first)
    parts = Parts(switch, output, begun, store, callbacks.say)
    with closing(begun.writer(begun.tells(callbacks.say, watched=False))) as file:
        summary, failure = collect(request, file, callbacks, running=lambda pid: parts.start(), switcher=parts.switcher)
    parts.finish(summary, least=_EMPTY if failure else 0)
    if failure is not None:
        raise failure
    return replace(summary, files=tuple(parts.names))


def collect(
    request: SoftwareRequest,
    file: Sink,
    callbacks: Callbacks,
    running: Callable[[int], None] = lambda pid: None,
    *,
    converts: bool = False,
    switcher: Switcher | None = None,
) -> tuple[Summary, LastbranchError | None]:
    """Record into ``file`` (perf.data, pipe form) in a process of its own: the result, and the failure if any.

    ``running`` is called in this process with the collector's process id. ``converts``: `save` will convert the
    recording. ``switcher``: the recording goes on in a new file when this says so.
    """
    with held_signals() as unblocked:
        reads, writes = os.pipe()
        before = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.close(reads)
            # SIGTERM lets an attached process go in order; a launched one ends with its collector anyway.
            end_with_parent(signal.SIGTERM if isinstance(request.target, int | Targets) else signal.SIGKILL)
            if os.getppid() != before:
                os._exit(1)
            gc.disable()  # the loop makes no cycles, and a collection would fall into a burst

            def run(summary: Summary) -> None:
                from .software import record_software  # while the parent loads what the end needs

                announcing = replace(callbacks, progress=_announce_first(writes, callbacks.progress))
                record_software(request, file, announcing, unblocked, summary, switcher)

            _collect(run, file, writes)
        os.close(writes)
        # Also in the thread, which would take them from us.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        try:
            running(pid)
            first: list[bytes] = []
            loading = threading.Thread(target=_load, args=(reads, first))
            if converts:
                loading.start()
            _wait(pid)
            if converts:
                loading.join()
        finally:
            while received() is not None:
                pass  # one interrupt too many: the records are written nevertheless
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        with os.fdopen(reads, "rb") as pipe:
            return _result_of((b"".join(first) + pipe.read()).strip())


def _result_of(result: bytes) -> tuple[Summary, LastbranchError | None]:
    """The summary that the collector wrote, and its failure if any."""
    if not result:
        return Summary(), CollectorError("the collector was killed", hint="the data it had written is kept")
    done = Summary(**json.loads(result))
    if not done.error:
        return done, None
    if done.status in _NOT_RUN:
        return done, RunError(done.error, done.status, hint=done.hint or None)
    return done, CollectorError(done.error, hint=done.hint or None)


def _collect(run: Callable[[Summary], None], file: Sink, pipe: int) -> NoReturn:
    """Be the collector: ``run``, write the summary to ``pipe``, and end."""
    summary = Summary()
    try:
        run(summary)
    except LastbranchError as error:
        summary.error, summary.hint, summary.status = str(error), error.hint or "", error.exit_code
    except BaseException as error:
        if isinstance(error, OSError) and error.errno in FULL:
            summary.error = f"the recording cannot be written: {error.strerror}"
            summary.hint = "free some space, or write elsewhere with -o"
        else:
            from ..crashes import crash_line

            summary.error = f"the collector failed: {crash_line(error)}"
        summary.status = CollectorError.exit_code
    finally:
        with suppress(OSError):
            file.close()
        with suppress(OSError):
            os.write(pipe, json.dumps(asdict(summary)).encode())
        os._exit(0)


_RUNNING = b" "
"""The byte that the collector writes when the recording runs; JSON ignores a blank."""


def _announce_first(pipe: int, progress: Callable[[Summary], None]) -> Callable[[Summary], None]:
    """``progress``, whose first call also writes `_RUNNING` to ``pipe``."""
    announced = False

    def announce(summary: Summary) -> None:
        nonlocal announced
        if not announced:
            with suppress(BrokenPipeError):  # who waits for it was killed: SIGTERM follows
                os.write(pipe, _RUNNING)
            announced = True
        progress(summary)

    return announce


_LOADED_FOR_THE_END = ("binaries.elf", "formats.perfdata.reader", "formats.tb5.profile_writer", "opening")
"""The modules that `_convert` imports, in parts of at most a few tenths of a second."""
_MOMENT, _LONGER = 0.005, 0.1
"""Seconds between two looks for a spare processor: before the program runs, and since then."""


def _load(pipe: int, first: list[bytes]) -> None:
    """Import what the end of the recording needs while the program runs, in a thread: `_wait` must take signals.

    It takes no processor from the program: while all are busy it waits, in the end for the end of the collector.
    ``first`` gets the byte that is read from ``pipe`` to know that the program runs.
    """
    for name in _LOADED_FOR_THE_END:
        while not spare_processor():
            if select.select([pipe], [], [], _LONGER if first else _MOMENT)[0]:
                if first:
                    return
                first.append(os.read(pipe, 1))
                if first[0] != _RUNNING:
                    return
        import_module(f"..{name}", __package__)


def _wait(pid: int) -> None:
    """Wait for the collector, with SIGCHLD blocked, and pass on signals that only we got."""
    repeats = Repeats()
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        found = received(0.5, also=(signal.SIGCHLD,))
        if found is not None and found.number != signal.SIGCHLD and not repeats.is_repeat(found):
            # SIGALRM is the collector's own clock.
            (found._replace(number=signal.SIGTERM) if found.number == signal.SIGALRM else found).forward(pid)


def save(spill: PartFile, output: str, describe: Callable[[Profile], None], *, interrupts: bool = True) -> None:
    """Write ``output`` from the perf.data ``spill``: by its name the same bytes, a trace log, or TB5.

    An existing file becomes ``output.old``; ``describe`` completes the profile of the latter two. If ``output`` cannot
    be written, the recording is kept, and the `CollectorError` names its place. ``interrupts``: Ctrl-C interrupts a
    conversion.
    """
    try:
        if output.endswith(".data"):
            keep_old(output)
            _put(spill, output)
            return
        with interruptible() if interrupts else nullcontext():
            _convert(f"/proc/self/fd/{spill.file.fileno()}", output, describe)
    except BaseException as error:
        hint = keep(spill, output)
        if isinstance(error, LastbranchError | OSError | KeyboardInterrupt):
            why = (error.strerror if isinstance(error, OSError) else str(error)) or "interrupted"
            raise CollectorError(f"{output} cannot be written: {why}", hint=hint) from error
        error.add_note(hint)
        raise


def _put(spill: PartFile, output: str) -> None:
    """Let the spill have the name ``output``, by a copy where that is on another disk."""
    try:
        spill.move(output)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with PartFile(output) as copy:
            spill.file.seek(0)
            copy_whole(spill.file, copy.file)
            copy.appear()
        spill.discard()


def _convert(spill: str, output: str, describe: Callable[[Profile], None]) -> None:
    from ..formats.registry import format_written_to
    from ..opening import open_profile

    profile = open_profile(spill)
    profile.name = output
    describe(profile)
    name = os.path.basename(output)
    with PartFolder(output, private=True) as part:
        format_written_to(output if os.path.splitext(name)[1] else f"{output}.tb5").write(profile, part.file(name))
        keep_old(output)
        part.give(name)


def keep(spill: PartFile, output: str) -> str:
    """Keep the recording beside ``output`` or in the folder for temporary files; a sentence that says where."""
    names = [
        f"{unused_name(os.path.join(folder, os.path.basename(output)), 'unsaved')}.data"
        for folder in (os.path.dirname(output), os.path.dirname(spill.path))
    ]
    for name in names:  # the second name is on the disk of the spill
        with suppress(OSError):
            spill.move(name)
            break
    else:  # the folder is gone, or may not be written to any more
        import tempfile

        fd, name = tempfile.mkstemp(".data", "lastbranch-unsaved-")
        try:
            with open(fd, "wb") as copy:
                spill.file.seek(0)
                shutil.copyfileobj(spill.file, copy, _COPIED)
        except OSError as error:
            os.unlink(name)
            return f"the recording is lost: {name}: {error.strerror}"
    return f"the recording is kept in {name}; `lastbranch convert {name} NAME.tb5` converts it to TB5"


def describe(profile: Profile, options: Options, summary: Summary) -> None:
    """Note in the profile how it was recorded, and what its records mean."""
    profile.recorder = "lastbranch software LBR"
    profile.header.update(notes_of(options, summary))
    if summary.throttled:
        profile.lost["triggers without a burst (duty limit)"] = summary.throttled
    for why, count in summary.skipped.items():
        profile.lost[f"triggers without a burst ({why})"] = count
    profile.losses += [(when, count) for when, count in summary.losses]


_CALL_STACKS = {
    "dwarf": "of software-lbr samples, by call frame information; by bursts",
    "fp": "of cpu-clock samples, by frame pointers; whole where all code was compiled to keep them",
    "lbr": "call-stack mode; calls made in the burst that have not returned",
    "none": "not recorded",
}


def _call_stacks(summary: Summary) -> str:
    ended = ", ".join(f"{count} {end}" for end, count in sorted(summary.stacks.items(), key=lambda item: -item[1]))
    return _CALL_STACKS[summary.call_graph] + (f": {ended}" if ended else "")


def notes_of(options: Options, summary: Summary) -> dict[str, str]:
    """Lines for the profile's header."""
    return {f"recording note {i}": note for i, note in enumerate(summary.notes, 1)} | {
        "software LBR": f"{summary.engine}; trigger {summary.trigger}; sideband {summary.sideband}",
        "start-up test": "; ".join(f"{name}: {said}" for name, said in summary.self_test.items()),
        "bursts": f"{summary.bursts}, {summary.branches / max(summary.bursts, 1):.0f} branches each on average, in "
        f"records of up to {options.depth}; {summary.burst_share:.1%} of wall time (limit {options.duty:.1%}), "
        f"{summary.longest * 1e3:.1f} ms at most",
        "other stops": f"{summary.stops}, at signals, new tasks, execs and triggers without a burst; "
        f"{summary.stop_share:.1%} of wall time",
        "other work": f"{summary.beside_share:.1%} of wall time: the recorder's own, while all processors were busy",
        **({"foreseen": summary.foreseen} if summary.foreseen else {}),
        "call stacks": _call_stacks(summary),
        "bursts by end": ", ".join(f"{why} {count}" for why, count in sorted(summary.ended.items())),
        "weights": "the records of a burst share its weight, the CPU time in ns since its thread's last burst: "
        "functions compare by time, taken/not-taken ratios of a branch are unbiased",
        "addresses": "ip is the end of the burst, the target of the newest branch; addr is its start",
        "not known": "mispredictions and cycles; in call-stack mode, calls made before the burst",
    }
