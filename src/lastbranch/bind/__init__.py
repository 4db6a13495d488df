"""Binding: the module, process and thread that owned an address at the time of a sample."""

from ..lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "binder": "Binder bias_of bind place with_binary",
        "spaces": "Ids SpaceIndex",
        "joined": "JoinedProfile OpenedCapture join rebind",
    },
)
