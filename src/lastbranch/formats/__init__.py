"""Bytes to records and columns: one package for each format. Parsers get a `Source`, never a path."""
