"""How sure numbers are: bursts, sampling noise, and whether a difference is more than chance."""
