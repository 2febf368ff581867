"""The pages of a cache: which are free, how many requests hold each, and which hold the keys of which tokens."""

from __future__ import annotations

from collections.abc import Sequence


class Pool:
    """Numbers of pages of ``size`` tokens each.

    A full page is found again by all tokens from the first to its last one, because a key depends on all that come
    before it: a request that begins with the same tokens holds the page too, and does not compute it.
    """

    def __init__(self, pages: int, size: int) -> None:
        self.pages = pages
        self.size = size
        self.most_held = 0
        self._free = list(reversed(range(pages)))
        self._holders = [0] * pages
        self._tokens_of: dict[int, tuple[int, ...]] = {}
        self._page_of: dict[tuple[int, ...], int] = {}

    @property
    def free(self) -> int:
        """How many pages nobody holds."""
        return len(self._free)

    def needed(self, tokens: int) -> int:
        """How many pages so many tokens fill."""
        return -(-tokens // self.size)

    def filled(self, tokens: Sequence[int]) -> list[int]:
        """The pages that hold the first of these tokens, or will when those that come before have been computed.

        Never all of them: what follows the last token is found by computing it.
        """
        found = []
        for end in range(self.size, len(tokens), self.size):
            page = self._page_of.get(tuple(tokens[:end]))
            if page is None:
                break
            found.append(page)
        return found

    def take(self) -> int:
        """A page that nobody holds. It holds what its last holder has left there."""
        page = self._free.pop()
        self._holders[page] = 1
        self.most_held = max(self.most_held, self.pages - self.free)
        return page

    def share(self, pages: Sequence[int]) -> None:
        """One more holder for each of these."""
        for page in pages:
            self._holders[page] += 1

    def name(self, page: int, tokens: Sequence[int]) -> None:
        """Lets others find a page that holds the last ones of ``tokens``; another that does so already stays."""
        if self._page_of.setdefault(tuple(tokens), page) == page:
            self._tokens_of[page] = tuple(tokens)

    def release(self, pages: Sequence[int]) -> None:
        """One holder less for each of these; which nobody holds are free, and found no more."""
        for page in pages:
            self._holders[page] -= 1
            if not self._holders[page]:
                self._free.append(page)
                tokens = self._tokens_of.pop(page, None)
                if tokens is not None:
                    del self._page_of[tokens]
