"""The parts of a profile that the guide has no place for, as tables of the whole file (``Scope.STORE``, section MODEL).

Part 0 and 1 are a tree of values (`pack`), part 2 the timeline, part 3 the (pid, tid) pairs of all samples; part 5
belongs to a stream: the earliest time of each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import FormatError
from ...model import Array, Change, Clock, Cpu, Event, Machine, Module, ModuleKind, Node, Profile, Timeline
from .layout import MODEL, Scope, Table
from .reader import Tb5File

if TYPE_CHECKING:
    from .writer import Tb5Writer

__all__ = ["pack", "read_model", "restore", "unpack", "write_model"]


# -- plain values (text, whole numbers, truth, bytes, lists and dicts of them) as records of 24 bytes, in preorder;
# strings by their ids, once each


NODE = np.dtype([("key", "<u8"), ("value", "<u8"), ("length", "<u4"), ("tag", "u1"), ("reserved", "u1", 3)])
"""``key`` is the string id of the name in a dict, else 0; ``value`` by ``tag``."""


class Tag(IntEnum):
    NONE = 0
    FALSE = 1
    TRUE = 2
    NUMBER = 3
    """``value`` is the number, unsigned."""
    NEGATIVE = 4
    """``value`` is -1 - the number."""
    TEXT = 5
    """``value`` is a string id."""
    BYTES = 6
    """``length`` bytes at ``value`` of part 1."""
    LIST = 7
    """``value`` nodes follow, each with what is in it."""
    DICT = 8


_MOST = (1 << 64) - 1
_DEEPEST = 16


def pack(value: Any, string: Callable[[str], int]) -> tuple[Array, bytes]:
    """(records, bytes) of a value; ``string`` gives the id of a text."""
    rows: list[tuple[int, int, int, int]] = []
    data = bytearray()

    def add(value: Any, key: int = 0) -> None:
        match value:
            case None:
                rows.append((key, 0, 0, Tag.NONE))
            case bool():
                rows.append((key, 0, 0, Tag.TRUE if value else Tag.FALSE))
            case int():
                if not -_MOST - 1 <= value <= _MOST:
                    raise ValueError(f"{value} takes more than 64 bits")
                rows.append((key, value, 0, Tag.NUMBER) if value >= 0 else (key, -1 - value, 0, Tag.NEGATIVE))
            case str():
                rows.append((key, string(value), 0, Tag.TEXT))
            case bytes():
                rows.append((key, len(data), len(value), Tag.BYTES))
                data.extend(value)
            case list() | tuple():
                rows.append((key, len(value), 0, Tag.LIST))
                for one in value:
                    add(one)
            case dict():
                rows.append((key, len(value), 0, Tag.DICT))
                for name, one in value.items():
                    add(one, string(str(name)))
            case _:
                raise TypeError(f"{type(value).__name__} has no form in a TB5 file")

    add(value)
    out = np.zeros(len(rows), NODE)
    for name, column in zip(("key", "value", "length", "tag"), zip(*rows, strict=True), strict=True):
        out[name] = np.array(column, np.uint64)
    return out, bytes(data)


def unpack(records: Array, data: bytes, text: Callable[[int], str]) -> Any:
    """The value that `pack` was given (tuples as lists). Raises `ValueError` where the records make none."""
    if int(records["length"][records["tag"] == Tag.BYTES].sum(dtype=np.float64)) > len(data):
        raise ValueError("bytes of several values are the same")
    rows = iter(records[["tag", "key", "value", "length"]].tolist())
    value = _value(rows, data, text, 0)[1]
    if next(rows, None) is not None:
        raise ValueError("extra values after the end")
    return value


def _value(
    rows: Iterator[tuple[int, int, int, int]], data: bytes, text: Callable[[int], str], depth: int
) -> tuple[int, Any]:
    row = next(rows, None)
    if row is None or depth > _DEEPEST:
        raise ValueError("values are cut short" if row is None else "values are nested too deep")
    tag, key, value, length = row
    match tag:
        case Tag.NONE:
            return key, None
        case Tag.FALSE | Tag.TRUE:
            return key, tag == Tag.TRUE
        case Tag.NUMBER:
            return key, value
        case Tag.NEGATIVE:
            return key, -1 - value
        case Tag.TEXT:
            return key, text(value)
        case Tag.BYTES if value + length <= len(data):
            return key, data[value : value + length]
        case Tag.LIST:
            return key, [_value(rows, data, text, depth + 1)[1] for _ in range(value)]
        case Tag.DICT:
            inside = [_value(rows, data, text, depth + 1) for _ in range(value)]
            return key, {text(name): one for name, one in inside}
    raise ValueError(f"value of unknown kind {tag}" if tag > Tag.DICT else "bytes outside their table")


MODEL_KEY = Table(Scope.STORE, 0, MODEL)
CHANGE = np.dtype(
    [("time", "<i8"), ("start", "<u8"), ("end", "<u8"), ("offset", "<u8"), ("pid", "<i8"), ("tid", "<i8"),
     ("parent", "<i8"), ("module", "<i8"), ("kind", "<i8")]
)  # fmt: skip
"""One change of the timeline, in the order that it was recorded."""
THREAD = np.dtype([("pid", "<i4"), ("tid", "<i4")])
_NOT_STORED = ("segments", "binary", "unverified", "missing", "running", "ran_at")
"""Of a module: they are those of the binary on this machine."""
_DAMAGE_KEPT = 100


def write_model(writer: Tb5Writer, profile: Profile, streams: list[dict[str, Any]], threads: Array) -> None:
    """``streams`` says of each stream of samples what its records cannot, ``threads`` int32 (pairs, 2)."""
    header = dict(profile.header)
    for i, damage in enumerate(profile.damage[:_DAMAGE_KEPT]):
        header[f"damage of the source {i}"] = str(damage)
    if len(profile.damage) > _DAMAGE_KEPT:
        header["more damage of the source"] = f"{len(profile.damage) - _DAMAGE_KEPT} places"
    value = {
        "source": profile.name,
        "source format": profile.format,
        "recorder": profile.recorder,
        "machine": asdict(profile.machine),
        "clock": asdict(profile.clock),
        "modules": [_module(m) for m in profile.modules],
        "events": [asdict(e) for e in profile.events],
        "streams": streams,
        "first time": profile.first_time,
        "last time": profile.last_time,
        "start": profile.start,
        "records": profile.records,
        "lost": profile.lost,
        "losses": profile.losses,
        "header": header,
        "raw features": profile.raw_features,
        "findings": None if profile.findings is None else [list(f) for f in profile.findings],
        "names": profile.timeline.names,
    }
    nodes, data = pack(value, writer.string)
    writer.put(MODEL_KEY, nodes)
    if data:
        writer.put(MODEL_KEY._replace(part=1), data)
    columns = profile.timeline.columns()
    changes = np.zeros(len(profile.timeline), CHANGE)
    for name in CHANGE.names or ():
        changes[name] = columns[name]
    writer.put(MODEL_KEY._replace(part=2), changes)
    writer.put(MODEL_KEY._replace(part=3), np.ascontiguousarray(threads, np.int32).reshape(-1).view(THREAD))


def _module(module: Module) -> dict[str, Any]:
    out: dict[str, Any] = {f.name: getattr(module, f.name) for f in fields(module) if f.name not in _NOT_STORED}
    out["kind"] = str(module.kind)
    out["pdb_guid"] = None if module.pdb_guid is None else module.pdb_guid.bytes_le
    return out


def read_model(file: Tb5File) -> dict[str, Any] | None:
    """The tree of values, ``None`` where the file has none. Raises `FormatError` where it makes no sense."""
    if not file.has(MODEL_KEY):
        return None
    if file.record_size(MODEL_KEY) != NODE.itemsize:
        raise _error(file, f"records of {file.record_size(MODEL_KEY)} bytes")
    packed = MODEL_KEY._replace(part=1)
    data = file.bytes(packed) if file.has(packed) else b""
    try:
        value = unpack(file.read(MODEL_KEY).reshape(-1).view(NODE), data, file.string)
    except ValueError as error:
        raise _error(file, str(error)) from None
    if not isinstance(value, dict):
        raise _error(file, "it is not a dictionary")
    return value


def _error(file: Tb5File, reason: str) -> FormatError:
    return FormatError(f"model tables: {reason}", file=file.name, offset=file.tables[MODEL_KEY].index, field="model")


def restore(profile: Profile, value: dict[str, Any], file: Tb5File) -> None:
    """Fill ``profile`` with what `write_model` stored, samples excepted."""
    try:
        profile.recorder = value["recorder"]
        profile.machine = _make(Machine, value["machine"])
        profile.machine.cpus = [_make(Cpu, c) for c in value["machine"]["cpus"]]
        profile.machine.nodes = [_make(Node, n | {"cpus": tuple(n["cpus"])}) for n in value["machine"]["nodes"]]
        wall = value["clock"]["wall"]
        profile.clock = Clock(value["clock"]["name"], value["clock"]["frequency"], None if wall is None else (*wall,))
        profile.modules = [_restored_module(m) for m in value["modules"]]
        profile.events = [_make(Event, e | {"ids": tuple(e["ids"])}) for e in value["events"]]
        profile.first_time, profile.last_time = value["first time"], value["last time"]
        profile.start = value["start"]
        profile.records, profile.lost = value["records"], value["lost"]
        profile.losses = [(int(when), int(count)) for when, count in value.get("losses", ())]
        profile.header = {"source": value["source"], "source format": value["source format"]} | value["header"]
        profile.raw_features = value["raw features"]
        findings = value.get("findings")
        profile.findings = None if findings is None else [_finding_of(*f) for f in findings]
        names = [str(n) for n in value["names"]]
    except KeyError as missing:
        raise _error(file, f"there is no {missing}") from None
    except (TypeError, ValueError):
        raise _error(file, "a value is of the wrong kind") from None
    read_timeline(profile.timeline, file, names, len(profile.modules))
    key = MODEL_KEY._replace(part=3)
    if file.has(key) and file.record_size(key) == THREAD.itemsize:
        rows: list[tuple[int, int]] = file.read(key).reshape(-1).view(THREAD).tolist()  # type: ignore[assignment]
        profile.seen_threads = set(rows)


def _finding_of(name: str, severity: str, seen: str, windows: bool) -> tuple[str, str, str, bool]:
    if not all(isinstance(text, str) for text in (name, severity, seen)):
        raise TypeError("findings are texts")
    return name, severity, seen, bool(windows)


def _make(kind: Any, values: dict[str, Any]) -> Any:
    known = {f.name for f in fields(kind)}
    return kind(**{name: v for name, v in values.items() if name in known})


def _restored_module(values: dict[str, Any]) -> Module:
    guid = values.get("pdb_guid")
    if guid is not None:
        from uuid import UUID

        guid = UUID(bytes_le=guid)
    inode = tuple(int(part) for part in values.get("inode", ()))
    made: Module = _make(Module, values | {"kind": ModuleKind(values["kind"]), "pdb_guid": guid, "inode": inode})
    return made


def read_timeline(timeline: Timeline, file: Tb5File, names: Iterable[str], modules: int) -> None:
    """The changes of part 2. Raises `FormatError` if they point outside the tables."""
    key = MODEL_KEY._replace(part=2)
    if not file.has(key):
        return
    if file.record_size(key) != CHANGE.itemsize:
        raise _error(file, f"changes of {file.record_size(key)} bytes")
    changes = file.read(key).reshape(-1).view(CHANGE)
    timeline.names = list(names)
    limit = {Change.MAP: modules, Change.NAME: len(timeline.names)}
    bad = (changes["kind"] < 0) | (changes["kind"] > max(Change))
    for kind, past in limit.items():
        mine = changes["kind"] == kind
        bad |= mine & ((changes["module"] < 0) | (changes["module"] >= past))
    if bad.any():
        raise _error(file, f"change {int(bad.argmax())} points outside its table")
    timeline.extend({name: changes[name] for name in CHANGE.names or ()})
