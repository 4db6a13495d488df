"""When samples were taken, for the choice of a part of the time."""

from __future__ import annotations

from dataclasses import replace

from ...errors import NotRecordedError
from ..answer import Answer
from ..loaded import Loaded, Parameters

__all__ = ["timeline"]


def timeline(loaded: Loaded, parameters: Parameters) -> Answer:
    """Column ``samples`` int64: `MOMENTS` numbers over all of the time, under all filters but the time."""
    chosen = loaded.filter(parameters)
    chosen = replace(chosen, first=None, last=None) if chosen else None
    samples = loaded.timeline(chosen or None)
    if samples is None:
        raise NotRecordedError("the samples have no time stamps")
    return Answer({}, {"samples": samples})
