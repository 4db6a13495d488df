"""Binding: the module, process and thread that owned an address at the time of a sample."""

from .binder import Binder, bind, with_binary
from .index import Ids, SpaceIndex

__all__ = ["Binder", "Ids", "SpaceIndex", "bind", "with_binary"]
