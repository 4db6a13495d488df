"""The TBRW reader/writer API, call for call, over TB5 files.

It has the names of chapters 8 and 9 of the guide: functions (``TBRW_open``...), structures, numbers. OUT parameters are
returned after the status::

    status, ptr = TBRW_open("run.tb5", TBRW_FILE_READ)
    status, streams = TBRW_get_number_data_streams(ptr)

`open_file` offers the same in Python's terms, with context managers, exceptions and arrays; `bind_stream` and
`unbind_stream` store the binding of a closed file. The types are in the stub, which is made from the same tables.
"""

from __future__ import annotations

from typing import Any

from ..lazy import lazy_face

_named, _, _names = lazy_face(
    __name__,
    {
        ".formats.tb5.layout": "Section StreamSection",
        "binding": "BindSummary bind_stream sample_streams unbind_stream",
        "files": "SectionReader SectionWriter Stream Tb5 open_file",
        "interchange": "load_exchange save_exchange",
        "listing": "list_lines",
        "status": "Status TbrwError",
    },
)


def __getattr__(name: str) -> Any:
    if name in _names:
        return _named(name)
    from .calls import NAMES  # all at once: they are made from tables

    globals().update(NAMES, __all__=sorted([*NAMES, *_names]))
    if name in globals():
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
