"""Names as people see them: columns of functions, modules and lines, notes on missing names, and the search for a
function by its name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..errors import SelectionError
from .columns import Column, To

if TYPE_CHECKING:
    from ..analysis import Label, Namer, Place
    from ..model import Profile, SampleFilter
    from ..symbols import Symbolizer, SymbolOptions

__all__ = [
    "EVENT",
    "FILE",
    "FUNCTION",
    "LINE",
    "LINE_NUMBER",
    "LINKAGE_NAME",
    "MODULE",
    "MODULE_OR_UNKNOWN",
    "SOURCE",
    "Names",
    "NoSuchFunction",
    "brief",
    "find_function",
    "line_of",
    "module_of",
    "symbol_notes",
]


class Names:
    """Names for the code of ``profile``, from the symbol files that ``options`` say; ``None``: modules alone."""

    def __init__(self, profile: Profile, options: SymbolOptions | None) -> None:
        self.profile, self._options = profile, options

    @cached_property
    def namer(self) -> Namer:
        from ..analysis import Namer
        from ..symbols import Symbolizer

        return Namer(self.profile, None if self._options is None else Symbolizer(self.profile, self._options))

    @property
    def all_notes(self) -> list[str]:
        """All notes about symbols, cut short as `brief` does."""
        return [] if self.namer.symbols is None else brief(self.profile, self.namer.symbols.notes)

    def notes(self, shown: Iterable[str | None], *, lines: bool = False) -> list[str]:
        """`symbol_notes` of the modules whose code is ``shown``; none where nobody asked for symbols."""
        return [] if self.namer.symbols is None else symbol_notes(self.profile, self.namer.symbols, shown, lines=lines)


# -- Columns of rows that have ``labels``, one for each row, and the ``profile`` that these are of


def _lines_of_source(rows: Any) -> list[str | None] | None:
    """The text of the source line of each row, of rows by line."""
    if rows.sources is None:
        return None
    return [rows.sources.line(label.module, label.file, label.line) for label in rows.labels]


EVENT = Column(
    name="event_name",
    title="event",
    meaning="name of the sampled event",
    value=lambda rows: [rows.profile.events[row].name for row in rows.event.tolist()],
)
LINE = Column(
    name="line",
    title="line",
    meaning="source line, the file without its folders",
    form="text",
    value=lambda rows: [line_of(label) for label in rows.labels],
)
FUNCTION = Column(
    name="function",
    title="function",
    meaning="function, demangled; [module] for code without a name",
    form="text",
    to=To.ALL,
    value=lambda rows: [label.shown(rows.profile) for label in rows.labels],
)
MODULE = Column(
    name="module",
    title="module",
    meaning="file name of its binary",
    form="text",
    to=To.ALL,
    value=lambda rows: [module_of(rows.profile, label) for label in rows.labels],
)
MODULE_OR_UNKNOWN = Column(
    name="module",
    title="module",
    meaning="file name of its binary, [unknown] where nothing was mapped",
    form="text",
    value=lambda rows: [module_of(rows.profile, label) or "[unknown]" for label in rows.labels],
)
LINKAGE_NAME = Column(
    name="linkage_name",
    title="linkage name",
    meaning="the function as the linker knows it",
    form="text",
    to=To.PROGRAMS,
    value=lambda rows: [label.name or None for label in rows.labels],
)
FILE = Column(
    name="file",
    title="file",
    meaning="source file of the function, or of the line",
    form="text",
    to=To.PROGRAMS,
    value=lambda rows: [label.file or None for label in rows.labels],
)
LINE_NUMBER = Column(
    name="line_number",
    title="line number",
    meaning="number of the line in the source file",
    to=To.PROGRAMS,
    value=lambda rows: [label.line or None for label in rows.labels],
)
SOURCE = Column(
    name="source",
    title="source",
    meaning="text of the source line, of rows by line",
    form="text",
    value=_lines_of_source,
)


# -- Notes on names, and functions by their names


_LISTED, _NEAR, _NOTES = 20, 5, 5
_UNNAMED = ": no names: "
_LACKING = re.compile(rf"{_UNNAMED}|: (no debug information|stripped): |: split DWARF is missing")
_NO_LINES = ": no debug information: functions, but "
_COMPARED = 2000
"""Names that are compared letter by letter, which takes a millisecond for ten of them."""


def module_of(profile: Profile, label: Label) -> str | None:
    """The last part of the module's name; ``None`` where nothing was mapped."""
    return profile.modules[label.module].short if label.module >= 0 else None


def line_of(label: Label) -> str | None:
    """``file:line``, the file without its folders; ``None`` where no line is known."""
    file = label.file.replace("\\", "/").rpartition("/")[2]
    return f"{file}:{label.line or '?'}" if file else None


def symbol_notes(
    profile: Profile, symbolizer: Symbolizer, shown: Iterable[str | None], *, lines: bool = False
) -> list[str]:
    """The notes of ``symbolizer`` on modules whose code is ``shown`` (short names), and notes on no module in
    particular.

    Every module may have been asked for a function, and notes of those without it help nobody. ``lines``: source lines
    or inlined functions are shown, so that it matters where they are missing.
    """
    absent = {module.short for module in profile.modules} - set(shown)
    notes = [note for note in symbolizer.notes if note.partition(": ")[0] not in absent]
    return brief(profile, notes if lines else [note for note in notes if _NO_LINES not in note])


def brief(profile: Profile, notes: list[str]) -> list[str]:
    """``notes`` with those about modules without names cut short: a whole system has hundreds, a few are enough. One
    more says which options would find the files that are missing, if any would."""
    nameless = [note for note in notes if _UNNAMED in note]
    hidden = set(nameless[_NOTES:])
    more = [f"{len(hidden)} more modules have no names"] if hidden else []
    return [note for note in notes if note not in hidden] + more + _remedy(profile, notes)


def _remedy(profile: Profile, notes: list[str]) -> list[str]:
    """A note with the options that would find the files of modules without names."""
    files = {m.short: m for m in profile.modules if m.kind not in ("vdso", "anonymous")}
    lacking = [(files[short], note) for note in notes for short in [note.partition(": ")[0]] if short in files]
    foreign = any(module.is_pe for module, note in lacking if _UNNAMED in note)
    binaries = any(not module.is_pe for module, note in lacking if _UNNAMED in note)
    debug = binaries or any(_LACKING.search(note) for module, note in lacking if not module.is_pe)
    given = {
        "--symfs DIR (binaries)": binaries,
        "--debug-dir DIR (debug files)": debug,
        "--symbol-store DIR (PDBs, binaries, Breakpad files)": foreign,
    }
    useful = [option for option, helps in given.items() if helps]
    return [f"for more names, give {' or '.join(useful)}"] if useful else []


class NoSuchFunction(SelectionError):
    """A name means no function, or several: the message lists what it could be."""


def find_function(profile: Profile, namer: Namer, wanted: str, sample_filter: SampleFilter | None) -> Place:
    """Return the only function with the name ``wanted``. Raises `NoSuchFunction`, whose message lists the
    candidates."""
    from ..analysis import find_functions
    from ..model import ModuleKind, visible

    modules = sample_filter.modules if sample_filter else frozenset()
    found = find_functions(profile, namer, wanted, modules)
    if len(found) == 1:
        return found[0]
    if found:
        places = [visible(f"{profile.place(p.module, p.start)}  {p.label.shown(profile)}") for p in found]
        rest = [f"and {len(places) - _LISTED} more"] if len(places) > _LISTED else []
        text = "\n  ".join([f"{wanted!r} means {len(found)} functions; give one of:", *places[:_LISTED], *rest])
    else:
        text = visible(_elsewhere(profile, namer, wanted, sample_filter))
    if not found and not text:
        text = visible(f"no function is called {wanted!r}{_like(profile, namer, wanted, modules)}")
        if any(m.kind is ModuleKind.ANONYMOUS for m in profile.modules):
            text += "; code generated at run time (JIT) has names only in `branches`, `report` and `stacks`"
    raise NoSuchFunction(text)


def _elsewhere(profile: Profile, namer: Namer, wanted: str, sample_filter: SampleFilter | None) -> str:
    """Why the name ``wanted`` occurs but names no function of the table; empty if the name does not occur."""
    from ..analysis.stacks.functions import find_inlined_or_jit

    inlined, processes = find_inlined_or_jit(profile, namer, wanted, sample_filter)
    if processes:
        pids = ", ".join(dict.fromkeys(str(profile.processes[row].pid) for row in processes))
        return (
            f"{wanted!r} is code that process {pids} generated at run time (JIT): it has names only in `branches`, "
            f"`report` and `stacks`"
        )
    if inlined:
        into = ", ".join(dict.fromkeys(label.shown(profile) for label in inlined[:_NEAR]))
        more = f" and {len(inlined) - _NEAR} more" if len(inlined) > _NEAR else ""
        return f"{wanted!r} has no code of its own: it was inlined into {into}{more} (see `report --by inline`)"
    return ""


def _like(profile: Profile, namer: Namer, wanted: str, modules: Collection[int]) -> str:
    """The rest of the message about a name that no function of these modules (rows; none: all) has."""
    from difflib import get_close_matches

    known = [row for row in sorted(modules) or range(len(profile.modules)) if len(namer.table(row))]
    notes = namer.symbols.notes if namer.symbols else []
    remedy = "".join(f"; {text}" for text in _remedy(profile, notes))
    if not known:
        return f": no module has names; MODULE+0xADDRESS needs none{remedy}"
    nameless = dict.fromkeys(f"{short} ({why})" for short, sign, why in (n.partition(_UNNAMED) for n in notes) if sign)
    unnamed = f"; no names are known in {', '.join(list(nameless)[:_NEAR])}" if nameless else ""
    plain = sorted({f.shown.partition("(")[0] for row in known for f in namer.table(row).functions})
    near = sorted((name for name in plain if wanted.casefold() in name.casefold()), key=len)[:_NEAR]
    alike = [name for name in plain if name[:1] == wanted[:1]][:_COMPARED]
    near = near or get_close_matches(wanted, alike, n=_NEAR, cutoff=0.6)
    there = f"; there are: {', '.join(near)}" if near else f" in the {len(known)} modules that have names"
    return f"{there}{unnamed}{remedy}"
