"""The sampling noise of shares of samples: how far off they would be in another recording of the same behaviour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...arrays import Sums, distinct_rows, group
from ...model import Array, Profile, SampleBatch, SampleFilter
from ..counting.count_tables import Key, rows_of
from ..naming import Namer, View
from ..samples import any_end_in, filtered_batches
from .bursts import TimeSpan, WholeBursts, bursts_of, share_bursts, whole_bursts, without_lists
from .significance import Clusters, time_to_halve

__all__ = [
    "Noise",
    "ShareNoise",
    "innermost",
    "noise_of_addresses",
    "noise_of_branches",
    "noise_of_rows",
    "rows_asked",
]

_ALONE = -1
"""The number of samples that are a burst each: their sums need no other samples."""


@dataclass(slots=True)
class Noise:
    """``error`` float64, a row that was asked for: the standard error of its share ``of`` its event, from 0 to 1;
    ``observed`` int64: the independent observations that have it. ``bursts``: those of all events, which are ``unit``;
    ``seconds`` they cover, 0 where times are not known."""

    error: NDArray[np.float64]
    observed: NDArray[np.int64]
    bursts: int
    seconds: float
    unit: str
    of: str = "samples %"

    @property
    def notes(self) -> list[str]:
        """How long to record for half of the errors. Empty if not known."""
        more = time_to_halve(self.seconds)
        noise = f"noise is the standard error of {self.of}, in points, from {self.bursts} {self.unit}"
        return [f"{noise}; {more}"] if more else []


class ShareNoise:
    """Sums over the bursts of batches by place. ``place_of`` gives integer columns for the samples of a batch.

    Only events whose samples share bursts need these sums: for independent samples, counts are enough.
    """

    def __init__(self, profile: Profile, place_of: Callable[[SampleBatch], tuple[Array, ...]], columns: int) -> None:
        self._profile, self._place_of = profile, place_of
        self._shared, self._whole = share_bursts(profile), WholeBursts(profile)
        self._sums = Sums([np.int64] * (3 + columns), [np.int64])
        """Samples by event, burst (or `_ALONE`), all samples of that burst (`_ALONE`: 1), and place."""
        self._settled = Sums([np.int64] * (1 + columns), [np.int64] * _BY_KEY)
        """By event, and a place of each key."""
        self._weights = np.zeros((len(profile.events), 3), np.int64)
        """Bursts of each event, samples, and the sum of the squares of those of a burst."""
        self._next = 0
        self._span = TimeSpan(profile)

    def add(self, batch: SampleBatch) -> None:
        """Sum up a batch."""
        if not len(batch):
            return
        self._span.add(batch)
        if self._shared.any():
            for whole in self._whole.add(without_lists(batch)):
                weights, rows = self._of_bursts(whole)
                self._weights += weights
                self._sums.add(*rows)
                self._next += len(whole)

    def _of_bursts(self, batch: SampleBatch) -> tuple[NDArray[np.int64], list[Array]]:
        """(rows of `_weights`, columns of `_sums`) of whole bursts."""
        burst = bursts_of(self._profile, batch)
        size, weights = np.bincount(burst), np.zeros_like(self._weights)
        first = np.flatnonzero(np.diff(burst, prepend=-1))
        times, event = self._profile.weight_of(batch), batch.event.astype(np.int64)
        for number, values in enumerate((np.ones(len(size), np.int64), size, size * size * times)):
            weights[:, number] = np.bincount(event[first], values, len(weights)).astype(np.int64) * times
        several = size[burst] > 1
        own, whole = np.where(several, burst + self._next, _ALONE), np.where(several, size[burst] * times, 1)
        place = (column.view(np.int64) for column in self._place_of(batch))
        return weights, [event, own, whole, *place, np.full(len(batch), times)]

    def settle(self, keys_of: Callable[..., Array], is_last: Callable[..., Array]) -> None:
        """Sum up over the bursts by key, as ``keys_of`` gives the key, so that not all bursts are kept. ``is_last``
        gets the same columns; places for which ``is_last`` is false keep their bursts, because their key may change.
        ``is_last`` is true for all places of a key, or for none."""
        rows = self._sums.result()
        done = np.asarray(is_last(*rows[3:-1]), bool)
        self._sums.reset(*(column[~done] for column in rows))
        event, _, at, *sums = _by_key([column[done] for column in rows], keys_of)
        self._settled.add(event, *(column[done][at] for column in rows[3:-1]), *sums)

    def of(self, event: Array, key: Array, samples: Array, keys_of: Callable[..., Array]) -> Noise:
        """The noise of the share of each ``key`` (not below -1) in its ``event``, which has so many ``samples`` there;
        the rows are all of a table. ``keys_of`` gives the keys of places."""
        weights, rows = self._weights.copy(), [self._sums.result()]
        for batch in self._whole.open():
            more, columns = self._of_bursts(batch)
            weights += more
            rows.append(columns)
        error, observed, bursts = np.zeros(len(event)), np.zeros(len(event), np.int64), 0
        sums = Sums([np.int64] * 2, [np.int64] * _BY_KEY)
        own_event, *place = self._settled.result()
        sums.add(own_event, keys_of(*place[:-_BY_KEY]).astype(np.int64), *place[-_BY_KEY:])
        own_event, own_key, _, *own = _by_key([np.concatenate(c) for c in zip(*rows, strict=True)], keys_of)
        sums.add(own_event, own_key, *own)
        own_event, own_key, *own = sums.result()
        width = int(max(own_key.max(initial=0), key.max(initial=0))) + 2
        for row, shared in enumerate(self._shared.tolist()):
            asked, clusters = event == row, Clusters(width)
            if shared:
                mine = own_event == row
                clusters.samples, clusters.weight, clusters.weight_squared = weights[row].tolist()
                part, squared, weight, present = (np.bincount(own_key[mine] + 1, one[mine], width) for one in own)
                clusters.part, clusters.part_squared, clusters.part_weight = part, squared, weight
                clusters.present = present.astype(np.int64)
            else:
                clusters.samples = clusters.weight = clusters.weight_squared = int(samples[asked].sum())
                clusters.part = np.bincount(key[asked] + 1, samples[asked], width)
                clusters.part_squared = clusters.part_weight = clusters.part
                clusters.present = clusters.part.astype(np.int64)
            observed[asked] = clusters.present[key[asked] + 1]
            if clusters.weight:
                error[asked] = clusters.error[key[asked] + 1]
            bursts += clusters.samples
        seen = self._shared[np.isin(np.arange(len(self._shared)), event)]
        kinds = ("samples", not seen.all()), ("bursts", seen.any())
        return Noise(error, observed, bursts, self._span.seconds, " and ".join(kind for kind, has in kinds if has))


_BY_KEY = 4


def _by_key(rows: list[Array], keys_of: Callable[..., Array]) -> list[Array]:
    """[event, key, a row with this key, sums] of rows of `ShareNoise`: samples; over the bursts, the sums of squared
    samples and of samples times all samples of the burst; and how many bursts have any."""
    event, burst, whole, *place, samples = rows
    keys, values = [event, burst, keys_of(*place).astype(np.int64)], [samples, whole, np.arange(len(event))]
    (event, burst, key), (samples, whole, row) = group(keys, values, [np.add, np.maximum, np.minimum])
    alone = burst == _ALONE
    sums = [samples, np.where(alone, samples, samples * samples), samples * whole, np.where(alone, samples, 1)]
    keys, (row, *sums) = group([event, key], [row, *sums], [np.minimum, *[np.add] * _BY_KEY])
    return [*keys, row, *sums]


def noise_of_addresses(profile: Profile) -> ShareNoise:
    """By process, module and module address of the samples' own addresses, for keys by `innermost`."""
    binder = profile.binder

    def place_of(batch: SampleBatch) -> tuple[Array, ...]:
        scope = binder.scopes(batch)
        return binder.process_of(scope), *binder.locate(scope, batch.ip)

    return ShareNoise(profile, place_of, 3)


def innermost(namer: Namer, view: View, process: Array, module: Array, address: Array) -> Array:
    """The row of labels of each place."""
    rows, offsets = namer.chains(view, process, module, address.view(np.uint64))
    return rows[offsets[:-1]]


def noise_of_rows(profile: Profile, by: Key) -> ShareNoise:
    """By the rows of a table: process, thread or module."""
    binder = profile.binder
    return ShareNoise(profile, lambda batch: (rows_of(binder, batch, by),), 1)


def noise_of_branches(
    profile: Profile, sample_filter: SampleFilter | None, ends: Sequence[tuple[Array, Array]]
) -> Noise | None:
    """The noise of shares of branch entries in a recording in bursts, in a pass of its own; ``None`` for others.

    ``ends`` are (module, address) of rows: where branches begin, and, where they are rows of branches, where they go.
    """
    if not share_bursts(profile).any():
        return None
    binder, next_burst = profile.binder, 0
    sums, span = Sums([np.int64] * (1 + 2 * len(ends)), [np.int64]), TimeSpan(profile)
    for stream in profile.streams:
        if "branch_from" not in stream.columns:
            continue
        batches = stream.batches(("branch_from", "branch_to"))
        kept_samples = filtered_batches(profile, batches, sample_filter, by_address=False)
        for batch in whole_bursts(profile, kept_samples):
            sample = np.repeat(np.arange(len(batch)), batch.depth)
            scope, burst = binder.scopes(batch)[sample], bursts_of(profile, batch)[sample] + next_burst
            places = [binder.locate(scope, batch[column]) for column in ("branch_from", "branch_to")]
            kept = any_end_in(sample_filter, *(module for module, _ in places))
            kept &= (batch["branch_from"] != 0) | (batch["branch_to"] != 0)
            columns = (column.view(np.int64)[kept] for place in places[: len(ends)] for column in place)
            times = np.full(np.count_nonzero(kept), profile.weight_of(batch), np.int64)
            sums.add(burst[kept], *columns, times)
            next_burst += len(batch)
            span.add(batch)
    burst, *place, count = sums.result()
    rows = len(ends[0][0])
    asked = [column.view(np.int64) for end in ends for column in end]
    row = rows_asked(asked, place)
    burst = np.unique(burst, return_inverse=True)[1].reshape(-1)
    found, known = Clusters(rows), row >= 0
    found.add(np.bincount(burst, count), burst[known], row[known], count[known])
    return Noise(found.error, found.present, found.samples, span.seconds, "bursts", "share of time %")


def rows_asked(asked: Sequence[Array], given: Sequence[Array]) -> NDArray[np.int64]:
    """int64: the row of ``asked``, integer columns whose rows differ, that each row of ``given`` equals; -1: none."""
    rows = len(asked[0])
    _, which = distinct_rows(*(np.concatenate(pair) for pair in zip(asked, given, strict=True)))
    row_of = np.full(int(which.max(initial=-1)) + 1, -1)
    row_of[which[:rows]] = np.arange(rows)
    return np.asarray(row_of[which[rows:]])
