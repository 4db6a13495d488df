"""Address spaces over time: which module, process and thread owned an address at the moment of a sample."""

from .binder import Binder, binder_of, rebind
from .ids import Ids
from .index import KERNEL_HALF, SpaceIndex

__all__ = ["KERNEL_HALF", "Binder", "Ids", "SpaceIndex", "binder_of", "rebind"]
