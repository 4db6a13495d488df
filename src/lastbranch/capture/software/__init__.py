"""The software branch record: taken branches of a traced program, followed in short bursts."""

from ...lazy import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "record_writer": "RECORDS RecordWriter",
        "recorder": "record_software",
    },
)
