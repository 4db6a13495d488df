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
    since: NDArray[np.uint64]
    """First time; 0 is since before the start."""
    until: NDArray[np.uint64]
    """The time past it; all ones is for good."""


def module_lives(modules: Array) -> ModuleLives:
    """The lives of TBRW_MODULE records.

    Without TBRW_MODULE_TSC_USED a record has no times (the guide: module_event_when may be a sample number), and its
    module is there for good. A notice of unloading ends what was loaded at its address in its process before it: by
    time, at equal times by the order of records. One without a time ends nothing.
    """
    flags, address = modules["module_flags"], modules["module_load_address"]
    timed = (flags & ModuleFlag.TSC_USED) != 0
    notice = (flags & (ModuleFlag.UNLOADED | ModuleFlag.LOADED)) == ModuleFlag.UNLOADED
    owner = modules["module_associated_pid"]
    everybodys = ((flags & ModuleFlag.GLOBAL_LOAD) != 0) | (owner == 0) | (address >= np.uint64(KERNEL_HALF))
    since = np.where(timed, modules["module_event_when"], np.uint64(0))
    until = np.where(timed, modules["module_unload_tsc"], np.uint64(NEVER))
    if notice.any():
        end = _ends(np.where(everybodys, 0, owner), address, since, notice & timed)
        until = np.minimum(until, end)
    return ModuleLives(~notice, everybodys, since, until)


def _ends(owner: Array, address: Array, when: Array, notice: Array) -> NDArray[np.uint64]:
    """The time of the first notice after each record with its owner and address, all ones without one."""
    count = len(owner)
    order = np.lexsort((np.arange(count), when, address, owner))
    at = np.where(notice[order], np.arange(count), count)
    following = np.minimum.accumulate(at[::-1])[::-1]
    found = order[np.minimum(following, count - 1)]
    same = (following < count) & (owner[found] == owner[order]) & (address[found] == address[order])
    out = np.empty(count, np.uint64)
    out[order] = np.where(same, when[found], np.uint64(NEVER))
    return out
