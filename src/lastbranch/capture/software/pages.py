"""Pages of code of one address space, each read once in a burst, and whether they are as they were."""

from __future__ import annotations

from .branching import Memory
from .tables import Tables

__all__ = ["Pages"]

_PAGE = 4096


class Pages:
    """A page that did not change is the same object in each burst. ``tables``, if there are any, compare pages, too:
    what they found holds here, and what is found here holds there."""

    def __init__(self, read: Memory) -> None:
        self.tables: Tables | None = None
        self.used: dict[int, bytes] = {}
        """By their numbers: pages that windows were taken from since this was set anew."""
        self._read = read
        self._burst = 0
        self._before: dict[int, bytes] = {}
        self._now: dict[int, bytes] = {}

    def begin(self, burst: int) -> None:
        """Pages may be others now."""
        self._burst = burst
        self._now.clear()

    def clear(self) -> None:
        self.tables = None
        self._before.clear()

    def unchanged(self, pages: tuple[tuple[int, bytes], ...]) -> bool:
        for number, page in pages:  # noqa: SIM110  a generator costs more than all of this
            if self._page(number) is not page:
                return False
        return True

    def window(self, address: int, length: int) -> bytes:
        """So many bytes at ``address``, or what can be read of them."""
        number, offset = divmod(address, _PAGE)
        page = self.used[number] = self._page(number)
        if offset + length <= _PAGE or len(page) < _PAGE:
            return page[offset : offset + length]
        return page[offset:] + self.window((number + 1) * _PAGE, length - (_PAGE - offset))

    def _page(self, number: int) -> bytes:
        page = self._now.get(number)
        if page is None:
            page = self._now[number] = self._before[number] = self._compared(number, self._before.get(number))
        return page

    def _compared(self, number: int, before: bytes | None) -> bytes:
        """The page as it is, which is ``before`` if it did not change."""
        tables = self.tables
        if before is not None and tables is not None and tables.compared(number, before, self._burst):
            return before
        page = self._read(number * _PAGE, _PAGE)
        if page != before:
            return page
        if tables is not None:
            tables.compare(number, before, self._burst)
        return before
