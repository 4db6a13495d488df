"""The types of `lastbranch.tbrw`, whose functions, structures and numbers are made from tables, as a stub file."""

from __future__ import annotations

import ctypes
import inspect
import re
from collections.abc import Iterator
from typing import Any

from faces import ROOT, imports_of
from lastbranch.formats.tb5.layout import POINTERS, STRUCTS
from lastbranch.tbrw.calls import FUNCTIONS
from lastbranch.tbrw.structures import ENUMERATIONS, NUMBERS, PAIRS, RECORDS, TYPES, Record

__all__ = ["stub"]

_HEAD = '''\
# ruff: noqa: N801, N802, N803, N815 - the guide's names
"""Types of the names that the package makes from tables. Made by tools/generate.py."""

import ctypes
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Generic, TypeAlias, TypeVar, overload

{imports}
from .handle import Handle
from .rules import FileMode
from .structures import TBRW_STRING_OR_ID as TBRW_STRING_OR_ID
from .structures import ComputedType, Record

_T = TypeVar("_T", bound=Record)
_Entries: TypeAlias = _T | Sequence[_T] | ctypes.Array[_T] | ctypes._Pointer[_T] | None
_Text: TypeAlias = TBRW_STRING_OR_ID | str | bytes | int | None

class _String:
    @overload
    def __get__(self, owner: None, kind: type) -> _String: ...
    @overload
    def __get__(self, owner: Record, kind: type) -> TBRW_STRING_OR_ID: ...
    def __set__(self, owner: Record, value: _Text) -> None: ...

class _Pointer(Generic[_T]):
    @overload
    def __get__(self, owner: None, kind: type) -> _Pointer[_T]: ...
    @overload
    def __get__(self, owner: Record, kind: type) -> ctypes._Pointer[_T]: ...
    def __set__(self, owner: Record, value: _Entries[_T]) -> None: ...

'''
_OWN = ("Section", "StreamSection")
_WIDTH = 120


def stub() -> str:
    """The text of ``__init__.pyi``."""
    numbers = {type(value).__name__ for value in NUMBERS.values()} | {k.__name__ for k in ENUMERATIONS.values()}
    constants = sorted(numbers - {*_OWN, "ComputedType", "FileMode", "Status", "int"})
    lines = ["from ..formats.tb5.layout import (", *(f"    {n}," for n in constants), ")"]
    imports = "\n".join([*lines, *imports_of(ROOT / "tbrw" / "__init__.py")])
    parts = [_HEAD.format(imports=imports)]
    for name, pair in PAIRS.items():
        parts.append(
            "\n".join([f"class {name}(ctypes.Structure):", *(f"    {f}: int" for f, _ in pair._fields_), "\n"])
        )
    for name, record in RECORDS.items():
        if name != "PID_BIND_STRUCT":
            parts.append("\n".join([f"class {name}(Record):", *_members(record), "\n"]))
    parts += [f"{name} = {kind.__name__}\n" for name, kind in ENUMERATIONS.items()]
    parts += [f"{name}{_basic(kind)}\n" for name, kind in TYPES.items()]
    parts += [f"{name}: {type(value).__name__}\n" for name, value in NUMBERS.items()]
    parts += ["\n", *(_function(name, function) for name, (_, function) in FUNCTIONS.items())]
    return "".join(parts)


def _basic(kind: Any) -> str:
    if issubclass(kind, ctypes._Pointer):
        return f": TypeAlias = ctypes._Pointer[{kind._type_.__name__}]"
    return f" = ctypes.{kind.__name__}"


def _members(record: type[Record]) -> Iterator[str]:
    fields = list(_flat(record))
    known = {name for name, _ in fields}
    targets = dict(POINTERS[record.__name__].targets) if record.__name__ in POINTERS else {}
    strings = STRUCTS[record.__name__].strings()
    for name, kind in fields:
        if name in targets:
            yield f"    {name}: _Pointer[{targets[name]}]"
        elif name in strings:
            yield f"    {name}: _String"
        else:
            yield f"    {name}: {kind.__name__ if kind in PAIRS.values() else 'int'}"
    others = [n for n, v in vars(record).items() if isinstance(v, property) and n not in known]
    yield from (f"    {name}: int" for name in others)
    arguments = ", ".join(f"{n}: {_argument(n, k, targets, strings)} = ..." for n, k in fields)
    yield from _wrapped("    def __init__(self, ", arguments, ") -> None: ...", "    ")


def _argument(name: str, kind: Any, targets: dict[str, str], strings: Any) -> str:
    if name in targets:
        return f"_Entries[{targets[name]}]"
    if name in strings:
        return "_Text"
    return kind.__name__ if kind in PAIRS.values() else "int"


def _flat(kind: Any) -> Iterator[tuple[str, Any]]:
    """(name, type) of all fields, those of structures without a name too."""
    for name, inner, *_ in kind._fields_:
        if name in getattr(kind, "_anonymous_", ()):
            yield from _flat(inner)
        else:
            yield name, inner


def _function(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    arguments = ", ".join(f"{p.name}: {_shown(p.annotation)}" for p in signature.parameters.values())
    return "\n".join(_wrapped(f"def {name}(", arguments, f") -> {_shown(signature.return_annotation)}: ...", "")) + "\n"


def _wrapped(head: str, arguments: str, tail: str, indent: str) -> Iterator[str]:
    """A single line, or a line for each argument if that is too long."""
    if len(head) + len(arguments) + len(tail) <= _WIDTH:
        yield head + arguments + tail
        return
    start, _, first = head.partition("(")
    yield f"{start}("
    for one in [*filter(None, [first.rstrip(", ")]), *re.split(r", (?=\w+: )", arguments)]:
        yield f"{indent}    {one},"
    yield f"{indent}{tail}"


def _shown(kind: Any) -> str:
    text = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    return re.sub(r"\b[A-Za-z_][\w.]*\.(\w+)", r"\1", text)
