"""The process of `lastbranch record --live` that serves the viewer: the recorder has no more work than without a
viewer.

The process starts beside the recorder, so that its imports are done when the program begins.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import FormatError, LastbranchError

if TYPE_CHECKING:
    from ..model import OpenFile
    from .growing import GrowingCapture

__all__ = ["main"]

_NICE = 10
"""If processors are short, the program, its recorder and the browser go first: beside a program that takes a whole
processor, the viewer gets a tenth. With the lowest priority the viewer would get a seventieth, too little for a new
picture each second."""
_LOWEST = 19
_TICK = 0.05
"""Seconds between two looks at whether the recording has begun."""


def main(arguments: Sequence[str]) -> int:
    """Serve the recording that becomes the file that is first of ``arguments``; the second is ``browse``, or empty.

    Standard input is a socket. The recorder sends the descriptor of the file that it writes, and at the end what the
    complete file is, as JSON in a line (or ``null``: there is none); the end of standard input ends the process."""
    name, browse = arguments[0], arguments[1] == "browse"
    _import_all()
    from ..opening import FileSource

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the recorder holds its signals back
    try:
        with socket.socket(fileno=os.dup(0)) as recorder:
            _, descriptors, _, _ = socket.recv_fds(recorder, 1, 1)
        if descriptors:  # else the recording did not begin
            _serve(FileSource(f"/proc/self/fd/{descriptors[0]}", name), name, browse)
    except KeyboardInterrupt:
        pass
    except (LastbranchError, OSError) as error:
        sys.stderr.write(f"warning: the viewer cannot show the recording: {error}\n")
        return 1
    return 0


def _import_all() -> None:
    """Import what serving takes, without looking for garbage meanwhile or later in what is imported: it all stays, and
    each look takes as long as an answer."""
    gc.disable()
    from . import growing, server  # noqa: F401
    from .questions import capture, hot, timeline  # noqa: F401  # what the first screen asks for

    gc.freeze()
    gc.enable()


def _serve(source: OpenFile, name: str, browse: bool) -> None:
    from ..opening import open_profile
    from ..symbols import SymbolOptions
    from .growing import ENDED, GrowingCapture
    from .loaded import Loaded
    from .server import listen, serve

    recorder, symbols, growing, over = _Recorder(), SymbolOptions(), None, False
    while growing is None and not over:
        over = recorder.ended.wait(_TICK)
        with suppress(FormatError):  # there is no header yet
            growing = GrowingCapture(source, name, symbols)
    if growing is None and recorder.path is None:
        return
    if growing is None:
        loaded = Loaded(open_profile(name), symbols, (name,), recording=ENDED)
    else:
        loaded = growing.loaded
        growing.follow(_give_way)
    recorder.finishes(growing)

    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    serve(loaded, listen(), "", say, browse, growing=growing)


def _give_way() -> None:
    """Lower our priority after the first picture: the priority of each thread, which later threads inherit."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError):  # it has ended
            before = os.getpriority(os.PRIO_PROCESS, int(thread))
            os.setpriority(os.PRIO_PROCESS, int(thread), min(before + _NICE, _LOWEST))


class _Recorder:
    """The messages of the recorder's process on standard input, read in a thread."""

    def __init__(self) -> None:
        self.path: str | None = None
        self.ended = threading.Event()
        self._growing: GrowingCapture | None = None
        self._opened = threading.Event()
        threading.Thread(target=self._read, name="recorder", daemon=True).start()

    def finishes(self, growing: GrowingCapture | None) -> None:
        """Finish ``growing`` when the recording is complete, and close it when the recorder's process ends."""
        self._growing = growing
        self._opened.set()

    def _read(self) -> None:
        if line := sys.stdin.readline():
            self.path = json.loads(line)
        self.ended.set()
        if line:
            self._opened.wait()
            if self._growing is not None:
                self._growing.finish(self.path)
            sys.stdin.read()
        if self._growing is not None:
            self._growing.close()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)  # as Ctrl-C ends `lastbranch view`


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
