"""perf_event_open(2) for every recorder: the processor's events, the sideband of the software record, trace sessions.

`syscall` makes the call. `linux_kernel` is the machine's interface, `host` its description, `event_names` its events by
name. `event_set` builds attributes and opens sets of events, `refusals` explains why one cannot be opened, and
`synthesis` makes the records that the kernel does not write. Import only the modules you need: a software recording
starts with the first alone.
"""
