"""Options that verbs share, and the opening of their capture."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from .output import print_damage, print_notes, print_refused, terminal_options

if TYPE_CHECKING:
    from fractions import Fraction

    from click.shell_completion import CompletionItem

    from ..analysis.counting.count_stacks import EarlyCounts
    from ..answers.estimates import Estimate
    from ..formats.etl import Reading
    from ..model import Profile, SampleFilter, StackWatcher

__all__ = [
    "Capture",
    "capture_options",
    "captures_and",
    "captures_options",
    "check_new",
    "complete_file",
    "complete_folder",
    "Count",
    "DEFAULT_FILE",
    "estimate_option",
    "EstimateChoice",
    "file_argument",
    "filter_options",
    "FilterMaker",
    "force_option",
    "format_option",
    "format_options",
    "grouped",
    "limit_options",
    "log_options",
    "LogOptions",
    "no_progress_option",
    "pid_option",
    "rows_options",
    "source_root_option",
    "stacked",
    "symfs_option",
    "table_options",
    "time_option",
    "TimeRange",
    "weight_option",
]


# -- Whole numbers of the command line


class Count(click.IntRange):
    """A whole number, ``least`` or more, that fits in ``bits`` bits: what takes it has no room for others."""

    def __init__(self, least: int = 0, bits: int = 63) -> None:
        super().__init__(min=least)
        self._most = (1 << bits) - 1

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number: int = super().convert(value, param, ctx)
        if number > self._most:
            self.fail(f"{value} is more than {self._most}.", param, ctx)
        return number


DEFAULT_FILE = "lastbranch.tb5"
"""What `record` writes and other verbs read where no name is given."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


def grouped(argument: str, make: Callable[..., Any], *options: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """A decorator that adds click ``options`` to a command. ``make`` gets their values by name; the command gets what
    it returns as ``argument``."""
    names = tuple(signature(make).parameters)

    def decorate(function: _Command) -> _Command:
        @functools.wraps(function)
        def wrapped(**values: Any) -> Any:
            made = make(**{name: values.pop(name) for name in names})
            return function(**{argument: made}, **values)

        return stacked(*options)(wrapped)  # type: ignore[return-value]  # its arguments differ from those of the command

    return decorate


def stacked(*options: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """A decorator that adds click ``options`` to a command, which gets each as an argument."""

    def decorate(function: _Command) -> _Command:
        for option in reversed(options):  # as decorators above each other are applied
            function = option(function)
        return function

    return decorate


# -- names of files, which a shell completes


def complete_file(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Have a shell complete the name of a file."""
    return _complete("file", incomplete)


def complete_folder(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Have a shell complete the name of a folder."""
    return _complete("dir", incomplete)


def _complete(what: str, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type=what)]


force_option = click.option("--force", is_flag=True, help="Replace an existing output.")


def check_new(paths: str | Sequence[str], force: bool, hint: str, *, folder: bool = False) -> None:
    """Raise `click.BadParameter` of ``hint`` where one of these files (``folder``: folders) exists, unless ``force``.

    Nothing else of these names is replaced: devices and pipes are written to, and the rest is refused by the writers.
    """
    for path in [paths] if isinstance(paths, str) else paths:
        replaced = os.path.isdir(path) if folder else os.path.isfile(path) or not os.path.exists(path)
        if not force and replaced and os.path.lexists(path):
            from ..model import visible

            raise click.BadParameter(f"{visible(path)} exists; --force replaces it", param_hint=hint)


# -- captures: FILE, and how it is read


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How to read a trace log that does not describe itself, or not correctly."""

    pointer_size: str | None = None
    """Bits."""
    manifests: tuple[str, ...] = ()

    def given(self) -> Reading | None:
        """`reading`, or ``None`` without options: the decoder of trace logs is not loaded then, which takes a third of
        the time to start."""
        return self.reading() if self.pointer_size or self.manifests else None

    def reading(self) -> Reading:
        """How the options say to read a log. Prints where the manifests contradict each other."""
        from ..opening import reading_of

        read = reading_of(int(self.pointer_size) if self.pointer_size else None, self.manifests)
        print_notes(read.manifests.notes if read.manifests is not None else ())
        return read


log_options = grouped(
    "log",
    LogOptions,
    click.option(
        "--pointer-size",
        type=click.Choice(["32", "64"]),
        help="For an .etl: pointer size of its events in bits, if their headers have it wrong.",
    ),
    click.option(
        "--manifest",
        "manifests",
        multiple=True,
        metavar="FILE|FOLDER",
        shell_complete=complete_file,
        help="For an .etl: take names and fields of events from this instrumentation manifest, or from all manifests "
        "in a folder (repeatable).",
    ),
)
"""--pointer-size and --manifest, as one `LogOptions` argument ``log``."""


@dataclass(slots=True)
class Capture:
    """The FILE arguments with their options. `open` reads them; `finish` ends the verb with the right exit code."""

    paths: tuple[str, ...]
    symfs: str | None
    progress: bool
    folders: tuple[str, ...] = ()
    """Where files are looked for by their identity."""
    log: LogOptions = LogOptions()
    weights: dict[str, int] = field(default_factory=dict)
    kcore: str | None = None

    @property
    def path(self) -> str:
        """The file, for a verb that takes a single FILE."""
        return self.paths[0]

    def open(self, watcher: StackWatcher | None = None) -> Profile:
        """The capture; ``watcher`` sees its branch stacks on the way, where it is one whose format shows them."""
        from ..opening import read_captures
        from .progress import bar

        with bar("indexing", self.progress) as progress:
            profile = read_captures(
                self.paths, progress, self.log.given(), self.symfs, self.folders, self.weights, watcher, self.kcore
            )
        print_refused(profile)
        return profile

    @contextmanager
    def reading(self, profile: Profile, *, printing: bool = False) -> Iterator[None]:
        """Shows how far the samples of ``profile`` are read; not where the verb is ``printing`` to a terminal."""
        from .progress import bar

        with bar("reading samples", self.progress and not (printing and sys.stdout.isatty())) as shown:
            for stream in profile.streams:
                stream.progress = shown
            yield

    @staticmethod
    def why_empty(profile: Profile, rows: Sized) -> list[str]:
        """A note where there is nothing to print."""
        if rows:
            return []
        return ["nothing passes the filters" if profile.samples else "the capture has no samples"]

    def finish(self, profile: Profile, notes: list[str] | None = None) -> int:
        """Tell ``notes`` and damage on standard error. 1 if there is damage, or a capture could not be opened."""
        print_notes([*profile.notes, *(notes or [])])
        damage = [(damage.file or profile.name, damage) for damage in profile.damage]
        return print_damage(damage) or int(bool(profile.refused))


_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def _size(text: str) -> int:
    """Bytes, with a suffix for binary multiples: 512M, 4G."""
    number, unit = (text[:-1], text[-1:].upper()) if text[-1:].isalpha() else (text, "")
    if unit not in _UNITS or not (number.isascii() and number.isdecimal()) or not int(number):
        raise click.BadParameter(f"{text!r} is not a size, for example 512M or 4G")
    return int(number) << _UNITS[unit]


def _limit(ctx: click.Context, **changes: int) -> None:
    """Change the limits that are in force while the verb runs."""
    from ..model import Limits, limited

    ctx.with_resource(limited(replace(Limits.current(), **changes)))


def _max_memory(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        _limit(ctx, memory=_size(value))


def _max_expansion(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    """SIZE, RATIOx or SIZE,RATIOx."""
    if value is None:
        return
    limits = {"expansion": 0, "ratio": 0}
    for part in value.split(","):
        if part[-1:] in ("x", "X") and part[:-1].isascii() and part[:-1].isdecimal():
            limits["ratio"] = int(part[:-1])
        else:
            limits["expansion"] = _size(part)
    _limit(ctx, **limits)


limit_options = stacked(
    click.option(
        "--max-memory",
        metavar="SIZE",
        callback=_max_memory,
        expose_value=False,
        help="Memory limit for the tables of a capture; the rest is not read. "
        "[default: 256M, or the size of the file if that is more]",
    ),
    click.option(
        "--max-expansion",
        metavar="SIZE|RATIOx",
        callback=_max_expansion,
        expose_value=False,
        help="Limit for the expansion of compressed data: a number of bytes, a multiple of the compressed size, or "
        "the larger of both; the rest is not read. [default: 256M,100x]",
    ),
)
"""--max-memory and --max-expansion: in force while the verb runs."""


def _files_or_default(paths: tuple[str, ...]) -> tuple[str, ...]:
    if not paths and not os.path.exists(DEFAULT_FILE):
        makes = "`lastbranch record COMMAND` makes one, and - is standard input"
        raise click.UsageError(f"Missing argument 'FILE': there is no {DEFAULT_FILE} in this folder; {makes}.")
    return paths or (DEFAULT_FILE,)


file_argument = click.argument(
    "path",
    metavar="[FILE]",
    required=False,
    shell_complete=complete_file,
    callback=lambda ctx, _, value: value if value is not None or ctx.resilient_parsing else _files_or_default(())[0],
)
"""FILE as ``path``: `DEFAULT_FILE` of this folder where it is left out."""
_files_argument = click.argument(
    "paths",
    metavar="[FILE]...",
    nargs=-1,
    shell_complete=complete_file,
    # `export --check` takes no capture.
    callback=lambda ctx, _, value: (
        value if ctx.resilient_parsing or ctx.params.get("check") is not None else _files_or_default(value)
    ),
)


def _weights(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    """``CAPTURE=N``, of which the name may have = in it."""
    out = {}
    for value in values:
        name, _, number = value.rpartition("=")
        if not name:
            raise click.BadParameter(f"{value!r} is not CAPTURE=N: for example web.data=3", ctx, param)
        out[name] = _WEIGHT.convert(number, param, ctx)
    return out


_WEIGHT = Count(1, 32)
weight_option = click.option(
    "--weight",
    "weights",
    multiple=True,
    metavar="CAPTURE=N",
    callback=_weights,
    help="Count each sample of this capture N times: its path, name, folder, or pattern with * (repeatable).",
)
symfs_option = click.option(
    "--symfs", metavar="DIR", shell_complete=complete_folder, help="Look for binaries at DIR + their full path."
)
_kcore_option = click.option(
    "--kcore",
    metavar="PATH",
    shell_complete=complete_file,
    help="Take the kernel's code as it ran from its memory: /proc/kcore, or a folder of `perf record --kcore` or "
    "`perf buildid-cache --kcore`.",
)
no_progress_option = click.option("--no-progress", is_flag=True, help="Do not show progress on standard error.")
_reading_options = stacked(
    symfs_option,
    no_progress_option,
    log_options,
    limit_options,
)


def _capture(path: str, symfs: str | None, no_progress: bool, log: LogOptions) -> Capture:
    return Capture((path,), symfs, not no_progress, log=log)


def _captures(
    paths: tuple[str, ...],
    symfs: str | None,
    kcore: str | None,
    no_progress: bool,
    log: LogOptions,
    weights: dict[str, int],
) -> Capture:
    return Capture(paths, symfs, not no_progress, log=log, weights=weights, kcore=kcore)


def capture_options(function: _Command) -> _Command:
    """One FILE, --symfs, --no-progress and what `log_options` has, as one `Capture` argument."""
    return stacked(file_argument, _reading_options, grouped("capture", _capture))(function)


def captures_options(function: _Command) -> _Command:
    """The same with several FILE, --weight and --kcore."""
    options = _files_argument, weight_option, _kcore_option, _reading_options
    return stacked(*options, grouped("capture", _captures))(function)


def captures_and(name: str, metavar: str) -> Callable[[_Command], _Command]:
    """`captures_options` with one more argument, ``name``, after the last FILE. A word alone is that argument: FILE may
    be left out."""

    def decorate(function: _Command) -> _Command:
        whole = grouped("capture", _captures)(function)

        @functools.wraps(whole)
        def wrapped(words: tuple[str, ...], **rest: Any) -> Any:
            if not words or (len(words) == 1 and os.path.isfile(words[0]) and not os.path.exists(DEFAULT_FILE)):
                raise click.UsageError(f"Missing argument '{metavar}'.")
            return whole(paths=_files_or_default(words[:-1]), **{name: words[-1]}, **rest)

        words = click.argument("words", metavar=f"[FILE]... {metavar}", nargs=-1, shell_complete=complete_file)
        options = stacked(words, weight_option, _kcore_option, _reading_options)
        return options(wrapped)  # type: ignore[return-value]  # its arguments differ from those of the command

    return decorate


# -- what is printed, and of which samples


def format_option(*forms: str, help: str = "Output format.") -> Callable[[_Command], _Command]:
    """--format, as ``form``; the first of ``forms`` is the default."""
    return click.option("--format", "form", type=click.Choice(forms), default=forms[0], show_default=True, help=help)


format_options = stacked(format_option("table", "csv", "json"), terminal_options)
"""--format, as ``form``, --wide and --no-pager."""


def _rows_to_print(ctx: click.Context, _param: click.Parameter, value: int | None) -> int:
    return (20 if ctx.params.get("form") in ("table", "markdown") else 0) if value is None else value


def rows_options(*more: str) -> Callable[[_Command], _Command]:
    """--format (of `format_options`, or one of ``more``), --wide and --limit."""
    return stacked(
        format_option("table", "csv", "json", *more),
        terminal_options,
        click.option(
            "--limit",
            type=Count(),
            callback=_rows_to_print,
            help="Rows to print; 0 prints all. [default: 20 in a table, else all]",
        ),
    )


table_options = rows_options()
"""--format, --wide and --limit."""


class TimeRange(NamedTuple):
    """``start <= time < end`` in seconds; ``None`` does not restrict."""

    start: Fraction | None
    end: Fraction | None


def _time_range(ctx: click.Context, param: click.Parameter, value: str | None) -> TimeRange | None:
    """``FROM..TO``: two decimal numbers of seconds, of which either may be missing."""
    if value is None:
        return None
    start, dots, end = value.partition("..")
    first, last = (_seconds(part) if part else None for part in (start, end))
    if not dots or (start and first is None) or (end and last is None):
        raise click.BadParameter(f"{value!r} is not FROM..TO, two numbers of seconds: for example 0.5..2", ctx, param)
    if first is not None and last is not None and first >= last:
        raise click.BadParameter(f"{value!r} ends before it begins", ctx, param)
    return TimeRange(first, last)


def _seconds(text: str) -> Fraction | None:
    """``text`` exactly, or ``None`` where it is no finite decimal number. The limits keep the integers small."""
    from decimal import Decimal, InvalidOperation
    from fractions import Fraction

    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    if not number.is_finite() or number.adjusted() > 30 or number.as_tuple().exponent < -100:  # type: ignore[operator]
        return None
    return Fraction(number)


def time_option(since: str) -> Callable[[_Command], _Command]:
    """--time as a `TimeRange`, in seconds since ``since``; ``None`` where it is not given."""
    words = f"Only this range of seconds since {since}; either end may be omitted: 0.5..2"
    return click.option("--time", callback=_time_range, metavar="FROM..TO", help=words)


source_root_option = click.option(
    "--source-root",
    multiple=True,
    metavar="DIR",
    shell_complete=complete_folder,
    help="Look for source files in DIR (repeatable). [default: next to the binary]",
)
pid_option = click.option("--pid", type=int, multiple=True, help="Only this process id (repeatable).")


@dataclass(frozen=True, slots=True)
class EstimateChoice:
    """--estimate: what counts of branches and instructions are."""

    estimate: str

    @property
    def executions(self) -> bool:
        return self.estimate == "executions"

    def of(self, capture: Capture, profile: Profile, chosen: SampleFilter | None) -> Estimate:
        """For the samples that ``chosen`` keeps. Reads the capture if executions are asked for."""
        from ..answers.estimates import estimate_of

        with capture.reading(profile) if self.executions else nullcontext():
            return estimate_of(profile, chosen, executions=self.executions)

    def notes(self, estimate: Estimate) -> list[str]:
        """What a reader who asked for executions should know of them."""
        return [estimate.note] if self.executions else []


estimate_option = grouped(
    "counts",
    EstimateChoice,
    click.option(
        "--estimate",
        type=click.Choice(("observed", "executions")),
        default="observed",
        show_default=True,
        help="Counts as they were observed, which follow time, or executions estimated from them (docs: executions).",
    ),
)
"""--estimate, as an `EstimateChoice` argument ``counts``."""


@dataclass(frozen=True, slots=True)
class FilterMaker:
    """The filter options: makes a filter once the profile is known."""

    pid: tuple[int, ...]
    tid: tuple[int, ...]
    module: tuple[str, ...]
    event: tuple[str, ...]
    time: TimeRange | None

    def __call__(self, profile: Profile) -> SampleFilter | None:
        from ..model import SampleFilter

        zero, clock = profile.start or 0, profile.clock
        first, last = (None if s is None else zero + clock.ticks(s) for s in self.time or (None, None))
        made = SampleFilter(
            pids=frozenset(self.pid),
            tids=frozenset(self.tid),
            first=first,
            last=last,
            events=frozenset(row for e in self.event for row in _event_rows(profile, e)),
            modules=frozenset(row for m in self.module for row in _module_rows(profile, m)),
        )
        return made or None

    def early(self, **counted: bool) -> EarlyCounts | None:
        """What counts the stacks while the capture is opened, for `analysis.count_stacks` with ``counted`` later;
        ``None`` where only some samples are wanted."""
        from ..analysis.counting.count_stacks import EarlyCounts

        return None if self.pid or self.tid or self.event or self.time else EarlyCounts(**counted)


filter_options = grouped(
    "make_filter",
    FilterMaker,
    pid_option,
    click.option("--tid", type=int, multiple=True, help="Only this thread id (repeatable)."),
    click.option(
        "--module", multiple=True, metavar="NAME", help="Only this module: full path, file name, or pattern with *."
    ),
    click.option(
        "--event", multiple=True, metavar="NAME", help="Only this event: name, pattern with *, or row number."
    ),
    time_option("the first event"),
)
"""--pid, --tid, --module, --event and --time, as one ``make_filter`` argument, a `FilterMaker`."""


def _event_rows(profile: Profile, wanted: str) -> list[int]:
    from fnmatch import fnmatchcase

    names = [e.name for e in profile.events]
    rows = [i for i, name in enumerate(names) if name == wanted or fnmatchcase(name, wanted)]
    if rows:
        return rows
    if wanted.isdecimal() and int(wanted) < len(names):
        return [int(wanted)]
    raise click.BadParameter(f"no event {wanted!r}; there are: {', '.join(names)}", param_hint="--event")


def _module_rows(profile: Profile, wanted: str) -> list[int]:
    from fnmatch import fnmatchcase

    rows = [
        i
        for i, m in enumerate(profile.modules)
        if wanted in (m.name, m.short) or fnmatchcase(m.name, wanted) or fnmatchcase(m.short, wanted)
    ]
    if not rows:
        from difflib import get_close_matches

        near = get_close_matches(wanted, {m.short for m in profile.modules}, n=5, cutoff=0.4)
        like = f"; there are: {', '.join(near)}" if near else ""
        raise click.BadParameter(f"no module is called {wanted!r}{like}", param_hint="--module")
    return rows
