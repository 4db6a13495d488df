# Made by tools/faces.py from the list in __init__.py.
from .analysis import branches as branches
from .analysis import ranges as ranges
from .analysis import weights as weights
from .analysis.checks import check as check
from .errors import Damage as Damage
from .errors import FormatError as FormatError
from .errors import LastbranchError as LastbranchError
from .errors import NotRecordedError as NotRecordedError
from .errors import UnavailableError as UnavailableError
from .model import Limits as Limits
from .model import Profile as Profile
from .model import SampleBatch as SampleBatch
from .model import SampleFilter as SampleFilter
from .opening import open_profile as open
from .opening import reading_of as reading_of
from .recording.recorders import record as record
from .sql import query as query
from .verbs import convert as convert
from .verbs import dump as dump
from .verbs import verify as verify
from .version import __version__ as __version__

__all__ = [
    "Damage",
    "FormatError",
    "LastbranchError",
    "Limits",
    "NotRecordedError",
    "Profile",
    "SampleBatch",
    "SampleFilter",
    "UnavailableError",
    "__version__",
    "branches",
    "check",
    "convert",
    "dump",
    "open",
    "query",
    "ranges",
    "reading_of",
    "record",
    "verify",
    "weights",
]
