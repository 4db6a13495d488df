"""Packages whose public names are imported on first use (PEP 562): a program pays only for what it uses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of ``package``. ``modules`` maps each module in it to the names that it has, separated by
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
