"""``lastbranch record``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..errors import SelectionError
from ..recording.recorders import CLASSES
from .options import DEFAULT_FILE, Count, complete_file, grouped, no_progress_option, stacked

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ..capture import HardwareSummary, ProcessGroup, Summary, SwitchOutput
    from ..etw import SessionSummary
    from ..recording.live import LiveViewer


_LONGEST_BURST = 1 << 14


class _Range(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """A number, or two with a hyphen."""

    name = "range"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        fewest, _, most = str(value).partition("-")
        try:
            found = int(fewest), int(most or fewest)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor two, as 64-256", param, ctx)
        if not 1 <= found[0] <= found[1] <= _LONGEST_BURST:
            self.fail(f"{value} is not in the range 1<=N<=M<={_LONGEST_BURST}", param, ctx)
        return found


event_options = stacked(
    click.option(
        "--event",
        metavar="E",
        help="The event that triggers samples. Software: cpu-clock only; Windows: a profile source.",
    ),
    click.option(
        "--period", type=Count(1), metavar="N", help="Events between two samples; software: ns of a thread's CPU time."
    ),
    click.option("--frequency", type=Count(1), metavar="HZ", help="Samples per second, instead of a period."),
)
"""--event, --period and --frequency."""
trigger_options = stacked(
    click.option(
        "--engine",
        type=click.Choice(["auto", "hardware", "software"]),
        default="auto",
        show_default=True,
        help="Use the processor's branch records, or software ones; auto prefers the processor's.",
    ),
    event_options,
)
"""--engine, --event, --period and --frequency."""
filter_classes_option = click.option(
    "--filter",
    "filters",
    metavar="CLASS,...",
    default="user,any",
    show_default=True,
    help=f"The branches to record: {', '.join(CLASSES).lower()}.",
)
duty_option = click.option(
    "--duty",
    type=click.FloatRange(0.1, 50),
    default=5,
    show_default=True,
    metavar="PCT",
    help="Software: the largest share of wall time, in percent, that bursts may take.",
)


class _Processes(click.ParamType):  # type: ignore[type-arg]  # as above
    """Process ids with commas between them."""

    name = "processes"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        words = str(value).split(",")
        if not all(word.isdecimal() and len(word) < 100 and int(word) > 0 for word in words):
            self.fail(f"{value!r} is not a process id, nor several with commas", param, ctx)
        return tuple(dict.fromkeys(map(int, words)))


class TargetChoice(NamedTuple):
    """What to record, as the options name it."""

    everything: bool
    pid: tuple[int, ...] | None
    container: str | None
    cgroup: str | None
    unit: str | None
    command_words: tuple[str, ...]

    def check(self, *others: str, given: bool = False) -> None:
        """Raise `click.UsageError` unless exactly one is given. ``others`` are options beside ours, one of which is
        ``given``."""
        named = (self.pid, self.container, self.cgroup, self.unit)
        if bool(self.command_words) + self.everything + given + sum(one is not None for one in named) != 1:
            ways = ("COMMAND", "-p PID", "--container NAME", "--cgroup PATH", "--unit NAME", "-a", *others)
            raise click.UsageError(f"give one of: {', '.join(ways)}")

    def find(self) -> Sequence[str] | int | ProcessGroup | None:
        """The target as `recorders` takes it. Raises `CollectorError` where there is none of that name."""
        from ..recording.recorders import group_called, named_processes

        for kind, name in (("container", self.container), ("cgroup", self.cgroup), ("unit", self.unit)):
            if name is not None:
                return group_called(kind, name)
        if self.pid is not None:
            return self.pid[0] if len(self.pid) == 1 else named_processes(self.pid)
        return None if self.everything else self.command_words


target_options = grouped(
    "target",
    TargetChoice,
    click.option(
        "-a",
        "--all",
        "everything",
        is_flag=True,
        help="The whole system; software: all processes of this user, of root all processes.",
    ),
    click.option("-p", "--pid", type=_Processes(), metavar="PID[,PID...]", help="Running processes."),
    click.option("--container", metavar="NAME|ID", help="All processes of a running container."),
    click.option("--cgroup", metavar="PATH", help="All processes of a control group and of those below it."),
    click.option("--unit", metavar="NAME", help="All processes of a running service or other unit of systemd."),
    click.argument(
        "command_words",
        nargs=-1,
        type=click.UNPROCESSED,
        metavar="[--] [COMMAND [ARG]...]",
        shell_complete=complete_file,
    ),
)
"""-a, -p, --container, --cgroup, --unit and COMMAND, as one `TargetChoice` argument ``target``."""


class _Record(click.Command):
    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        after_command = bool(ctx.params.get("command_words"))  # whose options are not ours
        return (
            complete_file(ctx, self.params[0], incomplete) if after_command else super().shell_complete(ctx, incomplete)
        )


class ViewerChoice(NamedTuple):
    """Whether the viewer shows the recording, and when."""

    view: bool
    live: bool
    no_open: bool

    def check(self, *, several_files: bool) -> None:
        """Raise `click.UsageError` where these options contradict each other, or a recording of several files."""
        if several_files and (self.live or self.view):
            raise click.UsageError(
                "--switch-output makes several files: `lastbranch view` shows them when they are done"
            )
        if self.live and self.view:
            raise click.UsageError("--live goes on when the recording is done: --view is not needed")
        if self.no_open and not (self.live or self.view):
            raise click.BadParameter("opens nothing: add --live or --view", param_hint="--no-open")


_viewer_options = grouped(
    "viewing",
    ViewerChoice,
    click.option(
        "--view", is_flag=True, help="Show the recording in the browser when it is done, as `lastbranch view` does."
    ),
    click.option(
        "--live",
        is_flag=True,
        help="Watch the recording in the browser while it grows; when it is done, Ctrl-C ends the viewer.",
    ),
    click.option(
        "--no-open", is_flag=True, help="With --live or --view: print the address instead of opening the browser."
    ),
)
"""--view, --live and --no-open, as one `ViewerChoice` argument ``viewing``."""


@click.command(cls=_Record, context_settings={"allow_interspersed_args": False})
@click.option(
    "-o",
    "--output",
    default=DEFAULT_FILE,
    show_default=True,
    metavar="OUT",
    shell_complete=complete_file,
    help="The file to write; an existing one becomes OUT.old. A name that ends in .data makes a perf.data "
    "file; .etl makes a trace log, through a trace session.",
)
@trigger_options
@click.option(
    "--depth", type=click.IntRange(1, 1024), default=96, show_default=True, metavar="N", help="Branches per sample."
)
@click.option(
    "--burst",
    type=_Range(),
    metavar="N[-M]",
    help="Software: branches of a burst, drawn from that range, in as many samples as they need; by default "
    "352 to 1056, or with --run-ahead never 32 to 1056, growing with the recording.",
)
@filter_classes_option
@click.option(
    "--call-graph",
    type=click.Choice(["auto", "dwarf", "fp", "lbr", "none"]),
    default="auto",
    show_default=True,
    help="Where call stacks come from: call frame information (dwarf), frame pointers (fp), or the "
    "call-stack mode of branch records (lbr). auto: dwarf with the software engine.",
)
@duty_option
@click.option(
    "--duration",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="End the recording after this time. A launched program runs on.",
)
@click.option(
    "--switch-output",
    metavar="SIZE|TIME",
    help="Software: go on in a new file after that many bytes of records (100M, 1G) or that time (30s, 5m, "
    "1h). Each file can be read by itself and has the time in its name, before the "
    "extension.",
)
@click.option("--switch-max-files", type=Count(1), metavar="N", help="With --switch-output: keep the newest N files.")
@click.option(
    "--no-follow", multiple=True, metavar="GLOB", help="Do not record programs with this path or name (repeatable)."
)
@click.option(
    "--run-ahead",
    type=click.Choice(["auto", "always", "never"]),
    default="auto",
    show_default=True,
    help="Software: whether to execute a thread's code ahead of it, in the recorder, rather than to follow "
    "the thread with breakpoints. auto: where the thread has all rights of the recorder.",
)
@click.option("--allow-risk", is_flag=True, help="Attach even if a kill of the collector would kill the process.")
@_viewer_options
@no_progress_option
@target_options
def command(
    output: str,
    engine: str,
    filters: str,
    duty: float,
    viewing: ViewerChoice,
    no_progress: bool,
    target: TargetChoice,
    **options: Any,
) -> int:
    """Record the taken branches of a program, new or running.

    Options of lastbranch come before COMMAND: everything after it is passed to COMMAND, as in
    `lastbranch record -o ls.tb5 ls -la`.

    If the processor offers no branch records (most virtual machines), a software model records short bursts of block
    stepping. Its branches are real and their types exact; mispredictions and cycles are not known. The weight of a
    sample is the CPU time since its thread's last sample.

    On Windows a trace session of the system records the processor's branches in all processes while COMMAND runs, or
    until Ctrl-C (-a). It needs an elevated prompt. There is no software engine, -p or --frequency.

    The recording follows threads, forks and execs. Ctrl-C goes to the program; a second Ctrl-C ends the recording and
    lets the program run on. With -p and other running targets the first one does that. Processes that join a container,
    cgroup or service are recorded from then on. The recording of a container ends with it; that of a cgroup, a service
    or all processes ends by Ctrl-C or --duration. lastbranch never records itself and the processes that it descends
    from.

    --live serves the viewer while it records, to this user on this machine only, as `lastbranch view` does. The screens
    are about a second behind where a processor is free. They show the complete file when the program has ended; the
    exit code comes after the Ctrl-C that ends the viewer.

    The exit code is that of the program, or 128+n if signal n killed it; 125 if recording fails, 126 if the command
    cannot be executed, 127 if it is not found.
    """
    _check(target, viewing, options)
    from ..capture import Options
    from ..recording.recorders import branch_select, record_file

    select = branch_select(filters, options["call_graph"] == "lbr")
    with _viewer(output, not viewing.no_open) if viewing.live else nullcontext() as viewer:
        done = record_file(
            target.find(),
            output,
            Options(select=select, duty=duty / 100, **options),
            engine=engine,
            command_line=("lastbranch", *sys.argv[1:]),
            say=_say,
            viewer=viewer,
            progress=_Line() if not no_progress and sys.stderr.isatty() else lambda summary: None,
        )
        _say_done(done, output, target)
        if viewer:
            _say("the viewer goes on; Ctrl-C ends it")
            viewer.finish()
    if viewing.view:
        _look_at(output, not no_progress, not viewing.no_open)
    return done.exit_code or 0


def _check(target: TargetChoice, viewing: ViewerChoice, options: dict[str, Any]) -> None:
    """Raise `click.UsageError` where options contradict each other. ``options`` get ``switch`` for --switch-output."""
    target.check()
    check_trigger(options)
    options["switch"] = _switch(options.pop("switch_output"), options.pop("switch_max_files"))
    viewing.check(several_files=options["switch"] is not None)


def _say_done(done: Summary | HardwareSummary | SessionSummary, output: str, target: TargetChoice) -> None:
    """Print what was written, and what the user should know of it."""
    _say(f"{done} written to {_name_of_output(output, done)}")
    for note in done.notes:
        _say(f"note: {note}")
    if target.command_words and done.exit_code is None:
        from ..model import visible

        _say(f"note: the recording has ended, and {visible(target.command_words[0])} runs on")


def _viewer(output: str, browse: bool) -> LiveViewer:
    from ..recording.live import LiveViewer

    return LiveViewer(output, browse, _say)


def check_trigger(options: dict[str, Any]) -> None:
    """Raise `click.UsageError` where `trigger_options` contradict each other."""
    if options["period"] and options["frequency"]:
        raise click.UsageError("give --period or --frequency, not both")


def _look_at(output: str, progress: bool, browse: bool) -> None:
    """Open the viewer on the recording, until Ctrl-C."""
    from ..symbols import SymbolOptions
    from .options import Capture
    from .view import Viewer

    capture = Capture((output,), None, progress)
    Viewer(capture=capture, symbols=SymbolOptions(), browse=browse).show(capture.open())


def _switch(text: str | None, keep: int | None) -> SwitchOutput | None:
    from ..capture import SwitchOutput

    if text is None:
        if keep is not None:
            raise click.BadParameter("needs --switch-output", param_hint="--switch-max-files")
        return None
    try:
        return SwitchOutput.parse(text, keep or 0)
    except SelectionError as error:
        raise click.BadParameter(str(error), param_hint="--switch-output") from error


def _name_of_output(output: str, done: object) -> str:
    """The name of the file, or of the last one of several."""
    files: tuple[str, ...] = getattr(done, "files", ())
    if not files:
        return output
    from ..model import counted

    return files[-1] + (f" and {counted(len(files) - 1, 'file')} before it" if files[1:] else "")


def _say(line: str) -> None:
    click.echo(line, err=True)


class _Line:
    """A progress line on standard error that is rewritten twice a second."""

    def __init__(self) -> None:
        self._shown = -1.0

    def __call__(self, summary: Summary) -> None:
        if summary.seconds - self._shown < 0.5:
            return
        self._shown = summary.seconds
        counts = f"{summary.branches} branches, {summary.bursts} bursts, {summary.share:.1%}"
        sys.stderr.write(f"\rrecording {summary.seconds:.0f} s: {counts}\x1b[K\r")
        sys.stderr.flush()
