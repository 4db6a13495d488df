"""Which mnemonics are branches, of which kind: one table for each architecture.

Kinds are perf's branch types (`lbr.BRANCH_TYPES`), assigned as Linux does (arch/x86/events/utils.c, perf_event.h): a
far call, jump or return is a call, jump or return; LOOP and JRCXZ are conditional; IRET is ``eret``. Linux leaves INT
without a type; here it is ``irq``, so that it is seen to leave the program. XBEGIN is no branch, its abort is.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..lbr import KIND

__all__ = ["ARCHITECTURES", "NOT_A_BRANCH", "UNDECODABLE", "Architecture"]

NOT_A_BRANCH = 0
UNDECODABLE = 255
"""Kind of bytes that are no instruction, or the cut-off beginning of one."""

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
_A64_CONDITIONS = [
    "eq",
    "ne",
    "cs",
    "hs",
    "cc",
    "lo",
    "mi",
    "pl",
    "vs",
    "vc",
    "hi",
    "ls",
    "ge",
    "lt",
    "gt",
    "le",
    "al",
    "nv",
]
_A64_DIRECT = _table(
    cond=" ".join(["cbz cbnz tbz tbnz", *(f"b.{c} bc.{c}" for c in _A64_CONDITIONS)]), uncond="b", call="bl"
)
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
