# Made by tools/faces.py from the list in __init__.py.
from .binder import Binder as Binder
from .binder import bias_of as bias_of
from .binder import bind as bind
from .binder import place as place
from .binder import with_binary as with_binary
from .joined import JoinedProfile as JoinedProfile
from .joined import OpenedCapture as OpenedCapture
from .joined import join as join
from .joined import rebind as rebind
from .spaces import Ids as Ids
from .spaces import SpaceIndex as SpaceIndex
