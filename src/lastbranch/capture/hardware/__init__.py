"""Branch records of the processor, through Linux perf events."""
