"""``lastbranch session``."""

from __future__ import annotations

import glob
from typing import TYPE_CHECKING, Any

import click

from .group import Group
from .options import Count, check_new, complete_file, force_option, format_options
from .output import print_rows

if TYPE_CHECKING:
    from uuid import UUID

    from ..etw import Session, SessionState

_ENABLE = click.option(
    "--enable", "enables", multiple=True, metavar="PROVIDER[:LEVEL[:KEYWORDS]]",
    help="Take events of a provider, by GUID or name (again for more).",
)  # fmt: skip
_FLUSH_TIMER = click.option(
    "--flush-timer", type=click.IntRange(0, 2**32 - 1), default=0, metavar="S",
    help="Seconds between flushes (ms in mode ms-flush-timer).",
)  # fmt: skip
_MAXIMUM = click.option(
    "--maximum-buffers", type=click.IntRange(0, 2**32 - 1), default=0, metavar="N", help="Most buffers of the pool."
)
_PMC_WORD, _PMC_BIT, _PMC_INTERRUPT = 1, 0x400, 0x2F
_SOFTWARE = "softwarebranches"


@click.group(cls=Group, lazy={"merge": "session_merge"})
def command() -> None:
    """Trace sessions: start one, ask it, stop it.

    On Windows they are the system's. Elsewhere each session is a process of its own that writes the same .etl; it lives
    on when this program has ended, until `session stop`.
    """


@command.command(short_help="Start a session.")
@click.argument("name")
@click.option(
    "-o",
    "--output",
    default="",
    metavar="FILE",
    shell_complete=complete_file,
    help="The log file; none in modes that need none.",
)
@force_option
@click.option("--mode", "modes", default="", metavar="MODE,...",
              help="sequential (default), circular, append, newfile, real-time, buffering...")  # fmt: skip
@click.option("--real-time", is_flag=True, help="For `lastbranch consume`; the same as --mode real-time.")
@click.option("--buffer-size", type=click.IntRange(0, 2**32 - 1), default=0, metavar="KB", help="Size of a buffer.")
@click.option("--minimum-buffers", type=click.IntRange(0, 2**32 - 1), default=0, metavar="N", help="Least of them.")
@_MAXIMUM
@click.option("--maximum-size", type=click.IntRange(0, 2**32 - 1), default=0, metavar="MB",
              help="Size of the log file (KB in mode kbytes-for-size).")  # fmt: skip
@_FLUSH_TIMER
@click.option("--clock", type=click.Choice(["qpc", "system"]), default="qpc", show_default=True, help="Time stamps.")
@click.option("--flags", default="", metavar="FLAG,...",
              help="Events of the system: process, thread, image-load, profile, pmc-profile...")  # fmt: skip
@_ENABLE
@click.option("--source", "sources", multiple=True, metavar="NAME[:INTERVAL]",
              help="Profile source of PMC profiling, by name or number (see `lastbranch sources`).")  # fmt: skip
@click.option("--lbr", is_flag=True,
              help="Branch records with PMC interrupts; implies pmc-profile, SoftwareBranches if listed.")  # fmt: skip
@click.option("--lbr-filter", default="", metavar="CLASS,...",
              help="Branches to leave out: kernel, user, jcc, near-ret...; or callstack-enable.")  # fmt: skip
@click.option("--target", "targets", type=Count(1, 31), multiple=True, metavar="PID",
              help="A process whose branches the software LBR records (again for more).")  # fmt: skip
@format_options
def start(name: str, modes: str, flags: str, form: str, force: bool, **wish: Any) -> int:
    """Start the session NAME and print what it was adjusted to.

    A log file that exists is replaced with --force only; --mode append adds to it.
    """
    from ..etw import ClientContext, LogFileMode, Session
    from .session_words import bits_of, lbr_bits, masks_of, mode_words, provider_of

    providers = [provider_of(text) for text in wish["enables"]]  # all words, before anything is started
    lbr = lbr_bits(wish["lbr_filter"], "--lbr-filter") if wish["lbr"] or wish["lbr_filter"] else None
    masks = masks_of(flags, "--flags")
    if lbr is not None:
        masks[_PMC_WORD] |= _PMC_BIT
    mode = LogFileMode(bits_of(modes, mode_words(), "--mode"))
    if wish["real_time"]:
        mode |= LogFileMode.REAL_TIME_MODE
    if any(masks):
        mode |= LogFileMode.SYSTEM_LOGGER_MODE
    if not mode & LogFileMode.FILE_MODE_APPEND:
        check_new(_logs(wish["output"], mode), force, "--output")
    session = Session(
        name, wish["output"], mode=mode, targets=wish["targets"], buffer_size=wish["buffer_size"],
        minimum_buffers=wish["minimum_buffers"], maximum_buffers=wish["maximum_buffers"],
        maximum_file_size=wish["maximum_size"], flush_timer=wish["flush_timer"], enable_flags=masks[0],
        clock={"qpc": ClientContext.QPC, "system": ClientContext.SYSTEM_TIME}[wish["clock"]],
    )  # fmt: skip
    _configure_sources(wish["sources"], lbr is not None)
    session.start()
    try:
        _enable(session, providers)
        if lbr is not None:
            from ..etw.flags import PERFINFO_PROVIDER

            session.configure_lbr([(PERFINFO_PROVIDER, _PMC_INTERRUPT)], lbr)
        if any(masks[1:]):  # a mask that is set replaces the one before: read, or, write
            session.masks = [now | more for now, more in zip(session.masks, masks, strict=True)]
    except BaseException:
        session.stop()
        raise
    return _print(session.query(), form)


def _logs(output: str, mode: int) -> list[str]:
    """The names that a session in ``mode`` writes to: in mode newfile, those of the row that exist already."""
    from ..etw import LogFileMode

    if not mode & LogFileMode.FILE_MODE_NEWFILE or "%d" not in output:
        return [output]
    head, _, tail = output.partition("%d")
    row = glob.glob(f"{glob.escape(head)}*{glob.escape(tail)}")
    return sorted(name for name in row if name[len(head) : len(name) - len(tail)].isdecimal())


def _configure_sources(wanted: tuple[str, ...], lbr: bool) -> None:
    """Class 6, and class 5 for those with an interval; before the session starts, as the vendor recommends.

    For ``lbr`` alone it is the software source where there is one: no other's interrupts have branch records then.
    """
    from ..etw import configure_profile_sources, profile_sources, set_profile_interval

    by_name = {source.name.lower(): source.source for source in profile_sources()} if wanted or lbr else {}
    wanted = wanted or tuple(name for name in (_SOFTWARE,) if name in by_name)
    if not wanted:
        return
    chosen = []
    for text in wanted:
        name, _, interval = text.partition(":")
        number = int(name) if name.isdecimal() else by_name.get(name.lower())
        if number is None:
            raise click.BadParameter(f"no profile source {name!r}; see `lastbranch sources`", param_hint="--source")
        if interval and not interval.isdecimal():
            raise click.BadParameter(f"{interval!r} is no interval", param_hint="--source")
        chosen.append((number, int(interval or 0)))
    configure_profile_sources([number for number, _ in chosen])
    for number, count in chosen:
        if count:
            set_profile_interval(number, count)


def _enable(session: Session, wanted: list[tuple[UUID, int, int]]) -> None:
    for provider, level, keywords in wanted:
        session.enable(provider, level, keywords)


def _print(state: SessionState, form: str) -> int:
    """The state, and what was lost on standard error."""
    from .session_words import rows_of

    rows = rows_of(state)
    if form == "table":
        shown = [(name, str(value)) for name, value in rows if value is not None]
        print_rows(("property", "value"), shown, form, wrap=True)
    else:
        print_rows([name for name, _ in rows], [[value for _, value in rows]], form)
    if state.events_lost:
        click.echo(f"note: {state.events_lost} events were lost", err=True)
    return 0


@command.command(short_help="What a session is and has counted.")
@click.argument("name")
@format_options
def query(name: str, form: str) -> int:
    """Print the properties and statistics of the session NAME."""
    from ..etw import Session

    return _print(Session.of(name).query(), form)


@command.command(short_help="Change a running session.")
@click.argument("name")
@_MAXIMUM
@_FLUSH_TIMER
@click.option(
    "-o", "--output", default="", metavar="FILE", shell_complete=complete_file, help="Go on with this log file."
)
@force_option
@click.option("--flags", metavar="FLAG,...", help="Events of the system, instead of those that are on.")
@_ENABLE
@click.option("--disable", "disables", multiple=True, metavar="PROVIDER", help="Take no more events of a provider.")
@format_options
def update(
    name: str, maximum_buffers: int, flush_timer: int, output: str, force: bool, flags: str | None,
    enables: tuple[str, ...], disables: tuple[str, ...], form: str,
) -> int:  # fmt: skip
    """Change what a running session lets change; what is not named stays."""
    from ..etw import Session, provider_guid
    from .session_words import masks_of, provider_of

    check_new(output, force, "--output")
    masks = masks_of(flags, "--flags") if flags is not None else None
    enabled, disabled = [provider_of(text) for text in enables], [provider_guid(text) for text in disables]
    session = Session.of(name)
    changes = {"maximum_buffers": maximum_buffers, "flush_timer": flush_timer, "file": output}
    if any(changes.values()):
        session.update(**{key: value for key, value in changes.items() if value})
    if masks is not None:
        session.masks = masks
    _enable(session, enabled)
    for provider in disabled:
        session.disable(provider)
    return _print(session.query(), form)


@command.command(short_help="Write what is in the buffers.")
@click.argument("name")
@click.option(
    "-o",
    "--output",
    default="",
    metavar="FILE",
    shell_complete=complete_file,
    help="Where a session in buffering mode writes to.",
)
@force_option
@format_options
def flush(name: str, output: str, force: bool, form: str) -> int:
    """Write what is in the buffers of the session NAME now."""
    from ..etw import LogFileMode, Session

    check_new(output, force, "--output")
    state = Session.of(name).flush(output)
    if output and not state.request.mode & LogFileMode.BUFFERING_MODE:
        click.echo("note: -o is for sessions in buffering mode; this one's own log or reader has the events", err=True)
    return _print(state, form)


@command.command(short_help="Stop sessions.")
@click.argument("names", nargs=-1, metavar="NAME...")
@click.option("--all", "everything", is_flag=True, help="All sessions.")
@format_options
def stop(names: tuple[str, ...], everything: bool, form: str) -> int:
    """Stop sessions; prints what each has counted in the end."""
    from ..etw import Session, sessions

    if bool(names) == everything:
        raise click.UsageError("give NAME..., or --all")
    wanted = [state.request.name for state in sessions()] if everything else list(names)
    found = {session.handle: session for session in map(Session.of, wanted)}  # each once, and if one is unknown none
    ended = [session.stop() for session in found.values()]
    if len(ended) == 1:
        return _print(ended[0], form)
    return _list(ended, form)


@command.command("list", short_help="The sessions that run.")
@format_options
def list_(form: str) -> int:
    """List the sessions that run; outside Windows, those of this user."""
    from ..etw import sessions

    return _list(sorted(sessions(), key=lambda state: state.handle), form)


def _list(states: list[SessionState], form: str) -> int:
    """A row for each."""
    from .session_words import COLUMNS, row_of

    if not states and form == "table":
        click.echo("note: no session runs", err=True)
        return 0
    print_rows(COLUMNS, [row_of(state) for state in states], form)
    return 0
