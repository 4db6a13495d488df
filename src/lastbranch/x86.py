"""Prefixes and opcodes of x86 instructions by name (Intel SDM, volume 2, 2.1.1 and appendix A)."""

from __future__ import annotations

__all__ = ["ENDBR32", "ENDBR64", "PREFIXES", "UD2", "Opcode", "Prefix"]


class Prefix:
    """Bytes before an opcode. In 64-bit code the prefixes of ES, CS, SS and DS mean nothing."""

    ES, CS, SS, DS, FS, GS = 0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65
    OPERAND_SIZE, ADDRESS_SIZE, LOCK = 0x66, 0x67, 0xF0
    REPNE, REP = 0xF2, 0xF3
    BND = REPNE
    """Only on branches."""
    REX = 0x40
    """The first of 16; the last byte before the opcode."""


PREFIXES = frozenset(
    {Prefix.ES, Prefix.CS, Prefix.SS, Prefix.DS, Prefix.FS, Prefix.GS, Prefix.OPERAND_SIZE, Prefix.ADDRESS_SIZE,
     Prefix.LOCK, Prefix.REPNE, Prefix.REP}
)  # fmt: skip
"""The prefixes of one byte in any mode: without REX."""


class Opcode:
    """Opcodes that lastbranch tells apart: of one byte, or the byte after `TWO_BYTES`."""

    TWO_BYTES = 0x0F
    JCC_SHORT = 0x70
    """The first of 16, by condition code."""
    JCC_NEAR = 0x80
    """After `TWO_BYTES`: the first of 16, by condition code."""
    LOAD, LEA = 0x8B, 0x8D
    PUSHF, POPF = 0x9C, 0x9D
    RET_POP, RET = 0xC2, 0xC3
    LOOPNE, LOOPE, LOOP, JRCXZ = 0xE0, 0xE1, 0xE2, 0xE3
    CALL, JMP, JMP_SHORT = 0xE8, 0xE9, 0xEB
    GROUP_5 = 0xFF
    """INC, DEC, CALL, JMP and PUSH through a register or memory, by the middle bits of the next byte: `CALL_INDIRECT`,
    `JMP_INDIRECT`."""
    CALL_INDIRECT, JMP_INDIRECT = 2, 4


UD2 = b"\x0f\x0b"
ENDBR64, ENDBR32 = b"\xf3\x0f\x1e\xfa", b"\xf3\x0f\x1e\xfb"
"""The landing instructions of indirect branches."""
