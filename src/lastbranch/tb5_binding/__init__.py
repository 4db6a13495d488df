"""The native store: profiles into TB5 files, and what is done to those. Above formats and bind, since it needs both."""

from __future__ import annotations

from .files import ProfileWriter, compact, copy, write_profile
from .streams import BindSummary, StreamBinding, bind_stream, is_bound, sample_streams, unbind_stream

__all__ = [
    "BindSummary", "ProfileWriter", "StreamBinding", "bind_stream", "compact", "copy", "is_bound",
    "sample_streams", "unbind_stream", "write_profile",
]  # fmt: skip
