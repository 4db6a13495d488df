"""Interrupts: PerfInfo/ISR from the handlers of devices, DPC and TimerDPC from softirqs, with the time they began."""

from __future__ import annotations

from typing import ClassVar

from ....capture.perf_events.linux_kernel import Kernel
from ....formats.etl.kernel.hooks import PERF_INFO
from .joint_events import Row, TracepointFollower

__all__ = ["Interrupts"]

_IRQ_ENTRY, _IRQ_EXIT = "irq/irq_handler_entry", "irq/irq_handler_exit"
_SOFT_ENTRY, _SOFT_EXIT = "irq/softirq_entry", "irq/softirq_exit"
_ISR, _DPC, _TIMER_DPC = 67, 68, 69
_ROUTINES: dict[int, tuple[str, ...]] = {
    0: ("tasklet_hi_action",), 1: ("run_timer_softirq",), 2: ("net_tx_action",), 3: ("net_rx_action",),
    4: ("blk_done_softirq",), 5: ("irq_poll_softirq",), 6: ("tasklet_action",),
    7: ("sched_balance_softirq", "run_rebalance_domains"), 8: ("hrtimer_run_softirq",), 9: ("rcu_core_si",),
}  # fmt: skip
"""The function of each softirq, which open_softirq of the kernel sets."""
_TIMERS = (1, 8)


class Interrupts(TracepointFollower):
    needs: ClassVar = {"isr": (_IRQ_ENTRY, _IRQ_EXIT), "dpc": (_SOFT_ENTRY, _SOFT_EXIT)}
    fields: ClassVar = {
        _IRQ_ENTRY: ("irq",),
        _IRQ_EXIT: ("irq", "ret"),
        _SOFT_ENTRY: ("vec",),
        _SOFT_EXIT: ("vec",),
    }
    hooks: ClassVar = frozenset(PERF_INFO << 8 | kind for kind in (_ISR, _DPC, _TIMER_DPC))

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._began: dict[tuple[str, int, int], int] = {}
        self._addresses: dict[int, int] | None = None

    def row(self, row: Row) -> None:
        if row.tracepoint in (_IRQ_ENTRY, _SOFT_ENTRY):
            name = "irq" if row.tracepoint == _IRQ_ENTRY else "vec"
            self._began[name, row.cpu, row.values[name]] = row.time
        elif row.tracepoint == _IRQ_EXIT:
            number = row.values["irq"]
            if (began := self._began.pop(("irq", row.cpu, number), None)) is not None:
                fields = {"InitialTime": began, "ReturnValue": row.values["ret"] & 0xFF, "Vector": number & 0xFFFF}
                self.log((PERF_INFO, _ISR), row, 2, fields)
        else:
            number = row.values["vec"]
            if (began := self._began.pop(("vec", row.cpu, number), None)) is not None:
                kind = _TIMER_DPC if number in _TIMERS else _DPC
                self.log((PERF_INFO, kind), row, 2, {"InitialTime": began, "Routine": self._routine(number)})

    def _routine(self, number: int) -> int:
        """The address of the function of a softirq; its number where the kernel hides addresses."""
        if self._addresses is None:
            self._addresses = {}
            wanted = {name: number for number, names in _ROUTINES.items() for name in names}
            for line in (self.kernel.text("/proc/kallsyms") or "").splitlines():
                fields = line.split(None, 3)
                if len(fields) > 2 and fields[2] in wanted:
                    self._addresses[wanted[fields[2]]] = int(fields[0], 16)
        return self._addresses.get(number) or number
