"""Whether the kernel gives what masks ask for: every event is opened on one processor, and closed again."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from ....capture.perf_events.events import EventChoice
from ....capture.perf_events.host import read_host
from ....capture.perf_events.kernel import Kernel, Linux
from ....formats.perfdata.layout import TYPE
from ..enable_map import kinds_of
from ..profile_sources import profile_sources
from .configuration import SourceConfiguration
from .stream import ALL, refusal, sampling, tracking
from .wanted import LIVES, wanted_streams

__all__ = ["try_masks"]


def try_masks(masks: Sequence[int], call: str, kernel: Kernel | None = None) -> None:
    """`EtwError` with the reason for the first thing that is not to be had.

    Counters are tried when they are configured; here only that there is a profile source beside the timer.
    """
    given, kernel = kernel, kernel or Linux()
    host = read_host(kernel)
    configuration = SourceConfiguration(masks=tuple(masks))
    programmes = [tracking(host, images=True)] if kinds_of(masks) & LIVES else []
    programmes += [one.programme(host) for one in wanted_streams(configuration, kernel, host)]
    for programme in programmes:
        try:
            kernel.close(kernel.open_event(programme.attr(programme.wishes), ALL.pid, programme.cpus[0]))
        except OSError as error:
            raise refusal(error, programme, host, call) from error
    if "pmc" in kinds_of(masks) and len(profile_sources(given)) == 1:
        cycles = sampling(EventChoice("PMC_PROFILE", TYPE.HARDWARE), host)
        raise refusal(OSError(errno.ENOENT, ""), cycles, host, call)
