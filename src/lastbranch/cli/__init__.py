"""The command line: the verbs are in `VERBS`, each a module with a click command called ``command``."""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import sys
import threading
from contextlib import suppress

import click

from .. import long_waits
from ..errors import LastbranchError, UnavailableError
from ..version import __version__
from .group import COMPLETION_VARIABLE, Group

__all__ = ["VERBS", "cli", "main", "program", "run"]

VERBS = (
    "record", "top", "session", "sources", "consume", "info", "view", "report", "branches", "annotate", "callers",
    "callees", "stacks", "query", "diff", "export", "fleet", "convert", "bind", "unbind", "compact", "dump", "check",
    "verify", "lbr", "doctor", "cache", "help", "completion",
)  # fmt: skip
"""In the order of `lastbranch --help`."""
_WHERE = {
    "bind": "tb5:bind", "unbind": "tb5:unbind", "compact": "tb5:compact",
    "dump": "dump:dump", "consume": "dump:consume", "sources": "session:sources",
    "callers": "callgraph:callers", "callees": "callgraph:callees",
    "help": "group:help", "completion": "group:completion",
}  # fmt: skip
"""Verbs that are not ``command`` of the module with their name."""
_UNREADABLE = 3
_NO_ROOM = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))
_INTERRUPTED = 130
_OBJECTS = 50_000
"""New objects after which the garbage collector looks for cycles: imports make many, and none of them is garbage."""


@click.group(
    cls=Group,
    lazy={verb: _WHERE.get(verb, verb) for verb in VERBS},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    callback=lambda ctx, _, given: _version(ctx, given),
    help="Show the version and exit; with -v, whether the compiled library is in use.",
)
@click.option("-v", "--verbose", is_flag=True, is_eager=True, hidden=True)
def cli(verbose: bool) -> None:
    """Read, bind, report and export hardware-sampled profiles with last branch records.

    FILE is a capture: a Linux perf.data in file or pipe form, the text of perf script with branch stacks, a Windows
    .etl, a .tb5, or - for standard input.

    Exit codes: 0 success, 1 the capture is damaged (everything readable was delivered), 2 wrong usage, 3 the capture
    cannot be read, 4 it does not hold what was asked for, 5 this machine or installation lacks something, or the output
    cannot be written, 6 diff found more than --fail-over allows, 70 a bug in lastbranch: the message gives the path of
    a report.
    """


def _version(ctx: click.Context, given: bool) -> None:
    if given:
        click.echo(f"lastbranch, version {__version__}")
        if ctx.params.get("verbose"):
            from ..native import describe

            click.echo(f"Python {sys.version.split()[0]}\nkernels: {describe()}")
        ctx.exit()


def main() -> None:
    """Run ``lastbranch``."""
    asked = os.environ.get(COMPLETION_VARIABLE)
    if asked:  # by a shell, for completions
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(cli, {}, "lastbranch", COMPLETION_VARIABLE, asked))
    program(cli, "lastbranch")


def program(command: click.Command, name: str) -> None:
    """`run`, and end the process.

    Python's own shutdown costs a quarter of what the import of NumPy does, and frees what the system frees anyway.
    Functions that are registered for the end of the process still run first.
    """
    gc.set_threshold(_OBJECTS)
    _open_closed_streams()
    try:
        run(command, name)
    except SystemExit as end:
        if all(thread.daemon or thread is threading.main_thread() for thread in threading.enumerate()):
            atexit._run_exitfuncs()
            with suppress(OSError, ValueError):  # `run` has said so
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(end.code if isinstance(end.code, int) else 0)
        raise  # the interpreter waits for the others


def _open_closed_streams() -> None:
    """Give standard streams that the caller closed (``>&-``) to the null device: else the first file to be opened would
    get the number of one, and what is printed would go there."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            while (opened := os.open(os.devnull, os.O_RDWR)) < number:
                pass
            setattr(sys, name, open(opened, "w" if number else "r", closefd=False))  # noqa: SIM115


def run(command: click.Command, name: str) -> None:
    """Run a program in this process and raise `SystemExit`. Expected failures become a message and an exit code here,
    and nowhere else."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's threads for matrices would only spin
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names can hold what the terminal's encoding cannot
            stream.reconfigure(errors="backslashreplace")
    long_waits.tell = _tell_wait
    failed: list[int] = []
    hook, threading.excepthook = threading.excepthook, lambda args: failed.append(_report_crash(args.exc_value))
    try:
        # Not command.main(): that one ends a closed pipe with exit code 1.
        with command.make_context(name, sys.argv[1:]) as context:
            code = command.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        code = done.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = _INTERRUPTED
    except LastbranchError as error:
        _complain(str(error), error.hint)
        code = error.exit_code
    except BrokenPipeError:
        # The reader has seen enough. Nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        code = _system_error(error)
    except MemoryError:
        _complain("not enough memory", None)
        code = UnavailableError.exit_code
    except Exception as error:
        code = _report_crash(error)
    finally:
        threading.excepthook = hook
    sys.exit(failed[0] if failed and not code else code)


def _report_crash(error: BaseException | None) -> int:
    """The last resort: an error that nobody foresaw, as one line and a report."""
    from ..crashes import EXIT_CODE, crash_line

    if error is not None:
        click.echo(f"error: {crash_line(error)}", err=True)
    return EXIT_CODE


def _system_error(error: OSError) -> int:
    from ..model import OutputError

    if isinstance(error, OutputError):
        _complain(str(error), None)
        return UnavailableError.exit_code
    full = error.errno in _NO_ROOM
    what = (error.filename or repr(error.filename)) if error.filename is not None else "standard output" * full
    _complain(f"{what}: {error.strerror}" if what and error.strerror else str(error), None)
    return UnavailableError.exit_code if full else _UNREADABLE


def _tell_wait(what: str) -> None:
    from ..model import visible

    click.echo(f"note: waiting for {visible(what)}", err=True)


def _complain(message: str, hint: str | None) -> None:
    from ..model import visible

    click.echo(f"error: {visible(message)}", err=True)
    if hint:
        click.echo(f"hint: {visible(hint)}", err=True)
