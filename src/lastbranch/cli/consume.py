"""``lastbranch consume``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import click

from . import dump
from .count import Count
from .options import LogOptions, TimeRange, complete_file, log_options, time_option

if TYPE_CHECKING:
    from ..etw.streams import Stream


@click.command()
@click.argument("source", metavar="NAME|FILE", shell_complete=complete_file)
@click.option("--real-time", is_flag=True, help="NAME is that of a session, even if there is a file called so.")
@click.option(
    "--event", "events", multiple=True, metavar="NAME,...",
    help="Only these events: a task (Process, Image), a whole name, or one without its provider, in upper or lower "
    "case.",
)  # fmt: skip
@click.option("--provider", metavar="GUID|NAME", help="Only events of this provider.")
@click.option("--pid", type=int, multiple=True, help="Only this process id (again for more).")
@time_option("the trace began")
@click.option(
    "--format", "form", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True,
    help="How to print; json is a list with one object a line.",
)  # fmt: skip
@click.option("--limit", type=Count(), default=0, help="Events to print; 0 is all.  [default: all]")
@log_options
def command(
    source: str, real_time: bool, events: tuple[str, ...], provider: str | None, pid: tuple[int, ...],
    time: TimeRange | None, form: str, limit: int, log: LogOptions,
) -> int:  # fmt: skip
    """Print the events of a trace session as they come, or of a file.

    NAME is that of a session that runs with real time (session start --real-time). Its events are printed as soon as
    the session flushes its buffers, until it stops or Ctrl-C; nothing of it waits for the terminal. A FILE is printed
    as by dump, which says what the columns are. Providers of EventSource and TraceLogging, and those of
    manifests, can be named.
    """
    from ..etw.consumed import is_session

    reading = log.reading()
    if provider is not None:
        from ..etw.providers import provider_guid

        provider = str(reading.provider_of(provider) or provider_guid(provider))
    wanted = dump.wanted_of(events, provider, pid, time)
    if not (real_time or is_session(source)):
        return dump.dump_file(source, True, wanted, events, form, limit, reading)
    from ..etw.consumed import open_source
    from ..formats.etl.dump import dump_live
    from ..model import visible

    stream = open_source(source, session=True)
    blocks = (part.block for part in stream.parts())
    with closing(stream), _ended_by_interrupt(stream):
        live = dump_live(source, stream.header, blocks, wanted, reading)
        if not dump.print_dump(live, form, limit, at_once=1):
            click.echo("note: no event was what was asked for", err=True)
        for note in live.notes():
            click.echo(f"note: {visible(note)}", err=True)
    return 0


@contextmanager
def _ended_by_interrupt(stream: Stream) -> Iterator[None]:
    """Let Ctrl-C end the stream, so that what is printed is complete."""
    import signal
    import threading

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda *_: stream.end())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
