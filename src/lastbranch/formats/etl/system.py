"""Events that describe the system, to the tables of a profile: processes, threads, images, machine, counters.

One function for each kind, entered in `HANDLERS` by (group, type). Rundown events (DCStart, DCEnd) tell what was there
all along, so they count from time 0; those at the end repeat what is known by then, or tell what a start without
events has left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from ...model import KERNEL, KERNEL_HALF_32, Change, Module, Profile
from .event import Event
from .kernel_config import SYS_CONFIG
from .kernel_process import IMAGE, PROCESS, THREAD
from .kernel_session import IMAGE_ID, SESSION, SYS_CONFIG_EX
from .providers import Key

__all__ = ["HANDLERS", "System"]

_LAST = (1 << 64) - 1
_IMAGE_COST, _ID_COST = 2200, 600

# KPROFILE_SOURCE: those with a number that is the same on all machines. The log's own names go before these.
_SOURCES = (
    "Timer", "AlignmentFixup", "TotalIssues", "PipelineDry", "LoadInstructions", "PipelineFrozen",
    "BranchInstructions", "TotalNonissues", "DcacheMisses", "IcacheMisses", "CacheMisses", "BranchMispredictions",
    "StoreInstructions", "FpInstructions", "IntegerInstructions", "2Issue", "3Issue", "4Issue", "SpecialInstructions",
    "TotalCycles", "IcacheIssues", "DcacheAccesses", "MemoryBarrierCycles", "LoadLinkedIssues",
)  # fmt: skip


@dataclass(slots=True)
class _Image:
    """An image event, kept until volumes and PDB identities are known: merging may write those anywhere."""

    event: Event
    fields: dict[str, Any]
    start: int | None


@dataclass(slots=True)
class System:
    """What the system events of a log have told so far."""

    profile: Profile
    sources: dict[int, str] = field(default_factory=lambda: dict(enumerate(_SOURCES)))
    masks: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    volumes: dict[str, str] = field(default_factory=dict)
    _images: list[_Image] = field(default_factory=list)
    # By process, base and time: an identity is written with the time of the image event that it belongs to.
    _pdbs: dict[tuple[int, int, int], tuple[UUID, int, str]] = field(default_factory=dict)
    _stamps: dict[tuple[int, int, int], int] = field(default_factory=dict)
    _processes: set[int] = field(default_factory=set)

    def handle(self, key: Key, event: Event, fields: dict[str, Any]) -> None:
        """Take one event; ``fields`` as `Decoder.decode` gives them. Fields that are cut off make it be ignored."""
        handler = HANDLERS.get(key)
        if handler is not None:
            try:
                handler(self, event, fields)
            except KeyError:
                return

    @property
    def weight(self) -> int:
        """Bytes that the images take, about, and what is made of them in the end."""
        return _IMAGE_COST * len(self._images) + _ID_COST * (len(self._pdbs) + len(self._stamps))

    # -- processes and threads

    def process(self, event: Event, f: dict[str, Any]) -> None:
        pid, timeline = int(f["ProcessID"]), self.profile.timeline
        kind = event.opcode
        if kind == _END:
            timeline.add(Change.EXIT, event.time, pid, tid=pid)
            return
        if kind == _DC_END and pid in self._processes:
            return
        self._processes.add(pid)
        if kind == _START:
            timeline.add(Change.FORK, event.time, pid, tid=pid, parent=int(f["ParentID"]), offset=1)
        name = str(f.get("ImageFileName", "")) or ("Idle" if pid == 0 else "")
        timeline.name(event.time if kind == _START else 0, pid, pid, name)

    def thread_name(self, event: Event, f: dict[str, Any]) -> None:
        self.profile.timeline.name(event.time, int(f["ProcessID"]), int(f["ThreadID"]), str(f["ThreadName"]))

    # -- images

    def image(self, event: Event, f: dict[str, Any]) -> None:
        loaded = event.opcode == _LOAD
        self._images.append(_Image(event, f, event.time if loaded or event.opcode == _UNLOAD else None))

    def rsds(self, event: Event, f: dict[str, Any]) -> None:
        key = int(f["ProcessID"]), int(f["ImageBase"]), event.time
        self._pdbs[key] = f["GuidSig"], int(f["Age"]), str(f["PDBFileName"])

    def image_id(self, event: Event, f: dict[str, Any]) -> None:
        self._stamps[int(f["ProcessID"]), int(f["ImageBase"]), event.time] = int(f["TimeDateStamp"])

    def finish(self) -> None:
        """Map the images, now that all is known of them."""
        rows: dict[tuple[Any, ...], int] = {}
        mapped: set[tuple[int, int]] = set()
        for image in sorted(self._images, key=lambda i: (i.event.opcode == _DC_END, i.event.time)):
            f = image.fields
            base, size = int(f["ImageBase"]), int(f["ImageSize"])
            pid, end = int(f.get("ProcessID", 0)), min(base + size, _LAST)
            # Images of the kernel are of process 0, which has no others; of 64-bit ones the address says so.
            narrow = image.event.pointer_size == 4 and pid == 0 and base >= KERNEL_HALF_32
            owner = KERNEL if narrow else pid
            if image.event.opcode == _UNLOAD:
                self.profile.timeline.add(Change.UNMAP, image.event.time, owner, start=base, end=end)
                continue
            if image.event.opcode == _DC_END and (pid, base) in mapped:
                continue
            mapped.add((pid, base))
            module = self._module(rows, (pid, base, image.event.time), size, f)
            time = image.start or 0
            self.profile.timeline.add(Change.MAP, time, owner, module=module, start=base, end=end)

    def _module(
        self, rows: dict[tuple[Any, ...], int], image: tuple[int, int, int], size: int, f: dict[str, Any]
    ) -> int:
        guid, age, pdb = self._pdbs.get(image) or (None, 0, "")
        stamp = int(f.get("TimeDateStamp", 0)) or self._stamps.get(image, 0)
        key = (str(f.get("FileName", "")), stamp, size, guid, age)
        row = rows.get(key)
        if row is None:
            row = rows[key] = len(self.profile.modules)
            module = Module(self.dos_path(key[0]), pdb_guid=guid, pdb_age=age, pdb_name=pdb, timestamp=stamp, size=size)
            module.checksum, module.image_base = int(f.get("ImageChecksum", 0)), int(f.get("DefaultBase", 0))
            module.missing = "not looked for: addresses are relative to the image"
            self.profile.modules.append(module)
        return row

    def dos_path(self, path: str) -> str:
        """``\\Device\\HarddiskVolume2\\x`` as ``C:\\x``, where the log tells what is mounted where."""
        for nt, dos in self.volumes.items():
            rest = path[len(nt) :]
            whole = nt.endswith("\\") or rest[:1] in ("", "\\")  # volume 1 is not volume 10
            if nt and whole and path.lower().startswith(nt.lower()):
                return dos + rest
        return path

    # -- machine and session

    def cpu(self, event: Event, f: dict[str, Any]) -> None:
        machine = self.profile.machine
        machine.host = str(f.get("ComputerName", ""))
        machine.cpus_online = machine.cpus_available = int(f["NumberOfProcessors"])
        machine.memory = int(f.get("MemSize", 0)) << 20
        machine.page_size = int(f.get("PageSize", 0)) or machine.page_size
        machine.cpu_description = f"{int(f['MHz'])} MHz"

    def volume(self, event: Event, f: dict[str, Any]) -> None:
        if f["DosPath"]:
            self.volumes[str(f["NtPath"])] = str(f["DosPath"])

    def build(self, event: Event, f: dict[str, Any]) -> None:
        self.profile.machine.os_release = str(f["BuildLab"])
        self.profile.machine.os = str(f["ProductName"]) or "Windows"

    def group_masks(self, event: Event, f: dict[str, Any]) -> None:
        words = tuple(int(f.get(f"GroupMask{n}", 0)) for n in range(1, 9))
        self.masks.append(("end" if event.opcode == 0x20 else "start", words))


_START, _END, _DC_START, _DC_END, _UNLOAD, _LOAD = 1, 2, 3, 4, 2, 10
_RUNDOWN = (_START, _END, _DC_START, _DC_END)

HANDLERS: dict[Key, Callable[[System, Event, dict[str, Any]], None]] = {
    **{(PROCESS, kind): System.process for kind in _RUNDOWN},
    (THREAD, 0x48): System.thread_name,
    (PROCESS, _LOAD): System.image,
    **{(IMAGE, kind): System.image for kind in (_UNLOAD, _DC_START, _DC_END, _LOAD)},
    (IMAGE_ID, 0): System.image_id,
    (IMAGE_ID, 36): System.rsds,
    (SYS_CONFIG, 0x0A): System.cpu,
    (SYS_CONFIG_EX, 32): System.build,
    (SYS_CONFIG_EX, 35): System.volume,
    (SESSION, 0x05): System.group_masks,
    (SESSION, 0x20): System.group_masks,
}
