"""CreateMergedTraceFile: several trace logs as one, with what tells the binaries of its images.

On Windows that is a function of KernelTraceControl.dll. Elsewhere the logs are merged by `formats.etl.convert`, and the
identities of images come from their files. Of the flags, IMAGEID and COMPRESS_TRACE mean something there; the others
ask for what only Windows has, or what a session of the portable kernel has written itself (build, configuration), and
add nothing. INJECT_ONLY is refused (50): our choice.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import IntFlag
from pathlib import Path

from ..errors import Damage, FormatError, UnavailableError
from ..formats.etl import LogHeader, TraceLog, TraceWriter
from ..formats.etl.layout import LOG_FILE_MODE
from ..formats.etl.relog import convert
from ..model import Source, check_replaceable
from ..model.output import PartFolder
from ..opening import FileSource
from .border import returns_status
from .identities import Identities, identities
from .status import EtwError, Status
from .streams import status_of

__all__ = ["CreateMergedTraceFile", "MergeFlag", "Merged", "create_merged_trace_file"]

_CALL = "CreateMergedTraceFile"


class MergeFlag(IntFlag):
    """EVENT_TRACE_MERGE_EXTENDED_DATA_* of KernelTraceControl.h: what is added to the merged log."""

    NONE = 0
    IMAGEID = 0x1
    BUILDINFO = 0x2
    VOLUME_MAPPING = 0x4
    WINSAT = 0x8
    EVENT_METADATA = 0x10
    PERFTRACK_METADATA = 0x20
    NETWORK_INTERFACE = 0x40
    NGEN_PDB = 0x80
    COMPRESS_TRACE = 0x10000000
    INJECT_ONLY = 0x40000000
    DEFAULT = 0x000FFFFF
    ALL = 0x0FFFFFFF


@dataclass(slots=True)
class Merged:
    """What was done: ``events`` written, of them ``added``; images as `Identities` counts them, over all inputs."""

    events: int = 0
    added: int = 0
    images: int = 0
    known: int = 0
    found: int = 0
    missing: dict[str, str] = field(default_factory=dict)
    damage: Sequence[tuple[str, Damage]] = ()
    boots: int = 1
    """Of how many uptimes of machines the inputs are."""


def create_merged_trace_file(
    output: str, inputs: Sequence[str], flags: int = MergeFlag.DEFAULT, *, symfs: str | None = None,
    folders: Sequence[str] = (),
) -> Merged:  # fmt: skip
    """Merge the logs ``inputs`` into the new log ``output``; ``flags`` are `MergeFlag` bits.

    ``symfs`` and ``folders`` say where binaries are looked for (not on Windows), as for `identities`. Raises
    `EtwError`: 87 without inputs or for an output that is one of them, 2, 3 or 5 for a file that cannot be opened, 13
    for one that is no trace log, 112 where there is no room.
    """
    if not output or not inputs or not all(inputs):
        raise EtwError(_CALL, Status.INVALID_PARAMETER, "there are no files to merge, or none to write")
    if any(os.path.exists(output) and os.path.exists(path) and os.path.samefile(output, path) for path in inputs):
        raise EtwError(_CALL, Status.INVALID_PARAMETER, f"{output} is one of the files to merge")
    if sys.platform == "win32":
        from .windows import merging as toolkit

        toolkit.create_merged_trace_file(output, inputs, flags)
        return Merged()
    if not os.path.isdir(os.path.dirname(output) or "."):
        raise EtwError(_CALL, Status.PATH_NOT_FOUND, f"{output}: there is no such folder")
    if flags & MergeFlag.INJECT_ONLY:
        raise EtwError(_CALL, Status.NOT_SUPPORTED, "to add to a log without merging")
    try:
        with ExitStack() as stack:
            return _merged(stack, output, inputs, MergeFlag(flags), symfs, folders)
    except OSError as error:
        raise EtwError(
            _CALL, status_of(error), f"{error.filename if error.filename in inputs else output}: {error.strerror}"
        ) from None
    except UnavailableError as error:
        raise EtwError(_CALL, Status.ACCESS_DENIED, str(error), hint=error.hint) from None
    except FormatError as error:
        raise EtwError(_CALL, Status.INVALID_DATA, str(error), hint=error.hint) from None


@returns_status
def CreateMergedTraceFile(output: str, inputs: Sequence[str], flags: int) -> None:  # noqa: N802 - its name
    """`create_merged_trace_file` as the toolkit has it; what it found is not told."""
    create_merged_trace_file(output, inputs, flags)


def _merged(
    stack: ExitStack, output: str, inputs: Sequence[str], flags: MergeFlag, symfs: str | None, folders: Sequence[str]
) -> Merged:
    """The merged log, which nobody may read who may not read all of ``inputs``."""
    check_replaceable(output)
    part = stack.enter_context(PartFolder(output, mode=0o700))
    folder = Path(part.path)
    done = Merged()
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
            found = identities(log, symfs, folders)
            _count(done, found)
            if found.events:
                # Ahead of its source: of events of equal time those of the first source come first.
                added = _written(folder / f"{number}.etl", log.header, found)
                stack.callback(added.close)
                sources.append(added)
        sources.append(source)
    compress = True if flags & MergeFlag.COMPRESS_TRACE else None
    converted = convert(sources, folder / "merged", compress=compress)
    os.chmod(folder / "merged", rights & os.stat(folder / "merged").st_mode)  # which is what the umask leaves
    part.give("merged")
    done.events, done.damage, done.boots = converted.kept, converted.damage, converted.boots
    return done


def _count(done: Merged, found: Identities) -> None:
    done.added += len(found.events)
    done.images += found.images
    done.known += found.known
    done.found += found.found
    done.missing |= found.missing


_KEPT_MODES = LOG_FILE_MODE.COMPRESSED


def _written(path: Path, log: LogHeader, found: Identities) -> FileSource:
    """The events as a log with the clock of ``log``."""
    header = replace(
        log, mode=LOG_FILE_MODE.SEQUENTIAL | log.mode & _KEPT_MODES, maximum_file_size=0, events_lost=0, buffers_lost=0
    )
    with TraceWriter(path, header) as writer:
        for event in found.events:
            writer.add(replace(event, time=max(event.time, log.timestamp)))
    return FileSource(str(path))
