"""How often branches, ranges of code and instructions were seen: counts of a whole capture, and tables of them."""
