"""DWARF expressions of call frame information (DWARF 5, 2.5 and 6.4.2), evaluated with registers and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add, and_, eq, ge, gt, inv, le, lt, mod, mul, ne, neg, or_, sub, xor

from ..errors import FormatError
from .call_frames import Bytes, FrameSection

__all__ = ["evaluate"]

_STEPS, _DEPTH = 1000, 64
"""Most operations of one expression, and most values on its stack. Compilers use a dozen and four."""
_WORD = (1 << 64) - 1


def evaluate(
    expression: bytes, registers: Sequence[int], read: Callable[[int, int], bytes], first: Sequence[int] = ()
) -> int:
    """The value of ``expression``, 64 bits. ``registers`` are by their DWARF numbers, ``read(address, size)`` gives
    little-endian memory, ``first`` is on the stack before.

    Raises `FormatError` for what is damaged, unknown or cannot be read.
    """
    run = _Run(expression, registers, read, first)
    for _ in range(_STEPS):
        if run.code.at >= run.code.end:
            return run.pop()
        run.step()
    raise run.bad(f"more than {_STEPS} operations", run.code.at, expression.hex()[:64])


class _Run:
    """The evaluation of one expression: how far it is in its ``code``, and the values on its ``stack``."""

    def __init__(
        self, expression: bytes, registers: Sequence[int], read: Callable[[int, int], bytes], first: Sequence[int]
    ) -> None:  # fmt: skip
        self._section = FrameSection("expression", expression)
        self.code, self.stack = Bytes(self._section, 0, len(expression)), list(first)
        self._registers, self._read = registers, read

    def bad(self, reason: str, at: int, value: object, field: str = "operation") -> FormatError:
        return self._section.bad(reason, at, field, value)

    def step(self) -> None:
        """Do the next operation."""
        opcode = self.code.byte("operation")
        operation = _OPERATIONS.get(opcode)
        if operation is None:
            raise self.bad("an unknown operation", self.code.at - 1, hex(opcode))
        try:
            value = operation(self)
        except ZeroDivisionError:
            raise self.bad("a division by zero", self.code.at - 1, hex(opcode)) from None
        if value is None:
            return
        if len(self.stack) >= _DEPTH:
            raise self.bad(f"more than {_DEPTH} values", self.code.at - 1, hex(opcode))
        self.stack.append(value & _WORD)

    def pop(self) -> int:
        if not self.stack:
            raise self.bad("an operation without its operand", self.code.at - 1, self._section.data.hex())
        return self.stack.pop()

    def constant(self, width: int) -> int:
        """The operand of ``width`` bytes, negative for a signed number."""
        if abs(width) > 1:
            return self.code.word(width, "constant")
        value = self.code.byte("constant")
        return value - 256 if width < 0 and value > 127 else value

    def register(self, number: int) -> int:
        """The value of a register plus the operand."""
        if not 0 <= number < len(self._registers):
            raise self.bad("an unknown register", self.code.at, number, "register")
        return self._registers[number] + self.code.sleb("offset")

    def memory(self, size: int) -> int:
        address = self.pop()
        word = self._read(address, size) if 0 < size <= 8 else b""
        if len(word) != size or not size:
            raise self.bad("memory that cannot be read", self.code.at - 1, hex(address), "address")
        return int.from_bytes(word, "little")

    def picked(self, index: int) -> int:
        if index >= len(self.stack):
            raise self.bad("an operation without its operand", self.code.at - 1, index, "index")
        return self.stack[-1 - index]

    def duplicated(self) -> int:
        value = self.pop()
        self.stack.append(value)
        return value

    def swapped(self) -> int:
        one, other = self.pop(), self.pop()
        self.stack.append(one)
        return other

    def rotated(self) -> int:
        one, two, three = self.pop(), self.pop(), self.pop()
        self.stack += [one, three]
        return two

    def drop(self) -> None:
        self.pop()

    def branch(self, *, always: bool) -> None:
        delta = self.code.word(-2, "delta")
        if always or self.pop():
            self.code.at += delta
            if not 0 <= self.code.at <= self.code.end:
                raise self.bad("a branch out of the expression", self.code.begin, delta, "delta")


# -- The operations (DWARF 5, 7.7.1): each gives the value to push, or None


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _shifted_arithmetically(value: int, count: int) -> int:
    return _signed(value) >> min(count, 63)


def _quotient(one: int, other: int) -> int:
    """Rounded towards zero, as in C."""
    a, b = _signed(one), _signed(other)
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_Operation = Callable[[_Run], int | None]


def _of_one(function: Callable[[int], int]) -> _Operation:
    return lambda run: function(run.pop())


def _of_two(function: Callable[[int, int], int]) -> _Operation:
    def operation(run: _Run) -> int:
        other, one = run.pop(), run.pop()
        return function(one, other)

    return operation


def _compared(relation: Callable[[int, int], bool]) -> _Operation:
    return _of_two(lambda one, other: relation(_signed(one), _signed(other)))


def _constant(width: int) -> _Operation:
    return lambda run: run.constant(width)


def _literal(number: int) -> _Operation:
    return lambda run: number


def _register(number: int) -> _Operation:
    return lambda run: run.register(number)


_OPERATIONS: dict[int, _Operation] = {
    0x03: lambda run: run.code.word(8, "address"),  # addr
    0x06: lambda run: run.memory(8),  # deref
    **{0x08 + i: _constant(width) for i, width in enumerate((1, -1, 2, -2, 4, -4, 8, -8))},  # const1u to const8s
    0x10: lambda run: run.code.uleb("constant"),
    0x11: lambda run: run.code.sleb("constant"),
    0x12: _Run.duplicated,
    0x13: _Run.drop,
    0x14: lambda run: run.picked(1),  # over
    0x15: lambda run: run.picked(run.code.byte("index")),
    0x16: _Run.swapped,
    0x17: _Run.rotated,
    0x19: _of_one(lambda value: abs(_signed(value))),
    0x1A: _of_two(and_),
    0x1B: _of_two(_quotient),
    0x1C: _of_two(sub),
    0x1D: _of_two(mod),
    0x1E: _of_two(mul),
    0x1F: _of_one(neg),
    0x20: _of_one(inv),
    0x21: _of_two(or_),
    0x22: _of_two(add),
    0x23: lambda run: run.pop() + run.code.uleb("constant"),  # plus_uconst
    0x24: _of_two(lambda value, count: value << min(count, 64)),
    0x25: _of_two(lambda value, count: value >> min(count, 64)),
    0x26: _of_two(_shifted_arithmetically),
    0x27: _of_two(xor),
    0x28: lambda run: run.branch(always=False),
    **{0x29 + i: _compared(relation) for i, relation in enumerate((eq, ge, gt, le, lt, ne))},
    0x2F: lambda run: run.branch(always=True),  # skip
    **{0x30 + number: _literal(number) for number in range(32)},  # lit0 to lit31
    **{0x70 + number: _register(number) for number in range(32)},  # breg0 to breg31
    0x92: lambda run: run.register(run.code.uleb("register")),  # bregx
    0x94: lambda run: run.memory(run.code.byte("size")),  # deref_size
    0x96: lambda run: None,  # nop
}
