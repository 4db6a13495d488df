"""``lastbranch export``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from ..errors import NotRecordedError
from ..export import BY_MODULE, EXPORTS, FOLDERS, Exported, ExportOptions, export_to, exporter
from .options import Capture, captures_options, check_new, complete_file, filter_options, force_option, stacked
from .symbols import brief, symbol_options

if TYPE_CHECKING:
    from ..model import Profile
    from ..symbols import SymbolOptions

_BINARY = ("pprof", "gcov")

output_options = stacked(
    click.option("--binary", metavar="NAME|PATH", help="Only this module; a PATH also locates its binary."),
    click.option(
        "-o", "--output", metavar="OUT", shell_complete=complete_file, help="File to write, instead of standard output."
    ),
    force_option,
    click.option(
        "--fail-empty", is_flag=True,
        help="Exit with code 4 if the output is empty or covers less than half of what was recorded.",
    ),
)  # fmt: skip
"""--binary, --output, --force and --fail-empty."""


@click.command()
@captures_options
@filter_options
@symbol_options
@click.option("--to", "name", required=True, type=click.Choice(EXPORTS), help="What to write.")
@output_options
def command(
    capture: Capture, make_filter: Any, name: str, binary: str | None, output: str | None, force: bool,
    fail_empty: bool, symbols: SymbolOptions,
) -> int:  # fmt: skip
    """Write a capture for compilers, viewers and other tools.

    counts: branch and range counts as text, a line each. brstack: the text of `perf script -F ip,brstack`.

    For compilers: autofdo (AutoFDO's text), gcov (what gcc reads), profgen (llvm-profgen's unsymbolized profile), bolt
    (BOLT's pre-aggregated profile), sampleprof (LLVM's text sample profile). Each file covers one module, --binary;
    without it, OUT is a new folder with a file for each module. perfscript: the text of `perf script`, for
    llvm-profgen.

    For viewers, with names and inlined functions: pprof (profile.proto), speedscope, firefox (profiler.firefox.com),
    chrome (trace events, also for Perfetto), folded (for flame graphs, as `lastbranch stacks` prints). Their stacks are
    the best that the capture offers; a note says which. parquet and arrow: OUT is a folder with a file for each table.

    OUT appears when it is complete. An existing file or folder of that name is replaced only with --force, and stays as
    it is until OUT is complete.
    """
    check_output(name, binary, output, force)
    profile = capture.open()
    options = ExportOptions(make_filter(profile), binary, symbols)
    with capture.reading(profile, printing=output is None):
        done = write(profile, name, output, options)
    code = capture.finish(profile, brief(profile, done.all_notes))
    return NotRecordedError.exit_code if fail_empty and done.partial else code


def check_output(name: str, binary: str | None, output: str | None, force: bool) -> None:
    """Raise `click.UsageError` where the format ``name`` cannot be written to ``output`` (``None``: standard
    output)."""
    if output is None and name in _BINARY and sys.stdout.isatty():
        raise click.UsageError(f"--to {name} is binary, and standard output a terminal: give -o FILE, or redirect it")
    each = "table" if name in FOLDERS else "module" if name in BY_MODULE and binary is None else ""
    if output is not None:
        check_new(output, force, "--output", folder=bool(each))
    elif each:
        other = ", or --binary NAME" if name in BY_MODULE else ""
        raise click.UsageError(f"--to {name} writes a file for each {each}: give -o FOLDER{other}")


def write(profile: Profile, name: str, output: str | None, options: ExportOptions) -> Exported:
    """Write ``profile`` as ``output``, or to standard output."""
    if output is not None:
        return export_to(profile, name, output, options)
    done = exporter(name)(profile, sys.stdout.buffer, options)
    sys.stdout.buffer.flush()
    return done
