"""``python -m lastbranch``."""

from .cli import main

main()
