"""Mappings of a process as image events, with what merging tools add about a binary, and ours where images cannot say
it (`supplement_events`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...model import Change, Module, ModuleKind, Profile, kernel_map_start
from .event import Event
from .kernel_process import IMAGE, PROCESS
from .kernel_session import IMAGE_ID
from .kernel_writer import kernel_event
from .supplement_events import load_bias, mapping_fields, module_fields, segment_fields, supplement_event

__all__ = ["DC_END", "UNLOAD", "ImageEvents", "Mapped", "put"]

_LAST = (1 << 64) - 1
LOAD, UNLOAD, DC_START, DC_END = 10, 2, 3, 4
_DBG_ID, _IMAGE_ID = 36, 0
_VERSIONS = {PROCESS: 4, IMAGE: 3, IMAGE_ID: 2}


@dataclass(slots=True)
class Mapped:
    """A mapping of a process that still holds, or (``module`` -1) the removal of a part of one.

    ``pid`` -1 stands for the kernel half of every process.
    """

    pid: int
    start: int
    end: int
    module: int
    offset: int


def put(space: list[Mapped], new: Mapped) -> None:
    """Add a mapping, or a removal, to those of a process; what it covers whole is gone."""
    space[:] = [m for m in space if not (new.start <= m.start and m.end <= new.end)]
    if new.module >= 0 or any(m.start < new.end and new.start < m.end for m in space):
        space.append(new)


class ImageEvents:
    """Makes the events. ``begin`` is the tick of what was there all along, ``pointer`` the size of pointers."""

    def __init__(self, profile: Profile, begin: int, pointer: int) -> None:
        self._profile, self._begin, self._pointer = profile, begin, pointer
        self._supplemented = _needs_supplement(profile)
        self._said: set[int] = set()

    def again(self) -> None:
        """What modules are was told to nobody yet."""
        self._said.clear()

    def changed(self, since: int, mapped: Mapped) -> list[Event]:
        """A load (rundown: DCStart) or unload, and ahead of it what a load cannot say."""
        time = since or self._begin
        if mapped.module < 0:
            return [self.image(UNLOAD, time, mapped)]
        events: list[Event] = []
        row, owner, base = mapped.module, max(mapped.pid, 0), base_of(mapped)
        module = self._profile.modules[row]
        if self._supplemented:
            if row not in self._said:
                events.append(supplement_event("Module", time, module_fields(row, module)))
                if module.segments:
                    events.append(supplement_event("Segments", time, segment_fields(row, module.segments)))
                self._said.add(row)
            place = (mapped.pid, mapped.start, mapped.end, mapped.offset)
            bias = load_bias(module, *place[1:]) if module.segments else 0
            fields = mapping_fields(row, owner, base, since, *place, bias)
            events.append(supplement_event("Mapping", time, fields))
        events += self._identity(time, owner, base, module)
        return [*events, self.image(LOAD if since else DC_START, time, mapped)]

    def _identity(self, time: int, owner: int, base: int, module: Module) -> Iterator[Event]:
        """What merging adds about a binary: its PDB, and its original name with time stamp and size."""
        if module.pdb_guid is None:
            return
        known = {"ImageBase": base, "ProcessID": owner & 0xFFFFFFFF}
        size = {"ImageSize": module.size, "TimeDateStamp": module.timestamp, "OriginalFileName": module.short}
        yield kernel_event((IMAGE_ID, _IMAGE_ID), time, self._pointer, known | size, version=_VERSIONS[IMAGE_ID])
        pdb = {"GuidSig": module.pdb_guid, "Age": module.pdb_age, "PDBFileName": module.pdb_name}
        yield kernel_event((IMAGE_ID, _DBG_ID), time, self._pointer, known | pdb, version=_VERSIONS[IMAGE_ID])

    def image(self, kind: int, time: int, mapped: Mapped) -> Event:
        base = base_of(mapped)
        fields: dict[str, Any] = {
            "ImageBase": base, "ImageSize": max(min(mapped.end, _LAST) - base, 0), "ProcessID": max(mapped.pid, 0),
            "FileName": "",
        }  # fmt: skip
        if mapped.module >= 0:
            module = self._profile.modules[mapped.module]
            fields |= {"ImageChecksum": module.checksum, "TimeDateStamp": module.timestamp}
            fields |= {"DefaultBase": module.image_base, "FileName": module.name}
        key = (PROCESS if kind == LOAD else IMAGE, kind)
        return kernel_event(key, time, self._pointer, fields, version=_VERSIONS[IMAGE])


def base_of(mapped: Mapped) -> int:
    return kernel_map_start(mapped.start, mapped.end, mapped.offset) if mapped.pid < 0 else mapped.start


def _needs_supplement(profile: Profile) -> bool:
    """Whether images alone would not say all: they are of files, mapped from their begin, and each of one process. Of
    a profile that grows nothing is known."""
    plain = bool(profile.modules) and all(
        m.kind is ModuleKind.FILE and not m.build_id and not m.code_selector for m in profile.modules
    )
    columns = profile.timeline.columns()
    maps = columns["kind"] == Change.MAP
    return not plain or bool((columns["offset"][maps] != 0).any() or (columns["pid"][maps] < 0).any())
