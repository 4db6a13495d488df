"""Instructions: branch kind, length and direct target. capstone decodes; tables here classify.

Kinds are perf's branch types (`lbr.BRANCH_TYPES`), assigned as Linux does (arch/x86/events/utils.c, perf_event.h): a
far call, jump or return is a call, jump or return; LOOP and JRCXZ are conditional; IRET is ``eret``. Linux leaves INT
without a type; here it is ``irq``, so that code is seen to leave the program. XBEGIN is no branch, its abort is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .errors import UnavailableError
from .lbr import KIND

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ARCHITECTURES", "NOT_A_BRANCH", "UNDECODABLE", "Decoder", "Instruction", "Instructions"]

NOT_A_BRANCH = 0
UNDECODABLE = 255
"""Kind of bytes that are no instruction, or the cut-off beginning of one."""
_BAD = "(bad)"
"""Their mnemonic."""

_ADDRESSES = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Architecture:
    """How capstone is opened for it, and its branches.

    ``direct`` is for a branch whose last operand is a plain address, ``others`` for any other form.
    """

    capstone: tuple[str, str]
    """Names of the CS_ARCH and CS_MODE constants."""
    unit: int
    """Bytes that are stepped over where nothing can be decoded; instructions are a multiple of it."""
    longest: int
    """Bytes of the longest instruction."""
    direct: dict[str, int]
    others: dict[str, int]
    address_mask: int


def _table(**mnemonics: str) -> dict[str, int]:
    return {mnemonic: KIND[kind] for kind, names in mnemonics.items() for mnemonic in names.split()}


_X86_DIRECT = _table(
    cond="ja jae jb jbe jcxz je jecxz jg jge jl jle jne jno jnp jns jo jp jrcxz js loop loope loopne",
    uncond="jmp",
    call="call",
)
_X86_OTHERS = _table(
    uncond="jmpf", ind="jmp ljmp", ind_call="call lcall", ret="ret retf retfq retq retl", syscall="syscall sysenter",
    sysret="sysret sysretq sysexit sysexitq", eret="iret iretd iretq", irq="int int1 int3 into",
)  # fmt: skip
_A64_CONDITIONS = "eq ne cs hs cc lo mi pl vs vc hi ls ge lt gt le al nv"
_A64_CONDITIONAL = " ".join(f"b.{c} bc.{c}" for c in _A64_CONDITIONS.split())
_A64_DIRECT = _table(cond=f"cbz cbnz tbz tbnz {_A64_CONDITIONAL}", uncond="b", call="bl")
_A64_OTHERS = _table(
    ind="br braa braaz brab brabz", ind_call="blr blraa blraaz blrab blrabz", ret="ret retaa retab",
    syscall="svc hvc smc", eret="eret eretaa eretab", irq="brk hlt",
)  # fmt: skip

_I386 = Architecture(("CS_ARCH_X86", "CS_MODE_32"), 1, 15, _X86_DIRECT, _X86_OTHERS, 0xFFFFFFFF)
ARCHITECTURES: dict[str, Architecture] = {
    "x86_64": Architecture(("CS_ARCH_X86", "CS_MODE_64"), 1, 15, _X86_DIRECT, _X86_OTHERS, _ADDRESSES),
    "i386": _I386,
    "i586": _I386,
    "i686": _I386,
    "aarch64": Architecture(("CS_ARCH_ARM64", "CS_MODE_ARM"), 4, 4, _A64_DIRECT, _A64_OTHERS, _ADDRESSES),
}
"""By the name that ``uname -m`` gives (`Machine.arch`)."""


# -- Decoding


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
        self._others = {**self.arch.others, _BAD: UNDECODABLE}
        self._plain: set[str] = set()  # mnemonics that are no branches

    def one(self, code: bytes, address: int) -> Instruction:
        """The instruction at the start of ``code``, which lies at ``address``; `UNDECODABLE` also if it is cut off."""
        for decoded in self._engine.disasm_lite(code[: self.arch.longest], address, 1):
            return self._instruction(*decoded)
        return self._instruction(address, min(self.arch.unit, len(code)), _BAD, "")

    def lines(self, code: bytes, address: int) -> Iterator[Instruction]:
        """All instructions of ``code``, one after the other; ``address`` is that of its first byte.

        Where nothing can be decoded, one byte (x86) or word (AArch64) is an `UNDECODABLE` instruction.
        """
        for window in self._windows(code, address):
            for decoded in window:
                yield self._instruction(*decoded)

    def classify(self, code: bytes, address: int) -> Instructions:
        """The instructions of `lines` as columns, without text."""
        import numpy as np  # not at the top: recordings start without it

        found = [
            (at - address, length, *self._class(mnemonic, operands))
            for window in self._windows(code, address)
            for at, length, mnemonic, operands in window
        ]
        columns = zip(*found, strict=True) if found else ((),) * 4
        return Instructions(*(np.array(c, t) for c, t in zip(columns, ("i8", "u1", "u1", "u8"), strict=True)))

    def kind(self, code: bytes, address: int) -> int:
        """The branch type of the instruction at the start of ``code``; `UNDECODABLE` also if it is cut off."""
        for _, _, mnemonic, operands in self._engine.disasm_lite(code, address, 1):
            return self._class(mnemonic, operands)[0]
        return UNDECODABLE

    def _windows(self, code: bytes, address: int) -> Iterator[list[tuple[int, int, str, str]]]:
        """(address, length, mnemonic, operands) of all instructions, a window at a time."""
        done = 0
        while done < len(code):
            window = code[done : done + _WINDOW]
            end = done + len(window)
            decoded = list(self._engine.disasm_lite(window, address + done, 0))
            if decoded:
                yield decoded
                done = decoded[-1][0] + decoded[-1][1] - address
            if done < end and (end == len(code) or end - done >= self.arch.longest):  # else the next window decodes it
                length = min(self.arch.unit, len(code) - done)
                yield [(address + done, length, _BAD, "")]
                done += length

    def _instruction(self, address: int, length: int, mnemonic: str, operands: str) -> Instruction:
        text = f"{mnemonic} {operands}" if operands else mnemonic
        return Instruction(address, length, *self._class(mnemonic, operands), text)

    def _class(self, mnemonic: str, operands: str) -> tuple[int, int]:
        """(branch type, target of a direct branch or 0) of an instruction by its text."""
        if mnemonic in self._plain:
            return NOT_A_BRANCH, 0
        direct, others = self.arch.direct, self._others
        name = mnemonic.rpartition(" ")[2]  # after prefixes: bnd, notrack, repz, lock
        last = operands.rpartition(", ")[2].removeprefix("#")
        if name in direct and last[:1].isdigit():
            return direct[name], int(last, 0) & self.arch.address_mask
        if name in direct or name in others:
            return others[name], 0
        self._plain.add(mnemonic)
        return NOT_A_BRANCH, 0
