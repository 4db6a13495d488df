"""perf_event_open(2), for whoever records: what this machine offers, what is asked for, what the kernel answers."""
