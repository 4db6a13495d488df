"""The source process of a session: ``python -m lastbranch.etw.portable.sources SOCKET``, started by its daemon."""

from __future__ import annotations

import sys

from .process import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1]))
