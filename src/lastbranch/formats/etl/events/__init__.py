"""The events of a trace log: found in buffers (`walk`), as columns (`columns`), in order of time (`merge`), of a whole
log (`reader`)."""
