"""The screen of `top`: a Textual application."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import ClassVar, NamedTuple, overload

from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Input, Static

from ..analysis import Label, Place, place_of
from ..answers.columns import Cell, Spare
from ..answers.function_code import INSTRUCTIONS, FunctionCode
from ..answers.table import Table, table_of_cells
from ..errors import LastbranchError
from ..model import visible
from .output import shorten, table_lines
from .top_tables import ORDERS, Session, View, branch_table, chosen_functions, function_table, header

__all__ = ["TopScreen"]

_MOST = 200
"""Rows of a table: those below are too cold to look for without a filter."""
_CODE = replace(
    INSTRUCTIONS.only("samples", "count", "taken", "mispredicted", "loop", "address", "instruction"),
    last=("instruction",),
)
_KEYS = "q quit  enter code  esc back  b branches  e event  < > sort  / filter  p pause  w write"


class LazyLines(Sequence[str]):
    """``number`` lines, each of which is made when it, or one below it, is first looked at."""

    def __init__(self, lines: Iterator[str], number: int) -> None:
        self._lines, self._number, self._made = lines, number, list[str]()

    def __len__(self) -> int:
        return self._number

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        rows = range(self._number)[at]
        last = rows if isinstance(rows, int) else max(rows, default=-1)
        while len(self._made) <= last:
            self._made.append(next(self._lines))
        return self._made[at]


class Lines(ScrollView, can_focus=True):
    """A list of lines of which one is chosen. Only those that are visible are made and drawn."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
        Binding("enter", "choose", show=False),
    ]

    class Chosen(Message):
        """Enter was pressed on line ``row``."""

        def __init__(self, row: int) -> None:
            self.row = row
            super().__init__()

    def __init__(self) -> None:
        super().__init__()
        self.lines: Sequence[str] = ()
        self.row = 0

    def show(self, lines: Sequence[str]) -> None:
        self.lines = lines
        self.row = max(0, min(self.row, len(lines) - 1))
        top = self.scroll_offset.y
        visible_ones = lines[top : top + max(1, self.size.height)]
        self.virtual_size = Size(max(map(len, visible_ones), default=0), len(lines))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        left, top = self.scroll_offset
        row, width = y + top, self.size.width
        text = self.lines[row][left : left + width] if row < len(self.lines) else ""
        style = Style(reverse=True) if row == self.row and row < len(self.lines) else Style.null()
        return Strip([Segment(text.ljust(width), style)])

    def action_move(self, rows: int) -> None:
        self.row = max(0, min(self.row + rows, len(self.lines) - 1))
        top, height = self.scroll_offset.y, max(1, self.size.height)
        if self.row < top:
            self.scroll_to(y=self.row, animate=False)
        elif self.row >= top + height:
            self.scroll_to(y=self.row - height + 1, animate=False)
        self.refresh()

    def action_page(self, pages: int) -> None:
        self.action_move(pages * max(1, self.size.height - 1))

    def action_choose(self) -> None:
        self.post_message(self.Chosen(self.row))


class Drawn(NamedTuple):
    """What the screen shows: facts, a table with its heading, and what its rows are."""

    facts: list[str]
    head: str = ""
    lines: Sequence[str] = ()
    places: Sequence[Label] = ()


class TopScreen(App[None]):
    """Shows ``session`` until ``q``, or for ``duration`` seconds; ``w`` writes what was seen to ``output``."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; }
    #facts, #head, #keys { height: auto; }
    #head { text-style: bold; text-wrap: nowrap; text-overflow: clip; }
    #keys { color: $text-muted; }
    Lines { height: 1fr; scrollbar-gutter: stable; scrollbar-size: 1 1; }
    Input { display: none; height: 1; border: none; }
    Input.open { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit"), Binding("ctrl+c", "quit", priority=True), Binding("escape", "leave"),
        Binding("b", "branches"), Binding("e", "event"), Binding("less_than_sign", "sort(-1)"),
        Binding("greater_than_sign", "sort(1)"), Binding("slash", "filter"), Binding("p,space", "pause"),
        Binding("w", "write"),
    ]  # fmt: skip

    def __init__(self, session: Session, interval: float, duration: float | None, output: str | None) -> None:
        super().__init__()
        self.session, self.view = session, View(None, None, 0, 0, 0, None)
        self._interval, self._duration, self._output = interval, duration, output
        self._using = threading.Lock()
        """Of the session: who reads and counts, names and writes are threads."""
        self.paused = self.on_branches = False
        self.order, self.wanted = ORDERS[0], ""
        self.event: int | None = None
        self.place: Place | None = None
        """The function whose code is shown."""
        self.said = ""
        self._said: dict[str, list[str]] = {}
        """The lines in each `Static`."""
        self._places: Sequence[Label] = ()
        """The functions in the table, by its rows."""

    def compose(self) -> ComposeResult:
        yield Static("starting", id="facts", markup=False)
        yield Static("", id="head", markup=False)
        yield Lines()
        yield Input(placeholder="part of a function's or module's name")
        yield Static(_KEYS, id="keys", markup=False)

    def on_mount(self) -> None:
        self.query_one(Lines).focus()
        self.set_interval(self._interval, self.turn)
        self.turn()

    # -- looking

    def turn(self) -> None:
        """Count what came, and show it."""
        if self._duration is not None and self.session.seconds >= self._duration:
            self.exit()
        elif not self._using.locked():  # a slow one is not overtaken
            self.run_worker(self._look, thread=True)

    def _look(self) -> None:
        with self._using:
            try:
                if self.paused:
                    self.session.hold()
                self.session.read()
                if self.paused:
                    return
                self.view = self.session.look()
                drawn = self._drawn()
            except (LastbranchError, OSError) as error:
                self.said = visible(str(error))
                drawn = Drawn([self.said])
        self.call_from_thread(self._show, drawn)

    def _drawn(self) -> Drawn:
        """What is to be shown."""
        facts = header(self.view)
        state = ["paused"] * self.paused + ["the recording has ended"] * self.session.ended
        if self.place is not None:
            return Drawn([*facts, self._status(state)], *self._code(self.place))
        if self.on_branches:
            table = branch_table(self.session, self.view, _MOST)
            facts.append(self._status(["hottest branches", *state]))
            return Drawn(facts, *self._table(table))
        event, profile = self._event(), self.session.live.profile
        found = chosen_functions(self.session, self.view, _MOST, event=event, order=self.order, wanted=self.wanted)
        table = function_table(self.session, self.view, found).without("event_name")
        called = profile.events[event].name if profile is not None and event is not None else "none"
        by = [f"event {called}", f"by {self.order}", *([f"filter {self.wanted!r}"] if self.wanted else [])]
        labels = [] if self.view.snapshot is None else self.view.snapshot.labels
        places = [labels[name] for name in found.name.tolist()]
        facts.append(self._status([*by, *state]))
        return Drawn(facts, *self._table(table), places)

    def _status(self, parts: list[str]) -> str:
        return ", ".join([*parts, self.said] if self.said else parts)

    def _event(self) -> int | None:
        """The event whose samples are shown: the chosen one, else that with most."""
        if self.view.snapshot is None or not len(self.view.snapshot.samples):
            return None
        if self.event is None:
            return int(self.view.snapshot.samples.argmax())
        return self.event % len(self.view.snapshot.samples)

    def _code(self, place: Place) -> tuple[str, Sequence[str]]:
        profile = self.session.live.profile
        assert profile is not None
        code = FunctionCode(profile, self.session.live.namer, self.session.live.annotate(place)).instructions()
        where = [[column.name for column in code.columns].index(column.name) for column in _CODE.columns]
        rows: list[list[Cell]] = [[row[i] or None for i in where] for row in code.cells()]
        return self._table(table_of_cells(_CODE, rows))

    def _table(self, table: Table) -> tuple[str, Sequence[str]]:
        """The heading and the lines of a table as wide as the screen is beside the scroll bar."""
        width, cells = max(_NARROWEST, self.size.width - 1), table.cells()
        empty = [c.name for i, c in enumerate(table.shown) if cells and all(row[i] is None for row in cells)]
        spare: list[Spare] = [*empty, *(one for one in _SPARE if one not in empty)]
        lines = table_lines(table, spare=spare, width=lambda: width, styled=False, unknown="-")
        return next(lines), LazyLines(lines, len(table))

    def _show(self, drawn: Drawn) -> None:
        self._places = drawn.places
        width = self.size.width
        first = 0 if self.size.height >= _LOW else len(drawn.facts) - 2  # lines of facts that are cut
        facts = [[shorten(line, width)] if i < first else wrap(line, width) for i, line in enumerate(drawn.facts)]
        self._say("#facts", [part for parts in facts for part in parts or [""]])
        self._say("#head", [drawn.head])
        self.query_one(Lines).show(drawn.lines)

    def _say(self, where: str, lines: list[str]) -> None:
        """Show lines in a `Static`. All is laid out anew only where they are more or fewer than before: that takes
        longer than drawing them."""
        before = self._said.get(where, [])
        if lines != before:
            self._said[where] = lines
            self.query_one(where, Static).update("\n".join(lines), layout=len(lines) != len(before))

    def _again(self) -> None:
        """Show what was seen in another way."""

        def look() -> None:
            with self._using:
                try:
                    drawn = self._drawn()
                except (LastbranchError, OSError) as error:
                    self.place, self.said = None, visible(str(error))
                    drawn = self._drawn()
            self.call_from_thread(self._show, drawn)

        self.run_worker(look, thread=True)

    def on_resize(self) -> None:
        if self.view.snapshot is not None:
            self.call_after_refresh(self._again)

    # -- keys

    def action_branches(self) -> None:
        self.said = ""
        self.on_branches, self.place = not self.on_branches, None
        self._again()

    def action_event(self) -> None:
        event, self.said = self._event(), ""
        if event is not None:
            self.event = event + 1
        self._again()

    def action_sort(self, step: int) -> None:
        self.said = ""
        self.order = ORDERS[(ORDERS.index(self.order) + step) % len(ORDERS)]
        self._again()

    def action_pause(self) -> None:
        self.paused = not self.paused
        self._again()

    def action_filter(self) -> None:
        entry = self.query_one(Input)
        entry.add_class("open")
        entry.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.wanted = event.value
        self._close_input()

    def _close_input(self) -> None:
        self.query_one(Input).remove_class("open")
        self.query_one(Lines).focus()
        self._again()

    def action_leave(self) -> None:
        """Leave the input, the code, or the filter."""
        entry = self.query_one(Input)
        if entry.has_class("open"):
            self._close_input()
            return
        self.said = ""
        if self.place is not None:
            self.place = None
        else:
            self.wanted = entry.value = ""
        self._again()

    def on_lines_chosen(self, chosen: Lines.Chosen) -> None:
        """Open the code of a function."""
        if self.place is not None or chosen.row >= len(self._places):
            return
        label = self._places[chosen.row]
        if not label.function:
            self.said = "code without a name is not shown"
        else:
            self.place = place_of(self.session.live.namer, label.module, label.start)
            self.said = visible(label.shown(self.session.live.namer.profile))
        self._again()

    def action_write(self) -> None:
        """Write what was seen to a file."""
        name = self._output or time.strftime("lastbranch-%Y%m%d-%H%M%S.tb5")

        def write() -> None:
            with self._using:
                try:
                    self.session.hold()  # what comes is shown in the next turn
                    self.session.read()
                    self.session.save(name)
                    self.said = f"written to {name}"
                except (LastbranchError, OSError) as error:
                    self.said = visible(str(error))
            self.call_from_thread(self._again)

        self.said = f"writing {name}"
        self.run_worker(write, thread=True)


_SPARE: tuple[Spare, ...] = (
    "in_tx", "aborts", "branches", {"from": "from_function", "to": "to_function"}, "module", "type", "change",
    "loop", "cycles", "mispredicted", "taken", "samples",
)  # fmt: skip
_NARROWEST = 20
_LOW = 24
"""Lines of a screen; on a lower one what the engine is takes one of them."""
