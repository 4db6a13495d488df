"""DWARF 2 to 5, read as columns: many entries, units and programs at once, and nothing executed step by step."""
