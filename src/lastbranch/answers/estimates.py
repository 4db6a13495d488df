"""The meaning of counts of branches and instructions: observed counts, or executions that are estimated from these."""

from __future__ import annotations

from ..analysis import Estimate
from ..analysis.executions.estimate import Basis, basis_of_event
from ..model import Array, Profile, SampleFilter

__all__ = ["Estimate", "basis_of_samples", "estimate_notes", "estimate_of"]


def estimate_of(profile: Profile, sample_filter: SampleFilter | None, *, executions: bool) -> Estimate:
    """The estimate to count with, of the samples that the filter keeps. Reads the capture if ``executions`` are asked
    for."""
    if not executions:
        return Estimate.observed(profile, sample_filter)
    from ..analysis import estimate_executions

    return estimate_executions(profile, sample_filter=sample_filter)


def estimate_notes(estimate: Estimate) -> list[str]:
    """Notes about estimated executions; none if nobody asked for executions."""
    return [estimate.note] if estimate.replaced or estimate.refused is not None else []


def basis_of_samples(profile: Profile, event: Array) -> Basis:
    """The quantity that samples of these events (int64 rows) follow: ``entries`` where that is not the same of all."""
    followed = {basis_of_event(profile.events[row]) for row in set(event.tolist())}
    return followed.pop() if len(followed) == 1 else "entries"
