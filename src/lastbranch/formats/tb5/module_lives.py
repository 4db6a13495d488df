"""From module load records (guide, 6.6 and 8.6) to the time in which each module was loaded, and in which processes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...model import KERNEL_HALF, Array
from .layout import NEVER, ModuleFlag

__all__ = ["ModuleLives", "module_lives"]


@dataclass(frozen=True, slots=True)
class ModuleLives:
    """Columns over module records."""

    loads: NDArray[np.bool_]
    """Whether the record is a module in memory; else it is the notice of an unloading (TBRW_MODULE_UNLOADED without
    LOADED)."""
    everybodys: NDArray[np.bool_]
    """Whether it belongs to all processes: flagged as global, of process 0, or in the kernel's half."""
    timed: NDArray[np.bool_]
    """Whether its life is given in time stamps (TBRW_MODULE_TSC_USED); else in sample numbers: how many samples of a
    stream there were before."""
    since: NDArray[np.uint64]
    """First time, or number of the first sample; 0 is since before the start."""
    until: NDArray[np.uint64]
    """The time, or sample number, past it; all ones is for good."""


def module_lives(modules: Array) -> ModuleLives:
    """The lives of TBRW_MODULE records.

    They begin at module_event_when, and end at module_unload_tsc, or, without TBRW_MODULE_TSC_USED, at the sample
    number in reserved_for_legacy (0: none). A notice of unloading with the same clock ends the earlier load at its
    address in its process: earlier by time or number, then by the order of records.
    """
    flags, address = modules["module_flags"], modules["module_load_address"]
    timed = (flags & ModuleFlag.TSC_USED) != 0
    notice = (flags & (ModuleFlag.UNLOADED | ModuleFlag.LOADED)) == ModuleFlag.UNLOADED
    owner = modules["module_associated_pid"]
    everybodys = ((flags & ModuleFlag.GLOBAL_LOAD) != 0) | (owner == 0) | (address >= np.uint64(KERNEL_HALF))
    since, number = modules["module_event_when"], modules["reserved_for_legacy"].astype(np.uint64)
    until = np.where(timed, modules["module_unload_tsc"], np.where(number == 0, np.uint64(NEVER), number))
    if notice.any():
        key = np.where(everybodys, 0, owner).astype(np.int64) << 1 | timed
        until = np.minimum(until, _ends(key, address, since, notice))
    return ModuleLives(~notice, everybodys, timed, since, until)


def _ends(key: Array, address: Array, when: Array, notice: Array) -> NDArray[np.uint64]:
    """The time of the first notice after each record with the record's key and address; all bits set if there is no
    notice."""
    count = len(key)
    order = np.lexsort((np.arange(count), when, address, key))
    at = np.where(notice[order], np.arange(count), count)
    following = np.minimum.accumulate(at[::-1])[::-1]
    found = order[np.minimum(following, count - 1)]
    same = (following < count) & (key[found] == key[order]) & (address[found] == address[order])
    out = np.empty(count, np.uint64)
    out[order] = np.where(same, when[found], np.uint64(NEVER))
    return out
