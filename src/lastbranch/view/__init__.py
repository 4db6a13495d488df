"""The viewer: answers to its questions, a server for one reader on this machine, and the same as a single file."""
