"""The files that the viewer's page is made of: built from web/ by `make web`, and part of the package."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

__all__ = ["FILES", "asset"]

FILES = {
    "index.html": "text/html; charset=utf-8",
    "app.css": "text/css; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "graph.js": "text/javascript; charset=utf-8",
    "licences.txt": "text/plain; charset=utf-8",
}
"""All that are served, with their media types."""


@cache
def asset(name: str) -> bytes:
    """One of `FILES`."""
    return files(__package__).joinpath("assets", name).read_bytes()
