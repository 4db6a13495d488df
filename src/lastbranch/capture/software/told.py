"""Which branches can be told ahead, from the place where a way begins: that nothing on it changes what they read.

What is told is proven, for one thread: a register that no instruction of the way writes, or a word of memory that none
of its stores hits. A store's address is known if its registers are those of the place; a way with any other store is
followed no further than to the branch, and the program stops there. Words of the program may be written by other
threads, too: those are looked at again at the next stop.
"""

from __future__ import annotations

from typing import NamedTuple

from ...lbr import KIND
from ..ptrace import RIP, RSP
from .branching import Branch, Memory, Registers
from .code import Effects
from .effects import WORD, Store

__all__ = ["CALLS", "RETURN", "State", "Told", "Word", "freed"]

RETURN = KIND["ret"]
CALLS = frozenset((KIND["call"], KIND["ind_call"]))
_RETURN_AND_FREE = 3
"""Bytes of RET imm16, which moves the stack pointer further than RET does."""
_UNCHANGED = -1


def freed(branch: Branch) -> int | None:
    """By how much the return ``branch`` moves the stack pointer, ``None`` if that is not looked at."""
    return WORD if branch.length < _RETURN_AND_FREE else None


class Word(NamedTuple):
    """A word that tells where a branch goes, if nothing writes to it before."""

    at: int
    """Its address, or how far from the stack pointer at the place it is."""
    on_stack: bool
    value: int | None
    """What a call on the way put there; ``None``: what it holds at the place."""
    stores: tuple[Store, ...]
    """Of the way; registers must tell that they write elsewhere."""


class Told(NamedTuple):
    """A branch that can be told ahead: by ``word``, or by a register that stays as it is (``None``)."""

    branch: Branch
    word: Word | None

    def static(self) -> int | None:
        """Where it goes, if that is known without registers and memory."""
        return self.word.value if self.word is not None and not self.word.stores else None

    def goes(self, registers: Registers, stack: int | None, pushed: int | None, read: Memory) -> int | None:
        """Where it will go; ``None`` where that cannot be told after all.

        ``registers``, but RSP, which is ``stack``, are those at the place. ``pushed``: what stands at the stack
        pointer, but not in memory yet.
        """
        word = self.word
        if word is None:
            return self.branch.goes(registers, self.branch, read) if self.branch.goes else None
        if word.on_stack and stack is None:
            return None
        at = word.at + (stack or 0) if word.on_stack else word.at
        for store in word.stores:
            if store.hits(at, registers, stack):
                return None
        if word.value is not None:
            return word.value
        if pushed is not None and stack is not None and stack - WORD < at < stack + WORD:
            return pushed if at == stack else None
        found = read(at, WORD)
        return int.from_bytes(found, "little") if len(found) == WORD else None


class State(NamedTuple):
    """What is known of the stack, the registers and memory on a way, from how they are at the place."""

    effects: Effects = Effects()
    pushed: tuple[tuple[int, int, int], ...] = ()
    """Of each call: where its return address is from the stack pointer at the place, that address, and how many stores
    there were with it."""

    @property
    def stack(self) -> int | None:
        return self.effects.moved

    def after(self, effects: Effects) -> State:
        """Behind a straight line."""
        return State(self.effects.then(effects), self.pushed)

    def called(self, back: int) -> State:
        effects = self.effects.then(_PUSHED)
        if self.stack is None:
            return State(effects, self.pushed)
        return State(effects, (*self.pushed, (self.stack - WORD, back, len(effects.stores))))

    def returned(self, branch: Branch) -> State:
        return self.after(Effects(freed(branch)))

    def told(self, branch: Branch) -> Told | None:
        """How ``branch``, which comes now, can be told at the place already; ``None`` if it cannot."""
        if branch.goes is None:
            return None
        if branch.kind == RETURN:
            if self.stack is None:
                return None
            for at, back, stores in reversed(self.pushed):
                if at == self.stack:
                    return self._by_word(branch, at, back, self.effects.stores[stores:])
            return None if self.stack < 0 else self._by_word(branch, self.stack, None, self.effects.stores)
        if branch.reads is None or branch.reads == RSP or branch.kind == KIND["cond"]:
            return None
        if branch.reads == RIP:
            known = all(store.terms is not None for store in self.effects.stores)
            return Told(branch, Word(branch.target, False, None, self.effects.stores)) if known else None
        at_word = self.effects.written.get(branch.reads, _UNCHANGED)
        if at_word == _UNCHANGED:
            return Told(branch, None)
        return None if at_word is None else self._by_word(branch, at_word, None, self.effects.stores)

    def _by_word(self, branch: Branch, at: int, value: int | None, stores: tuple[Store, ...]) -> Told | None:
        if any(store.never_misses(at) for store in stores):
            return None
        return Told(branch, Word(at, True, value, tuple(store for store in stores if not store.misses(at))))


_PUSHED = Effects(-WORD, (Store(((RSP, 1),), -WORD, WORD),))
