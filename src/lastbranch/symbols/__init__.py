"""Names of code: functions, source lines and inlined frames.

A `Symbolizer` names the addresses of one profile. It searches for the files of a module, looks into the cache of names,
and lets a worker process read symbol files for the rest.
"""

from ..lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "cache": "Cache CacheRefused open_cache",
        "debuginfod": "fetch",
        "model": "Frame Function FunctionTable Names plain",
        "options": "SymbolOptions",
        "search": "file_state",
        "symbol_lists": "running_build_id",
        "symbolizer": "Symbolizer",
    },
)
