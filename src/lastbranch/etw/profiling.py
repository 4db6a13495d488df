"""What a machine can sample by, and how often: classes 5, 6 and 7, which hold for all sessions."""

from __future__ import annotations

from collections.abc import Sequence

from .flags import Info
from .kernel import Kernel, ProfileSource, kernel

__all__ = ["configure_profile_sources", "profile_interval", "profile_sources", "set_profile_interval"]


def profile_sources(*, on: Kernel | None = None) -> list[ProfileSource]:
    """What this machine can sample by."""
    found: list[ProfileSource] = (on or kernel()).query_information(0, Info.PROFILE_SOURCE_LIST_INFO, None)
    return found


def profile_interval(source: int, *, on: Kernel | None = None) -> int:
    """Events (of source 0: units of 100 ns) between two samples."""
    found: int = (on or kernel()).query_information(0, Info.SAMPLED_PROFILE_INTERVAL_INFO, source)
    return found


def set_profile_interval(source: int, interval: int, *, on: Kernel | None = None) -> None:
    """Set it, for the whole machine."""
    (on or kernel()).set_information(0, Info.SAMPLED_PROFILE_INTERVAL_INFO, (source, interval))


def configure_profile_sources(sources: Sequence[int], *, on: Kernel | None = None) -> None:
    """Which sources interrupt sessions with PMC profiling."""
    (on or kernel()).set_information(0, Info.PROFILE_SOURCE_CONFIG_INFO, list(sources))
