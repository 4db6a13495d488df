# Made by tools/faces.py from the list in __init__.py.
from .result import Result as Result
from .result import counted_by as counted_by
from .result import query as query
from .schema import SqlColumn as SqlColumn
from .schema import SqlTable as SqlTable
from .schema import TABLES as TABLES
