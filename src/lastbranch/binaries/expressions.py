"""DWARF expressions of call frame information (DWARF 5, 2.5 and 6.4.2), evaluated with registers and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add, and_, eq, ge, gt, inv, le, lt, mod, mul, ne, neg, or_, sub, xor

from ..errors import FormatError
from .call_frames import Bytes, FrameSection
from .dwarf import DW_OP

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
    """The evaluation of one expression: its position in the ``code``, and the values on its ``stack``."""

    def __init__(
        self, expression: bytes, registers: Sequence[int], read: Callable[[int, int], bytes], first: Sequence[int]
    ) -> None:
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
    DW_OP.addr: lambda run: run.code.word(8, "address"),
    DW_OP.deref: lambda run: run.memory(8),
    DW_OP.const1u: _constant(1),
    DW_OP.const1s: _constant(-1),
    DW_OP.const2u: _constant(2),
    DW_OP.const2s: _constant(-2),
    DW_OP.const4u: _constant(4),
    DW_OP.const4s: _constant(-4),
    DW_OP.const8u: _constant(8),
    DW_OP.const8s: _constant(-8),
    DW_OP.constu: lambda run: run.code.uleb("constant"),
    DW_OP.consts: lambda run: run.code.sleb("constant"),
    DW_OP.dup: _Run.duplicated,
    DW_OP.drop: _Run.drop,
    DW_OP.over: lambda run: run.picked(1),
    DW_OP.pick: lambda run: run.picked(run.code.byte("index")),
    DW_OP.swap: _Run.swapped,
    DW_OP.rot: _Run.rotated,
    DW_OP.abs: _of_one(lambda value: abs(_signed(value))),
    DW_OP.and_: _of_two(and_),
    DW_OP.div: _of_two(_quotient),
    DW_OP.minus: _of_two(sub),
    DW_OP.mod: _of_two(mod),
    DW_OP.mul: _of_two(mul),
    DW_OP.neg: _of_one(neg),
    DW_OP.not_: _of_one(inv),
    DW_OP.or_: _of_two(or_),
    DW_OP.plus: _of_two(add),
    DW_OP.plus_uconst: lambda run: run.pop() + run.code.uleb("constant"),
    DW_OP.shl: _of_two(lambda value, count: value << min(count, 64)),
    DW_OP.shr: _of_two(lambda value, count: value >> min(count, 64)),
    DW_OP.shra: _of_two(_shifted_arithmetically),
    DW_OP.xor: _of_two(xor),
    DW_OP.bra: lambda run: run.branch(always=False),
    DW_OP.eq: _compared(eq),
    DW_OP.ge: _compared(ge),
    DW_OP.gt: _compared(gt),
    DW_OP.le: _compared(le),
    DW_OP.lt: _compared(lt),
    DW_OP.ne: _compared(ne),
    DW_OP.skip: lambda run: run.branch(always=True),
    **{DW_OP.lit0 + number: _literal(number) for number in range(32)},
    **{DW_OP.breg0 + number: _register(number) for number in range(32)},
    DW_OP.bregx: lambda run: run.register(run.code.uleb("register")),
    DW_OP.deref_size: lambda run: run.memory(run.code.byte("size")),
    DW_OP.nop: lambda run: None,
}
