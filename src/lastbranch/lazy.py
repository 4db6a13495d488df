"""Imports at first use: public names of packages (PEP 562), and functions of layers above.

A program pays only for what it uses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_face", "lazy_names", "provide", "provider_of"]

Face = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]


def lazy_face(package: str, modules: Mapping[str, str]) -> Face:
    """``__getattr__``, ``__dir__`` and ``__all__`` of ``package``: its `lazy_names`, and their sorted list.

    Type checkers read the names in the stub beside it, which ``make docs`` makes from ``modules``.
    """
    names = sorted(name.partition("=")[0] for listed in modules.values() for name in listed.split())
    return lazy_names(package, modules), lambda: names, names


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of ``package``. ``modules`` maps each module of the package to its names, separated by
    spaces; ``open=open_profile`` is public as ``open``. A name is imported once: the package keeps it."""
    origins: dict[str, tuple[str, str]] = {}
    for module, names in modules.items():
        for public, _, own in (name.partition("=") for name in names.split()):
            origins[public] = module, own or public

    def getattr_(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, own = origins[name]
        value = getattr(import_module(f".{module}", package), own)
        setattr(sys.modules[package], name, value)
        return value

    return getattr_


_PROVIDED: dict[str, Callable[..., Any]] = {}


def provide(name: str, function: Callable[..., Any]) -> None:
    """Let `provider_of` return ``function``, which does the work of a method that a layer below declares.

    The package calls `provide` at its own import, before any of its modules is imported: the method works however its
    object came about, and the layer below imports nothing from above."""
    _PROVIDED[name] = function


def provider_of(name: str) -> Callable[..., Any]:
    """The function that `provide` got under this name."""
    return _PROVIDED[name]
