"""Names of a growing recording: screens do not wait for names that take long to find, but show such names later."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..crashes import crash_line
from ..errors import LastbranchError
from ..model import Profile
from ..symbols import FunctionTable, Names, Symbolizer, SymbolOptions

__all__ = ["PATIENCE", "BackgroundSymbolizer"]

PATIENCE = 0.5
"""Seconds: names that were found before, and kept, are there by then."""


class BackgroundSymbolizer(Symbolizer):
    """A `Symbolizer` that looks for the functions of modules in a thread of its own, in the order in which they are
    asked for. Each state of the recording waits for them up to ``patience`` seconds in all; after that its tables of
    functions are empty, and not ``complete``. ``found`` is called, in that thread, when such a table is."""

    def __init__(
        self, profile: Profile, options: SymbolOptions, found: Callable[[], object], patience: float = PATIENCE
    ) -> None:
        super().__init__(profile, options)
        self._patience, self._found_late, self._until = patience, found, 0.0
        self._worker_lock, self._change = threading.RLock(), threading.Condition()
        self._waiting: list[int] = []
        self._late = set[int]()
        """Modules that a state has had to do without."""

    def follow(self, profile: Profile) -> None:
        super().follow(profile)  # which does not wait for what is looked for now
        self._until = 0.0

    def functions(self, module: int) -> FunctionTable:
        if module in self._tables:
            return self._tables[module]
        with self._change:
            if module not in self._waiting:
                self._waiting.append(module)
                if len(self._waiting) == 1:
                    threading.Thread(target=self._look, name="names", daemon=True).start()
            self._until = self._until or time.monotonic() + self._patience
            if not self._change.wait_for(lambda: module in self._tables, max(0, self._until - time.monotonic())):
                self._late.add(module)
                return FunctionTable.unknown_yet()
        return self._tables[module]

    def _look(self) -> None:
        """Look for the functions of all waiting modules, at least one."""
        more = True
        while more:
            module = self._waiting[0]
            try:
                with self._worker_lock:
                    super().functions(module)
            except Exception as error:  # whatever one module is: the others are waited for
                self.notes.append(str(error) if isinstance(error, LastbranchError | OSError) else crash_line(error))
                self._tables[module] = FunctionTable.empty()
            with self._change:
                del self._waiting[0]
                self._change.notify_all()
                late, more = module in self._late, bool(self._waiting)
            if late:
                self._found_late()

    def names(self, module: int, address: NDArray[np.uint64]) -> Names:
        with self._worker_lock:
            return super().names(module, address)

    def names_at(self, process: int, address: NDArray[np.uint64], time: NDArray[np.int64] | None = None) -> Names:
        with self._worker_lock:
            return super().names_at(process, address, time)

    def jit_state(self, process: int) -> list[Any]:
        with self._worker_lock:
            return super().jit_state(process)
