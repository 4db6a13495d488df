"""`verify` says where the records of a section contradict each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tbrw_recipe as recipe
from lastbranch.formats.tb5.layout import Scope, Table, struct_of
from lastbranch.formats.tb5.reader import Tb5File
from lastbranch.formats.tb5.verification import verify
from lastbranch.formats.tb5.writer import Tb5Writer
from lastbranch.opening import open_source

SYSTEM, NODE, CPU, ARCH, CPUID = (Table(Scope.GLOBAL, 0, 0, part) for part in range(5))
HOST, EVENT, INFO = Table(Scope.GLOBAL, 0, 1), Table(Scope.STREAM, 0, 0), Table(Scope.STREAM, 0, 4)


def told(tmp_path: Path, key: Table, change: Callable[[np.ndarray], np.ndarray | None]) -> set[str]:
    """Fields that `verify` names where one table of the guide's recipe is another."""
    recipe.write_recipe(tmp_path / "a.tb5")
    with Tb5File(open_source(str(tmp_path / "a.tb5"))) as old, Tb5Writer.create(tmp_path / "b.tb5") as new:
        assert verify(old) == []
        for other in old.tables:
            rows = old.read(other)
            struct = struct_of(other)
            if other == key and struct is not None:
                records = rows.reshape(-1).view(struct.dtype)
                changed = change(records)
                rows = records if changed is None else changed
            new.put(other, rows)
    return {d.field for d in verify(Tb5File(open_source(str(tmp_path / "b.tb5"))))}


@pytest.mark.parametrize(
    ("key", "field"),
    [
        (SYSTEM, "system_num_nodes"),
        (NODE, "node_num_available"),
        (CPU, "num_cpu_arch_array"),
        (ARCH, "arch_num_cpuid"),
        (EVENT, "event_num_details"),
        (SYSTEM, "node_array"),
        (NODE, "cpu_array"),
        (CPU, "cpu_arch_array"),
        (ARCH, "cpuid_array"),
        (EVENT, "event_detail_array"),
        (EVENT, "event_id"),
        (SYSTEM, "system_size"),
        (HOST, "host_size"),
        (INFO, "stream_info_size"),
    ],
)
def test_a_number_that_is_another(tmp_path: Path, key: Table, field: str) -> None:
    def change(records: np.ndarray) -> None:
        records[field] += 1

    assert field in told(tmp_path, key, change)


@pytest.mark.parametrize("key", [SYSTEM, HOST, INFO, Table(Scope.GLOBAL, 0, 1, 1), Table(Scope.GLOBAL, 0, 5)])
def test_what_there_is_one_of_stands_there_once(tmp_path: Path, key: Table) -> None:
    def twice(records: np.ndarray) -> np.ndarray:
        rows = records.view(np.uint8).reshape(len(records), -1)
        return np.concatenate([rows, rows])

    assert "count" in told(tmp_path, key, twice)


def test_an_architecture_of_the_other_kind_has_no_leaves_here(tmp_path: Path) -> None:
    def itanium(records: np.ndarray) -> None:
        records["arch_type"] = 2

    assert "arch_num_cpuid" in told(tmp_path, ARCH, itanium)


@pytest.mark.parametrize(
    ("key", "field"),
    [
        (SYSTEM, "system_num_nodes"),
        (HOST, "host_name"),
        (HOST._replace(part=1), "os_platform"),
        (HOST._replace(part=2), "app_max_app_addr"),
    ],
)
def test_required_structures_that_say_nothing(tmp_path: Path, key: Table, field: str) -> None:
    def empty(rows: np.ndarray) -> None:
        for name in rows.dtype.names[1:]:
            rows[name] = 0

    assert field in told(tmp_path, key, empty)
