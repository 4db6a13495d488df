"""The process of a session: its daemon, the shared buffers of its writers, and the files and readers they go to."""
