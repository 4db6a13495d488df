"""Last branch records of sessions, recorded by the software LBR."""
