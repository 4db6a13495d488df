"""What of TB5 files needs the binder: profiles written as one, streams bound and unbound, files compacted."""

from __future__ import annotations

from .files import ProfileWriter, compact
from .streams import BindSummary, StreamBinding, bind_stream, is_bound, sample_streams, unbind_stream

__all__ = [
    "BindSummary", "ProfileWriter", "StreamBinding", "bind_stream", "compact", "is_bound",
    "sample_streams", "unbind_stream",
]  # fmt: skip
