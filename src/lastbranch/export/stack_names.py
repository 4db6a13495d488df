"""Call stacks by name, inlined functions included, for formats whose frames are functions and not addresses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..analysis.naming import Label, Namer
from ..model import Profile, visible
from ..symbols import Symbolizer
from .stack_pass import Lane, StackPass

__all__ = ["NamedStacks", "StackTree", "lane_name", "process_name", "thread_name"]


class NamedStacks:
    """The stacks of a finished pass. ``labels`` are the functions; see `Namer`."""

    def __init__(self, done: StackPass, symbols: Symbolizer) -> None:
        frames, namer = done.frames, Namer(done.profile, symbols)
        rows, offsets = namer.chains("inline", frames.owner, frames.module, frames.address)
        self._profile, self._done = done.profile, done
        self._rows, self._offsets = rows.tolist(), offsets.tolist()
        self.labels = namer.labels

    def shown(self, label: Label) -> str:
        """The name of a function, safe to print; ``[module]`` for code without one."""
        return visible(label.shown(self._profile))

    def stacks(self) -> Iterator[list[int]]:
        """Rows of ``labels`` for each stack of the pass in its order, root first."""
        for stack in self._done.stacks:
            leaf_first = [row for f in stack for row in self._rows[self._offsets[f] : self._offsets[f + 1]]]
            yield leaf_first[::-1]


class StackTree:
    """Stacks that share their roots: node ``i`` is ``nodes[i]``, (its parent or -1, what stands in it)."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], int] = {}

    def add(self, root_first: Sequence[int]) -> int:
        """The node of a stack, new or known; -1 of the empty one. A parent comes before its children."""
        node = -1
        for item in root_first:
            node = self._known.setdefault((node, item), len(self._known))
        return node

    @property
    def nodes(self) -> list[tuple[int, int]]:
        return list(self._known)


def process_name(profile: Profile, lane: Lane) -> str:
    """The process of a lane, safe to print."""
    return visible(profile.processes[lane.process].name if lane.process >= 0 else "") or "[unknown]"


def thread_name(profile: Profile, lane: Lane) -> str:
    """The thread of a lane, or its process where it has no name of its own."""
    return visible(profile.threads[lane.thread].name if lane.thread >= 0 else "") or process_name(profile, lane)


def lane_name(profile: Profile, lane: Lane) -> str:
    """``process (pid 1) / thread (tid 2)``."""
    return f"{process_name(profile, lane)} (pid {lane.pid}) / {thread_name(profile, lane)} (tid {lane.tid})"
