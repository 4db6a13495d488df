# Made by tools/faces.py from the list in __init__.py.
from .record_writer import RECORDS as RECORDS
from .record_writer import RecordWriter as RecordWriter
from .recorder import record_software as record_software
