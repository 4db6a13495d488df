"""Words of the command line for flags, modes and groups of trace sessions, and a session's state as rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from .output import Cell

if TYPE_CHECKING:
    from uuid import UUID

    from ..etw import SessionState

__all__ = [
    "COLUMNS", "bits_of", "flag_words", "lbr_bits", "masks_of", "mode_words", "names_of", "provider_of", "row_of",
    "rows_of",
]  # fmt: skip


def mode_words() -> dict[str, int]:
    """``sequential``, ``real-time``...: the bits of LogFileMode."""
    from ..etw import LogFileMode

    names = {name: int(mode) for name, mode in LogFileMode.__members__.items() if mode}
    return {
        name.removeprefix("FILE_MODE_").removesuffix("_MODE").removeprefix("USE_").lower().replace("_", "-"): bits
        for name, bits in names.items()
    }


def flag_words() -> dict[str, int]:
    """``process``, ``image-load``...: the bits of EnableFlags."""
    from ..etw import EnableFlag

    return {str(flag.name).lower().replace("_", "-"): int(flag) for flag in EnableFlag}


def bits_of(text: str, words: Mapping[str, int], option: str) -> int:
    """The bits that ``text`` names, separated by commas; a number stands for itself."""
    bits = 0
    for word in filter(None, (part.strip().lower().replace("_", "-") for part in text.split(","))):
        if word in words:
            bits |= words[word]
        elif word[0].isdigit():
            bits |= _number(word, option, 32)
        else:
            raise click.BadParameter(f"no {word!r}; there are: {', '.join(sorted(words))}", param_hint=option)
    return bits


def _number(word: str, option: str, bits: int) -> int:
    try:
        number = int(word, 0)
    except ValueError:
        raise click.BadParameter(f"{word!r} is no number", param_hint=option) from None
    if not 0 <= number < 1 << bits:
        raise click.BadParameter(f"{word} is no number of {bits} bits", param_hint=option)
    return number


def masks_of(text: str, option: str) -> list[int]:
    """Eight mask words for names of EnableFlags and of groups (``pmc-profile``)."""
    from ..etw import GROUPS

    groups = {name.lower().replace("_", "-"): group for name, group in GROUPS.items()}
    masks, flags = [0] * 8, []
    for word in text.lower().replace("_", "-").split(","):
        group = groups.get(word.strip())
        if group is not None and word.strip() not in flag_words():
            masks[group.word] |= group.bits
        else:
            flags.append(word)
    masks[0] = bits_of(",".join(flags), {**dict.fromkeys(groups, 0), **flag_words()}, option)
    return masks


def names_of(bits: int, words: Mapping[str, int]) -> str:
    """The words of the bits that are set."""
    left = bits & ~sum(words.values())
    return ",".join([word for word, bit in words.items() if bits & bit] + ([hex(left)] if left else []))


def lbr_bits(text: str, option: str) -> int:
    """EVNTRACE_LBR_FLAGS for the classes of branches to leave out."""
    from ..lbr import NOTATIONS

    words = {name.lower().replace("_", "-"): bit for name, bit in NOTATIONS["etw"].named().items()}
    return bits_of(text, words, option)


def provider_of(text: str) -> tuple[UUID, int, int]:
    """``PROVIDER[:LEVEL[:KEYWORDS]]``. Raises `EtwError` (87) without a provider."""
    from ..etw import provider_guid

    provider, _, rest = text.partition(":")
    level, _, keywords = rest.partition(":")
    return provider_guid(provider), _number(level or "0", "--enable", 8), _number(keywords or "0", "--enable", 64)


COLUMNS = ("handle", "name", "mode", "file", "buffers", "free", "written", "events lost", "buffers lost")
"""Of a list of sessions."""


def row_of(state: SessionState) -> tuple[Cell, ...]:
    """One session in a list."""
    request = state.request
    return (
        state.handle, request.name, names_of(request.mode, mode_words()), request.file or None, state.number_of_buffers,
        state.free_buffers, state.buffers_written, state.events_lost,
        state.log_buffers_lost + state.real_time_buffers_lost,
    )  # fmt: skip


def rows_of(state: SessionState) -> list[tuple[str, Cell]]:
    """One session in full: property, value."""
    from ..etw import ClientContext

    request = state.request
    clocks = {ClientContext.QPC: "qpc", ClientContext.SYSTEM_TIME: "system time", ClientContext.CPU_CYCLES: "cycles"}
    masks = " ".join(f"{word:#x}" for word in state.masks) if any(state.masks) else None
    return [
        ("name", request.name), ("handle", state.handle), ("guid", str(request.guid)), ("file", request.file or None),
        ("mode", names_of(request.mode, mode_words())), ("clock", clocks.get(ClientContext(request.clock), "")),
        ("buffer KB", request.buffer_size), ("minimum buffers", request.minimum_buffers),
        ("maximum buffers", request.maximum_buffers), ("maximum file size", request.maximum_file_size),
        ("flush timer", request.flush_timer), ("flags", names_of(request.enable_flags, flag_words()) or None),
        ("masks", masks), ("buffers", state.number_of_buffers), ("free buffers", state.free_buffers),
        ("buffers written", state.buffers_written), ("events lost", state.events_lost),
        ("log buffers lost", state.log_buffers_lost), ("real-time buffers lost", state.real_time_buffers_lost),
        ("logger thread", state.logger_thread),
    ]  # fmt: skip
