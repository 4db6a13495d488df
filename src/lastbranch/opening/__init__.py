"""Opening captures and binaries: the one place that touches their paths."""

from ..lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "binaries": "attach_binaries build_id_at image_at open_image recorded_until same_binary use_binary",
        "captures": "captures_at is_called is_no_capture open_profile read_captures read_profile recorded_here",
        "code": "code_of",
        "manifests": "read_manifests reading_of",
        "sources": "FileSource open_source",
    },
)
