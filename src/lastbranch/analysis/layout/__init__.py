"""How code is laid out: blocks as linkers and BOLT see them, and the best order of blocks and functions."""
