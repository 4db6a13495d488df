"""Providers of this process: registrations, the sessions that enabled them, and the writers to these sessions."""
