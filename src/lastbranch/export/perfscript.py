"""``--to perfscript``: the text of ``perf script --show-mmap-events -F ip,brstack``, for llvm-profgen.

It names no process, so all are brought into one address space first (`one_space`). With ``--binary`` only the mappings
of that module are there, and only samples that have a branch from or to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import numpy as np

from ..analysis import count_stacks, how_to_record
from ..analysis.select import kept
from ..bind import binder_of
from ..errors import NotRecordedError
from ..model import BRANCH, Array, Profile, SampleBatch, SampleFilter, word
from . import Exported, ExportOptions
from .brstack import EntryText
from .choosing import choose
from .one_space import OneSpace

__all__ = ["export"]


def export(profile: Profile, out: IO[bytes], options: ExportOptions) -> Exported:
    """Write the samples of ``profile`` that have branch stacks.

    Raises `NotRecordedError` where there are no branch stacks, none that touches the chosen module, or no ranges
    between branches: the text does not say which branches were recorded, and who reads it takes them to be all.
    """
    only = choose(profile, options.binary) if options.binary is not None else None
    found = count_stacks(profile, ranges=True, details=False, sample_filter=options.sample_filter).branches
    space = OneSpace(profile, found, only)
    if not len(found.count) or (only is not None and not space.lines):
        what = "branches" if only is None else f"branches in {word(profile.modules[only].name)}"
        raise NotRecordedError(f"the capture has no {what}", hint=how_to_record(profile))
    out.writelines(space.lines)
    text, samples = EntryText(), 0
    for batch in _wanted(profile, options.sample_filter, only):
        moved = _moved(profile, space, batch)
        samples += len(batch)
        out.writelines(b" %16x %s\n" % row for row in zip(moved.ip.tolist(), text.lines(moved), strict=True))
    return Exported([], samples, samples)


def _wanted(profile: Profile, sample_filter: SampleFilter | None, only: int | None) -> Iterator[SampleBatch]:
    """The samples in file order: those with entries, one of which is of module ``only`` if that is given."""
    binder = binder_of(profile)
    columns = ("branch_from", "branch_to", "branch_flags")
    streams = [s for s in profile.streams if "branch_from" in s.columns]
    for stream in streams:
        for batch in kept(profile, stream.batches(columns), sample_filter):
            keep = batch.depth > 0
            if only is not None:
                owner, scope = (
                    np.repeat(np.arange(len(batch)), batch.depth),
                    np.repeat(binder.scopes(batch), batch.depth),
                )
                touches = np.zeros(len(scope), bool)
                for name in columns[:2]:
                    touches |= binder.locate(scope, batch[name])[0] == only
                keep = np.bincount(owner[touches], minlength=len(batch)) > 0
            yield batch if keep.all() else batch.select(keep)


def _moved(profile: Profile, space: OneSpace, batch: SampleBatch) -> SampleBatch:
    """``batch`` with its addresses in the one space."""
    scope = binder_of(profile).scopes(batch)
    columns: dict[str, Array] = {**batch.columns, "ip": space.moved(scope, batch.ip)}
    each = np.repeat(scope, batch.depth)
    for name in ("branch_from", "branch_to"):
        columns[name] = space.moved(each, batch[name])
    return SampleBatch(columns, {BRANCH: batch.offsets[BRANCH]})
