"""``lastbranch export``."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from ..errors import NotRecordedError, UnavailableError
from ..export import BY_MODULE, COUNTED, ESTIMATED, EXPORTS, FOLDERS, count_request, export_to, exporter
from ..export.interface import ExportOptions, ExportResult
from .options import (
    Capture,
    EstimateChoice,
    FilterMaker,
    captures_options,
    check_new,
    complete_file,
    estimate_option,
    filter_options,
    force_option,
    format_option,
    grouped,
)
from .output import EXCEEDED, Cell, print_notes, print_rows, share
from .symbols import symbol_options

if TYPE_CHECKING:
    from ..export.sample_tree import SampleTree
    from ..model import Profile
    from ..symbols import SymbolOptions

_BINARY = ("pprof", "gcov", "gopgo")
_EXTBINARY = ("sampleprof", "mispredictions")


@dataclass(frozen=True, slots=True)
class Output:
    """What to write an export to, and in which form."""

    binary: str | None
    output: str | None
    force: bool
    symbol_order: str | None
    list_version: str
    extbinary: bool
    fail_empty: bool

    def check(self, name: str) -> None:
        """Raise `click.UsageError` where the format ``name`` cannot be written to this output (without ``output``:
        standard output), with the second file ``symbol_order``, or in the form ``extbinary``."""
        if self.extbinary and name not in _EXTBINARY:
            raise click.UsageError(f"--extbinary goes with --to {' and '.join(_EXTBINARY)}.")
        if self.symbol_order is not None:
            if name != "propeller" or self.binary is None:
                raise click.UsageError("--symbol-order goes with --to propeller and --binary.")
            check_new(self.symbol_order, self.force, "--symbol-order")
        if self.output is None and (name in _BINARY or self.extbinary) and sys.stdout.isatty():
            raise click.UsageError(
                f"--to {name} is binary, and standard output a terminal: give -o FILE, or redirect it"
            )
        each = "table" if name in FOLDERS else "module" if name in BY_MODULE and self.binary is None else ""
        if self.output is not None:
            check_new(self.output, self.force, "--output", folder=bool(each))
        elif each:
            other = ", or --binary NAME" if name in BY_MODULE else ""
            raise click.UsageError(f"--to {name} writes a file for each {each}: give -o FOLDER{other}")

    def write(self, profile: Profile, name: str, options: ExportOptions) -> ExportResult:
        """Write ``profile`` in the format ``name``, and the second file where it has a name; the form is as asked."""
        options = replace(options, binary=self.binary, list_version=int(self.list_version), extbinary=self.extbinary)
        if self.symbol_order is None:
            return _write(profile, name, self.output, options)
        from ..model import writing_file

        with writing_file(self.symbol_order) as second:
            return _write(profile, name, self.output, replace(options, symbol_order=second))

    def code(self, done: ExportResult, code: int) -> int:
        """The exit code: ``code``, unless --fail-empty asks for another."""
        return NotRecordedError.exit_code if self.fail_empty and done.partial else code


def _write(profile: Profile, name: str, output: str | None, options: ExportOptions) -> ExportResult:
    if output is not None:
        return export_to(profile, name, output, options)
    done = exporter(name)(profile, sys.stdout.buffer, options)
    sys.stdout.buffer.flush()
    return done


output_options = grouped(
    "out",
    Output,
    click.option("--binary", metavar="NAME|PATH", help="Only this module; a PATH also locates its binary."),
    click.option(
        "-o", "--output", metavar="OUT", shell_complete=complete_file, help="File to write, instead of standard output."
    ),
    force_option,
    click.option(
        "--symbol-order",
        metavar="OUT",
        shell_complete=complete_file,
        help="propeller: also write the order of functions for the linker.",
    ),
    click.option(
        "--list-version",
        type=click.Choice(("0", "1")),
        default="1",
        show_default=True,
        help="propeller: version of the list; clang 17 and older read 0 alone.",
    ),
    click.option(
        "--extbinary",
        is_flag=True,
        help="sampleprof and mispredictions: write LLVM's extensible binary form instead of text.",
    ),
    click.option(
        "--fail-empty",
        is_flag=True,
        help="Exit with code 4 if the output is empty or covers less than half of what was recorded.",
    ),
)
"""--binary, --output, --force, those of propeller, --extbinary and --fail-empty, as one `Output` argument ``out``."""


@click.command()
@captures_options
@filter_options
@symbol_options
@click.option("--to", "name", type=click.Choice(EXPORTS), help="What to write.")
@output_options
@click.option(
    "--check",
    metavar="PROFILE",
    is_eager=True,
    shell_complete=complete_file,
    help="Say how much of this profile fits the file --binary.",
)
@click.option(
    "--fail-under",
    type=click.FloatRange(0, 100),
    metavar="PCT",
    help="With --check: exit with code 6 if less than PCT % of the counts fit.",
)
@format_option("table", "csv", "json", help="With --check: output format.")
@click.option(
    "--context",
    "contexts",
    is_flag=True,
    help="With --to sampleprof: count functions by who called them, from call chains and pseudo probes.",
)
@estimate_option
def command(
    capture: Capture,
    make_filter: FilterMaker,
    name: str | None,
    out: Output,
    symbols: SymbolOptions,
    check: str | None,
    fail_under: float | None,
    form: str,
    contexts: bool,
    counts: EstimateChoice,
) -> int:
    """Write a capture for compilers, viewers and other tools.

    counts: branch and range counts as text, a line each. brstack: the text of `perf script -F ip,brstack`.

    For compilers: autofdo (AutoFDO's text), gcov (what gcc reads), profgen (llvm-profgen's unsymbolized profile), bolt
    (BOLT's pre-aggregated profile), boltyaml (BOLT's profile by blocks), sampleprof (LLVM's text sample profile),
    mispredictions (a second one, of mispredicted branches), propeller (clusters of blocks for clang, and with
    --symbol-order the order of functions for lld), gopgo (calls, for `go build -pgo`). Each file covers one module,
    --binary; without it, OUT is a new folder with a file for each module. perfscript: the text of `perf script`, for
    llvm-profgen.

    For viewers, with names and inlined functions: pprof (profile.proto), speedscope, firefox (profiler.firefox.com),
    chrome (trace events, also for Perfetto), folded (for flame graphs, as `lastbranch stacks` prints). Their stacks are
    the best that the capture offers; a note says which. parquet and arrow: OUT is a folder with a file for each table.

    OUT appears when it is complete. An existing file or folder of that name is replaced only with --force, and stays as
    it is until OUT is complete.

    Counts are as they were observed, which follow time; --estimate executions estimates executions from them. A note
    says which they are.

    --check PROFILE --binary PATH says how much of such a file, or of an .fdata file of perf2bolt, fits a binary: ranges
    and branches that its code can run, or functions and lines that it has. With -o it also writes what fits of a sample
    profile by pseudo probe: the functions whose control flow has not changed.
    """
    if check is not None:
        if capture.paths or name or out.binary is None or out.symbol_order is not None:
            raise click.UsageError("--check PROFILE goes with --binary PATH, and without FILE and --to.")
        return _check(check, out.binary, symbols, form, fail_under, out)
    if name is None:
        raise click.UsageError(f"Missing option '--to'. It is one of {', '.join(EXPORTS)}.")
    if fail_under is not None:
        raise click.UsageError("--fail-under goes with --check.")
    _check_counts(name, counts, contexts)
    out.check(name)
    wanted = count_request(name)
    profile = capture.open(make_filter.early(**wanted) if wanted else None)
    chosen = make_filter(profile)
    estimate = counts.of(capture, profile, chosen)
    options = ExportOptions(chosen, symbols=symbols, estimate=estimate, contexts=contexts)
    with capture.reading(profile, printing=out.output is None):
        done = out.write(profile, name, options)
    notes = [estimate.note] if name in COUNTED and done.unit != "samples" else counts.notes(estimate)
    from ..answers.names import brief

    return out.code(done, capture.finish(profile, brief(profile, [*notes, *done.all_notes])))


def _check_counts(name: str, counts: EstimateChoice, contexts: bool) -> None:
    """Raise `click.UsageError` where the format ``name`` cannot have these counts."""
    if counts.executions and name not in ESTIMATED:
        raise click.UsageError(f"--estimate executions is for counts: {', '.join(ESTIMATED)}; {name} has samples.")
    if contexts and name != "sampleprof":
        raise click.UsageError("--context goes with --to sampleprof.")
    if contexts and counts.executions:
        raise click.UsageError("--context counts samples; --estimate executions is for counts without context.")


def _check(path: str, binary: str, symbols: SymbolOptions, form: str, least: float | None, out: Output) -> int:
    """Print how much of the profile at ``path`` fits ``binary``, and write what fits as ``output``."""
    from ..export.fit import fit

    output = out.output
    if output is not None:
        check_new(output, out.force, "--output")
    elif out.extbinary:
        raise click.UsageError("--extbinary goes with -o OUT.")
    found = fit(path, binary, symbols)
    if output is not None and found.fitting is None:
        raise UnavailableError(
            "-o writes only profiles by pseudo probe: others have no hash of the code",
            hint="leave out -o, or build with clang -fpseudo-probe-for-profiling",
        )
    rows: list[list[Cell]] = [
        [r.what, r.things, r.fitting, r.counts, r.fitting_counts, share(r.fitting_counts, r.counts)] for r in found.rows
    ]
    print_rows(["what", "number", "fit", "counts", "counts that fit", "fit %"], rows, form)
    print_notes(found.notes)
    if output is not None and found.fitting is not None:
        _write_tree(found.fitting, output, out.extbinary)
    if least is not None and 100 * found.share < least:
        fitting = int(10_000 * found.share) / 100  # never rounded up to the limit
        click.echo(f"error: {fitting:g} % of the counts fit, less than {least:g} %", err=True)
        return EXCEEDED
    return 0


def _write_tree(tree: SampleTree, output: str, extbinary: bool) -> None:
    from ..export.sampleprof import write_tree
    from ..model import writing_file

    if not tree.functions:
        raise NotRecordedError(f"nothing fits, so {output} was not written")
    with writing_file(output) as out:
        write_tree(tree, out, ExportOptions(extbinary=extbinary))
