"""The file of a trace log: its header, its buffers, read and written.

Reading: `header` (who logged what, when), `buffers` (where buffers are, also in damaged files), `decompression`,
`read_windows` (runs of buffers in memory). Writing: `writer` (events to buffers), `compression`, `trace_file` (buffers
to files).
"""
