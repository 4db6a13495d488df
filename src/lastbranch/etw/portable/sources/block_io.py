"""Disks: DiskIo events from requests that the block layer issues and completes, SplitIo events from split requests."""

from __future__ import annotations

from typing import ClassVar

from ....capture.perf_events.linux_kernel import Kernel
from ....formats.etl.kernel.hooks import DISK_IO, SPLIT_IO
from .joint_events import Row, TracepointFollower

__all__ = ["BlockIo"]

_ISSUE, _COMPLETE, _SPLIT = "block/block_rq_issue", "block/block_rq_complete", "block/block_split"
_READ, _WRITE, _FLUSH = 10, 11, 14
_INIT = {_READ: 12, _WRITE: 13, _FLUSH: 15}
_VOLUME_MANAGER = 32
_SECTOR = 512
_IRP_READ, _IRP_WRITE, _NOCACHE = 0x100, 0x200, 0x1
_MOST_PENDING = 1 << 16


def operation(rwbs: bytes) -> int:
    """The DiskIo event of a request, 0 for one without (discards, zones). Source: blk_fill_rwbs of the kernel."""
    letters = rwbs.split(b"\0")[0]
    if b"D" in letters or b"N" in letters:
        return 0
    return _READ if b"R" in letters else _WRITE if b"W" in letters else _FLUSH if b"F" in letters else 0


class BlockIo(TracepointFollower):
    needs: ClassVar = {
        "disk": (_ISSUE, _COMPLETE),
        "disk init": (_ISSUE,),
        "split": (_SPLIT,),
    }
    fields: ClassVar = {
        _ISSUE: ("dev", "sector", "bytes", "*rwbs"),
        _COMPLETE: ("dev", "sector", "*rwbs"),
        _SPLIT: ("dev", "sector", "new_sector"),
    }
    hooks: ClassVar = frozenset({DISK_IO << 8 | n for n in range(10, 16)} | {SPLIT_IO << 8 | _VOLUME_MANAGER})

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        disks = kernel.names("/sys/block")
        self._disks = {kernel.text(f"/sys/block/{name}/dev"): number for number, name in enumerate(disks)}
        self._irps: dict[tuple[int, int], int] = {}
        """(device, sector) -> Irp of a request that is not complete."""
        self._issued: dict[tuple[int, int, bool], tuple[Row, int]] = {}
        self._number = 0

    def row(self, row: Row) -> None:
        device, sector = row.values["dev"], row.values["sector"]
        if row.tracepoint == _SPLIT:
            fields = {"ParentIrp": self._irp(device, sector), "ChildIrp": self._irp(device, row.values["new_sector"])}
            if "split" in self.kinds:
                self.log((SPLIT_IO, _VOLUME_MANAGER), row, 2, fields)
            return
        kind = operation(row.values["rwbs"])
        if not kind:
            return
        flush = kind == _FLUSH
        if row.tracepoint == _ISSUE:
            if len(self._issued) > _MOST_PENDING:
                self._issued.clear()
            irp = self._irp(device, sector)
            self._issued[device, 0 if flush else sector, flush] = row, irp
            if "disk init" in self.kinds:
                self.log((DISK_IO, _INIT[kind]), row, 3, {"Irp": irp, "IssuingThreadID": row.tid})
            return
        issue, irp = self._issued.pop((device, 0 if flush else sector, flush), (None, 0))
        self._irps.pop((device, sector), None)
        if issue is None or "disk" not in self.kinds:
            return
        fields = {
            "DiskNumber": self._disk(device),
            "HighResResponseTime": row.time - issue.time,
            "Irp": irp,
            "IrpFlags": _NOCACHE | (_IRP_READ if kind == _READ else _IRP_WRITE),
            "Priority": 3,
            "IssuingThreadID": issue.tid,
        }
        if not flush:
            fields |= {"TransferSize": issue.values["bytes"], "ByteOffset": sector * _SECTOR}
        self.log((DISK_IO, kind), row, 3, fields)

    def _irp(self, device: int, sector: int) -> int:
        if (device, sector) not in self._irps:
            if len(self._irps) > _MOST_PENDING:
                self._irps.clear()
            self._number += 1
            self._irps[device, sector] = 0xFFFD << 48 | self._number << 4
        return self._irps[device, sector]

    def _disk(self, device: int) -> int:
        """The place of a disk in the sorted list of /sys/block; of another device (a partition) its number."""
        return self._disks.get(f"{device >> 20}:{device & 0xFFFFF}", device)
