"""``lastbranch view``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from .diff import SecondSide, side_options
from .options import (
    Capture,
    EstimateChoice,
    captures_options,
    check_new,
    complete_file,
    estimate_option,
    filter_options,
    force_option,
    source_root_option,
)
from .output import print_notes
from .symbols import symbol_options

if TYPE_CHECKING:
    from ..model import Profile, SampleFilter
    from ..symbols import SymbolOptions
    from ..view.loaded import Loaded, Parameters


@click.command()
@captures_options
@filter_options
@symbol_options
@source_root_option
@estimate_option
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1. [default: any that is free]")
@click.option("--no-open", is_flag=True, help="Print the address instead of opening the browser.")
@click.option(
    "--html",
    "output",
    metavar="OUT",
    shell_complete=complete_file,
    help="Write the viewer and its data to this file, which needs no server.",
)
@click.option(
    "--diff",
    "compared",
    is_flag=True,
    help="Compare two captures: the first FILE is A, before, the second is B, after. All screens show B.",
)
@side_options
@click.option("--no-cache", is_flag=True, help="Neither keep counts of large captures nor use kept ones.")
@click.option("--no-source", is_flag=True, help="With --html: no text of source files, whatever --source-root says.")
@click.option(
    "--anonymise",
    is_flag=True,
    help="With --html: hashes in place of names; no paths, build ids, command lines, host, date or source text.",
)
@force_option
def command(
    capture: Capture,
    make_filter: Any,
    symbols: SymbolOptions,
    source_root: tuple[str, ...],
    port: int,
    no_open: bool,
    output: str | None,
    compared: bool,
    second: SecondSide,
    no_cache: bool,
    no_source: bool,
    anonymise: bool,
    force: bool,
    counts: EstimateChoice,
) -> int:
    """Look at a capture in the browser.

    The screens show hot functions, call stacks, the code of a function, branches, rates over time, and what the capture
    is. With --diff or --against also what changed from one capture to another, as `diff` finds it and with the same
    arguments: view --diff A B, or view A... --against B. Filters can be changed there; those given here are the first.
    Only this machine and this user can reach the viewer, and nothing is loaded from the
    network. Ctrl-C ends it.

    --html writes one file instead, to look at later or to share. Its filters and counts are those given here. It has
    at most 25 MB: the heaviest rows of tables, and the code of the heaviest functions; of the rest it has the sum.
    Source text is in it only if --source-root says where that is.
    """
    if output is not None:
        check_new(output, force, "--html")
    for name, given in (("--no-source", no_source), ("--anonymise", anonymise)):
        if given and output is None:
            raise click.BadParameter("only a file can do without it: add --html", param_hint=name)
    before = None
    if compared or second.against:
        before, capture = second.sides(capture)
    elif second.symfs_b is not None:
        raise click.BadParameter("is of a second capture: add --diff", param_hint="--symfs-b")
    profile = capture.open()
    file = None if output is None else HtmlFile(output, bool(source_root) and not no_source, anonymise)
    viewer = Viewer(
        capture=capture,
        symbols=symbols,
        source_root=source_root,
        port=port,
        browse=not no_open,
        executions=counts.executions,
        before=before,
        keep=not no_cache,
    )
    return viewer.show(profile, make_filter(profile), file)


class HtmlFile(NamedTuple):
    """The file that --html writes: its name, and what is in it."""

    path: str
    source: bool
    anonymise: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """How a capture is shown: compared with the capture ``before`` if there is one. ``keep``: counts in the user's
    cache."""

    capture: Capture
    symbols: SymbolOptions
    source_root: tuple[str, ...] = ()
    port: int = 0
    browse: bool = True
    executions: bool = False
    before: Capture | None = None
    keep: bool = True

    def show(self, profile: Profile, chosen: SampleFilter | None = None, file: HtmlFile | None = None) -> int:
        """Serve the samples of ``profile`` that ``chosen`` keeps, until Ctrl-C, or write them to ``file``."""
        from ..view.loaded import parameters_of

        loaded, before = self._load(self.capture, profile), self.before
        if before is not None:
            loaded.before = self._load(before, before.open())
        parameters = parameters_of(profile, chosen) | ({"estimate": "executions"} if self.executions else {})
        if file is not None:
            self._write(loaded, parameters, file)
        else:
            self._serve(loaded, parameters)
        codes = [before.finish(loaded.other.profile)] if before is not None else []
        return max([*codes, self.capture.finish(profile)])

    def _load(self, capture: Capture, profile: Profile) -> Loaded:
        from ..view.loaded import Loaded

        paths = capture.paths if capture.paths == ("-",) else tuple(one.name for one in profile.captures)
        return Loaded(
            profile, self.symbols, paths, capture.symfs, capture.folders, self.source_root, capture.log.given()
        )

    def _serve(self, loaded: Loaded, parameters: Parameters) -> None:
        from urllib.parse import urlencode

        from ..view.kept import kept_answers
        from ..view.server import listen, serve

        screen = "diff" if self.before else "hot"
        start = f"#/{screen}?{urlencode(parameters)}" if parameters or self.before else ""
        kept = kept_answers(loaded, lambda said: print_notes([said])) if self.keep else None
        serve(loaded, listen(self.port), start, click.echo, self.browse, kept)

    def _write(self, loaded: Loaded, parameters: Parameters, file: HtmlFile) -> None:
        from ..model import writing_file
        from ..view.single_file import single_file
        from .progress import bar

        with bar("writing", self.capture.progress) as progress:
            data = single_file(loaded, parameters, progress, source=file.source, anonymise=file.anonymise)
        with writing_file(file.path) as out:
            out.write(data)
