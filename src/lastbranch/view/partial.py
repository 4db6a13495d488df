"""A first look at a large capture: the same questions about a part of the samples, drawn from all over the file.

Counting all of it takes seconds for each gigabyte. A few batches are enough to say where the time goes; if the format
allows, nothing between the batches is read.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from ..model import Profile, SampleBatch, SampleStream
from . import questions
from .answer import Answer
from .loaded import Loaded, Parameters

__all__ = ["COUNTED", "FirstLook", "is_large"]

COUNTED = frozenset(["overview", "hot", "flame", "function", "branches"])
"""Questions whose answers are counts of samples: those about a part are like those about all."""
_SHORT = {"hot": "2000", "branches": "2000"}
"""Questions with the parameter ``limit`` and how many rows are enough of them: a part of the samples says little of the
others, but to name them, to send them and to show them takes most of the time."""
_DRAWN = 12
"""Batches of each stream that are looked at."""
_LARGE = 400_000
"""Samples of a capture from which on a part is looked at first: eight times those of 12 batches."""


def is_large(profile: Profile) -> bool:
    """Whether counting all of it takes so long that a part is counted first, and that answers are kept."""
    return profile.samples >= _LARGE


class FirstLook:
    """A part of the samples of ``loaded``."""

    def __init__(self, loaded: Loaded) -> None:
        self._whole, self._seen = loaded, Counter[int]()

    @property
    def is_large(self) -> bool:
        return is_large(self._whole.profile)

    def is_for(self, question: str) -> bool:
        """Whether the answer to ``question`` takes so long that a part of it is worth having before."""
        return question in COUNTED and self.is_large

    def ask(self, question: str, parameters: Parameters) -> Answer:
        """The answer about the part. Its header has ``part``: ``samples`` that were looked at, ``of`` how many."""
        limit = {"limit": _SHORT[question]} if question in _SHORT else {}
        answer = questions.ask(self._loaded, question, {**limit, **parameters})
        answer.header["part"] = {"samples": sum(self._seen.values()), "of": self._whole.profile.samples}
        return answer

    @cached_property
    def _loaded(self) -> Loaded:
        profile: Profile = copy.copy(self._whole.profile)
        profile.streams = [self.part(stream) for stream in profile.streams]
        made = replace(self._whole, profile=profile)
        made.symbolizer, made.namer, made.sources = self._whole.symbolizer, self._whole.namer, self._whole.sources
        return made

    def part(self, stream: SampleStream) -> SampleStream:
        """A stream of batches of ``stream``, from `_DRAWN` places at equal distances."""

        def drawn(wanted: frozenset[str] | None) -> Iterator[tuple[SampleBatch, int]]:
            assert stream.drawer is not None
            seen = 0
            for batch in stream.drawer(_DRAWN, wanted):
                seen += len(batch)
                yield batch, 0
            self._seen[stream.number] = seen

        def batches(wanted: frozenset[str] | None) -> Iterator[tuple[SampleBatch, int]]:
            passed = drawn = seen = 0
            for batch, watermark in stream.reader(wanted):
                passed += len(batch)
                if passed * 2 * _DRAWN > (2 * drawn + 1) * stream.samples:
                    seen += len(batch)
                    yield batch, watermark
                while passed * 2 * _DRAWN > (2 * drawn + 1) * stream.samples:
                    drawn += 1
            self._seen[stream.number] = seen

        return replace(stream, reader=drawn if stream.drawer else batches)
