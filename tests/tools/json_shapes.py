"""Published JSON formats as shapes, and a check of values against them.

A shape is a type (``int`` is no bool; ``float`` takes whole numbers, too), a literal, ``None``, a list of the shape of
its elements, a tuple of alternatives, or a dict by key; a key that ends with ``?`` may be missing, others may not be
there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Shape = Any


def check(value: Any, shape: Shape, where: str = "$") -> None:
    """Fail where ``value`` is not of ``shape``."""
    if isinstance(shape, tuple):
        assert any(fits(value, one) for one in shape), f"{where}: {value!r} is none of {shape}"
    elif isinstance(shape, list):
        assert isinstance(value, list), where
        for i, element in enumerate(value):
            check(element, shape[0], f"{where}[{i}]")
    elif isinstance(shape, Mapping):
        assert isinstance(value, dict), where
        known = {key.rstrip("?") for key in shape}
        assert not value.keys() - known, f"{where}: unknown {value.keys() - known}"
        for key, inner in shape.items():
            if key.rstrip("?") in value or not key.endswith("?"):
                assert key.rstrip("?") in value, f"{where}: no {key}"
                check(value[key.rstrip("?")], inner, f"{where}.{key.rstrip('?')}")
    else:
        assert fits(value, shape), f"{where}: {value!r} is not {shape}"


def fits(value: Any, shape: Shape) -> bool:
    if isinstance(shape, list | tuple | Mapping):
        try:
            check(value, shape)
        except AssertionError:
            return False
        return True
    if shape is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(shape, type):
        return type(value) is shape
    return type(value) is type(shape) and value == shape
