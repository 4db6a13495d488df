# Made by tools/faces.py from the list in __init__.py.
from .result import Result as Result
from .result import count_request_of as count_request_of
from .result import query as query
from .schema import SqlColumn as SqlColumn
from .schema import SqlTable as SqlTable
from .schema import TABLES as TABLES
