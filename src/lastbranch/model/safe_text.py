"""Text for people: names from files made safe to print (they may hold terminal escapes), and counts with plurals."""

from __future__ import annotations

from ..errors import SelectionError

__all__ = ["check_utf8", "counted", "visible", "word"]


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 sample``, ``2 samples``; ``plural`` where it is not ``noun`` and an s."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def visible(name: str) -> str:
    """``name`` with what is not printable as ``\\xNN`` of its UTF-8 bytes; backslashes stay (Windows paths)."""
    return name if name.isprintable() else _escape(name, "")


def check_utf8(text: str, what: str) -> None:
    """Raise `SelectionError` where ``text``, which is ``what``, has bytes that are no UTF-8: databases refuse them."""
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise SelectionError(f"{what} is not UTF-8: {visible(text)}")


def word(name: str) -> str:
    """`visible`, and without blanks: spaces and backslashes are ``\\xNN`` too, so that it can be undone."""
    return name if name.isprintable() and " " not in name and "\\" not in name else _escape(name, " \\")


def _escape(name: str, also: str) -> str:
    return "".join(c if c.isprintable() and c not in also else "".join(f"\\x{b:02x}" for b in _bytes(c)) for c in name)


def _bytes(letter: str) -> bytes:
    """The content of the file: a byte that is not UTF-8, or the letter; UTF-16 has lone surrogates, too."""
    return letter.encode("utf-8", "surrogateescape" if "\udc80" <= letter <= "\udcff" else "surrogatepass")
