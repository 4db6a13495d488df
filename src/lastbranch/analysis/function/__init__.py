"""One function in full: control flow, blocks, loops, paths through it, and its annotated code."""
