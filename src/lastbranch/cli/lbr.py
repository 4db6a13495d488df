"""``lastbranch lbr``."""

from __future__ import annotations

import click

from .group import Group
from .options import format_options
from .output import print_rows


@click.group(cls=Group)
def command() -> None:
    """Explain selections of branches: MSRs, ETW flags, perf filters."""


@command.command()
@click.argument("value", metavar="[VALUE]", required=False)
@click.option("--as", "notation", type=click.Choice(["msr", "arch", "etw", "perf"]), help="What VALUE is.")
@click.option(
    "--filter", "words", metavar="NAME,...", help="A selection in the words of `perf record -j`: user,any_call."
)
@format_options
def explain(value: str | None, notation: str | None, words: str | None, form: str) -> int:
    """Decode and check a selection of branches, in every notation.

    VALUE, decimal or 0x hexadecimal, is one of: msr, the register MSR_LBR_SELECT; arch, IA32_LBR_CTL of the
    architectural LBR; etw, the flags of TraceConfigureLastBranchRecord; perf, branch_sample_type of perf_event_open.
    The bits of msr and etw suppress what they name; those of arch and perf select it.

    The first row is the given value. Where another notation cannot express the same selection, its value records more,
    never less, and the last column says what differs. --filter without a branch class means any, as with perf.

    The exit code is 2 if the selection is not valid; the message names the bits.
    """
    from ..lbr import NOTATIONS, bit_names, convert, recorded_classes

    number, source = _selection(value, notation, words)
    rows = []
    for name in sorted(NOTATIONS, key=lambda n: n != source):
        converted, notes = convert(number, source, name)
        bits = bit_names(converted, name)
        recorded = recorded_classes(converted, name) if converted or name != "perf" else []
        rows.append(
            (name, NOTATIONS[name].title, f"{converted:#x}", _list(bits), _list(recorded), "; ".join(notes) or None)
        )
    print_rows(("notation", "register", "value", "bits set", "records", "not the same"), rows, form, wrap=True)
    return 0


def _list(names: list[str]) -> str:
    return ",".join(names) or "none"


def _selection(value: str | None, notation: str | None, words: str | None) -> tuple[int, str]:
    from ..lbr import perf_select

    if words is not None:
        if value is not None or notation not in (None, "perf"):
            raise click.UsageError("--filter replaces VALUE and --as")
        return perf_select(words), "perf"
    if value is None or notation is None:
        raise click.UsageError("give VALUE with --as msr|arch|etw|perf, or --filter NAME,...")
    try:
        return int(value, 0), notation
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is not a number (decimal, or 0x hexadecimal)", param_hint="VALUE"
        ) from None
