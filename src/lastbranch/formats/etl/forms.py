"""Tables by header kind and by marker (the upper half of an event's first u32), as `walk.KIND`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import layout
from .providers import hook_provider
from .walk import KIND

__all__ = [
    "EVENT", "FORM", "FULL", "GROUP_GUIDS", "IMAGE_GUID", "IMAGE_LOAD", "IS_KERNEL", "MESSAGE", "NO_IDS", "OTHER",
    "PERFINFO", "POINTER", "SYSTEM",
]  # fmt: skip

SYSTEM, FULL, EVENT, PERFINFO, MESSAGE, OTHER = range(6)  # forms: what is where in the header
_FORM_OF_NAME = {"SYSTEM": SYSTEM, "COMPACT": SYSTEM, "FULL_HEADER": FULL, "INSTANCE": FULL, "EVENT_HEADER": EVENT,
                 "PERFINFO": PERFINFO, "ERROR": OTHER}  # fmt: skip
_FORM_OF_KIND = np.full(256, OTHER, np.uint8)
POINTER = np.zeros(256, np.uint8)  # 0: that of the log
for _type, _kind in layout.HEADERS.items():
    _FORM_OF_KIND[_type] = _FORM_OF_NAME[_kind.name.rstrip("0123456789")]
    POINTER[_type] = _kind.pointer_size
_FORM_OF_KIND[layout.MESSAGE] = MESSAGE
_U64 = np.uint64
FORM = _FORM_OF_KIND.take(KIND)  # by marker, as walk.KIND
IS_KERNEL: NDArray[np.bool_] = (FORM == SYSTEM) | (FORM == PERFINFO)
NO_IDS = np.where(FORM > EVENT, _U64(0xFFFF_FFFF_FFFF_FFFF), _U64(0))
GROUP_GUIDS = np.frombuffer(b"".join(hook_provider(group << 8) for group in range(256)), _U64).reshape(-1, 2)
IMAGE_LOAD = 0x030A  # the one hook that is not reported under the GUID of its group
IMAGE_GUID = np.frombuffer(hook_provider(IMAGE_LOAD), _U64)
