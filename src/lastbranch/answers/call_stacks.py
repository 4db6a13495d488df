"""Call stacks, heaviest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .columns import Column, TableKind
from .table import Table, make_table

__all__ = ["STACKS", "stack_table"]

STACKS = TableKind(
    name="call stacks",
    row="a call stack of a process",
    columns=(
        Column(
            name="weight",
            title="samples",
            meaning="samples with the stack, their periods, or the branches executed in it: the title says which",
            unit="samples",
            value=lambda rows: [weight for _, weight in rows],
        ),
        Column(
            name="depth",
            title="depth",
            meaning="how many frames it has",
            unit="frames",
            value=lambda rows: [len(names) - 1 for names, _ in rows],
        ),
        Column(
            name="process",
            title="process",
            meaning="name of the process",
            form="text",
            value=lambda rows: [names[0] for names, _ in rows],
        ),
        Column(
            name="stack",
            title="stack",
            meaning="functions, root first, with ; between them",
            form="text",
            value=lambda rows: [";".join(names[1:]) for names, _ in rows],
        ),
    ),
    last=("process", "stack"),
)
"""`stacks --format table`."""


def stack_table(lines: Sequence[Any], weight: str) -> Table:
    """A row for each of ``lines`` (names from the process to the leaf, and a number), whose numbers are of ``weight``:
    samples, period or executions."""
    columns = (replace(STACKS.columns[0], title=weight), *STACKS.columns[1:])
    return make_table(replace(STACKS, columns=columns), lines, len(lines))
