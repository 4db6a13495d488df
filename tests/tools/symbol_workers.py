"""Shared tools of the symbol worker's tests: a file that breaks the worker, and the worker's processes."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from lastbranch.symbols import SymbolOptions
from lastbranch.symbols.model import DebugFiles
from lastbranch.symbols.worker import WorkerClient

ADDRESS = np.array([0x1000, 0x1001, 0x1008], np.uint64)


BAD = """
    import ctypes, os, resource, signal, socket, sys, time
    import numpy as np
    from lastbranch.symbols import sandbox, worker
    from lastbranch.symbols.model import Function, FunctionTable, Names

    class Bad:
        def functions(self, files):
            return FunctionTable(np.array([5], np.uint64), np.array([3], np.uint64), [Function("f", "f")])

        def symbolize(self, files, address):
            what = open(files.binary).read()
            if what == "die":
                os._exit(3)
            if what == "die once" and STARTS == 1:
                os.kill(os.getpid(), 11)
            if what == "hang":
                time.sleep(1000)
            if what in FORBIDDEN:
                FORBIDDEN[what]()
            if what == "memory":
                bytearray(8 << 30)
            if what == "deep":
                (lambda f: f(f))(lambda f: f(f))
            if what == "print":
                os.write(1, b"junk" * 1000)
                print("junk")
            if what == "environment":
                return Names.of_functions(np.zeros(len(address), np.int64), [Function(repr(dict(os.environ)), "")])
            if what == "wrong":
                return Names.of_functions(np.array([5] * len(address)), [Function("f", "f")])
            if what == "fewer":
                return Names.unknown(1)
            return Names.of_functions(np.zeros(len(address), np.int64), [Function("f", "f", 0x1000, 16)])

    outsider = os.getppid()
    FORBIDDEN = {
        "start a program": lambda: os.execv("/bin/true", ["true"]),
        "start a process": os.fork,
        "open a socket": socket.socket,
        "write to a file": lambda: open(sys.argv[1], "w"),
        "append to a file": lambda: open(sys.argv[1], "a"),
        "make a file": lambda: os.open(sys.argv[1] + ".new", os.O_RDONLY | os.O_CREAT),
        "end a process": lambda: os.kill(outsider, 0),
        "change limits": lambda: resource.prlimit(outsider, resource.RLIMIT_CORE, (0, 0)),
        "read a process": lambda: ctypes.CDLL(None).ptrace(16, outsider, 0, 0),
    }
    FREE = sys.argv[2:] == ["no filters"]
    if FREE:
        sandbox._apply = lambda program: False
    with open(sys.argv[1], "a") as starts:
        starts.write(f"{os.getpid()}\\n")
    STARTS = len(open(sys.argv[1]).readlines())
    worker.READERS["perfmap"] = Bad
    worker.main()
"""


@pytest.fixture
def bad(tmp_path: Path):  # type: ignore[no-untyped-def]
    """``bad(what, **options)``: (client, files) of a worker with a reader that does ``what`` goes wrong.

    Its starts, by process id, are the lines of the file ``starts``.
    """
    program = tmp_path / "bad.py"
    program.write_text(textwrap.dedent(BAD))
    made: list[WorkerClient] = []

    def make(what: str, *words: str, **options: object) -> tuple[WorkerClient, DebugFiles]:
        file = tmp_path / "file"
        file.write_text(what)
        command = [sys.executable, "-B", str(program), str(tmp_path / "starts"), *words]
        client = WorkerClient(SymbolOptions(cache=None, **options), command)  # type: ignore[arg-type]
        made.append(client)
        return client, DebugFiles("perfmap", str(file))

    yield make
    for client in made:
        client.close()


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
