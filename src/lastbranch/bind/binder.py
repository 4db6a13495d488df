"""The binder finds the module, process and thread that owned an address at the time of a sample.

A sample's *scope* is one number for "this process life, while its mappings stay as they are, in this mode of the
processor". Samples are counted by scope and address, and only the distinct pairs are bound: the answer is the same for
all samples of a scope.

The mode decides which space an address is looked up in: the kernel's, the process's, those of a guest, or none (a
hypervisor's). A branch stack or a call chain can cross from user to kernel, so an unmapped address that belongs to the
other side is looked up there. If the kernel has the upper half of 64 bits, the address alone decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .. import native
from ..errors import Damage
from ..model import (
    KERNEL,
    KERNEL_HALF,
    Array,
    Load,
    Mode,
    Module,
    ModuleKind,
    Process,
    Profile,
    SampleBatch,
    Thread,
    guest_host,
    guest_kernel,
    guest_user,
    kernel_start,
    kernel_starts,
)
from .spaces import BY_ADDRESS, RUN, Ids, Replay, SpaceIndex, loads_of, replay

__all__ = ["Binder", "bias_of", "bind", "place", "with_binary"]

_ADDRESSES = (1 << 64) - 1
_ROW_COST = 64
"""Bytes of the index for each slab of a piece."""
_MODE_BITS = 3
_HOST, _GUEST, _HYPERVISOR = range(3)
_SIDE = np.array([_HOST, _HOST, _HOST, _HYPERVISOR, _GUEST, _GUEST])
"""Which machine's mappings count, by mode."""
_KERNEL_MODE = np.array([False, True, False, False, True, False])
_NOWHERE = -1
"""A space in which nothing is mapped."""


class Binder:
    """Address spaces over time of one profile.

    ``processes`` and ``threads`` are tables of lives. A *mapping* is a row of ``mapping_module`` (int64, row of the
    profile's modules) and ``mapping_bias`` (uint64): module address = address - bias.
    """

    def __init__(self, profile: Profile) -> None:
        self.modules, self._timeline = profile.modules, profile.timeline

        def cut(module: int, start: int, end: int, offset: int) -> list[tuple[int, int, int]]:
            return place(profile.modules[module], start, end, offset)

        changes = profile.timeline.columns()
        done = replay(profile.timeline, cut, profile.memory)
        self._last = done.last
        for pid, tid in sorted(profile.seen_threads):
            done.thread(pid, tid)
        for host in filter(None, map(guest_host, done.guests)):
            done.life(host)
        self.processes: Sequence[Process] = done.processes
        self.threads: Sequence[Thread] = done.threads
        self.mapping_module = done.mappings.array("module")
        self.mapping_bias = done.mappings.array("bias")
        self._times = done.times
        self._scoped: tuple[SampleBatch, NDArray[np.int64]] | None = None
        self._index_epochs(done)
        self._index_spaces(done, changes)
        self._index_threads(done)
        pieces = [done.pieces.array(name) for name in done.pieces.columns]
        self._index = SpaceIndex(*pieces, most=max(1 << 20, profile.memory // _ROW_COST))
        self._last = min((m for m in (self._last, self._index.last) if m is not None), default=None)
        if self._last is not None:
            row = int(profile.timeline.order()[self._last])
            reason = "address spaces after this place are not bound: they exceed the memory budget"
            note = Damage(reason, profile.timeline.offset_of(row), "changes", len(self._times) - self._last)
            profile.damage += [note] if note not in profile.damage else []

    def _index_epochs(self, done: Replay) -> None:
        bits = self._moment_bits = np.int64(len(self._times).bit_length())
        e = {name: done.epochs.array(name) for name in done.epochs.columns}
        order = np.lexsort((e["first"], e["pid"]))
        e = {name: values[order] for name, values in e.items()}
        pids, rank = np.unique(e["pid"], return_inverse=True)
        self._rank = Ids(pids.astype(np.uint32), np.arange(len(pids)), -1)
        self._epoch_key, self._epoch_pid = (rank << bits) | e["first"], e["pid"]
        # Row 0 is for pids that are not known.
        self._epoch_rank = np.append(np.int64(-2), rank)
        self._epoch_process = np.append(np.int64(-1), e["process"])
        self._epoch_space = np.append(np.int64(-1), e["space"])
        self._epoch_moment = np.append(np.int64(0), e["moment"])
        self._kernel_moment = np.array([0, *done.kernel_changes], np.int64)

    def _index_spaces(self, done: Replay, changes: dict[str, Array]) -> None:
        """The spaces of both sides by epoch: of the host, of guests, and none of a hypervisor."""
        self._kernel_start = kernel_start(changes)
        nowhere = np.full(len(self._epoch_space), _NOWHERE)
        self._kernels = np.array([np.zeros_like(nowhere), nowhere, nowhere])
        self._users = np.array([self._epoch_space, nowhere, nowhere])
        self._guest_start: NDArray[np.uint64] | None = None
        if not done.guests:
            return
        # The host's process that runs a guest identifies it; most recorders do not distinguish guests.
        starts = {guest_host(owner): start for owner, start in kernel_starts(changes).items() if owner < KERNEL}
        other = 0 if 0 in starts or len(starts) != 1 else next(iter(starts))
        hosts = sorted({-1} | {guest_host(owner) for owner in done.guests})  # -1: another process
        kernel_of = [host if host in starts else other for host in hosts]
        rows = [
            [done.guests.get(guest_kernel(k), _NOWHERE) for k in kernel_of],
            [done.guests.get(guest_user(host), _NOWHERE) if host >= 0 else _NOWHERE for host in hosts],
            [starts.get(k, KERNEL_HALF) for k in kernel_of],
        ]
        pids = np.append(np.int64(-1), self._epoch_pid)
        at = np.minimum(np.searchsorted(hosts, pids), len(hosts) - 1)
        at[np.array(hosts)[at] != pids] = 0
        self._kernels[_GUEST], self._users[_GUEST] = np.array(rows[0])[at], np.array(rows[1])[at]
        self._guest_start = np.array(rows[2], np.uint64)[at]

    def _index_threads(self, done: Replay) -> None:
        table = done.thread_table
        pair, first = table.array("process") << 32 | table.array("tid") & 0xFFFFFFFF, table.array("first")
        self._thread_row = np.lexsort((first, pair))
        self._thread_pair, first = pair[self._thread_row], first[self._thread_row]
        self._thread_key = (np.searchsorted(self._thread_pair, self._thread_pair) << self._moment_bits) | first

    # -- samples

    def moments(self, time: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64: how many changes had happened at each time, those at the same time included."""
        if len(time):  # few batches see a change
            low, high = np.searchsorted(self._times, (time.min(), time.max()), side="right").tolist()
            if low == high:
                return np.full(len(time), low)
        return np.searchsorted(self._times, time, side="right")

    def scopes(self, batch: SampleBatch) -> NDArray[np.int64]:
        """int64 scope of each sample."""
        known = self._scoped  # that of the newest batch is kept: several count the same one
        if known is None or known[0] is not batch:
            known = self._scoped = batch, self.new_scopes(batch)
        return known[1]

    def new_scopes(self, batch: SampleBatch) -> NDArray[np.int64]:
        """`scopes` of a batch that is not kept."""
        moment = self.moments(batch.time)
        rank = self._rank(batch.pid.view(np.uint32))
        epoch = np.searchsorted(self._epoch_key, (rank << self._moment_bits) | moment, side="right")
        # Row 0 where the last epoch that began is another process's, or none did.
        epoch *= self._epoch_rank[epoch] == rank
        if self._last is not None:
            epoch *= moment <= self._last
        if self._guest_start is not None:  # which guest it is does not depend on the time
            early = np.flatnonzero((batch.mode >= Mode.GUEST_KERNEL) & (epoch == 0) & (rank >= 0))
            epoch[early] = np.searchsorted(self._epoch_key, rank[early] << self._moment_bits) + 1
        epoch *= len(self._kernel_moment)
        if len(self._kernel_moment) > 1:
            epoch += np.searchsorted(self._kernel_moment[1:], moment, side="right")
        mode = np.minimum(batch.mode, Mode.GUEST_USER)
        if self._kernel_start == KERNEL_HALF:  # fewer scopes, so fewer pairs to count
            mode = np.where(mode <= Mode.USER, np.uint8(Mode.UNKNOWN), mode)
        epoch <<= _MODE_BITS
        epoch |= mode
        return epoch

    def process_of(self, scope: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 row of the processes table for each scope, -1 unknown."""
        row: NDArray[np.int64] = self._epoch_process[(scope >> _MODE_BITS) // len(self._kernel_moment)]
        return row

    @property
    def scope_end(self) -> int:
        """One more than the highest scope."""
        return len(self._epoch_process) * len(self._kernel_moment) << _MODE_BITS

    def weights_of(self, scope: NDArray[np.int64]) -> int:
        """1: the samples of one capture all count once."""
        return 1

    def threads_of(self, batch: SampleBatch, scope: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64 row of the threads table for each sample, -1 unknown."""
        process, moment = self.process_of(scope), self.moments(batch.time)
        pairs = process << 32 | batch.tid.view(np.uint32)
        if len(self._thread_row) == 0:
            return np.full(len(batch), -1, np.int64)
        start = np.searchsorted(self._thread_pair, pairs)
        latest = np.searchsorted(self._thread_key, (start << self._moment_bits) | moment, side="right") - 1
        # The life of a reused id that had begun by then; the first life also owns the time before its start.
        at = np.minimum(np.maximum(latest, start), len(self._thread_row) - 1)
        return np.where(self._thread_pair[at] == pairs, self._thread_row[at], -1)

    # -- addresses

    def find(self, scope: NDArray[np.int64], address: NDArray[np.uint64]) -> NDArray[np.int64]:
        """int64 mapping that owns each address in each scope, -1 where nothing is mapped."""
        return self._index.find_runs(self._runs(scope), address)

    def cut_pages(self, bits: int) -> NDArray[np.uint64]:
        """uint64: pages of 2**``bits`` bytes inside of which mappings begin or end (`SpaceIndex.cut_pages`)."""
        return self._index.cut_pages(bits)

    def _runs(self, scope: NDArray[np.int64]) -> Array:
        """The place in the index for the addresses of each scope (`spaces.RUN`)."""
        bounds = np.flatnonzero(scope[1:] != scope[:-1]) + 1
        runs = np.empty(min(len(scope), len(bounds) + 1), RUN)
        runs["end"] = np.append(bounds, len(scope))[: len(runs)]
        first = scope[np.append(0, bounds)[: len(runs)]]
        epoch, kernel_epoch = np.divmod(first >> _MODE_BITS, len(self._kernel_moment))
        mode = first & ((1 << _MODE_BITS) - 1)
        start = runs["kernel_start"] = self._start_of(mode, epoch)
        by_address = (mode == Mode.UNKNOWN) | (start == np.uint64(KERNEL_HALF))
        runs["side"] = np.where(by_address, BY_ADDRESS, _KERNEL_MODE[mode])
        machine, shared = _SIDE[mode], self._kernel_moment[kernel_epoch]
        # No record reports forks inside of a guest: mappings of its processes count as its kernel's do.
        own = np.where(machine == _GUEST, shared, self._epoch_moment[epoch])
        runs["space"] = np.stack([self._users[machine, epoch], self._kernels[machine, epoch]], axis=1)
        runs["moment"] = np.stack([own, shared], axis=1)
        return runs

    def _start_of(self, mode: NDArray[np.int64], epoch: NDArray[np.int64]) -> Array:
        """uint64: the lowest kernel address of the machine that ran."""
        host = np.uint64(self._kernel_start)
        if self._guest_start is None:
            return np.full(len(mode), host)
        return np.where(mode >= Mode.GUEST_KERNEL, self._guest_start[epoch], host)

    def in_kernel(self, scope: NDArray[np.int64], address: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """bool: whether each address is one of the kernel of the machine that ran, the host or a guest."""
        mode, epoch = scope & ((1 << _MODE_BITS) - 1), (scope >> _MODE_BITS) // len(self._kernel_moment)
        return np.asarray(address >= self._start_of(mode, epoch))

    def locate(self, scope: NDArray[np.int64], address: NDArray[np.uint64]) -> tuple[NDArray[np.int64], Array]:
        """(int64 module row or -1, uint64 module address) of each address; unmapped ones keep their own address."""
        mapping = self.find(scope, address)
        if len(self.mapping_module) == 0:
            return mapping, address
        return module_addresses(mapping, address, self.mapping_module, self.mapping_bias)

    def loads(self) -> Iterator[Load]:
        """Every mapping in every process that saw it, inherited mappings included."""
        return loads_of(self._timeline)


def module_addresses(
    mapping: NDArray[np.int64], address: Array, module: Array, bias: Array
) -> tuple[NDArray[np.int64], Array]:
    """(int64 module row or -1, uint64 module address) of uint64 addresses in these mappings (int64, -1 for none), of
    which each has a ``module`` (int64) and a ``bias`` (uint64). ``mapping`` may be written over."""
    library = native.library()
    if library is not None:
        out, owners = np.empty(len(address), np.uint64), (module, bias)
        given = native.address(address), address.strides[0], len(address), *map(native.address, owners)
        if library.lb_module_addresses(*given, len(module), native.address(mapping), native.address(out)) == 0:
            return mapping, out
    return _module_addresses(mapping, address, module, bias)


def _module_addresses(
    mapping: NDArray[np.int64], address: Array, module: Array, bias: Array
) -> tuple[NDArray[np.int64], Array]:
    row, inside = np.maximum(mapping, 0), mapping >= 0
    return np.where(inside, module[row], -1), np.where(inside, address - bias[row], address)


def bind(profile: Profile) -> Profile:
    """Set the binder of ``profile``, and the processes and threads that it finds. Call it again when the segments of a
    module change."""
    profile.binder = binder = Binder(profile)
    profile.processes, profile.threads = binder.processes, binder.threads
    return profile


def place(module: Module, start: int, end: int, offset: int) -> list[tuple[int, int, int]]:
    """A mapping of ``module`` as ``(start, end, bias)`` pieces: module address = address - bias (modulo 2**64).

    A mapping of a file is cut where another executable segment takes over, since each has its own distance between file
    offset and link address.
    """
    if module.kind is not ModuleKind.FILE or not module.segments or module.is_pe:
        return [(start, end, bias_of(module, start, offset))]
    length = end - start
    inside = [s for s in module.segments if s.offset < offset + length and s.offset + s.size > offset & ~0xFFF]
    code = sorted((s for s in inside if s.executable), key=lambda s: s.offset) or inside[:1]
    if not code:
        return [(start, end, bias_of(module, start, offset))]
    pieces = []
    for i, s in enumerate(code):
        lo = start if i == 0 else start + max(0, s.offset - offset)
        hi = end if i + 1 == len(code) else start + code[i + 1].offset - offset
        if lo < hi:
            pieces.append((lo, hi, (start - offset + s.offset - s.address) & _ADDRESSES))
    return pieces


def bias_of(module: Module, start: int, offset: int) -> int:
    """The one bias of a whole mapping: address - bias is the offset in the file (binaries), the distance from ``_text``
    (kernel) or from the start (kernel modules, vdso), or the address itself (no file)."""
    match module.kind:
        case ModuleKind.FILE:
            linked = module.image_base if module.is_pe and module.segments else 0
            return (start - offset - linked) & _ADDRESSES
        case ModuleKind.KERNEL:
            linked = min((s.address for s in module.segments if s.executable), default=0)
            return ((offset or start) - linked) & _ADDRESSES
        case ModuleKind.ANONYMOUS:
            return 0
        case _:
            return start & _ADDRESSES


def with_binary(module: Module, address: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Module addresses (uint64) that were bound before the module had segments, converted to the segments of today:
    equal to the result of `place` and `bias_of` for its mappings."""
    code = sorted((s for s in module.segments if s.executable), key=lambda s: s.offset)
    if module.is_pe and module.kind is ModuleKind.FILE:
        return address + np.uint64(module.image_base if module.segments else 0)
    if module.kind is ModuleKind.KERNEL:
        return address + np.uint64(min((s.address for s in code), default=0))
    if module.kind is not ModuleKind.FILE or not code:
        return address
    segment = np.searchsorted(np.array([s.offset for s in code[1:]], np.uint64), address, side="right")
    moved = np.array([(s.address - s.offset) & _ADDRESSES for s in code], np.uint64)
    return np.asarray(address + moved[segment])
