"""The software branch record: taken branches of a traced program, followed in short bursts."""

from .collector import record_software
from .record_writer import RECORDS, RecordWriter

__all__ = ["RECORDS", "RecordWriter", "record_software"]
