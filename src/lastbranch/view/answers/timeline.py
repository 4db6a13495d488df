"""When samples were taken, for the choice of a part of the time."""

from __future__ import annotations

from dataclasses import replace

from ...analysis.over_time import samples_over_time
from ...errors import NotRecordedError
from ..answer import Answer
from ..loaded import Loaded, Parameters

__all__ = ["PARTS", "timeline"]

PARTS = 240
"""Parts of the time."""


def timeline(loaded: Loaded, parameters: Parameters) -> Answer:
    """Column ``samples`` int64: `PARTS` numbers over the whole time of the capture, under all filters but the time."""
    chosen = loaded.filter(parameters)
    chosen = replace(chosen, first=None, last=None) if chosen else None
    samples = samples_over_time(loaded.profile, PARTS, sample_filter=chosen or None)
    if samples is None:
        raise NotRecordedError("the samples have no time stamps")
    return Answer({}, {"samples": samples})
