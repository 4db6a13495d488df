"""``lastbranch fleet agent``: record the services of a host at a rate, and ship the counts to a store."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from ..errors import LastbranchError, UnavailableError
from ..long_waits import waiting
from .options import complete_file, complete_folder
from .output import Cell, print_notes, print_rows
from .record import check_trigger, duty_option, event_options

if TYPE_CHECKING:
    from ..capture import Options
    from ..fleet import Rate, Recorder, Service

_FROM_FILE = "lastbranch.fleet_agent.services"
"""Where the services of the configuration are, in the context's ``meta``."""
_SERVICE_KEYS: dict[str, tuple[type, ...]] = {
    "unit": (str,),
    "rate": (int, float),
    "length": (int, float),
    "version": (str,),
}
"""What the configuration says of a service, and its types."""
_UNITS = (".service", ".scope")
_MOST_RATE = 1800


def _configuration(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Have a TOML file say what options do not: its keys are their names, and ``[services.NAME]`` are services."""
    if value is None:
        return
    import tomllib

    try:
        with waiting(f"a program that writes to {value}"), open(value, "rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        raise click.BadParameter(f"{value}: {error.strerror}", ctx, param) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{value}: {error}", ctx, param) from None
    services = found.pop("services", {})
    ctx.meta[_FROM_FILE] = {name: _checked(ctx, param, value, name, one) for name, one in _items(services)}
    names = {one.name for one in ctx.command.params} - {"configuration", "once", "dry_run", "service", "help"}
    settings = {key.replace("-", "_"): one for key, one in found.items()}
    for key, one in settings.items():
        if key not in names or isinstance(one, dict | list):
            known = ", ".join(sorted(names))
            raise click.BadParameter(f"{value}: {key} = {one!r}: it is not a setting ({known})", ctx, param)
    ctx.default_map = {**(ctx.default_map or {}), **settings}


def _items(services: object) -> list[tuple[str, Any]]:
    return list(services.items()) if isinstance(services, dict) else [("", services)]


def _checked(ctx: click.Context, param: click.Parameter, file: str, name: str, one: object) -> dict[str, Any]:
    if not isinstance(one, dict):
        raise click.BadParameter(f"{file}: services.{name} = {one!r}: not a table", ctx, param)
    for key, value in one.items():
        if not isinstance(value, _SERVICE_KEYS.get(key, ())) or isinstance(value, bool):
            known = ", ".join(_SERVICE_KEYS)
            raise click.BadParameter(f"{file}: services.{name}.{key} = {value!r}: keys are {known}", ctx, param)
    return one


def _rates(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, float | None]:
    """``UNIT`` or ``UNIT=SECONDS``."""
    found: dict[str, float | None] = {}
    for word in value:
        unit, sign, number = word.rpartition("=")
        try:
            found[unit if sign else word] = float(number) if sign else None
        except ValueError:
            raise click.BadParameter(f"{word!r} is not UNIT=SECONDS", ctx, param) from None
    return found


@click.command(short_help="Record the services of this host at a rate, and ship counts.")
@click.argument("store", metavar="[STORE]", required=False, shell_complete=complete_folder)
@click.option(
    "--config",
    "configuration",
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=_configuration,
    shell_complete=complete_file,
    help="Take STORE, options and services from a TOML file (docs: fleet agent).",
)
@click.option(
    "--service",
    multiple=True,
    metavar="UNIT[=SECONDS]",
    callback=_rates,
    help="Record this unit of systemd, or this cgroup (a path), for SECONDS of each hour (repeatable).",
)
@click.option(
    "--slice",
    "within",
    metavar="UNIT",
    default="system.slice",
    show_default=True,
    help="Without --service: record all services in this slice.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, _MOST_RATE, min_open=True),
    default=36.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds of each hour for which a service is recorded.",
)
@click.option(
    "--length",
    type=click.FloatRange(0.1, 600),
    default=6.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds of a recording.",
)
@click.option("--version", metavar="NAME", default="", help="Which version of the services runs here.")
@click.option("--host", metavar="NAME", help="What the store calls this host. [default: its own name]")
@click.option(
    "--engine",
    type=click.Choice(["hardware", "software"]),
    default="hardware",
    show_default=True,
    help="Take the processor's branch records, or software ones: these stop the services' threads by ptrace, "
    "for at most --duty percent of the time.",
)
@event_options
@duty_option
@click.option(
    "--spool",
    metavar="FOLDER",
    shell_complete=complete_folder,
    help="Keep what is not shipped yet there. [default: $STATE_DIRECTORY, or lastbranch/agent in $XDG_STATE_HOME]",
)
@click.option(
    "--spool-max",
    type=click.FloatRange(1),
    default=64.0,
    show_default=True,
    metavar="MB",
    help="Bytes of the spool, in MB.",
)
@click.option(
    "--ship-every",
    type=click.FloatRange(1),
    default=3600.0,
    show_default=True,
    metavar="SECONDS",
    help="Ship about so often.",
)
@click.option("--once", is_flag=True, help="Record each service once, now, ship, and end.")
@click.option("--dry-run", is_flag=True, help="Show what would be recorded when, and end.")
def command(
    store: str | None,
    service: dict[str, float | None],
    within: str,
    rate: float,
    length: float,
    version: str,
    host: str | None,
    engine: str,
    spool: str | None,
    spool_max: float,
    ship_every: float,
    once: bool,
    dry_run: bool,
    duty: float,
    **options: Any,
) -> int:
    """Record the services of this host at a rate, count each recording, and ship the counts to STORE.

    A service is recorded for a few seconds at random times, for --rate seconds of each hour. Counts are
    stored with the run time that they represent, so a service that is recorded at half the rate counts the same. They
    wait in a spool of limited size until STORE, a folder or a bucket, has them. Each is added exactly once, even if the
    agent is killed.

    The processor's branch records are taken without stopping anything. Where there are none, --engine software records
    too, and stops the services' threads by ptrace. It has to be asked for.

    The agent runs until SIGTERM or SIGINT. Exit code of --once: 1 if a service was not recorded, or STORE cannot be
    reached; what was counted stays in the spool.
    """
    check_trigger(options)
    from ..capture import Options, check_linux
    from ..fleet import Rate

    check_linux()
    default = Rate(rate, length)
    services = _services(click.get_current_context().meta.get(_FROM_FILE, {}), service, within, default, version)
    spool = spool or os.environ.get("STATE_DIRECTORY", "").partition(":")[0] or _own_spool()
    if dry_run:
        return _print_plan(services(), spool)
    if store is None:
        raise click.UsageError("Missing argument 'STORE': a folder, or s3://BUCKET/FOLDER, gs:// or az://")
    return _run(
        _recorder(engine, Options(duty=duty / 100, **options)),
        services,
        once,
        engine,
        options,
        {"store": store, "spool": spool, "spool_limit": round(spool_max * 1e6), "ship_every": ship_every, "host": host},
    )


def _own_spool() -> str:
    base = os.environ.get("XDG_STATE_HOME", "")
    base = base if os.path.isabs(base) else os.path.expanduser("~/.local/state")
    return os.path.join(base, "lastbranch", "agent")


# -- which services


def _services(
    from_file: Mapping[str, dict[str, Any]], named: Mapping[str, float | None], within: str, default: Rate, version: str
) -> Callable[[], Mapping[str, Service]]:
    """What finds the services to record, by name: those that were named, or else all of a slice."""
    from ..fleet import Rate, Service

    known: dict[str, Service] = {}
    for name, one in from_file.items():
        rate = Rate(float(one.get("rate", default.seconds)), float(one.get("length", default.length)))
        known[name] = Service(name, one.get("unit", name), rate, one.get("version", version))
    for unit, seconds in named.items():
        name = _name_of(unit)
        rate = Rate(default.seconds if seconds is None else seconds, default.length)
        known[name] = Service(name, unit, rate, version)
    for service in known.values():
        if not 0 < service.rate.seconds <= _MOST_RATE or service.rate.length <= 0:
            raise click.UsageError(f"{service.name}: a rate is more than 0 and at most {_MOST_RATE} seconds of an hour")
    if known:
        return lambda: known

    def look() -> Mapping[str, Service]:
        nonlocal known
        try:
            known = {
                name: Service(name, unit, default, version) for unit in _units_in(within) if (name := _name_of(unit))
            }
        except UnavailableError:
            if not known:
                raise
        return known

    return look


def _name_of(unit: str) -> str:
    return unit.rstrip("/").rpartition("/")[2].removesuffix(".service")


def _units_in(within: str) -> list[str]:
    """The cgroups of services and scopes in a slice that have processes, but for our own."""
    from ..capture import CgroupProcesses, hierarchies, unit_called

    top = unit_called(within).folder
    hierarchy = max(
        (one for one in hierarchies() if f"{top}/".startswith(f"{one.folder}/")), key=lambda o: len(o.folder)
    )
    found = []
    for folder, inside, _ in os.walk(top):
        units = [name for name in inside if name.endswith(_UNITS)]
        inside[:] = sorted(set(inside).difference(units))
        for name in units:
            there = CgroupProcesses(os.path.join(folder, name), name)
            if there.members() - {os.getpid()}:
                found.append(hierarchy.path_of(there.folder))
    return sorted(found)


# -- what is done


def _print_plan(services: Mapping[str, Service], spool: str) -> int:
    import random
    from datetime import UTC, datetime

    from ..fleet import Host, plan

    rows: list[list[Cell]] = []
    turns = plan(services, spool, Host(), random.Random())
    for service, due in sorted(turns, key=lambda one: one[1]):
        rate = service.rate
        at = datetime.fromtimestamp(due, UTC)
        rows.append(
            [
                service.name,
                service.unit,
                service.version or None,
                round(rate.seconds, 1),
                round(rate.length, 1),
                round(3600 / rate.slot, 1),
                round(rate.weight, 2),
                f"{at:%Y-%m-%d %H:%M:%S}",
            ]
        )
    columns = [
        "service",
        "unit",
        "version",
        "seconds an hour",
        "seconds each",
        "recordings an hour",
        "weight",
        "next (UTC)",
    ]
    print_rows(columns, rows, "table", last=("service", "unit"))
    wanted = sum(one.rate.seconds for one in services.values())
    got = sum(service.rate.seconds for service, _ in turns)
    if got < wanted * 0.999:
        print_notes([f"the services ask for {wanted:.0f} seconds of each hour: all get less, {got:.0f} together"])
    return 0


def _recorder(engine: str, options: Options) -> Recorder:
    """What records the processes of a service, as `lastbranch record --unit` or `--cgroup` does."""
    from dataclasses import replace

    def record(service: Service, path: str, seconds: float) -> float:
        from ..capture import cgroup_at, unit_called
        from ..fleet import NotRunningError
        from ..recording.recorders import record_file

        try:
            group = (cgroup_at if "/" in service.unit else unit_called)(service.unit)
        except UnavailableError as error:
            raise NotRunningError(str(error)) from error
        command = ("lastbranch", *sys.argv[1:])
        # What tracing changes was said in the documentation, and would be said again each time.
        done = record_file(
            group, path, replace(options, duration=seconds), engine=engine, command_line=command, say=lambda line: None
        )
        return done.seconds

    return record


def _run(
    record: Recorder,
    services: Callable[[], Mapping[str, Service]],
    once: bool,
    engine: str,
    options: dict[str, Any],
    settings: dict[str, Any],
) -> int:
    from ..fleet import Agent, Host, Settings
    from ..model import counted

    def say(line: str) -> None:
        click.echo(line, err=True)

    host = Host()
    _check_engine(host, engine, options)
    found = services()
    agent = Agent(Settings(**settings), services, record, host=host, say=say)
    host.watch_signals()
    if once:
        return 0 if agent.once() else 1
    rates = sum(service.rate.seconds for service in found.values())
    say(f"{counted(len(found), 'service')}: {rates:g} s of each hour by the {engine} engine, to {settings['store']}")
    agent.run()
    return 0


def _check_engine(host: Any, engine: str, options: dict[str, Any]) -> None:
    """Raise `UnavailableError` where the engine can record nothing here."""

    def check() -> None:
        if engine == "software":
            from ..capture import check_machine

            check_machine()
            return
        from ..capture import Request, Target, negotiated
        from ..capture.perf_events.host import read_host
        from ..capture.perf_events.linux_kernel import Kernel

        kernel = Kernel()
        wanted = Request(Target(os.getpid()), options["event"], options["period"], options["frequency"])
        negotiated(wanted, kernel, read_host(kernel), os.getpid())

    try:
        host.apart(check)
    except LastbranchError as error:
        hint = "--engine software records without them: it stops the services' threads by ptrace for short bursts"
        raise UnavailableError(str(error), hint=error.hint if engine == "software" else hint) from None
