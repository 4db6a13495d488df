"""Text of ``perf script`` with branch stacks, as a profile."""
