"""Opening captures and binaries: the one place that touches their paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import lazy_names

if TYPE_CHECKING:
    from .binaries import (
        attach_binaries,
        build_id_at,
        image_at,
        open_image,
        recorded_until,
        same_binary,
        use_binary,
    )
    from .captures import is_no_capture, open_profile, read_captures, read_profile, recorded_here
    from .code import code_of
    from .manifests import read_manifests, reading_of
    from .paths import captures_at, is_called
    from .sources import FileSource, open_source

__all__ = [
    "FileSource", "attach_binaries", "build_id_at", "captures_at", "code_of", "image_at", "is_called",
    "is_no_capture", "open_image", "open_profile", "open_source", "read_captures", "read_manifests", "read_profile",
    "reading_of", "recorded_here", "recorded_until", "same_binary", "use_binary",
]  # fmt: skip

__getattr__ = lazy_names(__name__, {
    "binaries": "attach_binaries build_id_at image_at open_image recorded_until same_binary use_binary",
    "captures": "is_no_capture open_profile read_captures read_profile recorded_here",
    "code": "code_of",
    "manifests": "read_manifests reading_of",
    "paths": "captures_at is_called",
    "sources": "FileSource open_source",
})  # fmt: skip
