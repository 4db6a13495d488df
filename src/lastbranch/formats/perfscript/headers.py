"""The fields in front of a branch stack or a call chain: which of them a text prints, and their values.

perf prints the names of threads as they are, so one line alone does not tell the thread ``worker 3`` from thread 3 of
``worker``. But all lines of an event have the same fields, and perf fills each field up to a fixed width.
`find_layouts` finds the fields that explain the lines of a text: with the widths of perf, and with any widths (copied
texts, and texts of other tools). `Headers` reads each line by these layouts.

Source of order and widths: perf_sample__fprintf_start and process_event in Linux tools/perf/builtin-script.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import NamedTuple

__all__ = ["NOTHING", "Header", "Headers", "find_layouts"]


class Header(NamedTuple):
    """The printed fields of a sample; ``None`` for each that is not printed.

    A number alone is the ``tid``: ``-F pid`` and ``-F tid`` print it alike.
    """

    comm: str | None
    pid: int | None
    tid: int | None
    cpu: int | None
    time: int | None
    """Nanoseconds."""
    period: int | None
    event: str | None
    ip: int | None


NOTHING = Header(None, None, None, None, None, None, None, None)


# -- The fields, in the order in which perf prints them


class _Form(NamedTuple):
    """A way to print a field. Patterns with the widths of perf, and with any width (empty: as another form)."""

    field: str
    aligned: str
    loose: str = ""


def _right(name: str, width: int, digits: str = "0-9") -> str:
    """A number that blanks fill up from the left; `_is_whole` holds it to that."""
    return f"(?P<{name}>[- {digits}]{{{width - 1}}}[{digits}]|[-{digits}][{digits}]{{{width},}})"


def _left(name: str, width: int) -> str:
    """A number that blanks fill up from the right; `_is_whole` holds it to that."""
    return f"(?P<{name}>[0-9][0-9 ]{{{width - 1}}}|[0-9]{{{width + 1},}})"


def _is_whole(match: re.Match[bytes]) -> bool:
    """Whether no number has blanks between its digits."""
    return not any(text and b" " in text.strip() for name, text in match.groupdict().items() if name in _NUMBERS)


_END = r"(?:\s+|$)"
_MISC = "|".join(f"[KUHGgMSE]{{{n}}}{' ' * (6 - n)}" for n in range(1, 6))
_PADDED = _Form("comm", r"(?P<comm>.{16}|\S.{16,}) ")
_NAME = _Form("comm", r"(?P<comm>\S.*) ", r"(?P<comm>\S.*\S|\S)\s+")
"""perf prints it so before a call chain."""
_EDITED = _Form("address", r" *(?P<ip>[0-9a-f]{6,16})(?=\s|$)")
"""An address after the name of an event that is not filled up: of a text that was edited."""
_FIELDS: tuple[tuple[_Form, ...], ...] = (
    (_PADDED, _NAME),
    (
        _Form("ids", _right("pid", 7) + "/" + _left("tid", 7) + " ", rf"(?P<pid>-?\d+)/(?P<tid>-?\d+){_END}"),
        _Form("ids", _right("pid", 5) + "/" + _left("tid", 5) + " "),  # perf before 5.10
        _Form("id", _right("tid", 7) + " ", rf"(?P<tid>-?\d+){_END}"),
        _Form("id", _right("tid", 5) + " "),
    ),
    (_Form("machine", r"VM: *\d+ ", r"VM:\s*\d+\s+"),),
    (_Form("vcpu", r"VCPU:\d+ ", r"VCPU:\d+\s+"),),
    (_Form("cpu", r"\[(?P<cpu>\d{3,})\] ", rf"\[(?P<cpu>\d+)\]{_END}"),),
    (_Form("misc", f"(?:{_MISC})"),),
    (
        _Form(
            "time",
            _right("seconds", 5) + r"\.(?P<fraction>\d{9}|\d{6}): ",
            r"(?P<seconds>\d+)\.(?P<fraction>\d{1,9}):\s*",
        ),
    ),
    (_Form("period", _right("period", 10) + " ", r"(?P<period>\d+)\s+"),),
    (_Form("event", r" *(?P<event>[^\s:\d]\S*):(?: |$)", r"(?P<event>[^\s:\d]\S*):(?:\s+|$)"),),
    (_Form("addr", _right("addr", 16, "0-9a-f") + "(?= )"),),
    (
        _Form("ip", " " + _right("ip", 16, "0-9a-f") + r"(?![^\s\[])", r"(?P<ip>[0-9a-f]{1,16})(?=\s|$)"),
        _EDITED,
    ),
)
_NUMBERS = {"pid", "tid", "seconds", "period", "addr", "ip"}
_OPEN = {"event", "ip", "address"}
"""Fields that names, objects and values may follow."""
_SIZED = {"ids", "id", "time", "period", "addr", "ip"}
_SPECIFIC = {"time": 5, "ids": 4, "machine": 4, "vcpu": 4, "cpu": 4, "event": 3, "ip": 3, "comm": 1, "address": 1}
"""How much text must be like a field to be taken for it; 2 for the others."""
_ODD = re.compile(rb"  | $")
_NO_NAME = re.compile(rb"\d\.\d{4,}:|\[\d{3}\]")
"""In a name: a sign that it has a part of the next field; and a field that it cannot have."""


class _Layout:
    """The fields of a line, ``aligned`` as perf prints them or of any width."""

    def __init__(self, forms: tuple[_Form, ...], aligned: bool) -> None:
        self.forms, self.aligned = forms, aligned
        self.fields = {form.field for form in forms}
        parts = [form.aligned if aligned else form.loose for form in forms]
        self._text = ("" if aligned else r"\s*") + "".join(parts) + ("" if self.fields & _OPEN else r"\s*$")

    @cached_property
    def pattern(self) -> re.Pattern[bytes]:
        """Reads a line from the right: the name is as long as it can be."""
        return re.compile(self._text.encode(), re.DOTALL)

    @cached_property
    def from_left(self) -> re.Pattern[bytes]:
        """Reads a line from the left: the name is as short as it can be."""
        return re.compile(self._text.replace(".*", ".*?", 1).encode(), re.DOTALL)

    @property
    def is_sample(self) -> bool:
        """Whether a line with these fields is a sample for certain, even without entries."""
        return bool(self.fields & {"time", "ids"}) or {"id", "event"} <= self.fields

    @property
    def specific(self) -> int:
        return sum(_SPECIFIC.get(name, 2) for name in self.fields)

    def match(self, line: bytes) -> re.Match[bytes] | None:
        """The fields of ``line``, read from the right."""
        match = self.pattern.match(line)
        if match is None or not _is_whole(match):
            return None
        return None if "comm" in self.fields and _NO_NAME.search(match["comm"]) else match

    def header(self, match: re.Match[bytes]) -> Header:
        found = match.groupdict()
        time = None
        if found.get("seconds") is not None:
            time = int(found["seconds"]) * 1_000_000_000 + int(found["fraction"].ljust(9, b"0"))
        numbers = {name: int(text) for name in ("pid", "tid", "cpu", "period") if (text := found.get(name)) is not None}
        comm, event, ip = found.get("comm"), found.get("event"), found.get("ip")
        return Header(
            comm=None if comm is None else _decode(comm.strip()),
            pid=numbers.get("pid"),
            tid=numbers.get("tid"),
            cpu=numbers.get("cpu"),
            time=time,
            period=numbers.get("period"),
            event=None if event is None else _decode(event),
            ip=None if ip is None else int(ip, 16),
        )


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")


# -- Which fields a text has


_FEW, _MANY = 30, 400
_TIME = re.compile(rb"\d\.\d{1,9}:")
_MOST_LAYOUTS, _MOST_ATTEMPTS = 16, 64


def find_layouts(
    lines: Iterable[bytes], tids: AbstractSet[int] = frozenset(), *, certain: bool = False
) -> list[_Layout]:
    """The layouts of ``lines``, the parts of lines before their first entry: one, or one for each kind of event.

    ``tids``: threads that the text names elsewhere. ``certain``: only layouts whose fields alone make a line a sample.
    """
    several = list(dict.fromkeys(lines))
    if certain:  # prose may come before: most samples have times
        several.sort(key=lambda line: not _TIME.search(line))
    rest, found, attempts = several[:_MANY], list[_Layout](), _MOST_ATTEMPTS
    while rest and attempts and len(found) < _MOST_LAYOUTS:
        best = _best_layout(rest, tids)
        if best is None or (certain and not best.is_sample):
            rest, attempts = rest[1:], attempts - 1
            continue
        found.append(best)
        rest = [line for line in rest if not best.match(line)]
    return found


def _best_layout(lines: Sequence[bytes], tids: AbstractSet[int]) -> _Layout | None:
    """The layout that explains most of ``lines``, the first of them at least."""
    few = lines[:: max(1, len(lines) // _FEW)][:_FEW]
    for sample in (few, lines[:1]):
        ways = list[tuple[tuple[int, ...], _Layout]]()
        for aligned in (True, False):
            layouts = [_Layout(forms, aligned) for forms in _common_fields(sample, aligned)]
            ways += [(_rank(layout, lines, tids), layout) for layout in layouts]
            best = max(ways, key=lambda way: way[0], default=None)
            if best and best[0][0] == len(lines) and best[0][2] == 0:
                return best[1]  # all lines, and no name is odd
        if best:
            return best[1]
    return None


def _rank(layout: _Layout, lines: Sequence[bytes], tids: AbstractSet[int]) -> tuple[int, ...]:
    matches = [match for line in lines if (match := layout.match(line))]
    named = "comm" in layout.fields
    odd = sum(_ODD.search(match["comm"].lstrip(b" ")) is not None for match in matches) if named else 0
    known = sum(int(match["tid"]) in tids for match in matches) if tids and layout.fields & {"id", "ids"} else 0
    return len(matches), known, -odd, layout.aligned, layout.specific


def _common_fields(lines: Sequence[bytes], aligned: bool) -> Iterator[tuple[_Form, ...]]:
    """Each set of fields that every one of ``lines`` can have."""
    patterns = {
        form: re.compile(text.encode(), re.DOTALL)
        for forms in _FIELDS
        for form in forms
        if (text := form.aligned if aligned else form.loose)
    }

    def places_after(form: _Form, line: bytes, places: AbstractSet[int]) -> AbstractSet[int]:
        if form.field == "comm":
            return frozenset(_ends_of_name(line, form, aligned))
        found = (patterns[form].match(line, at) for at in places)
        return frozenset(match.end() for match in found if match and _is_whole(match))

    def follow(number: int, places: list[AbstractSet[int]], forms: tuple[_Form, ...]) -> Iterator[tuple[_Form, ...]]:
        if number == len(_FIELDS):
            fields = {form.field for form in forms}
            sized = not aligned or _PADDED in forms or bool(fields & _SIZED)
            is_open = bool(fields & _OPEN)
            if (
                fields
                and sized
                and all(is_open or any(not line[at:].strip() for at in places[i]) for i, line in enumerate(lines))
            ):
                yield forms
            return
        yield from follow(number + 1, places, forms)
        for form in _FIELDS[number]:
            if form in patterns and (form is not _EDITED or any(before.field == "event" for before in forms)):
                after = [places_after(form, line, at) for line, at in zip(lines, places, strict=True)]
                if all(after):
                    yield from follow(number + 1, after, (*forms, form))

    begin = [frozenset({0 if aligned else len(line) - len(line.lstrip())}) for line in lines]
    yield from follow(0, [*begin], ())


def _ends_of_name(line: bytes, form: _Form, aligned: bool) -> Iterator[int]:
    """The places where the field after a name may begin."""
    blank = ord(" ")
    if form is _PADDED:
        if line[16:17] == b" " and line[:16].strip():
            yield 17
        first = 16 if line[:1].strip() else len(line)
    else:
        first = len(line) - len(line.lstrip()) + 1 if not aligned else 1 if line[:1].strip() else len(line)
    for at in range(first, len(line)):
        if line[at] == blank and (aligned or line[at + 1 : at + 2].strip()):
            yield at + 1


# -- Lines by their layouts


class Headers:
    """Reads lines by the layouts that `learn` finds; a line of another layout adds its own."""

    def __init__(self) -> None:
        self._layouts: list[_Layout] = []
        self._tids: AbstractSet[int] = frozenset()
        self._attempts = _MOST_ATTEMPTS
        self.learned = False
        self.unsure = 0
        """Lines that can be read in two ways: with a name that ends in a number, or without."""

    def learn(self, before_entries: Iterable[bytes], others: Iterable[bytes], tids: AbstractSet[int]) -> None:
        """Find the layouts of a text: of what is ``before_entries``, and of ``others``, lines without entries that may
        be samples. ``tids``: threads that the text names elsewhere."""
        self._tids, self.learned = tids, True
        self._layouts = find_layouts(before_entries, tids) + find_layouts(others, tids, certain=True)

    def read(self, text: bytes, *, certain: bool = True) -> Header | None:
        """The fields of ``text``; ``None`` for a line of another kind. ``certain``: only where its fields alone make it
        a sample, as those of a line without entries must."""
        found = self.read_known(text, certain=certain)
        if found is None and (self._attempts or _TIME.search(text)) and len(self._layouts) < _MOST_LAYOUTS:
            self._attempts = max(0, self._attempts - 1)
            more = find_layouts([text], self._tids)
            if more and (more[0].is_sample or not certain):
                self._layouts += more
                found = self.read_known(text, certain=certain)
        return found

    def read_known(self, text: bytes, *, certain: bool = True) -> Header | None:
        """The same, of layouts that other lines have."""
        for layout in self._layouts:
            if (match := layout.match(text)) and (layout.is_sample or not certain):
                header = layout.header(match)
                if not layout.aligned and header.comm is not None and header.tid is not None:
                    return self._settle(header, layout, text)
                return header
        return None

    def _settle(self, header: Header, layout: _Layout, text: bytes) -> Header:
        """``header``, or the reading from the left, whichever has a thread that the text names elsewhere."""
        match = layout.from_left.match(text)
        other = layout.header(match) if match else header
        if other.tid == header.tid:
            return header
        known = [way for way in (header, other) if way.tid in self._tids]
        if len(known) != 1:
            self.unsure += 1
        return known[0] if known else header
