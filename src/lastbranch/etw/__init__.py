"""Trace sessions: the control API of Event Tracing for Windows."""
