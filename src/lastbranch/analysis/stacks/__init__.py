"""Call stacks: where they come from, and what is counted by them (functions with callers, call graphs)."""
