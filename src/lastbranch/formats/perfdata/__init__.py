"""Linux perf.data: file and pipe mode, both byte orders, compressed or not."""

from .header import is_perfdata
from .reader import read_perfdata

__all__ = ["is_perfdata", "read_perfdata"]
