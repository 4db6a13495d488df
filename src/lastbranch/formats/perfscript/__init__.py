"""Text of ``perf script`` with branch stacks, as a profile."""

from .reader import is_perfscript, read_perfscript

__all__ = ["is_perfscript", "read_perfscript"]
