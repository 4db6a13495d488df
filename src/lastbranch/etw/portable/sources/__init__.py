"""Sources of kernel events: a process of the session that turns Linux perf events into the events its masks enable.

The session imports this module before it starts that process, so the module imports little; `recorder` does the work.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...flags import EnableFlag
from ...properties import SessionRequest
from ...status import EtwError, Status
from ..enable_map import find_unmapped, kinds_of, normalised_masks
from ..lbr_configuration import SOFTWARE_BRANCHES

if TYPE_CHECKING:
    from ....capture.perf_events.linux_kernel import Kernel

__all__ = ["argv", "check", "needed"]


def needed(request: SessionRequest, masks: Sequence[int], pmc_sources: Sequence[int] | None = None) -> bool:
    """Whether a session with these masks needs the source process: a system logger with any enabled event.

    ``pmc_sources``: the configured profile sources; PMC_PROFILE needs one that is a counter.
    """
    kinds = kinds_of(masks)
    if pmc_sources is not None and not set(pmc_sources) - {SOFTWARE_BRANCHES}:
        kinds -= {"pmc"}
    return request.system and bool(kinds)


def check(
    request: SessionRequest, masks: Sequence[int], *, call: str = "StartTrace", kernel: Kernel | None = None
) -> None:
    """Check that this machine has the events of ``masks``, before anything is started.

    Raises `EtwError`: 87 for masks of a session that is no system logger, and for DISK_FILE_IO without DISK_IO; 50 for
    a bit without events on Linux (its name and the reason); 1314 where events of the whole system are not
    permitted; else as the kernel refuses (`stream.refusal`).
    """
    if any(masks) and not request.system:
        raise EtwError(call, Status.INVALID_PARAMETER, "EnableFlags are for system loggers only")
    if masks and masks[0] & EnableFlag.DISK_FILE_IO and not masks[0] & EnableFlag.DISK_IO:
        raise EtwError(call, Status.INVALID_PARAMETER, "DISK_FILE_IO needs DISK_IO")
    for row in find_unmapped(normalised_masks(masks)):
        raise EtwError(call, Status.NOT_SUPPORTED, f"{row.name} is not available: {row.why}")
    if needed(request, masks):
        from .plan import try_masks

        try_masks(normalised_masks(masks), call, kernel)


def argv(socket_path: str) -> list[str]:
    """The command line of the process that is a session's source."""
    return [sys.executable, "-m", "lastbranch.etw.portable.sources", socket_path]
