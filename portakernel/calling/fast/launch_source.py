"""A kernel's launch as source text, in pieces, so that what knows more of its arguments can put literals in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

# Texts in the place of names that an argument is given by.
Literals = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CallSource:
    """A call: the name of what is called, what it is given by position and by keyword, what becomes of its result."""

    function: str
    positional: tuple[str, ...]
    keywords: Mapping[str, str] = field(default_factory=dict[str, str])
    result: str = "{call}"

    def __str__(self) -> str:
        given = [*self.positional, *(f"{name}={text}" for name, text in self.keywords.items())]
        return self.result.format(call=f"{self.function}({', '.join(given)})")

    def at(self, literals: Literals, defaults: Literals) -> CallSource:
        """The call with literals in; a keyword that its ``defaults`` say anyway is not given."""
        positional = tuple(literals.get(text, text) for text in self.positional)
        keywords = {name: literals.get(text, text) for name, text in self.keywords.items()}
        needed = {name: text for name, text in keywords.items() if text != defaults.get(name)}
        return replace(self, positional=positional, keywords=needed)


@dataclass(frozen=True, slots=True)
class LaunchSource:
    """A launch: the ``call`` on the current device, or where there are several, the call that makes another current.

    For ``_elsewhere`` the names ``_current_index`` and ``_index_here`` are known.
    """

    call: CallSource
    elsewhere: CallSource | None = None

    def __str__(self) -> str:
        if self.elsewhere is None:
            return str(self.call)
        return f"({self.call} if _current_index() == _index_here else {self.elsewhere})"

    def at(self, literals: Literals, defaults: Literals) -> LaunchSource:
        """The launch with literals in; a keyword that the kernel's ``defaults`` say anyway is not given."""
        elsewhere = None if self.elsewhere is None else self.elsewhere.at(literals, {})
        return LaunchSource(self.call.at(literals, defaults), elsewhere)
