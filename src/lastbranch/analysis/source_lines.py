"""What ran of each source line of a function."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..arrays import Table, distinct_rows
from ..model import Array
from .annotation import Annotation
from .naming import Namer

__all__ = ["SourceLines", "source_lines"]


@dataclass(slots=True)
class SourceLines(Table):
    """Source lines that a function has code of, by file and line; equal-length arrays.

    ``file`` int64: row of ``files``, in which that with the most instructions is the first. ``line`` int64, from 1.
    ``samples`` int64: of its instructions. ``count`` int64: executions of the instruction of it that ran most often.
    ``of`` int64: the row of each instruction of the function, by the innermost of its inlined functions; -1 where debug
    information has none.
    """

    file: Array
    line: Array
    samples: Array
    count: Array
    files: list[str] = field(default_factory=list)
    of: list[int] = field(default_factory=list)


def source_lines(namer: Namer, found: Annotation) -> SourceLines:
    """The lines of ``found``, as the debug information of its module has them."""
    flow = found.flow
    module = np.full(len(flow), flow.module)
    rows, offsets = namer.chains("line", np.full(len(flow), -1), module, flow.address)
    labels = [namer.labels[row] for row in rows[offsets[:-1]].tolist()]
    names = [label.file if label.line > 0 else "" for label in labels]
    frequency = {name: names.count(name) for name in dict.fromkeys(names) if name}
    files = sorted(frequency, key=lambda name: -frequency[name])
    number = {name: i for i, name in enumerate(files)}
    file = np.array([number.get(name, -1) for name in names], np.int64)
    line = np.array([label.line if name else 0 for label, name in zip(labels, names, strict=True)], np.int64)
    blocks = flow.blocks
    count = np.repeat(blocks.count, blocks.last - blocks.first + 1)
    known = np.flatnonzero(file >= 0)
    firsts, which = distinct_rows(file[known], line[known])
    order = np.lexsort((line[known][firsts], file[known][firsts]))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    samples, most = np.zeros(len(order), np.int64), np.zeros(len(order), np.int64)
    np.add.at(samples, place[which], found.samples[known])
    np.maximum.at(most, place[which], count[known])
    of = np.full(len(flow), -1)
    of[known] = place[which]
    return SourceLines(file[known][firsts][order], line[known][firsts][order], samples, most, files, of.tolist())
