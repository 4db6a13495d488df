"""Binding: the module, process and thread that owned an address at the time of a sample."""

from .binder import Binder, bind, with_binary
from .index import Ids, SpaceIndex
from .joined import JoinedProfile, Opened, join, rebind

__all__ = ["Binder", "Ids", "JoinedProfile", "Opened", "SpaceIndex", "bind", "join", "rebind", "with_binary"]
