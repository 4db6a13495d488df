"""Binding: the module, process and thread that owned an address at the time of a sample."""

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .binder import Binder, bind, with_binary
    from .index import Ids, SpaceIndex
    from .joined import JoinedProfile, Opened, join, rebind

__all__ = ["Binder", "Ids", "JoinedProfile", "Opened", "SpaceIndex", "bind", "join", "rebind", "with_binary"]

__getattr__ = lazy_names(__name__, {
    "binder": "Binder bind with_binary",
    "index": "Ids SpaceIndex",
    "joined": "JoinedProfile Opened join rebind",
})  # fmt: skip
