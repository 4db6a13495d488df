"""`record` and `record_file`: record by the processor's branch records, or software ones, into a file of any format.

`RECORDERS` has the recorder of each system. This module imports little at its top: a recording starts without NumPy.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias
from warnings import warn

from ..errors import SelectionError, UnavailableError
from ..lbr import PERF_SELECT, perf_select

if TYPE_CHECKING:
    from ..capture import HardwareSummary, Options, ProcessGroup, Request, Summary, Targets
    from ..model import Profile
    from .windows_session import SessionSummary

    Recordable: TypeAlias = Sequence[str] | int | ProcessGroup | None

__all__ = [
    "CLASSES",
    "ENGINES",
    "GrowingViewer",
    "INSTEAD",
    "RECORDERS",
    "Recorder",
    "Wanted",
    "branch_select",
    "group_called",
    "named_processes",
    "record",
    "record_file",
    "record_growing",
]

ENGINES = ("auto", "hardware", "software")
INSTEAD = "using the software engine: "
"""How the line for the user begins that says why the better engine does not record."""

CLASSES = ("USER", "KERNEL", "ANY", "ANY_CALL", "ANY_RETURN", "IND_CALL", "COND", "CALL_STACK", "IND_JUMP", "CALL")
"""Branch classes that can be recorded, by their names in PERF_SAMPLE_BRANCH_*."""


def branch_select(classes: str, call_stack: bool = False) -> int:
    """PERF_SAMPLE_BRANCH_* bits of ``classes`` (names of `CLASSES` in any case, separated by commas).

    ``call_stack`` adds call-stack mode. Raises `SelectionError` for another name.
    """
    select = perf_select(classes, sum(PERF_SELECT[name] for name in CLASSES))
    return select & ~PERF_SELECT["ANY"] | PERF_SELECT["CALL_STACK"] if call_stack else select


def record(
    target: Sequence[str] | int | ProcessGroup | None,
    output: str | os.PathLike[str] = "lastbranch.tb5",
    *,
    engine: str = "auto",
    classes: str = "user,any",
    call_graph: str = "auto",
    **options: Any,
) -> Profile:
    """Record a program, and open the recording.

    ``target`` is a command as a sequence of words, the id of a running process, a group of processes
    (`lastbranch.capture.container_called`, ``cgroup_at``, ``unit_called``, ``NamedProcesses``), or ``None`` for the
    whole system, of which the software engine records this user's processes. The other arguments mean the same as the
    options of ``lastbranch record``: ``classes`` are the branches to record, ``call_graph`` is where call stacks come
    from, ``options`` are fields of `lastbranch.capture.Options` (``duration``, ``period``, ``depth``, ``duty``...). The
    program keeps this process's standard streams.

    Raises what `record_file` and `lastbranch.open` raise.
    """
    from ..capture import CALL_GRAPHS, Options
    from ..opening import open_profile

    if isinstance(target, str):
        raise SelectionError(f"{target!r} is not a sequence of words", hint=f"record([{target!r}])")
    if call_graph not in CALL_GRAPHS:
        raise SelectionError(f"call_graph = {call_graph!r}: choose from {', '.join(map(repr, CALL_GRAPHS))}")
    chosen = Options(select=branch_select(classes, call_graph == "lbr"), call_graph=call_graph, **options)
    record_file(target, os.fspath(output), chosen, engine=engine, command_line=("lastbranch.record",), say=warn)
    return open_profile(output)


def record_file(
    target: Recordable,
    output: str,
    options: Options,
    *,
    engine: str = "auto",
    command_line: Sequence[str] = (),
    say: Callable[[str], None] = print,
    progress: Callable[[Summary], None] = lambda summary: None,
    viewer: GrowingViewer | None = None,
) -> Summary | HardwareSummary | SessionSummary:
    """Record ``target`` (a command, a process id, a group of processes, or ``None`` for the whole system) into the
    file ``output``.

    ``engine`` is one of `ENGINES`; ``auto`` takes the processor's branch records where the kernel allows them. The name
    of ``output`` decides the format: .tb5 or no extension, .data (perf.data, on Linux), .etl (by way of a trace
    session). A file of that name becomes ``output.old``. ``command_line`` is stored as the command that recorded.
    ``say`` gets lines for the user, and ``progress`` the state of a software recording twice a second; both may be
    called in another process. ``viewer`` shows the recording while it grows; not for trace logs. On Windows all
    processes are recorded, by a trace session of the system.

    Raises `SelectionError` for options that contradict themselves or the engine, `CollectorError` where recording is
    refused or fails, `RunError` where the command cannot be executed.
    """
    from ..capture import CollectorError, check_output

    recorder = RECORDERS.get(sys.platform)
    if recorder is None:
        raise CollectorError(f"recording needs Linux or Windows; this is {sys.platform}", hint=_ELSEWHERE)
    ending = os.path.splitext(output)[1]
    if ending not in recorder.formats:
        *formats, last = (words for words in recorder.formats.values() if words)
        raise SelectionError(f"{output}: a recording is {', '.join(formats)} or {last}, not {ending}")
    if engine not in recorder.engines:
        raise CollectorError(f"the {engine} engine is not for {sys.platform}", hint=recorder.instead)
    if viewer is not None and (ending == ".etl" or sys.platform != "linux"):
        raise SelectionError("a trace log cannot be read while it is recorded", hint="-o NAME.tb5, or NAME.data")
    if options.switch is not None and (ending == ".etl" or viewer is not None or sys.platform != "linux"):
        raise SelectionError("--switch-output is for .tb5 and .data files on Linux that nobody reads while they grow")
    check_output(output)
    try:
        return recorder.record(Wanted(target, output, options, engine, tuple(command_line), say, progress, viewer))
    except UnavailableError as error:
        raise CollectorError(str(error), hint=error.hint) from error


class GrowingViewer(Protocol):
    """Shows a recording while it grows."""

    @property
    def processes(self) -> Collection[int]:
        """Its process ids, which are not traced as members of a group."""

    def show(self, file: IO[bytes]) -> None:
        """The recording begins, into the perf.data ``file``, which others may read."""


class Wanted(NamedTuple):
    """The arguments of `record_file`, as a recorder gets them."""

    target: Recordable
    output: str
    options: Options
    engine: str
    command_line: tuple[str, ...]
    say: Callable[[str], None]
    progress: Callable[[Summary], None]
    viewer: GrowingViewer | None


_GROUPS = {"container": "container_called", "cgroup": "cgroup_at", "unit": "unit_called"}


def group_called(kind: str, name: str) -> ProcessGroup:
    """The processes of the ``container``, ``cgroup`` or ``unit`` called ``name``.

    Raises `CollectorError` if there is none of this name (with similar names in the message), or if it has no
    processes."""
    from .. import capture
    from ..capture import CollectorError, check_linux

    try:
        check_linux()
        group: ProcessGroup = getattr(capture, _GROUPS[kind])(name)
    except UnavailableError as error:
        raise CollectorError(str(error), hint=error.hint) from error
    return group


def named_processes(pids: Sequence[int]) -> ProcessGroup:
    """The processes ``pids``. Raises `CollectorError` where one of them does not exist."""
    from ..capture import CollectorError, NamedProcesses, check_target

    try:
        for pid in pids:
            check_target(pid)
    except UnavailableError as error:
        raise CollectorError(str(error), hint=error.hint) from error
    return NamedProcesses(pids)


# -- Linux: the processor's branch records by perf events, or software ones


def _on_linux(wanted: Wanted) -> Summary | HardwareSummary:
    return _by_engine(
        wanted.target,
        wanted.options,
        wanted.engine,
        wanted.say,
        lambda: _by_hardware(wanted),
        lambda: _by_software(wanted),
    )


def _by_engine(
    target: Recordable,
    options: Options,
    engine: str,
    say: Callable[[str], None],
    by_hardware: Callable[[], HardwareSummary],
    by_software: Callable[[], Summary],
) -> Summary | HardwareSummary:
    """Record by the requested engine, else by the better available engine."""
    from ..capture import check_target

    check_target(target)
    if options.call_graph == "dwarf" and engine != "software":
        if engine == "hardware":
            raise SelectionError(
                "call stacks by call frame information (dwarf) need the software engine, which stops the program",
                hint="--call-graph fp or lbr",
            )
        say(f"{INSTEAD}call stacks by call frame information (dwarf) need it")
    elif options.switch is not None and engine != "software":
        if engine == "hardware":
            raise SelectionError(
                "--switch-output needs the software engine",
                hint="several recordings with --duration make several files",
            )
        say(f"{INSTEAD}--switch-output needs it")
    elif engine != "software":
        try:
            return by_hardware()
        except UnavailableError as error:
            if engine == "hardware":
                raise
            say(f"{INSTEAD}{error}")
    return by_software()


def _by_hardware(wanted: Wanted) -> HardwareSummary:
    from ..capture import record_hardware

    options, viewer = wanted.options, wanted.viewer
    return record_hardware(
        wanted.target,
        _request(options, wanted.command_line),
        wanted.output,
        duration=options.duration,
        growing=viewer.show if viewer else None,
        say=lambda sentence: wanted.say(f"warning: {sentence}"),
    )


def _request(options: Options, command_line: Sequence[str]) -> Request:
    from ..capture import Request, Target

    return Request(
        Target(),
        options.event,
        options.period,
        options.frequency,
        options.select,
        options.call_graph == "lbr",
        tuple(command_line),
        chains=options.call_graph == "fp",
    )


def _by_software(wanted: Wanted) -> Summary:
    from ..capture import CollectorError
    from ..capture import record as record_file

    options, output, viewer = wanted.options, wanted.output, wanted.viewer
    _check_software(options)
    traced = _traced(wanted.target, wanted.say, viewer.processes if viewer else ())

    def warn(sentence: str) -> None:
        wanted.say(f"warning: {sentence}")

    if not output.endswith(".etl"):
        growing = viewer.show if viewer else None
        return record_file(traced, options, output, wanted.command_line, warn, wanted.progress, growing)
    from ..etw import EtwError
    from .trace_log import record_trace_log

    try:
        done, state = record_trace_log(traced, options, output, wanted.command_line, warn, wanted.progress)
    except EtwError as error:
        raise CollectorError(f"the session failed: {error}", hint=error.hint) from error
    if state.events_lost:
        warn(f"{state.events_lost} events were lost: the session had no free buffer for them")
    return done


def _traced(
    target: Recordable, say: Callable[[str], None], left_out: Collection[int] = ()
) -> Sequence[str] | int | Targets:
    """The targets of the software engine. Says which processes a group has, and which processes a group never has."""
    from ..capture import EveryProcess, ProcessGroup, Targets, Without
    from ..model import counted

    if target is not None and not isinstance(target, ProcessGroup):
        return target
    group = Without(EveryProcess() if target is None else target, left_out)
    but = (
        ", but not lastbranch, the processes that it descends from, and the kernel's threads" if target is None else ""
    )
    say(f"recording {group.shown}: {counted(len(group.members()), 'process', 'processes')} now{but}")
    return Targets(group=group)


def _check_software(options: Options) -> None:
    """Raise what the software engine cannot do."""
    if options.event not in (None, "cpu-clock"):
        raise SelectionError(f"only cpu-clock triggers the software engine, not {options.event}")
    if options.select & PERF_SELECT["KERNEL"]:
        raise SelectionError("the software engine records user code only, not kernel branches")


def record_growing(
    target: Recordable,
    path: str,
    options: Options,
    *,
    engine: str = "auto",
    command_line: Sequence[str] = (),
    say: Callable[[str], None] = print,
    began: Callable[[Summary | HardwareSummary, int | None], None] = lambda summary, pid: None,
    stop: Callable[[], bool] = lambda: False,
) -> Summary | HardwareSummary:
    """Record into ``path``, which becomes a perf.data that others may read while it grows; else as `record_file`.

    ``began`` is called when recording begins, with the recording's state and the process id of the launched program;
    the software engine calls ``began`` many times a second, in another process. ``stop`` is called as often: if
    ``stop`` returns true, the recording ends, and the program runs on. Messages of other processes go through the same
    functions. On Linux only.
    """
    from ..capture import Callbacks, CollectorError, SoftwareRequest, collect, collect_hardware, loss_of
    from ..formats.perfdata.record_file import RecordFile

    def by_hardware() -> HardwareSummary:
        from ..capture import HardwareSummary

        done = collect_hardware(
            target,
            _request(options, command_line),
            path,
            duration=options.duration,
            began=lambda pid: began(HardwareSummary(), pid),
            stop=stop,
        )
        if done.full:
            raise loss_of(done.dropped)
        return done

    def by_software() -> Summary:
        _check_software(options)
        with closing(RecordFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))) as file:
            done, failure = collect(
                SoftwareRequest(_traced(target, say), options, command_line),
                file,
                Callbacks(
                    say=lambda sentence: say(f"warning: {sentence}"),
                    progress=lambda summary: began(summary, None),
                    stop=stop,
                ),
            )
        if failure is not None:
            raise failure
        return done

    try:
        return _by_engine(target, options, engine, say, by_hardware, by_software)
    except UnavailableError as error:
        raise CollectorError(str(error), hint=error.hint) from error


# -- Windows: the processor's branch records by a trace session


def _on_windows(wanted: Wanted) -> SessionSummary:
    from ..capture import CollectorError, ProcessGroup
    from .windows_session import record_session

    if isinstance(wanted.target, int):
        raise CollectorError(
            "-p: on Windows the processor's branch records are those of all processes",
            hint=f"-a --duration SECONDS records them; `lastbranch report --pid {wanted.target}` shows one of them",
        )
    if isinstance(wanted.target, ProcessGroup):
        raise CollectorError(
            f"{wanted.target.shown}: on Windows the processor's branch records are those of all processes",
            hint="-a --duration SECONDS records them; `lastbranch report --pid PID` shows some of them",
        )
    return record_session(wanted.target, wanted.options, wanted.output)


class Recorder(NamedTuple):
    """How one system records."""

    record: Callable[[Wanted], Summary | HardwareSummary | SessionSummary]
    engines: tuple[str, ...]
    formats: dict[str, str]
    """Extensions of output files -> what they are, in words."""
    instead: str = ""
    """The advice if an engine is missing."""


_TB5, _ETL = {".tb5": "a TB5 (a name in .tb5, or without an extension)", "": ""}, {".etl": "a trace log (.etl)"}
_ELSEWHERE = "captures made elsewhere can still be opened here"

RECORDERS: dict[str, Recorder] = {
    "linux": Recorder(_on_linux, ENGINES, {**_TB5, ".data": "a perf.data (.data)", **_ETL}),
    "win32": Recorder(
        _on_windows,
        ("auto", "hardware"),
        {**_TB5, **_ETL},
        "--engine hardware takes the processor's branch records; software ones need Linux",
    ),
}
"""The recorder of each system, by its name in ``sys.platform``."""
