"""Counts of a recording while it runs."""
