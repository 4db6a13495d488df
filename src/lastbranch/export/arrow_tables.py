"""The tables of a profile in Arrow, whose types are those of the model's dataclasses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from typing import Any

from ..errors import UnavailableError
from ..model import Event, Module, Process, Profile, Segment, Thread, visible

__all__ = ["arrow_type", "model_table", "pyarrow"]

_ROWS: dict[str, type] = {"modules": Module, "processes": Process, "threads": Thread, "events": Event}
_UNSIGNED = {(Module, "size"), (Module, "image_base"), *((Segment, f.name) for f in fields(Segment))}
"""Numbers that can be addresses."""
_WORD = (1 << 64) - 1


def pyarrow(module: str = "pyarrow") -> Any:
    """The library, or a module of it. Raises `UnavailableError` where it is not installed."""
    try:
        return import_module(module)
    except ImportError:
        raise UnavailableError("pyarrow is not installed", hint="pip install 'lastbranch[arrow]'") from None


def model_table(profile: Profile, name: str) -> Any:
    """The table ``name`` (one of `lastbranch.model.TABLES`) as a ``pyarrow.Table``; ``row`` is what others refer to."""
    pa = pyarrow()

    columns: dict[str, Any] = {"row": pa.array(range(len(getattr(profile, name))), pa.int64())}
    for field in fields(_ROWS[name]):
        kind, convert = arrow_type(_ROWS[name], field.name, str(field.type))
        columns[field.name] = pa.array([convert(getattr(row, field.name)) for row in getattr(profile, name)], kind)
    return pa.table(columns)


def arrow_type(owner: type, name: str, annotation: str) -> tuple[Any, Callable[[Any], Any]]:
    """The type of a field and what makes its values. Raises `KeyError` for an annotation that has none."""
    pa = pyarrow()

    number = pa.uint64() if (owner, name) in _UNSIGNED and annotation == "int" else pa.int64()
    segment = pa.struct(
        [(f.name, pa.bool_() if f.type == "bool" else pa.uint64()) for f in fields(Segment)]
    )  # fmt: skip
    known: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "int": (number, int),
        "int | None": (pa.int64(), lambda value: value),
        "bool": (pa.bool_(), bool),
        "str": (pa.string(), visible),
        "bytes": (pa.binary(), bytes),
        "ModuleKind": (pa.string(), str),
        "UUID | None": (pa.string(), lambda value: None if value is None else str(value)),
        "tuple[int, ...]": (pa.list_(pa.uint64()), lambda values: [v & _WORD for v in values]),
        "dict[str, int]": (pa.map_(pa.string(), pa.uint64()), lambda d: [(k, v & _WORD) for k, v in d.items()]),
        "tuple[Segment, ...]": (pa.list_(segment), lambda values: [_as_dict(s) for s in values]),
    }
    return known[annotation]


def _as_dict(segment: Segment) -> dict[str, int | bool]:
    return {f.name: getattr(segment, f.name) for f in fields(Segment)}
