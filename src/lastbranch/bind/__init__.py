"""Address spaces over time: which module, process and thread owned an address at the moment of a sample."""

from .binder import Binder, bind
from .index import Ids, SpaceIndex

__all__ = ["Binder", "Ids", "SpaceIndex", "bind"]
