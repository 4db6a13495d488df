"""Recording: the software branch record and perf events."""
