"""``lastbranch session`` and ``lastbranch sources``: trace sessions, and their profile sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from .group import Group
from .options import (
    Count,
    check_new,
    complete_file,
    complete_folder,
    force_option,
    format_options,
    stacked,
    symfs_option,
    table_options,
)
from .output import Cell, print_damage, print_notes, print_rows

if TYPE_CHECKING:
    from uuid import UUID

    from ..etw import SessionState

_SOFTWARE = "softwarebranches"
_MOST_MISSING = 5
"""Images without a binary that `merge` names."""


def _number_option(name: str, metavar: str, words: str, field: str = "") -> Callable[[Any], Any]:
    """An option whose value is a ULONG of EVENT_TRACE_PROPERTIES."""
    names = (name, field) if field else (name,)
    return click.option(*names, type=click.IntRange(0, 2**32 - 1), default=0, metavar=metavar, help=words)


def _output_options(words: str) -> Callable[[Any], Any]:
    output = click.option("-o", "--output", default="", metavar="FILE", shell_complete=complete_file, help=words)
    return stacked(output, force_option)


_enable_option = click.option(
    "--enable",
    "enables",
    multiple=True,
    metavar="PROVIDER[:LEVEL[:KEYWORDS]]",
    help="Enable a provider, by GUID or name (repeatable).",
)
_maximum_option = _number_option("--maximum-buffers", "N", "Maximum number of buffers in the pool.")
_flush_option = _number_option("--flush-timer", "S", "Seconds between flushes (ms in mode ms-flush-timer).")


@click.group(cls=Group)
def command() -> None:
    """Trace sessions: start one, query it, stop it.

    On Windows, these are the system's sessions. Elsewhere each session is a process of its own that writes the same
    .etl; it runs on after this command ends, until `session stop`.
    """


@command.command(short_help="Start a session.")
@click.argument("name")
@_output_options("The log file; omit it in modes that need none.")
@click.option(
    "--mode",
    "modes",
    default="",
    metavar="MODE,...",
    help="sequential (default), circular, append, newfile, real-time, buffering...",
)
@click.option("--real-time", is_flag=True, help="For `lastbranch consume`; the same as --mode real-time.")
@_number_option("--buffer-size", "KB", "Size of a buffer.")
@_number_option("--minimum-buffers", "N", "Minimum number of buffers in the pool.")
@_maximum_option
@_number_option("--maximum-size", "MB", "Size of the log file (KB in mode kbytes-for-size).", "maximum_file_size")
@_flush_option
@click.option("--clock", type=click.Choice(["qpc", "system"]), default="qpc", show_default=True, help="Time stamps.")
@click.option(
    "--flags",
    default="",
    metavar="FLAG,...",
    help="System events: process, thread, image-load, profile, pmc-profile...",
)
@_enable_option
@click.option(
    "--source",
    "sources_",
    multiple=True,
    metavar="NAME[:INTERVAL]",
    help="Profile source of PMC profiling, by name or number (see `lastbranch sources`).",
)
@click.option(
    "--lbr",
    is_flag=True,
    help="Record branches with PMC interrupts; implies pmc-profile, and source SoftwareBranches if listed.",
)
@click.option(
    "--lbr-filter",
    default="",
    metavar="CLASS,...",
    help="Branches to leave out: kernel, user, jcc, near-ret...; or callstack-enable.",
)
@click.option(
    "--target",
    "targets",
    type=Count(1, 31),
    multiple=True,
    metavar="PID",
    help="Record this process's branches with the software LBR (repeatable).",
)
@format_options
def start(
    name: str,
    output: str,
    force: bool,
    modes: str,
    real_time: bool,
    clock: str,
    flags: str,
    enables: tuple[str, ...],
    sources_: tuple[str, ...],
    lbr: bool,
    lbr_filter: str,
    targets: tuple[int, ...],
    form: str,
    **sizes: Any,
) -> int:
    """Start the session NAME and print its properties as adjusted.

    An existing log file is replaced only with --force; --mode append adds to it.
    """
    from ..etw import GROUPS, ClientContext, LogFileMode, Session
    from ..lbr import NOTATIONS

    providers = [_provider(text) for text in enables]  # all words, before anything is started
    filtered = _bits(lbr_filter, _words(NOTATIONS["etw"].named().items()), "--lbr-filter")
    masks = _masks(flags, "--flags")
    mode = LogFileMode(_bits(modes, _mode_words(), "--mode"))
    if lbr := lbr or bool(lbr_filter):
        group = GROUPS["PMC_PROFILE"]
        masks[group.word] |= group.bits
    if real_time:
        mode |= LogFileMode.REAL_TIME_MODE
    if any(masks):
        mode |= LogFileMode.SYSTEM_LOGGER_MODE
    session = Session(
        name,
        output,
        mode=mode,
        targets=targets,
        enable_flags=masks[0],
        clock=ClientContext.QPC if clock == "qpc" else ClientContext.SYSTEM_TIME,
        **sizes,
    )
    if not mode & LogFileMode.FILE_MODE_APPEND:
        check_new(session.log_files, force, "--output")
    _configure_sources(sources_, lbr)
    session.start(providers=providers, masks=masks, lbr=filtered if lbr else None)
    return _print_state(session.query(), form)


def _configure_sources(wanted: tuple[str, ...], lbr: bool) -> None:
    """Choose the profile sources, and set the intervals that are given; before the session starts, as the vendor
    recommends.

    With ``lbr`` alone it is the software source where there is one: no other's interrupts have branch records then.
    """
    from ..etw import configure_profile_sources, set_profile_interval

    numbers = _source_numbers() if wanted or lbr else {}
    if not wanted and _SOFTWARE not in numbers:
        return
    chosen = []
    for text in wanted or (_SOFTWARE,):
        name, _, interval = text.partition(":")
        number = int(name) if name.isdecimal() else numbers.get(name.lower())
        if number is None:
            raise click.BadParameter(f"no profile source {name!r}; see `lastbranch sources`", param_hint="--source")
        if interval and not interval.isdecimal():
            raise click.BadParameter(f"{interval!r} is not an interval", param_hint="--source")
        chosen.append((number, int(interval or 0)))
    configure_profile_sources([number for number, _ in chosen])
    for number, count in chosen:
        if count:
            set_profile_interval(number, count)


@command.command(short_help="Print the properties and statistics of a session.")
@click.argument("name")
@format_options
def query(name: str, form: str) -> int:
    """Print the properties and statistics of the session NAME."""
    from ..etw import Session

    return _print_state(Session.of(name).query(), form)


@command.command(short_help="Change a running session.")
@click.argument("name")
@_maximum_option
@_flush_option
@_output_options("Continue in this log file.")
@click.option("--flags", metavar="FLAG,...", help="System events, instead of those that are enabled.")
@_enable_option
@click.option("--disable", "disables", multiple=True, metavar="PROVIDER", help="Disable a provider.")
@format_options
def update(
    name: str,
    output: str,
    force: bool,
    flags: str | None,
    enables: tuple[str, ...],
    disables: tuple[str, ...],
    form: str,
    **sizes: int,
) -> int:
    """Change properties of a running session; those not given stay as they are."""
    from ..etw import Session, provider_guid

    check_new(output, force, "--output")
    masks = None if flags is None else _masks(flags, "--flags")
    enabled, disabled = [_provider(text) for text in enables], [provider_guid(text) for text in disables]
    session = Session.of(name)
    changes = {field: value for field, value in {**sizes, "file": output}.items() if value}
    if changes:
        session.update(**changes)
    if masks is not None:
        session.masks = masks
    for provider in enabled:
        session.enable(*provider)
    for guid in disabled:
        session.disable(guid)
    return _print_state(session.query(), form)


@command.command(short_help="Write out the buffers of a session.")
@click.argument("name")
@_output_options("The file that receives the buffers of a session in buffering mode.")
@format_options
def flush(name: str, output: str, force: bool, form: str) -> int:
    """Write out the buffers of the session NAME now."""
    from ..etw import LogFileMode, Session

    check_new(output, force, "--output")
    state = Session.of(name).flush(output)
    if output and not state.request.mode & LogFileMode.BUFFERING_MODE:
        print_notes(
            ["-o is for sessions in buffering mode; the events of this session are in its log or with its reader"]
        )
    return _print_state(state, form)


@command.command(short_help="Save what a killed session left.")
@click.argument("name")
@click.option("-o", "--output", required=True, metavar="FILE", shell_complete=complete_file, help="The log to write.")
@force_option
def rescue(name: str, output: str, force: bool) -> int:
    """Save what the session NAME had in memory when its process was killed.

    It is for sessions in buffering mode: the newest MinimumBuffers are in the log then, as `session flush` would have
    written them. They are kept until they are saved, or a session of that name starts. Windows keeps nothing.
    """
    from ..etw import rescue_session
    from ..model import counted, visible

    check_new(output, force, "--output")
    found = rescue_session(name, output)
    print_notes(found.damage)
    saved = f"{counted(found.events, 'event')} in {counted(found.buffers, 'buffer')}"
    click.echo(f"{saved} of {counted(found.writers, 'writer')} saved to {visible(output)}", err=True)
    return 1 if found.damage else 0


@command.command(short_help="Stop sessions.")
@click.argument("names", nargs=-1, metavar="NAME...")
@click.option("--all", "everything", is_flag=True, help="All sessions.")
@format_options
def stop(names: tuple[str, ...], everything: bool, form: str) -> int:
    """Stop sessions, and print the last statistics of each."""
    from ..etw import Session, sessions

    if bool(names) == everything:
        raise click.UsageError("give NAME..., or --all")
    wanted = [state.request.name for state in sessions()] if everything else list(names)
    found = {session.handle: session for session in map(Session.of, wanted)}  # each once, and if one is unknown none
    ended = [session.stop() for session in found.values()]
    return _print_state(ended[0], form) if len(ended) == 1 else _print_states(ended, form)


@command.command("list", short_help="List the running sessions.")
@format_options
def list_(form: str) -> int:
    """List the running sessions; outside Windows, those of this user."""
    from ..etw import sessions

    return _print_states(sorted(sessions(), key=lambda state: state.handle), form)


@command.command()
@click.argument("paths", metavar="IN... OUT", nargs=-1, required=True, shell_complete=complete_file)
@click.option("--compress", is_flag=True, help="Compress buffers (XPRESS). [default: as the first IN]")
@click.option("--no-images", is_flag=True, help="Do not look for the binaries of images.")
@symfs_option
@click.option(
    "--symbols",
    "folders",
    metavar="DIR",
    shell_complete=complete_folder,
    multiple=True,
    help="Also look for binaries by identity in DIR.",
)
@force_option
def merge(
    paths: tuple[str, ...], compress: bool, no_images: bool, symfs: str | None, folders: tuple[str, ...], force: bool
) -> int:
    """Merge logs of sessions into one, with the identities of images.

    This does what CreateMergedTraceFile and xperf -merge do. OUT has the events of all inputs in one time line. For
    each image whose binary is found here it also has the identity (the PDB of a PE, the load segments of an ELF file),
    so the log can be read on any machine. A binary is used only if it is the recorded one: same time stamp and size, or
    same build id.
    """
    from ..etw import MergeFlag, create_merged_trace_file
    from ..model import visible

    if len(paths) < 2:
        raise click.UsageError("give at least one input, then the output")
    *inputs, output = paths
    check_new(output, force, "OUT")
    flags = MergeFlag.DEFAULT & ~(MergeFlag.IMAGEID if no_images else 0)
    flags |= MergeFlag.COMPRESS_TRACE if compress else 0
    done = create_merged_trace_file(output, inputs, flags, symfs=symfs, folders=folders)
    if len(inputs) > 1 and done.boots > 1:
        print_notes(["the inputs come from different uptimes: one process id may mean different processes"])
    if done.images:
        click.echo(f"{done.found} of {done.images - done.known} unknown images identified", err=True)
    missing = [f"{name}: {reason}" for name, reason in done.missing.items()]
    print_notes(missing[:_MOST_MISSING])
    if len(missing) > _MOST_MISSING:
        print_notes([f"{len(missing) - _MOST_MISSING} more images without a binary"])
    code = print_damage(done.damage)
    if done.events:
        click.echo(f"{done.events} events written to {visible(output)}, {done.added} of them added", err=True)
    return code


# -- ``lastbranch sources``


@click.command()
@table_options
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=INTERVAL",
    help="Set the interval of a source, for all sessions (repeatable).",
)
def sources(form: str, limit: int, changes: tuple[str, ...]) -> int:
    """List the profile sources of this machine with their intervals.

    An interval counts events of the source; the interval of Timer is in units of 100 ns.
    """
    from ..etw import profile_interval, profile_sources, set_profile_interval

    found = profile_sources()
    numbers = _source_numbers() | {str(source.source): source.source for source in found}
    for text in changes:
        name, _, interval = text.partition("=")
        if name.lower() not in numbers or not interval.isdecimal():
            raise click.BadParameter(
                f"{text!r} is not NAME=INTERVAL with a profile source of this machine", param_hint="--set"
            )
        set_profile_interval(numbers[name.lower()], int(interval))
    rows = [
        (s.source, s.name, profile_interval(s.source), s.minimum, s.maximum, s.default or None)
        for s in found[: limit or None]
    ]
    print_rows(("source", "name", "interval", "minimum", "maximum", "default"), rows, form)
    if len(rows) < len(found):
        print_notes([f"{len(found) - len(rows)} more; --limit 0 shows all"])
    return 0


def _source_numbers() -> dict[str, int]:
    """Profile sources by name, in lower case."""
    from ..etw import profile_sources

    return {source.name.lower(): source.source for source in profile_sources()}


# -- words of the command line for the bits of flags, modes and groups


def _word(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def _words(named: Iterable[tuple[str, int]]) -> dict[str, int]:
    return {_word(name): int(bits) for name, bits in named if bits}


def _mode_words() -> dict[str, int]:
    """``sequential``, ``real-time``...: the bits of LogFileMode."""
    from ..etw import LogFileMode

    return _words(
        (name.removeprefix("FILE_MODE_").removesuffix("_MODE").removeprefix("USE_"), mode)
        for name, mode in LogFileMode.__members__.items()
    )


def _flag_words() -> dict[str, int]:
    """``process``, ``image-load``...: the bits of EnableFlags."""
    from ..etw import EnableFlag

    return _words(EnableFlag.__members__.items())


def _bits(text: str, words: Mapping[str, int], option: str) -> int:
    """The bits that ``text`` names, separated by commas; a number is taken as it is."""
    bits = 0
    for word in filter(None, map(_word, text.split(","))):
        if word not in words and not word[0].isdigit():
            raise click.BadParameter(f"no {word!r}; there are: {', '.join(sorted(words))}", param_hint=option)
        bits |= words[word] if word in words else _number(word, option, 32)
    return bits


def _number(word: str, option: str, bits: int) -> int:
    try:
        number = int(word, 0)
    except ValueError:
        raise click.BadParameter(f"{word!r} is not a number", param_hint=option) from None
    if not 0 <= number < 1 << bits:
        raise click.BadParameter(f"{word} is no number of {bits} bits", param_hint=option)
    return number


def _masks(text: str, option: str) -> list[int]:
    """Eight mask words for names of EnableFlags and of groups (``pmc-profile``)."""
    from ..etw import GROUPS

    flags = _flag_words()
    groups = {_word(name): group for name, group in GROUPS.items() if _word(name) not in flags}
    masks = [_bits(text, flags | dict.fromkeys(groups, 0), option), *[0] * 7]
    for word in map(_word, text.split(",")):
        if word in groups:
            masks[groups[word].word] |= groups[word].bits
    return masks


def _names(bits: int, words: Mapping[str, int]) -> str:
    """The words of the bits that are set."""
    left = bits & ~sum(words.values())
    return ",".join([word for word, bit in words.items() if bits & bit] + ([hex(left)] if left else []))


def _provider(text: str) -> tuple[UUID, int, int]:
    """``PROVIDER[:LEVEL[:KEYWORDS]]``. Raises `EtwError` (87) without a provider."""
    from ..etw import provider_guid

    provider, _, rest = text.partition(":")
    level, _, keywords = rest.partition(":")
    return provider_guid(provider), _number(level or "0", "--enable", 8), _number(keywords or "0", "--enable", 64)


# -- sessions as rows


def _print_states(states: list[SessionState], form: str) -> int:
    """A row for each session."""
    if not states and form == "table":
        print_notes(["no session runs"])
        return 0
    columns = ("handle", "name", "mode", "file", "buffers", "free", "written", "events lost", "buffers lost")
    modes = _mode_words()
    rows = [
        (
            state.handle,
            state.request.name,
            _names(state.request.mode, modes),
            state.request.file or None,
            state.number_of_buffers,
            state.free_buffers,
            state.buffers_written,
            state.events_lost,
            state.log_buffers_lost + state.real_time_buffers_lost,
        )
        for state in states
    ]
    print_rows(columns, rows, form)
    return 0


def _print_state(state: SessionState, form: str) -> int:
    """The state of one session, and what it lost on standard error."""
    properties = _properties(state)
    if form == "table":
        shown = [(name, str(value)) for name, value in properties.items() if value is not None]
        print_rows(("property", "value"), shown, form, wrap=True)
    else:
        print_rows(list(properties), [list(properties.values())], form)
    if state.events_lost:
        print_notes([f"{state.events_lost} events were lost"])
    return 0


def _properties(state: SessionState) -> dict[str, Cell]:
    from ..etw import ClientContext

    request = state.request
    clocks = {ClientContext.QPC: "qpc", ClientContext.SYSTEM_TIME: "system time", ClientContext.CPU_CYCLES: "cycles"}
    return {
        "name": request.name,
        "handle": state.handle,
        "guid": str(request.guid),
        "file": request.file or None,
        "mode": _names(request.mode, _mode_words()),
        "clock": clocks.get(ClientContext(request.clock), ""),
        "buffer KB": request.buffer_size,
        "minimum buffers": request.minimum_buffers,
        "maximum buffers": request.maximum_buffers,
        "maximum file size": request.maximum_file_size,
        "flush timer": request.flush_timer,
        "flags": _names(request.enable_flags, _flag_words()) or None,
        "masks": " ".join(f"{word:#x}" for word in state.masks) if any(state.masks) else None,
        "buffers": state.number_of_buffers,
        "free buffers": state.free_buffers,
        "buffers written": state.buffers_written,
        "events lost": state.events_lost,
        "log buffers lost": state.log_buffers_lost,
        "real-time buffers lost": state.real_time_buffers_lost,
        "logger thread": state.logger_thread,
    }
