"""Last branch records of sessions, by the software LBR: what is configured, recorded and written."""
