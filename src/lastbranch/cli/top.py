"""``lastbranch top``."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, cast

import click

from .options import Count, complete_file, format_option, grouped, symfs_option
from .record import TargetChoice, check_trigger, duty_option, filter_classes_option, target_options, trigger_options
from .symbols import symbol_options

if TYPE_CHECKING:
    from io import BufferedReader

    from ..model import OpenFile
    from ..recording.live import RecorderState
    from ..symbols import SymbolOptions
    from .top_tables import Session, View


@dataclass(frozen=True, slots=True)
class Display:
    """How a recording is shown while it runs, and what is left of it."""

    interval: float
    duration: float | None
    once: bool
    plain: bool
    form: str
    limit: int
    output: str | None

    def has_screen(self) -> bool:
        """Whether it is a screen with keys: in a terminal, unless lines are asked for. Says what that needs."""
        if self.once or self.plain or not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
            return False
        from importlib.util import find_spec

        if find_spec("textual") is None:
            click.echo('note: for a screen with keys, pip install "lastbranch[tui]"', err=True)
            return False
        return True

    @property
    def end(self) -> float | None:
        """After how many seconds it ends; ``None``: with the recording, or by Ctrl-C."""
        return self.duration if self.duration is not None else self.interval if self.once else None


display_options = grouped(
    "display",
    Display,
    click.option(
        "--interval",
        type=click.FloatRange(0.1, 3600),
        default=1,
        show_default=True,
        metavar="SECONDS",
        help="Time between two refreshes.",
    ),
    click.option(
        "--duration",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="End after this time. [default with --once: the interval]",
    ),
    click.option("--once", is_flag=True, help="Print the totals once, at the end."),
    click.option("--plain", is_flag=True, help="Print lines even in a terminal."),
    format_option("table", "json", help="Output format; json needs --once."),
    click.option(
        "--limit", type=Count(), default=20, show_default=True, help="Functions and branches to print; 0 is all."
    ),
    click.option(
        "-o",
        "--output",
        metavar="OUT",
        shell_complete=complete_file,
        help="At the end write what was recorded to this file, as `lastbranch record` does.",
    ),
)
"""--interval, --duration, --once, --plain, --format, --limit and --output, as one `Display` argument ``display``."""


@click.command(context_settings={"allow_interspersed_args": False})
@trigger_options
@filter_classes_option
@duty_option
@display_options
@click.option(
    "--keep",
    type=Count(1),
    default=256,
    show_default=True,
    metavar="MIB",
    help="How much of the newest records to keep for writing, in a temporary file.",
)
@click.option(
    "--program-output",
    default=os.devnull,
    metavar="FILE",
    shell_complete=complete_file,
    help="Where the output of COMMAND goes. [default: nowhere]",
)
@click.option(
    "-i",
    "--input",
    "file",
    metavar="FILE",
    shell_complete=complete_file,
    help="Watch a perf.data that another recorder writes; - reads `perf record -o -`.",
)
@symfs_option
@symbol_options
@target_options
def command(
    engine: str,
    filters: str,
    duty: float,
    display: Display,
    keep: int,
    program_output: str,
    file: str | None,
    symfs: str | None,
    symbols: SymbolOptions,
    target: TargetChoice,
    **options: Any,
) -> int:
    """Watch a program while it runs.

    The functions and branches that it spends its time in are counted and refreshed each second: the share of samples
    since the beginning, that of the last interval (now) and its change, mispredictions and cycles where the processor
    reports them. The first lines say which engine records and why, what was lost, and what it costs.

    In a terminal this is a screen with keys, if the extra [tui] is installed (pip install "lastbranch[tui]"). Enter
    opens the code of a function with counts; the last line lists the other keys. Elsewhere lines are printed.

    q and Ctrl-C end it; the program runs on, also one that was launched. Its standard input is empty.
    """
    target.check("-i FILE", given=file is not None)
    check_trigger(options)
    if display.form == "json" and not display.once:
        raise click.BadParameter("needs --once", param_hint="--format json")
    from ..recording.live import LiveCapture, LiveRecorder, StreamCopy

    screen = display.has_screen()
    folders = (*symbols.debug_dirs, *symbols.symbol_store)
    from .top_tables import Session

    if file == "-":
        from ..formats.perfdata.header import read_magic
        from ..formats.perfdata.layout import PIPE_HEADER_SIZE

        with StreamCopy(cast("BufferedReader", sys.stdin.buffer)) as stream:
            stream.wait(PIPE_HEADER_SIZE)
            source = _copy_of(stream.file, "<stdin>")
            read_magic(source)  # an error now, and not at the end
            with LiveCapture(source, symbols, symfs=symfs, folders=folders, kept=keep << 20, ours=True) as live:
                return _show(Session(live, stream=stream), display, screen=False)
    if file is not None:
        from ..opening import FileSource

        with LiveCapture(FileSource(file), symbols, symfs=symfs, folders=folders) as live:
            return _show(Session(live), display, screen=screen)
    from ..capture import Options
    from ..recording.recorders import branch_select

    chosen = Options(select=branch_select(filters), duty=duty / 100, **options)
    line = ("lastbranch", *sys.argv[1:])
    with LiveRecorder(target.find(), chosen, engine=engine, command_line=line, output=program_output) as recorder:
        source = _copy_of(recorder.file, "the recording")
        with LiveCapture(source, symbols, symfs=symfs, folders=folders, kept=keep << 20, ours=True) as live:
            return _show(Session(live, recorder), display, screen=screen)


def _copy_of(file: IO[bytes], name: str) -> OpenFile:
    """A temporary file that grows, as a source of its own."""
    from ..model import OpenFile

    return OpenFile(os.fdopen(os.dup(file.fileno()), "rb", buffering=0), name)


def _show(session: Session, display: Display, *, screen: bool) -> int:
    _wait_for_begin(session)
    if screen:
        from .top_screen import TopScreen

        TopScreen(session, display.interval, display.duration, display.output).run()
    else:
        try:
            _print(session, display)
        except KeyboardInterrupt:
            click.echo(err=True)
    if session.recorder is not None:
        _check(session.recorder.stop())
    session.read()
    if display.once:
        _print_once(session, session.look(), display.form, display.limit)
    if display.output is not None and session.live.profile is not None:
        session.save(display.output)
        click.echo(f"written to {display.output}", err=True)
    return 0


def _wait_for_begin(session: Session) -> None:
    """Until it records: before that, what is wrong with the target or the options is an error as any other."""
    while session.recorder is not None and not session.recorder.poll().engine and not session.ended:
        session.recorder.wait(1)
    if session.recorder is not None:
        _check(session.recorder.state)


def _check(state: RecorderState) -> None:
    """Raise what the recorder failed with."""
    if state.error:
        from ..capture import CollectorError, RunError

        error = RunError(state.error, state.status, hint=state.hint or None)
        raise error if state.status in (126, 127) else CollectorError(state.error, hint=state.hint or None)


def _wait(session: Session, interval: float, end: float | None) -> bool:
    """Wait for the next refresh; whether the recording goes on after it."""
    due = time.monotonic() + interval
    while not session.ended:
        left = due - time.monotonic()
        if end is not None:
            left = min(left, end - session.seconds)
        if left <= 0:
            break
        session.wait(left)
    return not session.ended and (end is None or session.seconds < end)


def _print(session: Session, display: Display) -> None:
    """Lines for each interval; with --once nothing but counting."""
    more = True
    while more:
        session.read()
        more = _wait(session, display.interval, display.end)
        session.read()
        if not display.once:
            _print_lines(session, session.look(), display.limit)


def _print_lines(session: Session, view: View, limit: int) -> None:
    from .output import table_lines
    from .top_tables import branch_table, chosen_functions, function_table, header

    for line in header(view):
        click.echo(line)
    functions = function_table(session, view, chosen_functions(session, view, limit))
    for table in (functions, branch_table(session, view, limit)):
        if len(table):
            click.echo()
            spare = ("module", "in_tx", "aborts", {"from": "from_function", "to": "to_function"}, "type")
            for line in table_lines(table, spare=spare, unknown="-"):
                click.echo(line)
    click.echo()
    sys.stdout.flush()


def _print_once(session: Session, view: View, form: str, limit: int) -> None:
    if form == "table":
        _print_lines(session, view, limit)
        return
    from .output import print_json
    from .top_tables import branch_table, chosen_functions, facts, function_table

    functions = function_table(session, view, chosen_functions(session, view, limit)).objects()
    print_json(facts(view) | {"functions": functions, "hottest_branches": branch_table(session, view, limit).objects()})
