"""Hook ids of kernel events: CLASSIC_EVENT_ID (GUID and type) as the number that the kernel has for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from uuid import UUID

__all__ = ["hook_ids", "hook_of"]


@cache
def _groups() -> dict[UUID, int]:
    from ..formats.etl.kernel.providers import GROUPS

    return {UUID(guid): group for group, (guid, _) in GROUPS.items()}


def hook_of(guid: UUID, kind: int) -> int | None:
    """The hook id (group << 8 | type); ``None`` for a GUID that is no kernel group."""
    group = _groups().get(guid)
    return None if group is None else group << 8 | kind & 0xFF


def hook_ids(events: Sequence[tuple[UUID, int]]) -> list[int]:
    """Those of ``events``; what no kernel group has is left out, as TraceConfigureLastBranchRecord does."""
    return [hook for hook in (hook_of(*event) for event in events) if hook is not None]
