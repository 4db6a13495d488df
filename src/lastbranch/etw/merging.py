"""CreateMergedTraceFile: several trace logs as one, with events that identify the binaries of its images.

On Windows KernelTraceControl.dll has the function. Elsewhere `formats.etl.convert` merges the logs, and the identities
come from the files of the images. IMAGEID and COMPRESS_TRACE have an effect there. The other flags ask for what only
Windows has, or for what a session of the portable kernel has written already (build, configuration); they add nothing.
INJECT_ONLY is refused (50): our choice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from ..binaries import read_image
from ..binaries.image import Image
from ..errors import Damage, FormatError, LastbranchError, UnavailableError
from ..formats.etl import (
    Decoder,
    Event,
    EventBlock,
    LogFileMode,
    LogHeader,
    TraceLog,
    TraceWriter,
    convert,
    kernel_event,
)
from ..formats.etl.kernel.hooks import IMAGE, IMAGE_ID, PROCESS, kernel_key
from ..formats.etl.profile.supplement import PROVIDER, fields_of, segment_fields, supplement_event
from ..model import Module, ModuleKind, PartFolder, Source, check_replaceable
from ..opening import FileSource, attach_binaries
from .flags import MergeFlag
from .kernel_choice import windows
from .status import EtwError, Status, returns_status, status_of_reading

__all__ = ["CreateMergedTraceFile", "Merged", "create_merged_trace_file"]


_CALL = "CreateMergedTraceFile"


@dataclass(slots=True)
class Merged:
    """The result of a merge. Images count over all inputs: their image events, and modules of ELF files."""

    events: int = 0
    """Written, of them `added`."""
    added: int = 0
    images: int = 0
    known: int = 0
    """Images that the inputs identify."""
    found: int = 0
    """Images that the added events identify."""
    missing: dict[str, str] = field(default_factory=dict)
    """Names of the others, each with the reason."""
    damage: Sequence[tuple[str, Damage]] = ()
    boots: int = 1
    """Number of uptimes of machines that the inputs come from."""


def create_merged_trace_file(
    output: str,
    inputs: Sequence[str],
    flags: int = MergeFlag.DEFAULT,
    *,
    symfs: str | None = None,
    folders: Sequence[str] = (),
) -> Merged:
    """Merge the logs ``inputs`` into the new log ``output``; ``flags`` are `MergeFlag` bits.

    ``symfs`` and ``folders`` say where binaries are looked for (not on Windows), as for `opening.open_profile`. Raises
    `EtwError`: 87 without inputs or if the output is an input, 2, 3 or 5 for a file that cannot be opened, 13 for a
    file that is not a trace log, 112 if the disk is full.
    """
    if not output or not inputs or not all(inputs):
        raise EtwError(_CALL, Status.INVALID_PARAMETER, "there are no files to merge, or none to write")
    if any(os.path.exists(output) and os.path.exists(path) and os.path.samefile(output, path) for path in inputs):
        raise EtwError(_CALL, Status.INVALID_PARAMETER, f"{output} is one of the files to merge")
    if (system := windows()) is not None:
        system.merge(output, inputs, flags)
        return Merged()
    if not os.path.isdir(os.path.dirname(output) or "."):
        raise EtwError(_CALL, Status.PATH_NOT_FOUND, f"{output}: there is no such folder")
    if flags & MergeFlag.INJECT_ONLY:
        raise EtwError(_CALL, Status.NOT_SUPPORTED, "to add to a log without merging")
    try:
        with ExitStack() as stack:
            return _write_merged(stack, output, inputs, MergeFlag(flags), symfs, folders)
    except OSError as error:
        raise EtwError(
            _CALL,
            status_of_reading(error),
            f"{error.filename if error.filename in inputs else output}: {error.strerror}",
        ) from None
    except UnavailableError as error:
        raise EtwError(_CALL, Status.ACCESS_DENIED, str(error), hint=error.hint) from None
    except FormatError as error:
        raise EtwError(_CALL, Status.INVALID_DATA, str(error), hint=error.hint) from None


@returns_status
def CreateMergedTraceFile(output: str, inputs: Sequence[str], flags: int) -> None:  # noqa: N802 - its name
    """`create_merged_trace_file` as the toolkit declares it, without `Merged`."""
    create_merged_trace_file(output, inputs, flags)


def _write_merged(
    stack: ExitStack, output: str, inputs: Sequence[str], flags: MergeFlag, symfs: str | None, folders: Sequence[str]
) -> Merged:
    """Write the merged log, with the rights that all of ``inputs`` share."""
    check_replaceable(output)
    part = stack.enter_context(PartFolder(output, private=True))
    folder = Path(part.path)
    identifier = _Identifier(symfs, folders)
    done = identifier.done
    sources: list[Source] = []
    rights = 0o666
    for number, path in enumerate(inputs):
        source = FileSource(path)
        stack.callback(source.close)
        rights &= os.stat(path).st_mode
        log = TraceLog(source)
        if flags & MergeFlag.IMAGEID and not (log.header.start_time and log.header.frequency):
            done.missing[path] = "without a start time no events can be added"
        elif flags & MergeFlag.IMAGEID:
            events = identifier.events_of(log)
            if events:
                # Ahead of its source: of events of equal time those of the first source come first.
                added = _write_log(folder / f"{number}.etl", log.header, events)
                stack.callback(added.close)
                sources.append(added)
        sources.append(source)
    compress = True if flags & MergeFlag.COMPRESS_TRACE else None
    converted = convert(sources, folder / "merged", compress=compress)
    os.chmod(folder / "merged", rights & os.stat(folder / "merged").st_mode)  # which is what the umask leaves
    part.give("merged")
    done.events, done.damage, done.boots = converted.kept, converted.damage, converted.boots
    return done


def _write_log(path: Path, log: LogHeader, events: list[Event]) -> FileSource:
    """``events`` as a log with the clock of ``log``."""
    mode = LogFileMode.FILE_MODE_SEQUENTIAL | log.mode & LogFileMode.COMPRESSED_MODE
    header = replace(log, mode=mode, maximum_file_size=0, events_lost=0, buffers_lost=0)
    with TraceWriter(path, header) as writer:
        for event in events:
            writer.add(replace(event, time=max(event.time, log.timestamp)))
    return FileSource(str(path))


# -- The events that identify binaries
#
# Events of ImageID precede each image event of a PE, with the same time: name, size and time stamp, then the GUID, age
# and name of its PDB (or that it has none). The recording has written the build id of an ELF image
# (`formats.etl.profile.supplement`); its load segments are added. Only a file that is the recorded one is used.


_NAMED, _NO_PDB, _PDB = 0, 32, 36  # types of ImageID
_VERSION = 2
_LOAD = 10
_HOOKS = (PROCESS << 8 | _LOAD, *(IMAGE << 8 | kind for kind in (2, 3, 4, _LOAD)))
_WORDS = [np.frombuffer(guid.bytes_le, np.uint64) for guid in (UUID(IMAGE_ID), PROVIDER)]


Fields = dict[str, Any]


class _Identifier:
    """Finds the binaries of images, and makes the events that identify them; ``done`` counts.

    ``symfs`` is a folder under which binaries are at their full paths (and are trusted); in ``folders`` they are found
    by identity, as `opening.open_profile` does.
    """

    def __init__(self, symfs: str | None, folders: Sequence[str]) -> None:
        self._where = symfs, folders
        self.done = Merged()

    def events_of(self, log: TraceLog) -> list[Event]:
        """The identities of the images that ``log`` does not identify, in time order.

        One pass; memory is bounded by the number of image events.
        """
        decoder = Decoder()
        images: list[tuple[Event, Fields]] = []
        identified: set[tuple[int, int, int]] = set()
        modules: dict[int, tuple[Event, Fields]] = {}
        with_segments: set[int] = set()
        for event in log.events(select=_about_images):
            if kernel_key(event) is None:
                name, fields = fields_of(event) or ("", {})
                if name == "Module" and fields:
                    modules.setdefault(int(fields["Number"]), (event, fields))
                elif name == "Segments" and fields:
                    with_segments.add(int(fields["Module"]))
                continue
            fields = decoder.decode(event).fields
            if "ImageBase" not in fields:
                continue
            if event.hook < 0:
                identified.add(_place(event, fields))
            else:
                images.append((event, fields))
        events = [*self._of_pes(images, identified), *self._of_elves(modules, with_segments)]
        self.done.added += len(events)
        return sorted(events, key=lambda event: event.time)

    def _of_pes(self, images: list[tuple[Event, Fields]], identified: set[tuple[int, int, int]]) -> Iterator[Event]:
        binaries: dict[tuple[str, int, int], tuple[Module, Image | None]] = {}
        for event, fields in images:
            name, stamp = str(fields.get("FileName", "")), int(fields.get("TimeDateStamp", 0))
            size = int(fields.get("ImageSize", 0))
            if not (stamp or "\\" in name):
                continue
            self.done.images += 1
            if _place(event, fields) in identified:
                self.done.known += 1
                continue
            key = name, stamp, size
            if key not in binaries:
                module = Module(name, timestamp=stamp, size=size, image_base=int(fields.get("DefaultBase", 0)))
                attach_binaries([module], "", *self._where)
                binaries[key] = module, _image(module)
            module, image = binaries[key]
            if image is None or image.format != "pe":
                self.done.missing[name] = module.missing
                continue
            self.done.found += 1
            yield from _pe_events(event, fields, module, image)

    def _of_elves(self, modules: dict[int, tuple[Event, Fields]], with_segments: set[int]) -> Iterator[Event]:
        for number, (event, fields) in modules.items():
            if fields["Kind"] != ModuleKind.FILE:
                continue
            self.done.images += 1
            if number in with_segments:
                self.done.known += 1
                continue
            module = Module(str(fields["Name"]), build_id=bytes(fields["BuildId"]), size=int(fields["Size"]))
            attach_binaries([module], "", *self._where)
            if not module.segments:
                self.done.missing[module.name] = module.missing
                continue
            self.done.found += 1
            yield supplement_event("Segments", event.time, segment_fields(number, module.segments))


def _about_images(block: EventBlock) -> NDArray[np.bool_]:
    rows: NDArray[np.bool_] = np.isin(block.hook, _HOOKS)
    for words in _WORDS:
        rows = rows | (~block.is_kernel & (block.provider == words).all(axis=1))
    return rows


def _place(event: Event, fields: Fields) -> tuple[int, int, int]:
    """The target of an identity: process, base and time of an image event."""
    return int(fields.get("ProcessID", 0)), int(fields["ImageBase"]), event.time


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


def _pe_events(event: Event, fields: Fields, module: Module, image: Image) -> Iterator[Event]:
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
