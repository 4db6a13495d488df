"""``lastbranch record``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from .options import DEFAULT_FILE, Count, complete_file

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ..capture import Options, Summary

_ENDINGS = ("", ".tb5", ".data", ".etl")
_CLASSES = "any any_call any_ret ind_call cond call_stack ind_jmp call"
_OTHER_NAMES = {"u": "user", "k": "kernel", "any_return": "any_ret", "return": "any_ret"}


class _Record(click.Command):
    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        after_command = bool(ctx.params.get("command_words"))  # whose options are not ours
        return (
            complete_file(ctx, self.params[0], incomplete) if after_command else super().shell_complete(ctx, incomplete)
        )


@click.command(cls=_Record, context_settings={"allow_interspersed_args": False})
@click.option("-o", "--output", default=DEFAULT_FILE, show_default=True, metavar="OUT", shell_complete=complete_file,
              help="Where to write; an old one is kept as OUT.old. A name in .data gives perf.data, one in .etl a "
              "trace log, by way of a session.")  # fmt: skip
@click.option("--engine", type=click.Choice(["auto", "hardware", "software"]), default="auto", show_default=True,
              help="The processor's branch record where it is offered, or the software model of it.")  # fmt: skip
@click.option("--event", metavar="E", help="What triggers a sample. Software: cpu-clock.")
@click.option("--period", type=Count(1), metavar="N",
              help="Events between two samples. Software: ns of a thread's CPU time.")  # fmt: skip
@click.option("--frequency", type=Count(1), metavar="HZ", help="Samples a second, instead of a period.")
@click.option("--depth", type=click.IntRange(1, 1024), default=96, show_default=True, metavar="N",
              help="Branches a sample.")  # fmt: skip
@click.option("--filter", "filters", metavar="CLASS,...", default="user,any", show_default=True,
              help=f"Which branches: user, kernel, {', '.join(_CLASSES.split())}.")  # fmt: skip
@click.option("--call-stack", is_flag=True, help="Call-stack mode: returns delete their calls.")
@click.option("--duty", type=click.FloatRange(0.1, 50), default=5, show_default=True, metavar="PCT",
              help="Software: most of the wall time, in percent, that bursts may take.")  # fmt: skip
@click.option("--duration", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="End after so long.")
@click.option("--no-follow", multiple=True, metavar="GLOB",
              help="Let programs of this path or name go when they are executed (again for more).")  # fmt: skip
@click.option("--allow-risk", is_flag=True,
              help="Attach even if killing the collector could then kill the process.")  # fmt: skip
@click.option("--no-progress", is_flag=True, help="No progress on standard error.")
@click.option("-a", "--all", "everything", is_flag=True, help="The whole system (hardware only).")
@click.option("-p", "--pid", type=click.IntRange(min=1), metavar="PID", help="A process that runs already.")
@click.argument("command_words", nargs=-1, type=click.UNPROCESSED, metavar="[--] [COMMAND [ARG]...]",
                shell_complete=complete_file)  # fmt: skip
def command(
    output: str, engine: str, event: str | None, period: int | None, frequency: int | None, depth: int, filters: str,
    call_stack: bool, duty: float, duration: float | None, no_follow: tuple[str, ...], allow_risk: bool,
    no_progress: bool, everything: bool, pid: int | None, command_words: tuple[str, ...],
) -> int:  # fmt: skip
    """Record the taken branches of a program, new or running (-p).

    Options of lastbranch come before COMMAND: everything after it is passed to COMMAND, as in
    `lastbranch record -o ls.tb5 ls -la`.

    Without a branch record in the processor (most virtual machines) a software model of it is fed by short bursts of
    block stepping. Its branches are real and their type is exact; mispredictions and cycles are not known. Samples
    weigh the CPU time since the thread's last one.

    Threads, forks and execs are followed. Ctrl-C is the program's; a second one ends the recording and lets it run on.
    With -p the first one does.

    Exit code: that of the program, 128+n if signal n killed it; 125 if recording fails, 126 if the command cannot be
    executed, 127 if it is not found.
    """
    from ..capture import CollectorError
    from ..capture.traceable import check_output, check_target
    from ..errors import UnavailableError

    if (bool(command_words) + everything + (pid is not None)) != 1:
        raise click.UsageError("give one of: COMMAND, -p PID, -a")
    if period and frequency:
        raise click.UsageError("give --period or --frequency, not both")
    target = None if everything else pid if pid is not None else command_words
    wish = _Wish(
        target, output, event, period, frequency, depth,
        _select(filters, call_stack), call_stack, duty / 100, duration, no_follow, allow_risk,
        not no_progress and sys.stderr.isatty(),
    )  # fmt: skip
    ending = os.path.splitext(output)[1]
    if ending not in _ENDINGS:
        raise click.BadParameter(
            f"{output}: a recording is a TB5 (a name in .tb5, or without an ending), a perf.data (.data) or a trace "
            f"log (.etl), and none in {ending}", param_hint="--output",
        )  # fmt: skip
    check_output(output)
    try:
        check_target(target)
        return _ENGINES[engine](wish)
    except UnavailableError as error:
        raise CollectorError(str(error), hint=error.hint) from error


@dataclass(frozen=True, slots=True)
class _Wish:
    """What was asked for. ``target`` is a command, a process id, or ``None`` for the whole system."""

    target: tuple[str, ...] | int | None
    output: str
    event: str | None
    period: int | None
    frequency: int | None
    depth: int
    select: int
    call_stack: bool
    duty: float
    duration: float | None
    no_follow: tuple[str, ...]
    allow_risk: bool
    live: bool


def _auto(wish: _Wish) -> int:
    """The processor's own record where it is to be had: nothing has been executed when that is refused."""
    from ..errors import UnavailableError

    try:
        return _hardware(wish)
    except UnavailableError as error:
        if wish.target is None:
            raise
        click.echo(f"using the software engine: {error}", err=True)
        return _software(wish)


def _hardware(wish: _Wish) -> int:
    from ..capture.traceable import check_linux

    check_linux()
    from ..capture import Request, Target, record_hardware

    request = Request(
        Target(), wish.event, wish.period, wish.frequency, wish.select, wish.call_stack, ("lastbranch", *sys.argv[1:])
    )
    done = record_hardware(wish.target, request, wish.output, duration=wish.duration)
    lost = f", {done.lost} records lost" if done.lost else ""
    click.echo(f"{done.size} bytes of records in {done.seconds:.1f} s{lost} written to {wish.output}", err=True)
    for note in done.notes:
        click.echo(f"note: {note}", err=True)
    return done.exit_code or 0


def _software(wish: _Wish) -> int:
    from ..capture import CollectorError, Options, record
    from ..lbr import PERF_SELECT
    from ..model import counted

    if wish.target is None:
        raise CollectorError(
            "the software engine records a command or a process, not the whole system",
            hint="`lastbranch doctor` says why there is no hardware engine here",
        )
    if wish.event not in (None, "cpu-clock"):
        raise click.BadParameter(
            f"the software engine is triggered by cpu-clock only, not {wish.event}", param_hint="--event"
        )
    if wish.select & PERF_SELECT["KERNEL"]:
        raise click.BadParameter("the software engine sees user code only", param_hint="--filter")
    options = Options(
        depth=wish.depth,
        select=wish.select,
        period=wish.period or (1_000_000_000 // wish.frequency if wish.frequency else 0),
        duty=wish.duty,
        duration=wish.duration,
        no_follow=wish.no_follow,
        allow_risk=wish.allow_risk,
    )
    line = _Line() if wish.live else lambda summary: None
    command = ["lastbranch", *sys.argv[1:]]
    if wish.output.endswith(".etl"):
        done = _on_session(wish.target, options, wish.output, command, line)
    else:
        done = record(wish.target, options, wish.output, command, _say, line)
    share = done.in_bursts / done.seconds if done.seconds else 0.0
    click.echo(
        f"{counted(done.branches, 'branch', 'branches')} in {counted(done.bursts, 'burst')} "
        f"({share:.1%} of {done.seconds:.1f} s) "
        f"written to {wish.output}",
        err=True,
    )
    return done.exit_code or 0


def _on_session(
    target: tuple[str, ...] | int, options: Options, output: str, command: list[str], line: Callable[[Summary], None]
) -> Summary:
    """Into a trace log, by a trace session."""
    from ..capture import CollectorError
    from ..etw.portable.record import record_session
    from ..etw.status import EtwError

    try:
        done, state = record_session(target, options, output, command, _say, line)
    except EtwError as error:
        raise CollectorError(f"the session failed: {error}", hint=error.hint) from error
    if state.events_lost:
        click.echo(f"warning: {state.events_lost} events were lost: the session had no buffer for them", err=True)
    return done


_ENGINES: dict[str, Callable[[_Wish], int]] = {"auto": _auto, "hardware": _hardware, "software": _software}


def _select(filters: str, call_stack: bool) -> int:
    """PERF_SAMPLE_BRANCH_* bits for names as ``perf record -j`` takes them."""
    from ..lbr import PERF_SELECT

    names = {name.lower(): bit for name, bit in PERF_SELECT.items()}
    names |= {"any_ret": names["any_return"], "ind_jmp": names["ind_jump"]}
    bits = names["call_stack"] if call_stack else 0
    for word in filter(None, filters.split(",")):
        name = _OTHER_NAMES.get(word.strip().lower(), word.strip().lower())
        if name not in ("user", "kernel", *_CLASSES.split()):
            known = ", ".join(("user", "kernel", *_CLASSES.split()))
            raise click.BadParameter(f"no branch class {word!r}; there are: {known}", param_hint="--filter")
        if not (call_stack and name == "any"):
            bits |= names[name]
    return bits if bits & ~(names["user"] | names["kernel"]) else bits | names["any"]


def _say(sentence: str) -> None:
    click.echo(f"warning: {sentence}", err=True)


class _Line:
    """The live line on standard error: written over itself, twice a second."""

    def __init__(self) -> None:
        self._shown = -1.0

    def __call__(self, summary: Summary) -> None:
        if summary.seconds - self._shown < 0.5:
            return
        self._shown = summary.seconds
        share = summary.in_bursts / summary.seconds if summary.seconds else 0.0
        text = f"recording {summary.seconds:.0f} s: {summary.branches} branches, {summary.bursts} bursts, {share:.1%}"
        sys.stderr.write(f"\r{text}\x1b[K\r")
        sys.stderr.flush()
