"""Tables by header type: what is where in a header."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import layout
from .providers import hook_provider

__all__ = [
    "EVENT", "FORM", "FULL", "GROUP_GUIDS", "IMAGE_GUID", "IMAGE_LOAD", "MESSAGE", "OTHER", "PERFINFO", "POINTER",
    "SYSTEM", "classic_hooks",
]  # fmt: skip

SYSTEM, PERFINFO, FULL, EVENT, MESSAGE, OTHER = range(6)  # forms: what is where in the header
_FORM_OF_NAME = {"SYSTEM": SYSTEM, "COMPACT": SYSTEM, "FULL_HEADER": FULL, "INSTANCE": FULL, "EVENT_HEADER": EVENT,
                 "PERFINFO": PERFINFO, "ERROR": OTHER}  # fmt: skip
FORM = np.full(256, OTHER, np.uint8)
POINTER = np.zeros(256, np.uint8)  # 0: that of the log
for _type, _kind in layout.HEADERS.items():
    FORM[_type] = _FORM_OF_NAME[_kind.name.rstrip("0123456789")]
    POINTER[_type] = _kind.pointer_size
FORM[layout.MESSAGE] = MESSAGE
_U64 = np.uint64
GROUP_GUIDS = np.frombuffer(b"".join(hook_provider(group << 8) for group in range(256)), _U64).reshape(-1, 2)
IMAGE_LOAD = 0x030A  # the one hook that is not reported under the GUID of its group
IMAGE_GUID = np.frombuffer(hook_provider(IMAGE_LOAD), _U64)

_KNOWN = np.flatnonzero(GROUP_GUIDS.any(axis=1))
_KNOWN = _KNOWN[np.argsort(GROUP_GUIDS[_KNOWN, 0])]  # the first halves differ


def classic_hooks(guids: NDArray[np.uint64], types: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Hooks of classic events by their GUIDs (n, 2) and types, -1 under other GUIDs than those of kernel groups."""
    first = GROUP_GUIDS[_KNOWN, 0]
    group = _KNOWN[np.minimum(np.searchsorted(first, guids[:, 0]), len(_KNOWN) - 1)]
    same = (GROUP_GUIDS[group] == guids).all(axis=1)
    return np.where(same, group << 8 | types, -1).astype(np.int32)
