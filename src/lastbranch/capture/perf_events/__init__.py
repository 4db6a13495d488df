"""perf_event_open(2) for whoever records: the processor's events, the sideband of the software record, trace sessions.

`syscall` is the call itself. `kernel` is all that is asked of a machine, `host` what it says of itself, `events` its
events by name. `programme` makes attributes and event sets of these, `refusals` says why one cannot be had, and
`synthesis` makes the records that the kernel does not write. They are imported one by one: a software recording needs
no more than the first to begin.
"""
