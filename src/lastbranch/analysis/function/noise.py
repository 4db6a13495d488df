"""How well a recording in bursts knows the counts of one function: how many bursts saw each block and branch, and how
far off their counts would be in another recording of the same behaviour."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...arrays import Sums, group, ranges
from ...lbr import KIND
from ...model import Array, Profile, SampleBatch
from ..statistics.bursts import TimeSpan, bursts_of
from ..statistics.share_noise import rows_asked
from ..statistics.significance import Clusters, ratio_variance, time_to_halve
from .flow import Flow, stretches

__all__ = ["BurstSums", "FunctionNoise"]


@dataclass(slots=True)
class FunctionNoise:
    """Bursts and standard errors of the blocks and edges of a `Flow`.

    int64, the bursts that have them: ``blocks`` of each block, ``edges`` of each edge, ``through`` of each block that
    ran on into the next block. float64, NaN with fewer than two bursts: ``count`` of the count of each block, as a part
    of it; from 0 to 1, ``taken`` of the share of its executions in which a block's branch was taken, ``share`` of an
    edge's share of all edges and ``share_through`` of that of the ways past conditional branches, ``target`` of an
    edge's share of its branch. ``bursts`` there are in all, in ``seconds`` (0: no time is known).
    """

    blocks: NDArray[np.int64]
    edges: NDArray[np.int64]
    through: NDArray[np.int64]
    count: NDArray[np.float64]
    taken: NDArray[np.float64]
    share: NDArray[np.float64]
    share_through: NDArray[np.float64]
    target: NDArray[np.float64]
    bursts: int
    seconds: float

    @property
    def notes(self) -> list[str]:
        """Notes about the errors, and how long to record to halve them. Empty if no error is known."""
        if np.isnan(self.count).all():
            return []
        noise = (
            f"standard errors from {self.bursts} bursts: noise % is that of count, in percent of it; taken noise and "
            "noise are those of the share before them, in points"
        )
        more = time_to_halve(self.seconds, "them")
        return [f"{noise}; {more}" if more else noise]

    def without_errors(self) -> FunctionNoise:
        """The bursts alone: the errors hold for observed counts, not for estimated counts."""
        block, edge = np.full(len(self.blocks), np.nan), np.full(len(self.edges), np.nan)
        return replace(self, count=block, taken=block, share=edge, share_through=block, target=edge)


class BurstSums:
    """Branches and ranges near some functions by burst. Batches are those of `whole_bursts`."""

    def __init__(self, profile: Profile) -> None:
        self._profile, self._binder = profile, profile.binder
        self._branches = Sums([np.int64, np.int64, np.uint64, np.int64, np.uint64], [np.int64])
        self._ranges = Sums([np.int64, np.int64, np.uint64, np.uint64], [np.int64])
        """By burst, and where they begin and end."""
        self._weight = [np.zeros(0, np.int64)]
        """Branch entries of each burst."""
        self._next = 0
        self._span = TimeSpan(profile)

    def add(self, batch: SampleBatch, branches: tuple[Array, ...], ends: tuple[Array, ...]) -> None:
        """Add a batch. ``branches``, and ``ends`` of ranges, are (sample, addresses of beginnings, addresses of
        ends)."""
        burst, times = bursts_of(self._profile, batch), self._profile.weight_of(batch)
        scope = self._binder.scopes(batch)
        for sums, (sample, start, end) in ((self._branches, branches), (self._ranges, ends)):
            start_module, start = self._binder.locate(scope[sample], start)
            end_module, end = self._binder.locate(scope[sample], end)
            each = np.full(len(sample), times, np.int64)
            if sums is self._branches:
                sums.add(burst[sample] + self._next, start_module, start, end_module, end, each)
            else:
                within = np.flatnonzero(start_module == end_module)
                columns = burst[sample] + self._next, start_module, start, end, each
                sums.add(*(column[within] for column in columns))
        self._weight.append(np.bincount(burst, batch.depth * times).astype(np.int64))
        self._next += len(self._weight[-1])
        self._span.add(batch)

    def of(self, flow: Flow, *, patched: bool = False) -> FunctionNoise:
        """The noise of ``flow`` from the added batches; ``patched`` as in `flow_of`."""
        weight, blocks, edges = np.concatenate(self._weight), flow.blocks, flow.edges
        burst, block, passed, ended = self._by_block(flow, patched)
        counted = Clusters(len(blocks))
        counted.add(weight, burst, block, passed)
        with np.errstate(invalid="ignore", divide="ignore"):  # of blocks that did not run
            count = np.sqrt(counted.variance(counted.share)) / counted.share
        count[counted.samples < 2] = np.nan

        # Both ways out of a block are parts of its executions.
        went = passed - ended
        ways = 2 * np.concatenate([block, block]) + np.repeat([0, 1], len(block))
        of_ways = np.concatenate([burst, burst]), ways, np.concatenate([went, ended])
        taken = _errors(*of_ways, np.repeat(np.arange(len(blocks)), 2))[1::2]

        edge_burst, edge, edge_count = self._by_edge(flow)
        conditional = (went > 0) & (flow.kind[blocks.last[block]] == KIND["cond"])
        every = (
            np.concatenate([edge_burst, burst[conditional]]),
            np.concatenate([edge, block[conditional] + len(edges)]),
            np.concatenate([edge_count, went[conditional]]),
        )
        share = _errors(*every, np.zeros(len(edges) + len(blocks), np.int64))
        site = np.where(edges.source >= 0, edges.source, len(flow))
        return FunctionNoise(
            counted.present,
            np.bincount(edge, minlength=len(edges)),
            np.bincount(block[went > 0], minlength=len(blocks)),
            count,
            taken,
            share[: len(edges)],
            share[len(edges) :],
            _errors(edge_burst, edge, edge_count, site),
            counted.samples,
            self._span.seconds,
        )

    def _by_block(self, flow: Flow, patched: bool) -> tuple[Array, Array, Array, Array]:
        """(burst, block, how often it ran in the burst, how often its branch was taken)."""
        burst, module, start, end, count = self._ranges.result()
        blocks = flow.blocks
        block_of = np.repeat(np.arange(len(blocks)), blocks.last - blocks.first + 1)
        found = stretches(flow, module, start, end, count, patched=patched)
        burst, count = burst[found.rows], count[found.rows]
        begin, final = block_of[found.first], block_of[found.last]
        number = final - begin + 1
        passed = np.repeat(count, number)
        ended = np.zeros(len(passed), np.int64)
        ended[np.cumsum(number) - 1] = np.where(found.after, 0, count)
        keys = [np.repeat(burst, number), ranges(begin, number)]
        (burst, block), (passed, ended) = group(keys, [passed, ended], [np.add] * 2)
        return burst, block, passed, ended

    def _by_edge(self, flow: Flow) -> tuple[Array, Array, Array]:
        """(burst, edge, how often it was recorded in the burst)."""
        burst, *places, count = self._branches.result()
        edges = flow.edges
        asked = edges.from_module, edges.from_address, edges.to_module, edges.to_address
        edge = rows_asked(*([column.view(np.int64) for column in columns] for columns in (asked, places)))
        known = edge >= 0
        return burst[known], edge[known], count[known]


def _errors(burst: Array, key: Array, part: Array, of: NDArray[np.int64]) -> NDArray[np.float64]:
    """float64, a key: the standard error of its share of all keys that are ``of`` the same thing (int64, a key), NaN
    where fewer than two bursts have that thing. A row is a burst that has ``part`` of a key; no two are of one."""
    things, keys = int(of.max(initial=-1)) + 1, len(of)
    (_, thing), (weight,) = group([burst, of[key]], [part], [np.add])
    weights = np.bincount(thing, weight, things), np.bincount(thing, weight * weight, things)
    bursts = np.bincount(thing[weight > 0], minlength=things)
    _, which = np.unique(burst * things + of[key], return_inverse=True)
    whole = np.bincount(which.reshape(-1), part)[which.reshape(-1)] if len(key) else np.zeros(0)
    part_squared, part_weight = np.bincount(key, part * part, keys), np.bincount(key, part * whole, keys)
    total, total_squared, samples = weights[0][of], weights[1][of], bursts[of]
    out = np.full(keys, np.nan)
    at = np.flatnonzero(samples > 1)
    share = np.bincount(key, part, keys)[at] / total[at]
    found = ratio_variance(share, part_squared[at], part_weight[at], total_squared[at], total[at], samples[at])
    out[at] = np.sqrt(found)
    return out
