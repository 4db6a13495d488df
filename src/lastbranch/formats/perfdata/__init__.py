"""Linux perf.data: file and pipe mode, both byte orders, compressed or not. Loaded at first use."""
