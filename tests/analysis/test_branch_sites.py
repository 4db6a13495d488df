"""Branches summed over their targets, against plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

import lastbranch
from captures import Data
from lastbranch.analysis import branches, sites
from small_captures import build


@pytest.mark.parametrize("name", ["small", "demo_pie"])
def test_sites_are_what_a_loop_sums(name: str, tmp_path: Path, data: Data) -> None:
    table = branches(lastbranch.open(build(tmp_path / "x.data") if name == "small" else data.path(name)))
    sums: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    targets: dict[tuple[int, int], Counter[tuple[int, int]]] = defaultdict(Counter)
    kinds: dict[tuple[int, int], set[int]] = defaultdict(set)
    fields = ("count", "mispredicted", "predicted", "cycles", "timed")
    for row in np.flatnonzero(table.recorded).tolist():
        site = int(table.from_module[row]), int(table.from_address[row])
        sums[site].update({field: int(getattr(table, field)[row]) for field in fields})
        targets[site][int(table.to_module[row]), int(table.to_address[row])] += int(table.count[row])
        kinds[site].add(int(table.type[row]))
    found = sites(table)
    assert len(found) == len(sums)
    assert (np.diff(found.count) <= 0).all()
    for row, site in enumerate(zip(found.module.tolist(), found.address.tolist(), strict=True)):
        assert {field: int(getattr(found, field)[row]) for field in fields} == {f: sums[site][f] for f in fields}
        assert found.targets[row] == len(targets[site])
        main = int(found.to_module[row]), int(found.to_address[row])
        assert found.to_count[row] == targets[site][main] == max(targets[site].values())
        assert found.type[row] == (kinds[site].pop() if len(kinds[site]) == 1 else -1)


def test_what_recorded_nothing_is_no_site(tmp_path: Path) -> None:
    table = branches(lastbranch.open(build(tmp_path / "x.data")))
    for name in ("from_module", "to_module"):
        getattr(table, name)[:1] = -1
    for name in ("from_address", "to_address"):
        getattr(table, name)[:1] = 0
    assert sites(table).count.sum() == table.count[1:].sum()
    assert len(sites(table.take(slice(0)))) == 0
