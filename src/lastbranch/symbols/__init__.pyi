# Made by tools/faces.py from the list in __init__.py.
from .cache import Cache as Cache
from .cache import CacheRefused as CacheRefused
from .cache import open_cache as open_cache
from .debuginfod import fetch as fetch
from .model import Frame as Frame
from .model import Function as Function
from .model import FunctionTable as FunctionTable
from .model import Names as Names
from .model import plain as plain
from .options import SymbolOptions as SymbolOptions
from .search import file_state as file_state
from .symbol_lists import running_build_id as running_build_id
from .symbolizer import Symbolizer as Symbolizer
