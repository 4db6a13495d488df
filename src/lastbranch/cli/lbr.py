"""``lastbranch lbr``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .group import Group
from .options import format_options
from .output import print_rows

if TYPE_CHECKING:
    from ..lbr import Processor


@click.group(cls=Group)
def command() -> None:
    """Explain selections of branches: MSRs, ETW flags, perf filters."""


@command.command()
@click.argument("value", metavar="[VALUE]", required=False)
@click.option("--as", "notation", type=click.Choice(["msr", "arch", "etw", "perf"]), help="What VALUE is.")
@click.option(
    "--filter", "words", metavar="NAME,...", help="A selection in the words of `perf record -j`: user,any_call."
)
@click.option("--processor", metavar="NAME", help="Whether that microarchitecture can record it; `all` lists them.")
@format_options
def explain(value: str | None, notation: str | None, words: str | None, processor: str | None, form: str) -> int:
    """Decode and check a selection of branches, in every notation.

    VALUE, decimal or 0x hexadecimal, is one of: msr, the register MSR_LBR_SELECT; arch, IA32_LBR_CTL of the
    architectural LBR; etw, the flags of TraceConfigureLastBranchRecord; perf, branch_sample_type of perf_event_open.
    The bits of msr and etw suppress what they name; those of arch and perf select it.

    The first row is the given value. Where another notation cannot express the same selection, its value records more,
    never less, and the last column says what differs. --filter without a branch class means any, as with perf.

    --processor with no selection prints what the records of a microarchitecture hold: their format (LBR_FMT), how many
    there are, and whether call-stack mode, transactions (TSX), cycles and branch types exist. With a selection it says
    whether the processor can record that. An empty cell differs between models: the processor reports its LBR_FMT.

    The exit code is 2 if the selection is not valid, or the processor cannot record it; the message names the bits.
    """
    from ..lbr import NOTATIONS, bit_names, convert, recorded_classes

    if processor is not None and value is words is notation is None:
        return _print_processors(processor, form)
    number, source = _selection(value, notation, words)
    if processor is not None:
        for one in _processors(processor):
            if reason := one.refuses(convert(number, source, "msr").value):
                raise click.UsageError(reason)
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


_HEADS = ("processor", "LBR_FMT", "format", "records", "call-stack mode", "TSX", "cycles", "types", "filter")


def _print_processors(name: str, form: str) -> int:
    from ..lbr import FORMATS

    rows = []
    for one in _processors(name):
        number = FORMATS[one.format].number if one.format else None
        fields = (_known(one.has(field)) for field in ("in_tx", "cycles", "type"))
        rows.append(
            (one.name, number, one.format, one.depth, _known(one.call_stack), *fields, _known(one.select is not None))
        )
    print_rows(_HEADS, rows, form, wrap=True)
    return 0


def _processors(name: str) -> list[Processor]:
    """One microarchitecture by its name in any case, or ``all``."""
    from ..lbr import PROCESSORS

    found = [p for p in PROCESSORS.values() if name.lower() in (p.name.lower(), "all")]
    if not found:
        raise click.BadParameter(f"{name!r} is none of: all, {', '.join(PROCESSORS)}", param_hint="--processor")
    return found


def _known(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


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
