"""The TBRW reader/writer API, call for call, over TB5 files."""
