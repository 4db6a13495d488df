"""Recording as users ask for it: which recorder records what, into which file, and what is seen of it while it runs.

What records is in `capture` (Linux: perf events, the software branch record) and `etw` (trace sessions).
"""
