"""Profiles from trace logs (`reader`) and to trace logs (`writer`)."""
