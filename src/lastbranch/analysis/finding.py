"""Find the function that somebody means."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from ..model import ModuleKind, Profile
from .naming import Label, Namer

__all__ = ["Place", "find_functions", "place_of"]

_AT = re.compile(r"(?P<module>.+)\+(?P<address>0x[0-9a-fA-F]+)")


@dataclass(frozen=True, slots=True)
class Place:
    """A function in a module, at link addresses; ``end`` is exclusive, and 0 where it is not known."""

    module: int
    start: int
    end: int
    label: Label


def find_functions(profile: Profile, namer: Namer, wanted: str, modules: Collection[int] = ()) -> list[Place]:
    """The functions that ``wanted`` means, in the order of modules and addresses; empty where there are none.

    ``wanted`` is a name (linkage name, demangled name, or that without its arguments), a pattern with ``*``, or a place
    ``module+0xaddress``, whose function is meant. ``modules`` are the rows to look in, all where there are none.
    """
    rows = sorted(modules) if modules else range(len(profile.modules))
    if (at := _AT.fullmatch(wanted)) is not None:
        address = int(at["address"], 16)
        called = [row for row in rows if at["module"] in (profile.modules[row].name, profile.modules[row].short)]
        return [place_of(namer, row, address) for row in called if address < 1 << 64]
    found = []
    for row in rows:
        if profile.modules[row].kind is ModuleKind.ANONYMOUS:
            continue
        table = namer.table(row)
        places = np.array(table.find(wanted), np.int64)
        start, end = table.start[places], table.end[places]
        labels = namer.rows(np.full(len(places), -1), np.full(len(places), row), start)
        columns = (start.tolist(), end.tolist(), labels.tolist())
        found += [Place(row, lo, hi, namer.labels[label]) for lo, hi, label in zip(*columns, strict=True)]
    return found


def place_of(namer: Namer, module: int, address: int) -> Place:
    """The function at a module address; without a name, code from that address on."""
    table = namer.table(module)
    where = np.array([address], np.uint64)
    label = namer.labels[int(namer.rows(np.array([-1]), np.array([module]), where)[0])]
    row = int(table.at(where)[0])
    if row < 0:
        return Place(module, address, 0, label)
    return Place(module, int(table.start[row]), int(table.end[row]), label)
