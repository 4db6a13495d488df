"""The fixture of tests that break the symbol worker."""

from symbol_workers import bad

__all__ = ["bad"]
