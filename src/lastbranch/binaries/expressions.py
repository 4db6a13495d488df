"""DWARF expressions of call frame information (DWARF 5, 2.5 and 6.4.2), evaluated with registers and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import and_, eq, ge, gt, le, lt, ne, or_, xor

from .call_frames import Bytes, FrameSection

__all__ = ["evaluate"]

_STEPS, _DEPTH = 1000, 64
"""Most operations of one expression, and most values on its stack. Compilers use a dozen and four."""
_WORD = (1 << 64) - 1

_CONSTANTS = {0x08: 1, 0x09: -1, 0x0A: 2, 0x0B: -2, 0x0C: 4, 0x0D: -4, 0x0E: 8, 0x0F: -8}
"""DW_OP_const1u and so on: the width, negative for signed numbers."""


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _shifted_arithmetically(value: int, count: int) -> int:
    return _signed(value) >> min(count, 63)


def _quotient(one: int, other: int) -> int:
    """Rounded towards zero, as in C."""
    a, b = _signed(one), _signed(other)
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_TWO: dict[int, Callable[[int, int], int]] = {
    0x1A: and_, 0x1B: _quotient, 0x1C: lambda a, b: a - b, 0x1D: lambda a, b: a % b, 0x1E: lambda a, b: a * b,
    0x21: or_, 0x22: lambda a, b: a + b, 0x24: lambda a, b: a << min(b, 64), 0x25: lambda a, b: a >> min(b, 64),
    0x26: _shifted_arithmetically, 0x27: xor,
}  # fmt: skip
_COMPARED: dict[int, Callable[[int, int], bool]] = {0x29: eq, 0x2A: ge, 0x2B: gt, 0x2C: le, 0x2D: lt, 0x2E: ne}
"""DW_OP_eq to DW_OP_ne, of signed numbers."""
_ONE: dict[int, Callable[[int], int]] = {
    0x19: lambda a: abs(_signed(a)), 0x1F: lambda a: -a, 0x20: lambda a: ~a,
}  # fmt: skip


def evaluate(
    expression: bytes, registers: Sequence[int], read: Callable[[int, int], bytes], first: Sequence[int] = ()
) -> int:
    """The value of ``expression``, 64 bits. ``registers`` are by their DWARF numbers, ``read(address, size)`` gives
    little-endian memory, ``first`` is on the stack before.

    Raises `FormatError` for what is damaged, unknown or cannot be read.
    """
    section = FrameSection("expression", expression)
    code, stack = Bytes(section, 0, len(expression)), list(first)

    def pop() -> int:
        if not stack:
            raise section.bad("an operation without its operand", code.at - 1, "operation", expression.hex())
        return stack.pop()

    def register(number: int) -> int:
        if not 0 <= number < len(registers):
            raise section.bad("an unknown register", code.at, "register", number)
        return registers[number]

    for _ in range(_STEPS):
        if code.at >= code.end:
            return pop()
        opcode = code.byte("operation")
        match opcode:
            case 0x03:  # addr
                value = code.word(8, "address")
            case 0x06 | 0x94:  # deref, deref_size
                size = 8 if opcode == 0x06 else code.byte("size")
                address = pop()
                word = read(address, size) if 0 < size <= 8 else b""
                if len(word) != size or not size:
                    raise section.bad("memory that cannot be read", code.at - 1, "address", hex(address))
                value = int.from_bytes(word, "little")
            case _ if opcode in _CONSTANTS:
                width = _CONSTANTS[opcode]
                value = code.word(width, "constant") if abs(width) > 1 else _byte(code, width)
            case 0x10:
                value = code.uleb("constant")
            case 0x11:
                value = code.sleb("constant")
            case 0x12:  # dup
                value = pop()
                stack.append(value)
            case 0x13:  # drop
                pop()
                continue
            case 0x14 | 0x15:  # over, pick
                index = 1 if opcode == 0x14 else code.byte("index")
                if index >= len(stack):
                    raise section.bad("an operation without its operand", code.at - 1, "index", index)
                value = stack[-1 - index]
            case 0x16:  # swap
                one, value = pop(), pop()
                stack.append(one)
            case 0x17:  # rot
                one, two, three = pop(), pop(), pop()
                stack += [one, three]
                value = two
            case 0x23:  # plus_uconst
                value = pop() + code.uleb("constant")
            case 0x28 | 0x2F:  # bra, skip
                delta = code.word(-2, "delta")
                if opcode == 0x2F or pop():
                    code.at += delta
                    if not 0 <= code.at <= code.end:
                        raise section.bad("a branch out of the expression", code.begin, "delta", delta)
                continue
            case _ if opcode in _TWO:
                other, one = pop(), pop()
                if opcode in (0x1B, 0x1D) and not other:
                    raise section.bad("a division by zero", code.at - 1, "operation", hex(opcode))
                value = _TWO[opcode](one, other)
            case _ if opcode in _COMPARED:
                other, one = pop(), pop()
                value = _COMPARED[opcode](_signed(one), _signed(other))
            case _ if opcode in _ONE:
                value = _ONE[opcode](pop())
            case _ if 0x30 <= opcode < 0x50:  # lit0 to lit31
                value = opcode - 0x30
            case _ if 0x70 <= opcode < 0x90:  # breg0 to breg31
                value = register(opcode - 0x70) + code.sleb("offset")
            case 0x92:  # bregx
                number = code.uleb("register")
                value = register(number) + code.sleb("offset")
            case 0x96:  # nop
                continue
            case _:
                raise section.bad("an unknown operation", code.at - 1, "operation", hex(opcode))
        if len(stack) >= _DEPTH:
            raise section.bad(f"more than {_DEPTH} values", code.at - 1, "operation", hex(opcode))
        stack.append(value & _WORD)
    raise section.bad(f"more than {_STEPS} operations", code.at, "operation", expression.hex()[:64])


def _byte(code: Bytes, width: int) -> int:
    value = code.byte("constant")
    return value - 256 if width < 0 and value > 127 else value
