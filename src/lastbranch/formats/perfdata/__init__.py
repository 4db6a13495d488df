"""Linux perf.data: file and pipe mode, both byte orders, compressed or not."""

from .reader import is_perfdata, read_perfdata

__all__ = ["is_perfdata", "read_perfdata"]
