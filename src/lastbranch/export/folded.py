"""``--to folded``: call stacks as lines for flamegraph.pl, the same that ``lastbranch stacks`` prints.

A line is the process and its functions, root first, with ``;`` between them, then a blank and the weight
(github.com/brendangregg/FlameGraph).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from ..analysis import CallStacks, Namer, View, call_stacks, fold
from ..model import Profile, visible
from ..symbols import Symbolizer
from .binary_choice import limit_to_binary
from .interface import ExportOptions, ExportResult

__all__ = ["Line", "export", "folded_line", "folded_stacks", "stack_notes"]

Line = tuple[list[str], int]
"""Names from the process to the leaf, and their weight."""


def export(profile: Profile, out: IO[bytes], options: ExportOptions) -> ExportResult:
    """Write the call stacks of ``profile``, heaviest first.

    Raises `NotRecordedError` where there are no call stacks.
    """
    estimate = options.estimate if options.estimate and options.estimate.replaced else None
    stacks = call_stacks(profile, sample_filter=limit_to_binary(profile, options), estimate=estimate)
    weight = "executions" if estimate else "samples"
    with Symbolizer(profile, options.symbols) as symbols:
        for line in folded_stacks(profile, stacks, Namer(profile, symbols), weight=weight):
            out.write(folded_line(line).encode())
        samples = int(stacks.samples.sum())
        return ExportResult([*stack_notes(stacks), *symbols.notes], samples, samples)


def folded_stacks(
    profile: Profile, stacks: CallStacks, namer: Namer, view: View = "function", weight: str = "samples"
) -> Iterator[Line]:
    """Each distinct stack by name with its weight, heaviest first (see `fold`)."""
    folded = fold(stacks, namer, view, weight)
    shown = [label.shown(profile) for label in namer.labels]
    process_of = {row: profile.processes[row].name if row >= 0 else "" for row in {process for process, _ in folded}}
    for (process, labels), count in folded.items():
        yield [process_of[process] or "[unknown]", *(shown[row] for row in labels)], count


def folded_line(line: Line) -> str:
    """One line of text. A ``;`` in a name would begin another frame: it is ``:`` there."""
    names, count = line
    return f"{';'.join(visible(name).replace(';', ':') for name in names)} {count}\n"


def stack_notes(stacks: CallStacks) -> list[str]:
    """The source of the stacks, and how many stacks have a leaf only."""
    notes = [f"stacks: {source}" for source in stacks.sources]
    if stacks.bare:
        notes.append(f"{stacks.bare} of {int(stacks.samples.sum())} samples have no caller in their stack")
    return notes
