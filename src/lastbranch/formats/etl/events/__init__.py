"""The events of a trace log: found in buffers (`walk`), as columns (`columns`), in time order (`merge`), and of whole
logs (`reader`)."""
