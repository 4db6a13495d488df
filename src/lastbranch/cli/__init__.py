"""The command line: one verb a module, named in `VERBS`. Each module has a click command called ``command``."""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module

import click

from .. import __version__
from ..errors import LastbranchError

__all__ = ["VERBS", "main"]

VERBS = ("info", "report", "branches", "export", "convert", "dump", "check", "verify")

_UNREADABLE = 3
_INTERRUPTED = 130


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        found: click.Command = import_module(f".{cmd_name}", __name__).command
        return found


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="lastbranch")
def cli() -> None:
    """Hardware-sampled profiles with last branch records: read, bind, report, export.

    FILE is a capture: a Linux perf.data in file or pipe form, a Windows .etl, or - for standard input.

    Exit codes: 0 all is well, 1 the capture is damaged (what can be read was delivered), 2 usage, 3 it cannot be read,
    4 it does not hold what was asked for, 5 this machine or installation lacks what is needed.
    """


def main() -> None:
    """Run the command line; expected failures become a message and an exit code here, and nowhere else."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's threads for matrices would only spin beside ours
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names can hold what the terminal's encoding cannot
            stream.reconfigure(errors="backslashreplace")
    try:
        # Not cli.main(): that one ends a closed pipe with exit code 1.
        with cli.make_context("lastbranch", sys.argv[1:]) as context:
            code = cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        code = done.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        code = _INTERRUPTED
    except LastbranchError as error:
        _complain(str(error), error.hint)
        code = error.exit_code
    except BrokenPipeError:
        # The reader has seen enough. Nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error), None)
        code = _UNREADABLE
    sys.exit(code)


def _complain(message: str, hint: str | None) -> None:
    from ..model.text import visible

    click.echo(f"error: {visible(message)}", err=True)
    if hint:
        click.echo(f"hint: {visible(hint)}", err=True)
