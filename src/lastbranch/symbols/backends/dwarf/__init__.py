"""DWARF 2 to 5 in columns: many entries, units and programs at once, nothing executed one by one that can be summed."""
