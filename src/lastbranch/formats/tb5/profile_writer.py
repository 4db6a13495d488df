"""Profiles into TB5 files: streams of samples as they come, the tables at the end."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from ...model import Load, Machine, Process, Profile, Thread
from .columns import Piece, group_dtype
from .constants import DescType, StreamType
from .encoding import Processor, SampleWriter
from .guide_tables import (
    branches_text,
    processor_of,
    time_subtype,
    write_descriptor,
    write_events,
    write_modules,
    write_stream_info,
    write_tasks,
)
from .machine_tables import write_machine
from .model_tables import write_model
from .writing import Tb5Writer

__all__ = ["StreamedProfile", "group_comment"]


def group_comment(group: str, stream: int) -> str:
    """The comment of the custom stream that holds the rows of ``group`` of sample stream ``stream``."""
    return f"{group} of stream {stream}"


class StreamedProfile:
    """A TB5 file in the making. It appears as ``path`` when it is finished."""

    def __init__(self, path: str | os.PathLike[str], machine: Machine | None = None) -> None:
        """``machine`` says of what kind the processor is, where that is known before the samples."""
        self.writer = Tb5Writer.create(path)
        self._processor: Processor = processor_of(machine or Machine(arch=platform.machine()))
        self._streams: list[SampleWriter] = []

    def stream(self, columns: Collection[str], *, depth: int = 32) -> SampleWriter:
        """Start a stream of samples that have ``columns`` (the model's names) and at most ``depth`` branch entries."""
        made = SampleWriter(self.writer, columns, depth, self._processor)
        self._streams.append(made)
        return made

    def finish(
        self, profile: Profile, loads: Iterable[Load], processes: Sequence[Process], threads: Sequence[Thread]
    ) -> None:
        """Complete the file: tables of ``profile`` (not its streams), ``loads`` for the module section."""
        writer = self.writer
        for stream in self._streams:
            stream.done()
            self._describe(stream, profile)
        write_machine(writer, profile.machine)
        write_modules(writer, profile.modules, loads, self._processor)
        write_tasks(writer, processes, threads)
        if profile.streams:  # it was read from somewhere, and knows
            pairs = [np.array(sorted(profile.seen_threads), np.int32).reshape(-1, 2)]
        else:
            pairs = [s.threads for s in self._streams]
        times = [(s.first_time, s.last_time) for s in self._streams if s.first_time is not None]
        if profile.first_time is None and times:
            profile.first_time = min(t for t, _ in times if t is not None)
            profile.last_time = max(t for _, t in times if t is not None)
        told = [_told(s) for s in self._streams]
        write_model(writer, profile, told, np.concatenate([np.empty((0, 2), np.int32), *pairs]))
        writer.close()

    def abort(self) -> None:
        """Give up: the file of that name stays what it was."""
        self.writer.abort()

    def _describe(self, stream: SampleWriter, profile: Profile) -> None:
        writer, number = self.writer, stream.number
        which = branches_text([e for i, e in enumerate(profile.events) if i in stream.events])
        write_descriptor(writer, number, stream.layout.descriptor(number, time_subtype(profile.clock), which))
        write_events(writer, number, profile.events)
        span = stream.first_time, stream.last_time
        write_stream_info(writer, number, StreamType.SAMPLING, f"samples of {profile.name}", profile, span)
        for group, (custom, _) in stream.groups.items():
            dtype = group_dtype(group, stream.layout.columns)
            user = int(DescType.START_USER_DEFINED) + 0x400
            pieces = [
                Piece(name, user + i, 0, int(at), int(kind.itemsize))
                for i, (name, (kind, at)) in enumerate((n, (f[0], f[1])) for n, f in (dtype.fields or {}).items())
            ]
            write_descriptor(writer, custom, pieces)
            write_stream_info(writer, custom, StreamType.CUSTOM, group_comment(group, number), profile, span)


def _told(stream: SampleWriter) -> dict[str, object]:
    return {
        "number": stream.number,
        "columns": list(stream.layout.columns),
        "events": sorted(stream.events),
        "samples": stream.samples,
        "entries": stream.entries,
        "deepest": stream.deepest,
        "groups": {group: number for group, (number, _) in stream.groups.items()},
    }
