"""The software branch record: taken branches of a traced program, followed in short bursts."""

from .record_writer import RECORDS, RecordWriter
from .recorder import record_software

__all__ = ["RECORDS", "RecordWriter", "record_software"]
