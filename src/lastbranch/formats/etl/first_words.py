"""Columns that the first words of events tell, and what holds for all events of a segment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .buffers import DamageLog
from .extents import Ints
from .forms import EVENT, FORM, FULL, MESSAGE, PERFINFO, POINTER, classic_hooks
from .layout import MESSAGE_FLAG
from .walk import Walk
from .windows import Window

__all__ = ["FirstWords", "Rules", "ones"]

_LOG_HEADER = 0x0000


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds for all events of a segment of a log.

    ``pointer_size`` is that of events whose header does not tell, ``override`` one that holds for all events, or 0.
    ``to_log`` turns the segment's ticks into those of the log's clock, ``None`` if they are the same.
    """

    damage: DamageLog
    pointer_size: int
    override: int = 0
    to_log: Callable[[Ints], Ints] | None = None


class FirstWords:
    """Events of one window: where they are, and the columns that cost no look at what is behind their first words.

    `EventBlock` says what each column is.
    """

    def __init__(self, window: Window, found: Walk, rules: Rules) -> None:
        self.window, self.found, self.rules = window, found, rules
        self.at, self.head, self.size, self.buffer = found.at, found.head, found.size, found.buffer

    def __len__(self) -> int:
        return len(self.at)

    @property
    def words(self) -> NDArray[np.uint64]:
        return self.window.words

    @property
    def raw(self) -> NDArray[np.uint8]:
        return self.window.raw

    @property
    def header(self) -> NDArray[np.uint8]:
        return self.found.header

    @cached_property
    def form(self) -> NDArray[np.uint8]:
        return FORM.take(self.header)

    @cached_property
    def is_kernel(self) -> NDArray[np.bool_]:
        """Whether the header is one of the kernel's: a hook id instead of a GUID."""
        kernel: NDArray[np.bool_] = self.form <= PERFINFO
        return kernel

    @cached_property
    def hook(self) -> NDArray[np.int32]:
        hook: NDArray[np.int32] = self._quarter(3).astype(np.int32) | ones(~self.is_kernel, np.int32)
        return hook

    @cached_property
    def kernel_hook(self) -> NDArray[np.int32]:
        """`hook`, and that which classic events would have that stand under the GUID of a kernel group."""
        rows = np.flatnonzero(self.form == FULL)
        if not len(rows):
            return self.hook
        hook, at = self.hook.copy(), self.at[rows]
        guids = np.stack([self.words.take(at + n) for n in (3, 4)], axis=1)
        hook[rows] = classic_hooks(guids, self._quarter(2)[rows].astype(np.uint8))
        return hook

    @cached_property
    def pointer_size(self) -> NDArray[np.uint8]:
        if self.rules.override:
            own = self.is_kernel & (self._quarter(3) == _LOG_HEADER)  # which the rest of the log is read by
            return np.where(own, POINTER.take(self.header), self.rules.override).astype(np.uint8)
        size = POINTER.take(self.header)
        message = np.flatnonzero(self.form == MESSAGE)
        options = self.options[message]
        size[message[(options & MESSAGE_FLAG.POINTER32) != 0]] = 4
        size[message[(options & MESSAGE_FLAG.POINTER64) != 0]] = 8
        size[size == 0] = self.rules.pointer_size
        return size

    @cached_property
    def options(self) -> NDArray[np.uint16]:
        """OptionFlags of MESSAGE events, Flags of EVENT_HEADER ones, 0 for the others."""
        result = np.zeros(len(self), np.uint16)
        for form, quarter in ((MESSAGE, 3), (EVENT, 2)):
            rows = np.flatnonzero(self.form == form)
            result[rows] = self._quarter(quarter)[rows]
        return result

    @cached_property
    def packet_version(self) -> NDArray[np.uint16]:
        """Version of kernel headers with the bits that tell of counters, 0 for others."""
        return np.where(self.is_kernel, self._quarter(0), 0).astype(np.uint16)

    def _quarter(self, n: int) -> NDArray[np.uint16]:
        return self.head.view(np.uint16)[n::4]


def ones(mask: NDArray[np.bool_], dtype: type[Any]) -> NDArray[Any]:
    """All bits where ``mask``, else none. To choose by a mask without a pattern takes a misguessed branch an event."""
    return (-mask.view(np.int8)).astype(dtype)
