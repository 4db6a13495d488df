"""DWARF 2 to 5, read as columns: many entries, units and programs at once, nothing executed step by step."""
