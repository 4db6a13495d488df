"""The software branch record: taken branches of a traced program, followed in short bursts."""

from .collector import record_software
from .spill import Spill

__all__ = ["Spill", "record_software"]
