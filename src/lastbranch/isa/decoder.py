"""Decode instructions: one, up to the next branch, or all of a range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ..errors import UnavailableError
from .kinds import ARCHITECTURES, NOT_A_BRANCH, UNDECODABLE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Decoder", "Instruction", "Instructions"]

_WINDOW = 4096
"""Bytes handed to capstone at once: it decodes all of them before it gives the first, and a bad byte starts anew."""


class Instruction(NamedTuple):
    """One instruction, or bytes that are none (`kind` `UNDECODABLE`, text ``(bad)``)."""

    address: int
    length: int
    kind: int
    """perf's branch type, `NOT_A_BRANCH` or `UNDECODABLE`."""
    target: int
    """Where a direct branch goes; 0 where that is not in the instruction."""
    text: str


class Instructions(NamedTuple):
    """Instructions of a range as columns of equal length, in the order of their addresses."""

    offset: NDArray[np.int64]
    """From the start of the range."""
    length: NDArray[np.uint8]
    kind: NDArray[np.uint8]
    target: NDArray[np.uint64]


class Decoder:
    """Decodes for ``arch``, a key of `ARCHITECTURES`; keep it for many calls, in one thread. Nothing is cached.

    Raises `UnavailableError` for another architecture, or where capstone cannot be loaded.
    """

    def __init__(self, arch: str = "x86_64") -> None:
        if arch not in ARCHITECTURES:
            raise UnavailableError(
                f"no decoder for instructions of {arch or 'an unknown machine'}",
                hint=f"there are: {', '.join(sorted(ARCHITECTURES))}",
            )
        try:
            import capstone  # type: ignore[import-untyped]
        except ImportError as error:
            raise UnavailableError(f"instructions cannot be decoded: {error}", hint="pip install capstone") from error
        self.arch = ARCHITECTURES[arch]
        self._engine = capstone.Cs(*(getattr(capstone, name) for name in self.arch.capstone))
        self._plain: set[str] = set()  # mnemonics that are no branches

    def one(self, code: bytes, address: int) -> Instruction:
        """The instruction at the start of ``code``, which lies at ``address``; `UNDECODABLE` also if it is cut off."""
        return next(self._straight(code[: self.arch.longest], address, 1), None) or self._bad(code, 0, address)

    def next_branch(self, code: bytes, address: int) -> Instruction | None:
        """The first branch of the straight line from ``address``, where ``code`` lies.

        `UNDECODABLE` where the line runs into bytes that are no instruction; ``None`` where ``code`` ends before
        either, its last instruction perhaps cut off.
        """
        done = 0
        for instruction in self._straight(code, address):
            if instruction.kind != NOT_A_BRANCH:
                return instruction
            done += instruction.length
        return None if len(code) - done < self.arch.longest else self._bad(code, done, address)

    def lines(self, code: bytes, address: int) -> Iterator[Instruction]:
        """All instructions of ``code``, one after the other; ``address`` is that of its first byte.

        Where nothing can be decoded one byte (x86) or word (AArch64) is given as `UNDECODABLE` and stepped over.
        """
        done, longest = 0, self.arch.longest
        while done < len(code):
            window = code[done : done + _WINDOW]
            end = done + len(window)
            for instruction in self._straight(window, address + done):
                yield instruction
                done += instruction.length
            if done < end and (end == len(code) or end - done >= longest):  # else it goes on in the next window
                bad = self._bad(code, done, address)
                yield bad
                done += bad.length

    def classify(self, code: bytes, address: int) -> Instructions:
        """What `lines` gives, as columns and without text."""
        import numpy as np  # not at the top: recordings start without it

        longest, done = self.arch.longest, 0
        found: list[tuple[int, int, int, int]] = []
        while done < len(code):
            window = code[done : done + _WINDOW]
            end = done + len(window)
            for at, length, mnemonic, operands in self._engine.disasm_lite(window, address + done, 0):
                found.append((at - address, length, *self._class(mnemonic, operands)))
            done = found[-1][0] + found[-1][1] if found else 0
            if done < end and (end == len(code) or end - done >= longest):  # as in `lines`
                bad = self._bad(code, done, address)
                found.append((done, bad.length, bad.kind, bad.target))
                done += bad.length
        columns = zip(*found, strict=True) if found else ((),) * 4
        return Instructions(*(np.array(c, t) for c, t in zip(columns, ("i8", "u1", "u1", "u8"), strict=True)))

    def kind(self, code: bytes, address: int) -> int:
        """The branch type of the instruction at the start of ``code``; `UNDECODABLE` also if it is cut off."""
        for _, _, mnemonic, operands in self._engine.disasm_lite(code, address, 1):
            return self._class(mnemonic, operands)[0]
        return UNDECODABLE

    def _straight(self, code: bytes, address: int, count: int = 0) -> Iterator[Instruction]:
        """Instructions up to the first that cannot be decoded."""
        for at, length, mnemonic, operands in self._engine.disasm_lite(code, address, count):
            text = f"{mnemonic} {operands}" if operands else mnemonic
            yield Instruction(at, length, *self._class(mnemonic, operands), text)

    def _class(self, mnemonic: str, operands: str) -> tuple[int, int]:
        """(branch type, target of a direct branch or 0) of an instruction by its text."""
        if mnemonic in self._plain:
            return NOT_A_BRANCH, 0
        direct, others = self.arch.direct, self.arch.others
        name = mnemonic.rpartition(" ")[2]  # behind prefixes: bnd, notrack, repz, lock
        last = operands.rpartition(", ")[2].removeprefix("#")
        if name in direct and last[:1].isdigit():
            return direct[name], int(last, 0) & self.arch.address_mask
        if name in direct or name in others:
            return others[name], 0
        self._plain.add(mnemonic)
        return NOT_A_BRANCH, 0

    def _bad(self, code: bytes, done: int, address: int) -> Instruction:
        return Instruction(address + done, min(self.arch.unit, len(code) - done), UNDECODABLE, 0, "(bad)")
