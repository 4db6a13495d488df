"""Options of verbs that show names."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .options import complete_folder, grouped

if TYPE_CHECKING:
    from ..analysis.naming import Label, Namer, Place
    from ..model import Profile, SampleFilter
    from ..symbols import Symbolizer, SymbolOptions

__all__ = ["brief", "chosen_function", "line_of", "module_of", "symbol_notes", "symbol_options"]


_Command = TypeVar("_Command", bound=Callable[..., Any])

_BACKENDS = ("auto", "dwarf", "symbolic", "llvm", "tables")


def _symbols(
    debug_dir: tuple[str, ...], symbol_store: tuple[str, ...], debuginfod: bool, symbol_backend: str,
    no_symbol_cache: bool,
) -> SymbolOptions:  # fmt: skip
    from ..model.user_cache import default_cache
    from ..symbols import SymbolOptions

    if debuginfod and no_symbol_cache:
        raise click.UsageError("--debuginfod needs the cache for its files: omit --no-symbol-cache")
    cache = None if no_symbol_cache else default_cache()
    return SymbolOptions(debug_dirs=debug_dir, symbol_store=symbol_store, debuginfod=debuginfod,
                         backend=symbol_backend, cache=cache)  # fmt: skip


_symbol_options = grouped(
    "symbols", _symbols,
    click.option(
        "--debug-dir", multiple=True, metavar="DIR", shell_complete=complete_folder,
        help="Also look for debug files here (repeatable): by build id in .build-id/, or at DIR + full path.",
    ),
    click.option(
        "--symbol-store", multiple=True, metavar="DIR", shell_complete=complete_folder,
        help="Look for PDBs, PE files and Breakpad files here (repeatable): NAME/KEY/NAME, or NAME.",
    ),
    click.option("--debuginfod", is_flag=True, help="Ask the servers in DEBUGINFOD_URLS for debug files."),
    click.option(
        "--symbol-backend", type=click.Choice(_BACKENDS), default="auto", show_default=True,
        help="Reader of symbol files; tables reads symbol tables only.",
    ),
    click.option("--no-symbol-cache", is_flag=True, help="Do not use the cache of symbol names."),
)  # fmt: skip


def symbol_options(function: _Command) -> _Command:
    """--debug-dir, --symbol-store, --debuginfod, --symbol-backend, --no-symbol-cache: one ``symbols`` argument."""

    @functools.wraps(function)
    def wrapped(symbols: SymbolOptions, **rest: Any) -> Any:
        if "capture" in rest:  # code comes from where names do
            rest["capture"].folders = (*symbols.debug_dirs, *symbols.symbol_store)
        return function(symbols=symbols, **rest)

    return _symbol_options(wrapped)  # type: ignore[return-value]


# -- Functions by name: which notes help, and which function the user means


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
    """What ``symbolizer`` noted of the modules whose code is ``shown`` (their short names), and of none in particular.

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
    given = {"--symfs DIR (binaries)": binaries, "--debug-dir DIR (debug files)": debug,
             "--symbol-store DIR (PDBs, binaries, Breakpad files)": foreign}  # fmt: skip
    useful = [option for option, helps in given.items() if helps]
    return [f"for more names, give {' or '.join(useful)}"] if useful else []


def chosen_function(profile: Profile, namer: Namer, wanted: str, sample_filter: SampleFilter | None) -> Place:
    """The one function that ``wanted`` means. Raises `click.BadParameter` that lists what it could be."""
    from ..analysis.naming import find_functions
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
    raise click.BadParameter(text, param_hint="FUNC")


def _elsewhere(profile: Profile, namer: Namer, wanted: str, sample_filter: SampleFilter | None) -> str:
    """Why a name that was seen is that of no function one can ask for; empty where it was not seen."""
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
    """What to say after a name that nothing has in these modules (rows; all where there are none)."""
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
