"""The file of a trace log: its header, buffers found and decompressed, and written.

Reading: `header` (who logged what, when), `locate` (where buffers are, also in damaged files), `windows` (runs of
buffers in memory). Writing: `writer` (events to buffers), `trace_file` (buffers to files). Codecs: `compression`.
"""
