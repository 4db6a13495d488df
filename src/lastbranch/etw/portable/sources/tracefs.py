"""Tracepoints: their numbers, and where the fields of their raw data lie. Source: Documentation/trace/events.rst."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from ....capture.perf_events.kernel import Kernel
from ....model import Array, SampleBatch
from ...status import EtwError, Status

__all__ = ["NO_RAW", "Place", "Raw", "Tracepoint", "has_tracefs", "read_tracepoint"]

_FOLDERS = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_FIELD = re.compile(r"field:[^;]*?(\w+)(?:\[\d+\])?;\s*offset:(\d+);\s*size:(\d+);\s*signed:(\d);")


class Place(NamedTuple):
    """Where a field lies in raw data, in bytes."""

    offset: int
    size: int
    signed: bool


class Tracepoint(NamedTuple):
    """Its number (``config`` of a perf event of type 2) and its fields."""

    number: int
    fields: Mapping[str, Place]


class Raw(Mapping[str, Array]):
    """Columns int64 of the raw data of samples. What a sample is too short for is 0."""

    def __init__(self, batch: SampleBatch, fields: Mapping[str, Place]) -> None:
        self._fields = fields
        self._data = batch.columns.get("raw", np.empty(0, np.uint8))
        self._at = batch.offsets.get("raw", np.zeros(len(batch) + 1, np.int64))

    def __getitem__(self, name: str) -> Array:
        place = self._fields[name]
        at, fits = self._at[:-1] + place.offset, np.diff(self._at) >= place.offset + place.size
        column = np.zeros(len(at), np.int64)
        index = at[fits, np.newaxis] + np.arange(place.size)
        column[fits] = self._data[index].view(f"{'i' if place.signed else 'u'}{place.size}")[:, 0]
        return column

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


NO_RAW: Mapping[str, Place] = {}


def has_tracefs(kernel: Kernel) -> bool:
    """Whether tracepoints can be read."""
    return any("events" in kernel.names(folder) for folder in _FOLDERS)


def read_tracepoint(kernel: Kernel, name: str, call: str = "StartTrace") -> Tracepoint:
    """The tracepoint ``system/event``.

    `EtwError` 50 where the kernel has none of that name or offers no tracefs, 1314 where it may not be read.
    """
    for folder in _FOLDERS:
        number, layout = (kernel.text(f"{folder}/events/{name}/{file}") for file in ("id", "format"))
        if number and layout:
            found = {m[1]: Place(int(m[2]), int(m[3]), m[4] == "1") for m in _FIELD.finditer(layout)}
            return Tracepoint(int(number), found)
    shown = name.replace("/", ":")
    if has_tracefs(kernel):
        raise EtwError(call, Status.NOT_SUPPORTED, f"this kernel ({kernel.release}) has no tracepoint {shown}")
    if "tracing" in kernel.names("/sys/kernel"):
        why = f"the tracepoint {shown} may not be read: tracefs (/sys/kernel/tracing) is not mounted, or for root only"
        raise EtwError(call, Status.PRIVILEGE_NOT_HELD, why)
    raise EtwError(call, Status.NOT_SUPPORTED, f"this kernel ({kernel.release}) offers no tracepoints ({shown})")
