"""Which binaries the images of a trace were, read from the files: the events that merging adds.

A PE image is told by events of ImageID ahead of each of its image events, with the same time: name, size and time
stamp, then the GUID, age and name of its PDB (or that it has none). Of an ELF image the recording has said the build id
(`formats.etl.profile.supplement_events`); its load segments are added. Only a file that is the recorded one is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from ..binaries import Image, read_image
from ..errors import LastbranchError
from ..formats.etl import Event, EventBlock, TraceLog
from ..formats.etl.decode import Decoder
from ..formats.etl.kernel.layouts import kernel_event
from ..formats.etl.kernel.process import IMAGE, PROCESS
from ..formats.etl.kernel.providers import kernel_key
from ..formats.etl.kernel.session import IMAGE_ID
from ..formats.etl.payload.tracelogging import describe
from ..formats.etl.profile.supplement_events import EVENTS, PROVIDER, segment_fields, supplement_event
from ..model import Module, ModuleKind
from ..opening import FileSource, attach_binaries

__all__ = ["Identities", "identities"]

_NAMED, _NO_PDB, _PDB = 0, 32, 36  # types of ImageID
_VERSION = 2
_LOAD = 10
_HOOKS = (PROCESS << 8 | _LOAD, *(IMAGE << 8 | kind for kind in (2, 3, 4, _LOAD)))
_WORDS = [np.frombuffer(guid.bytes_le, np.uint64) for guid in (UUID(IMAGE_ID), PROVIDER)]


@dataclass(slots=True)
class Identities:
    """What was found for one trace. ``events`` are in time order.

    ``images`` counts its image events and modules of ELF files, ``known`` those that are told already, ``found`` those
    that events were made for; ``missing`` are the names of the others, each with the reason.
    """

    events: list[Event] = field(default_factory=list)
    images: int = 0
    known: int = 0
    found: int = 0
    missing: dict[str, str] = field(default_factory=dict)


def identities(log: TraceLog, symfs: str | None = None, folders: Sequence[str] = ()) -> Identities:
    """The identities of the images in ``log`` that it does not tell itself.

    ``symfs`` is a folder under which binaries lie at their full paths (and are trusted); in ``folders`` they are found
    by identity, as `opening.open_profile` has it. One pass; memory is bounded by the number of image events.
    """
    decoder, result = Decoder(), Identities()
    images: list[tuple[Event, dict[str, Any]]] = []
    told: set[tuple[int, int, int]] = set()
    modules: dict[int, tuple[Event, dict[str, Any]]] = {}
    with_segments: set[int] = set()
    for event in log.events(select=_about_images):
        if kernel_key(event) is None:
            described = describe(event)
            name = described[0].name if described else ""
            fields = described[0].layout.decode(described[2], 8) if described else {}
            if name == "Module" and set(EVENTS[name]) <= set(fields):
                modules.setdefault(int(fields["Number"]), (event, fields))
            elif name == "Segments" and "Module" in fields:
                with_segments.add(int(fields["Module"]))
            continue
        fields = decoder.decode(event).fields
        if "ImageBase" not in fields:
            continue
        if event.hook < 0:
            told.add(_place(event, fields))
        else:
            images.append((event, fields))
    _find_pes(result, images, told, symfs, folders)
    _find_elves(result, modules, with_segments, symfs, folders)
    result.events.sort(key=lambda event: event.time)
    return result


def _about_images(block: EventBlock) -> NDArray[np.bool_]:
    rows: NDArray[np.bool_] = np.isin(block.hook, _HOOKS)
    for words in _WORDS:
        rows = rows | (~block.is_kernel & (block.provider == words).all(axis=1))
    return rows


def _place(event: Event, fields: dict[str, Any]) -> tuple[int, int, int]:
    """What an identity is about: process, base and time of an image event."""
    return int(fields.get("ProcessID", 0)), int(fields["ImageBase"]), event.time


# -- PE


def _find_pes(
    result: Identities, images: Iterable[tuple[Event, dict[str, Any]]], told: set[tuple[int, int, int]],
    symfs: str | None, folders: Sequence[str],
) -> None:  # fmt: skip
    binaries: dict[tuple[str, int, int], tuple[Module, Image | None]] = {}
    for event, fields in images:
        name, stamp = str(fields.get("FileName", "")), int(fields.get("TimeDateStamp", 0))
        size = int(fields.get("ImageSize", 0))
        if not (stamp or "\\" in name):
            continue
        result.images += 1
        if _place(event, fields) in told:
            result.known += 1
            continue
        key = name, stamp, size
        if key not in binaries:
            module = Module(name, timestamp=stamp, size=size, image_base=int(fields.get("DefaultBase", 0)))
            attach_binaries([module], "", symfs, folders)
            binaries[key] = module, _image(module)
        module, image = binaries[key]
        if image is None or image.format != "pe":
            result.missing[name] = module.missing
            continue
        result.found += 1
        result.events += _pe_events(event, fields, module, image)


def _image(module: Module) -> Image | None:
    if not module.binary:
        return None
    source = FileSource(module.binary)
    try:
        return read_image(source)
    except LastbranchError as error:  # it was read a moment ago
        module.missing = f"unreadable: {error}"
        return None
    finally:
        source.close()


def _pe_events(event: Event, fields: dict[str, Any], module: Module, image: Image) -> Iterator[Event]:
    pid, base, time = _place(event, fields)
    about = {"ImageBase": base, "ProcessID": pid}

    def made(kind: int, **more: Any) -> Event:
        plain = kernel_event((IMAGE_ID, kind), time, event.pointer_size, about | more, version=_VERSION, pid=pid)
        return replace(plain, tid=-1, cpu=event.cpu)

    stamp = image.timestamp or 0
    yield made(_NAMED, ImageSize=module.size, TimeDateStamp=stamp, OriginalFileName=module.short)
    if image.pdb_guid is None:
        yield made(_NO_PDB)
    else:
        yield made(_PDB, GuidSig=image.pdb_guid, Age=image.pdb_age or 0, PDBFileName=image.pdb_name or "")


# -- ELF


def _find_elves(
    result: Identities, modules: dict[int, tuple[Event, dict[str, Any]]], with_segments: set[int], symfs: str | None,
    folders: Sequence[str],
) -> None:  # fmt: skip
    for number, (event, fields) in modules.items():
        if fields["Kind"] != ModuleKind.FILE:
            continue
        result.images += 1
        if number in with_segments:
            result.known += 1
            continue
        module = Module(str(fields["Name"]), build_id=bytes(fields["BuildId"]), size=int(fields["Size"]))
        attach_binaries([module], "", symfs, folders)
        if not module.segments:
            result.missing[module.name] = module.missing
            continue
        result.found += 1
        result.events.append(supplement_event("Segments", event.time, segment_fields(number, module.segments)))
