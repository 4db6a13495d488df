"""perf.data to a profile: one index pass over the records, then streams that read the samples again."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...errors import Damage, FormatError
from ...model import MAX_ENTRIES, MAX_SAMPLES, Clock, Profile, SampleBatch, SampleStream, Source, read_at
from .attr import event_of, parse_attr
from .blocks import Block, halves, walk_blocks
from .features import decode_feature, feature_name
from .layout import HEADER, MAGIC, OLD_MAGIC, PIPE_HEADER_SIZE, RECORDS, SAMPLE
from .records import handle
from .sample import SampleLayout
from .state import State

__all__ = ["Progress", "is_perfdata", "read_perfdata"]

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""

_SAMPLE = 9
_BATCH_WORDS = 3 * MAX_ENTRIES
_CLOCK_NAMES = {
    0: "CLOCK_REALTIME",
    1: "CLOCK_MONOTONIC",
    4: "CLOCK_MONOTONIC_RAW",
    7: "CLOCK_BOOTTIME",
    11: "CLOCK_TAI",
}
_FOREVER = np.iinfo(np.int64).max


def is_perfdata(start: bytes) -> bool:
    """Whether a file that begins with ``start`` is a perf.data, of either byte order."""
    return start[:8] in (MAGIC, MAGIC[::-1], OLD_MAGIC, OLD_MAGIC[::-1])


def read_perfdata(source: Source, progress: Progress | None = None) -> Profile:
    """Index ``source``, a perf.data in file or pipe mode, of either byte order.

    Raises `FormatError` where nothing can be had of it: no perf.data, header cut short, no attribute. Everything else
    that is wrong is in ``profile.damage``, and what precedes it is delivered.
    """
    reader = _Reader(source)
    reader.index(progress)
    return reader.profile


@dataclass(slots=True)
class _Layout:
    """Samples of one record layout: a stream in the making."""

    layout: SampleLayout
    events: list[int]
    samples: int = 0
    entries: int = 0
    deepest: int = 0
    earliest: list[int] = field(default_factory=list)
    """Earliest time of each block, for the watermarks."""


class _Reader:
    def __init__(self, source: Source) -> None:
        self.source = source
        magic = read_at(source, 0, 16)
        if not is_perfdata(magic):
            hint = "a capture made by `perf record` begins with PERFILE2"
            reason = "not a perf.data file" if magic else "file is empty"
            raise FormatError(reason, file=source.name, offset=0, field="magic", value=magic[:8] or None, hint=hint)
        if len(magic) < PIPE_HEADER_SIZE:
            raise FormatError("file header is cut short", file=source.name, offset=8, field="size", value=len(magic))
        self.order = "<" if magic[:8] in (MAGIC, OLD_MAGIC) else ">"
        (header_size,) = struct.unpack_from(self.order + "Q", magic, 8)
        self.pipe = header_size == PIPE_HEADER_SIZE
        self.profile = Profile(source.name, "perf.data (pipe)" if self.pipe else "perf.data")
        self.profile.machine.byte_order = "big" if self.order == ">" else "little"
        self.profile.machine.os = "Linux"
        self.state = State(self.profile, self.order)
        self.layouts: list[_Layout] = []
        self.layout_of_attr = np.empty(0, np.int64)
        self.id_bit = 0
        if self.pipe:
            self.data = (PIPE_HEADER_SIZE, source.size)
        else:
            self.data = self._header()

    # -- file mode: header, attributes, features

    def _header(self) -> tuple[int, int]:
        raw = read_at(self.source, 8, 8 * len(HEADER))
        if len(raw) < 8 * len(HEADER):
            raise FormatError("file header is cut short", file=self.source.name, offset=8 + len(raw))
        h = dict(zip(HEADER, struct.unpack(f"{self.order}{len(HEADER)}Q", raw), strict=True))
        self._attrs(h)
        start, size = h["data.offset"], h["data.size"]
        if start > self.source.size:
            self._damage("data section lies behind the end of the file", 0x28, "data.offset", start)
            return 0, 0
        end = start + size
        if size == 0:
            # perf fills it in at the end; a recorder that died leaves 0 and the records up to its death.
            end = self.source.size
            if end > start:
                self._damage("the recorder did not finish the file; reading on to its end", 0x30, "data.size", 0)
        elif end > self.source.size:
            self._damage("data section is cut short", 0x30, "data.size", size, end - self.source.size)
        if size:
            self._features(h, end)
        return start, min(end, self.source.size) if size == 0 else end

    def _attrs(self, h: dict[str, int]) -> None:
        size, start, total = h["attr_size"], h["attrs.offset"], h["attrs.size"]
        name = self.source.name
        if size < 64 + 16 or size > 1 << 16:
            raise FormatError("attributes of impossible size", file=name, offset=0x10, field="attr_size", value=size)
        if total > self.source.size - start:
            value = total
            raise FormatError(
                "attributes behind the end of the file", file=name, offset=0x20, field="attrs.size", value=value
            )
        for at in range(start, start + total - size + 1, size):
            raw = read_at(self.source, at, size)
            attr = parse_attr(raw[: size - 16], at, self.order, name)
            ids_at, ids_size = struct.unpack_from(self.order + "2Q", raw, size - 16)
            ids = read_at(self.source, ids_at, ids_size) if ids_at < self.source.size else b""
            if len(ids) < ids_size:
                self._damage("ids of an event lie behind the end of the file", at + size - 8, "ids.size", ids_size)
            attr.ids = struct.unpack(f"{self.order}{len(ids) // 8}Q", ids[: len(ids) & ~7])
            self.state.attr_of_id.update(dict.fromkeys(attr.ids, len(self.state.attrs)))
            self.state.attrs.append(attr)

    def _features(self, h: dict[str, int], table: int) -> None:
        bits = [n * 64 + b for n in range(4) for b in range(64) if h[f"features.{n}"] >> b & 1]
        for i, number in enumerate(bits):
            entry = read_at(self.source, table + 16 * i, 16)
            if len(entry) < 16:
                self._damage(f"header feature {feature_name(number)} is cut off", table + 16 * i)
                return
            offset, size = struct.unpack(self.order + "2Q", entry)
            if offset + size > self.source.size:
                self._damage(f"header feature {feature_name(number)} is cut off", table + 16 * i + 8, "size", size)
                continue
            decode_feature(self.state, number, read_at(self.source, offset, size), offset)

    def _damage(self, reason: str, offset: int, field: str | None = None, value: object = None, lost: int = 0) -> None:
        self.profile.damage.append(Damage(reason, offset, field, value, lost))

    # -- index pass

    def index(self, progress: Progress | None) -> None:
        """Read every record once: tables, counts, and where streams find their samples."""
        profile, state = self.profile, self.state
        counts: dict[int, int] = {}
        threads: set[int] = set()
        first, last = _FOREVER, -1
        for block in walk_blocks(self.source, *self.data, self.order == ">", profile.damage):
            is_sample = block.types == _SAMPLE
            beside = block.at[~is_sample]
            columns = (block.types[~is_sample], block.misc(beside), beside, block.sizes(beside))
            for kind, misc, at, size in zip(*(c.tolist() for c in columns), strict=True):
                counts[kind] = counts.get(kind, 0) + 1
                handle(state, kind, misc, block.body(at, size), block.base + at * 8)
            if is_sample.any():
                counts[_SAMPLE] = counts.get(_SAMPLE, 0) + int(is_sample.sum())
                lo, hi = self._index_samples(block, block.at[is_sample], threads)
                first, last = min(first, lo), max(last, hi)
                state.newest_time = max(state.newest_time, hi)
            if progress:
                progress(min(block.base, self.data[1]) - self.data[0], self.data[1] - self.data[0])
        profile.records = {RECORDS.get(k, f"TYPE_{k}"): n for k, n in sorted(counts.items())}
        if not state.attrs:
            raise FormatError("no event attribute in the file", file=self.source.name, hint="is it a cut-off pipe?")
        self._group()
        if last >= 0:
            profile.first_time, profile.last_time = first, last
        self._finish(threads)

    def _index_samples(self, block: Block, at: NDArray[np.int64], threads: set[int]) -> tuple[int, int]:
        self._group()
        lo, hi = _FOREVER, -1
        for number, part, _event in self._by_layout(block, at):
            entry = self.layouts[number]
            depth, bad = entry.layout.check(block, part)
            if bad.any():
                where = block.base + int(part[bad][0]) * 8
                self._damage("samples whose fields do not fit their records", where, "samples", int(bad.sum()))
                part, depth = part[~bad], depth[~bad]
            entry.samples += len(part)
            entry.entries += int(depth.sum())
            entry.deepest = max(entry.deepest, int(depth.max(initial=0)))
            if len(part) == 0:
                entry.earliest.append(int(_FOREVER))
                continue
            offset = entry.layout.fixed.get(SAMPLE.TIME)
            time = (
                block.base + part * 8 if offset is None else block.words.take(part + offset, mode="clip").view(np.int64)
            )
            entry.earliest.append(int(time.min()))
            lo, hi = min(lo, int(time.min())), max(hi, int(time.max()))
            offset = entry.layout.fixed.get(SAMPLE.TID)
            if offset is not None:
                threads.update(np.unique(block.words.take(part + offset, mode="clip")).tolist())
        return lo, hi

    def _group(self) -> None:
        """Attributes with equal sample layouts make one stream. In a pipe they may still arrive."""
        attrs = self.state.attrs
        if len(self.layout_of_attr) == len(attrs):
            return
        keys: dict[tuple[int, ...], int] = {}
        numbers = [keys.setdefault(a.layout_key, len(keys)) for a in attrs]
        for i, number in enumerate(numbers):
            if number == len(self.layouts):
                self.layouts.append(_Layout(SampleLayout(attrs[i]), []))
            if i not in self.layouts[number].events:
                self.layouts[number].events.append(i)
        self.layout_of_attr = np.array(numbers, np.int64)
        shared = SAMPLE.IDENTIFIER if all(a.sample_type & SAMPLE.IDENTIFIER for a in attrs) else SAMPLE.ID
        same = shared == SAMPLE.IDENTIFIER or len({entry.layout.fixed.get(SAMPLE.ID) for entry in self.layouts}) == 1
        self.id_bit = shared if len(attrs) > 1 and same and attrs[0].sample_type & shared else 0
        ids = sorted(self.state.attr_of_id.items())
        self.ids = np.array([i for i, _ in ids], np.uint64)
        self.attr_of_id = np.array([a for _, a in ids], np.int64)

    def _by_layout(
        self, block: Block, at: NDArray[np.int64]
    ) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int32]]]:
        """(layout, positions, event of each) for the samples at ``at``; those of unknown events are left out."""
        if not self.layouts:
            return
        if not self.id_bit:
            if len(at):
                yield 0, at, np.zeros(len(at), np.int32)
            return
        offset = self.layouts[0].layout.fixed[self.id_bit]
        value = block.words.take(at + offset, mode="clip")
        if len(self.ids) == 0:
            attr = np.zeros(len(at), np.int64)
        else:
            where = np.minimum(np.searchsorted(self.ids, value), len(self.ids) - 1)
            attr = np.where(self.ids[where] == value, self.attr_of_id[where], -1)
            attr[value == 0] = 0  # what perf does with samples of no id
        layout = np.where(attr >= 0, self.layout_of_attr[attr], -1)
        for number in np.unique(layout).tolist():
            if number >= 0:
                mine = layout == number
                yield number, at[mine], attr[mine].astype(np.int32)

    def _finish(self, threads: set[int]) -> None:
        profile, state = self.profile, self.state
        for ids, name in state.event_names:
            for i in {state.attr_of_id[j] for j in ids if j in state.attr_of_id}:
                state.attrs[i].name = name
        if len(state.event_names) == len(state.attrs):  # files without ids list names in the order of attributes
            for attr, (ids, name) in zip(state.attrs, state.event_names, strict=True):
                attr.name = attr.name or (name if not ids else "")
        profile.events = [event_of(a) for a in state.attrs]
        state.finish_modules()
        simpleperf = any(name.startswith("SIMPLEPERF") for name in state.features)
        profile.recorder = "simpleperf" if simpleperf else f"perf {profile.header.get('perf version', '')}".strip()
        profile.clock = self._clock()
        if profile.machine.arch in ("i686", "i386", "armv7l", "armv8l"):
            profile.machine.bits = 32
        unknown = sum(profile.records.get(n, 0) for n in ("SAMPLE",)) - sum(entry.samples for entry in self.layouts)
        if unknown:
            profile.lost["samples of unknown events"] = unknown
        for number, entry in enumerate(e for e in self.layouts if e.samples or len(self.layouts) == 1):
            profile.streams.append(self._stream(number, entry))
        words = np.array(sorted(threads), np.uint64)
        pid, tid = halves(words, self.order == ">")
        profile.seen_threads = set(zip(pid.tolist(), tid.tolist(), strict=True))

    def _clock(self) -> Clock:
        if not any(a.sample_type & SAMPLE.TIME for a in self.state.attrs):
            return Clock("file order", 0)
        first = self.state.attrs[0]
        number = first.fields["clockid"]
        name = _CLOCK_NAMES.get(number, f"clock {number}") if "use_clockid" in first.flags else "perf_clock"
        return Clock(name, wall=self.state.wall)

    # -- streams

    def _stream(self, number: int, entry: _Layout) -> SampleStream:
        # Watermark of a block: the earliest time of all later blocks.
        later = np.minimum.accumulate(np.array([*entry.earliest, _FOREVER], np.int64)[::-1])[::-1][1:]
        index = self.layouts.index(entry)

        def batches(wanted: frozenset[str] | None) -> Iterator[tuple[SampleBatch, int]]:
            return self._batches(index, wanted, later)

        layout = entry.layout
        return SampleStream(
            number, layout.columns, tuple(entry.events), entry.samples, entry.entries, entry.deepest, batches
        )

    def _batches(
        self, index: int, wanted: frozenset[str] | None, later: NDArray[np.int64]
    ) -> Iterator[tuple[SampleBatch, int]]:
        layout, blocks = self.layouts[index].layout, 0
        for block in walk_blocks(self.source, *self.data, self.order == ">"):
            at = block.at[block.types == _SAMPLE]
            for number, part, event in self._by_layout(block, at):
                if number != index:
                    continue
                watermark = int(later[blocks])
                blocks += 1
                for lo, hi in _cuts(block, part):
                    batch, _bad = layout.decode(block, part[lo:hi], event[lo:hi], wanted)
                    # Samples of the same block that come later are no later than the watermark promises.
                    rest = min(watermark, self._earliest(block, layout, part[hi:]))
                    yield batch, rest

    @staticmethod
    def _earliest(block: Block, layout: SampleLayout, at: NDArray[np.int64]) -> int:
        offset = layout.fixed.get(SAMPLE.TIME)
        if len(at) == 0:
            return int(_FOREVER)
        if offset is None:
            return int(block.base + at[0] * 8)
        return int(block.words.take(at + offset, mode="clip").view(np.int64).min())


def _cuts(block: Block, at: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Runs of samples that keep a batch under `MAX_SAMPLES` and its entries under `MAX_ENTRIES`."""
    words = np.cumsum(block.sizes(at) >> 3)
    lo = 0
    while lo < len(at):
        before = int(words[lo - 1]) if lo else 0
        hi = int(np.searchsorted(words, before + _BATCH_WORDS, side="right"))
        hi = max(lo + 1, min(hi, lo + MAX_SAMPLES))
        yield lo, hi
        lo = hi
