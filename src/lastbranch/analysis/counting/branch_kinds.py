"""The type of each branch entry: from its flags if they record it, else from the instruction."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ... import native
from ...arrays import distinct, distinct_rows
from ...binaries.image import Code
from ...errors import UnavailableError
from ...isa import UNDECODABLE, Decoder
from ...lbr import KIND, branch_type
from ...model import Array, Profile
from ...opening import code_of
from .compact import Compactor, sparse_zeros

if TYPE_CHECKING:
    from ctypes import CDLL

__all__ = ["CALLS", "JUMPS", "LONGEST_CALL", "BranchKinds", "CodeOf", "NativeSites", "kinds_table"]

_UNKNOWN = KIND["unknown"]
_SLOT_BITS = 20
_NEW, _HIDDEN = 0, 255
_PLACES = 1 << 18
_DECLINED = -1
_KNOWN = np.uint8(1)
"""Added to the type of a branch in the table: 0 is for what was not seen yet, 255 for code that is not available."""
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))

LONGEST_CALL = 8
"""Bytes of ``call [base + index * 8 + disp32]`` with a REX prefix, the longest that compilers make."""


def kinds_table(*names: str) -> NDArray[np.bool_]:
    """bool[256]: whether a branch type has one of these names."""
    table = np.zeros(256, bool)
    table[[KIND[name] for name in names]] = True
    return table


CALLS = kinds_table("call", "ind_call", "cond_call")
JUMPS = kinds_table("cond", "uncond", "ind")
"""Branch types of calls and of jumps within a program."""


class CodeOf:
    """The code of a profile's modules with decoders for it, each opened once. ``None`` where there is no binary."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._find_kinds: dict[int, tuple[Code, Decoder] | None] = {}
        self._decoders: dict[str, Decoder] = {}

    def __call__(self, module: int) -> tuple[Code, Decoder] | None:
        """The code of a row of the modules table; ``None`` also for -1 and for machines without a decoder."""
        if module not in self._find_kinds:
            self._find_kinds[module] = self._open(module) if module >= 0 else None
        return self._find_kinds[module]

    def _open(self, module: int) -> tuple[Code, Decoder] | None:
        code = code_of(self._profile.modules[module])
        if code is None:
            return None
        try:
            if code.arch not in self._decoders:
                self._decoders[code.arch] = Decoder(code.arch)
        except UnavailableError:
            return None
        return code, self._decoders[code.arch]

    def kinds(self, module: Array, address: Array) -> NDArray[np.uint8]:
        """Branch type of the instruction at each place, 0 where it is no branch or cannot be decoded."""
        out = np.zeros(len(address), np.uint8)
        for row in distinct(module).tolist():
            if (opened := self(row)) is not None:
                (code, decoder), rows = opened, np.flatnonzero(module == row)
                size = np.full(len(rows), decoder.arch.longest)
                found, count = decoder.classify(*code.read_many(address[rows], size), address[rows], np.ones_like(size))
                out[rows[count > 0]] = found.kind
        out[out == UNDECODABLE] = 0
        return out

    def follows_call(self, module: Array, address: Array) -> NDArray[np.bool_]:
        """Whether a call ends where each address begins: what a return goes to."""
        out = np.zeros(len(address), bool)
        for row in distinct(module).tolist():
            if (opened := self(row)) is not None:
                code, decoder = opened
                for size in range(decoder.arch.unit, min(decoder.arch.longest, LONGEST_CALL) + 1):
                    rows = np.flatnonzero((module == row) & (address >= size))
                    begin, whole = address[rows] - np.uint64(size), np.full(len(rows), size)
                    found, count = decoder.classify(*code.read_many(begin, whole), begin, np.ones_like(whole))
                    out[rows[count > 0]] |= CALLS[found.kind] & (found.length == size)
        return out


class NativeSites:
    """Branch types by scope and source address: 1 + type, 255 where the type depends on the target. The compiled
    library (``native/branch_kinds.c``) does it; `BranchKinds` without it is its oracle."""

    def __init__(self, library: CDLL) -> None:
        self._library = library
        self._sites = library.lb_sites_new(int.from_bytes(os.urandom(8)))
        if not self._sites:
            raise MemoryError
        weakref.finalize(self, library.lb_sites_free, self._sites)

    @classmethod
    def available(cls) -> NativeSites | None:
        """An empty table, or ``None`` without the library."""
        library = native.library()
        return None if library is None else cls(library)

    def kinds(
        self,
        scope: NDArray[np.int64],
        offsets: NDArray[np.int64],
        source: Array,
        flags: Array,
        find: Callable[[Array, Array], NDArray[np.uint8]],
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64]] | None:
        """(uint8 type of each entry, int64 entries whose type depends on their target: theirs is 0).

        Stacks ``offsets`` (int64) of ``source`` and ``flags`` (uint64, any stride); ``scope`` (int64) has the owner of
        each. ``find`` gets new scopes and sources and gives their table values. ``None`` for scopes that the kernel
        does not take.
        """
        scope, offsets = np.ascontiguousarray(scope, np.int64), np.ascontiguousarray(offsets, np.int64)
        kind, fresh, pending = np.empty(len(source), np.uint8), np.empty(len(source), np.int64), np.zeros(1, np.int64)
        stacks = native.address(scope), native.address(offsets), len(scope), native.address(source), source.strides[0]
        out = map(native.address, (kind, fresh, pending))
        new = self._library.lb_sites_kinds(self._sites, *stacks, native.address(flags), flags.strides[0], *out)
        if new < _DECLINED:
            raise MemoryError
        if new == _DECLINED:
            return None
        if new:
            first = fresh[:new]
            owner, address = scope[np.searchsorted(offsets, first, side="right") - 1], source[first]
            columns = owner, address, find(owner, address)
            self._library.lb_sites_learn(self._sites, *map(native.address, columns), new)
        hidden = np.empty(pending[0], np.int64)
        if len(hidden):
            out = map(native.address, (kind, hidden))
            hidden = hidden[: self._library.lb_sites_resolve(self._sites, *stacks, *out)]
        return kind, hidden


class BranchKinds:
    """Types of branch entries by scope and address; each distinct branch is decoded once.

    A branch whose code is not available (a library without its binary) is judged by its target: right after a call the
    branch is a return, elsewhere in known code a call back. A branch between unknown places stays ``unknown``, which
    keeps stacks whole: calls and returns inside unknown code do not matter to known code.
    """

    def __init__(self, profile: Profile) -> None:
        self._binder, self._code = profile.binder, CodeOf(profile)
        self.any_known = False
        """Whether the type of any branch was found."""
        self._sites = NativeSites.available()
        self._by_place: dict[tuple[int, int], int] = {}  # by module and address: processes share their code
        self._compactor = Compactor()
        self._by_site = np.zeros(0, np.uint8)  # what each compacted source is; 0: it was not looked at yet
        slots = 1 << _SLOT_BITS
        # For sources that cannot be compacted, and branches whose target decides: the last branch of each slot.
        self._keys = [sparse_zeros(slots, kind) for kind in (np.int64, np.uint64, np.uint64)]
        self._kind = sparse_zeros(slots, np.uint8)

    def of(self, scope: Array, offsets: Array, source: Array, target: Array, flags: Array) -> NDArray[np.uint8]:
        """uint8 branch type (`lbr.branch_type`) of each entry: uint64 addresses and flag words, ragged by ``offsets``
        (int64, stacks + 1), and the int64 scope of each stack."""
        found = self._sites and self._sites.kinds(scope, offsets, source, flags, self._of_sites)
        if found:
            kind, hidden = found
            if len(hidden):
                kind[hidden] = self._slowly(hidden, scope, offsets, source, target)[hidden]
        else:
            kind = branch_type(flags)
            recorded = bool(kind.any())
            if len(kind) and not kind.all():
                unrecorded = self._look_up(scope, offsets, source, target)
                kind = np.where(kind == _UNKNOWN, unrecorded, kind) if recorded else unrecorded
        self.any_known = self.any_known or bool(kind.any())
        return kind

    def _look_up(self, scope: Array, offsets: Array, source: Array, target: Array) -> NDArray[np.uint8]:
        compacted = self._compactor.compact(scope, np.diff(offsets), (source,))
        if compacted is None:
            return self._slowly(np.flatnonzero(source != 0), scope, offsets, source, target)
        (sites,) = compacted
        highest = int(sites.max()) + 1
        if highest > len(self._by_site):  # only pages that are touched take memory
            more = sparse_zeros(2 * highest, np.uint8)
            more[: len(self._by_site)] = self._by_site
            self._by_site = more
        kind: NDArray[np.uint8] = self._by_site.take(sites)
        if not kind.all():
            new, first = np.unique(sites[kind == _NEW], return_index=True)
            first = np.flatnonzero(kind == _NEW)[first]
            stack = np.searchsorted(offsets, first, side="right") - 1
            self._by_site[new] = self._of_sites(scope[stack], source[first])
            self._by_site.take(sites, out=kind, mode="clip")
        hidden = np.flatnonzero(kind == _HIDDEN)
        kind -= _KNOWN
        if len(hidden):
            kind[hidden] = self._slowly(hidden, scope, offsets, source, target)[hidden]
        return kind

    def _of_sites(self, scope: Array, source: Array) -> NDArray[np.uint8]:
        """The table values of branches at these places."""
        module, address = self._binder.locate(scope, source)
        places = list(zip(module.tolist(), address.tolist(), strict=True))
        known = self._by_place
        if len(known) > _PLACES:
            known.clear()
        new = np.array([i for i, place in enumerate(places) if place not in known], np.int64)
        if len(new):
            kind = self._code.kinds(module[new], address[new]) + _KNOWN
            for row in distinct(module[new]).tolist():
                if self._code(row) is None:
                    kind[module[new] == row] = _HIDDEN
            known.update(zip([places[i] for i in new.tolist()], kind.tolist(), strict=True))
        found = np.array([known[place] for place in places], np.uint8)
        found[source == 0] = _UNKNOWN + _KNOWN
        return found

    def _slowly(self, rows: Array, scope: Array, offsets: Array, source: Array, target: Array) -> NDArray[np.uint8]:
        """The types of these rows of the entries, if need be by their targets; 0 for the others."""
        out = np.full(len(source), _UNKNOWN, np.uint8)
        each = np.repeat(scope, np.diff(offsets))
        out[rows] = self._find_kinds(each[rows], source[rows], target[rows])
        return out

    def _find_kinds(self, scope: Array, source: Array, target: Array) -> NDArray[np.uint8]:
        mixed = (source ^ (target << np.uint64(1)) ^ (scope.astype(np.uint64) * _MIX[1])) * _MIX[0]
        slot = (mixed >> np.uint64(64 - _SLOT_BITS)).astype(np.int64)
        keys = (scope, source, target)
        missing = np.flatnonzero(~self._there(slot, keys))
        kind: NDArray[np.uint8] = self._kind[slot]
        if len(missing):
            rows, which = distinct_rows(*(column[missing] for column in keys))
            once = missing[rows]
            kind[missing] = self._decode(scope[once].astype(np.int64), source[once], target[once])[which]
            for column, values in zip(self._keys, keys, strict=True):
                column[slot[missing]] = values[missing]
            self._kind[slot[missing]] = kind[missing]
        return kind

    def _there(self, slot: Array, keys: tuple[Array, Array, Array]) -> NDArray[np.bool_]:
        same = [column[slot] == key for column, key in zip(self._keys, keys, strict=True)]
        return np.asarray(same[0] & same[1] & same[2], bool)

    def _decode(self, scope: Array, source: Array, target: Array) -> NDArray[np.uint8]:
        module, address = self._binder.locate(scope, source)
        kind = self._code.kinds(module, address)
        hidden = np.flatnonzero([self._code(row) is None for row in module.tolist()])
        to_module, to = self._binder.locate(scope[hidden], target[hidden])
        seen = np.array([self._code(row) is not None for row in to_module.tolist()], bool)
        back = self._code.follows_call(to_module, to)
        kind[hidden[seen & back]] = KIND["ret"]
        kind[hidden[seen & ~back]] = KIND["ind_call"]
        return kind
