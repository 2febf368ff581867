"""A covering array, made row by row: which levels to ask for together next, so that soon each pair was asked for.

Greedy, after Cohen et al. 1997 (The AETG System, IEEE Transactions on Software Engineering 23.7): a row begins with a
pair that is left, and takes for one factor after the other the level that makes up most of the pairs that are. What
then does not come about may be another pair's fault: later rows put the pair into rows that have come about.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product

# A level of a factor, by their names; and several that are asked for together.
Level = tuple[str, str]
Together = tuple[Level, ...]

# So many rows that began with a pair, which did not come about, are enough: it cannot be. Of a level that never came
# about, in whatever pair, no more is asked after so many.
_MOST_TRIES, _MOST_TRIES_OF_LEVEL = 4, 12


@dataclass(slots=True)
class Covering:
    """The pairs, and some triples, of levels of ``factors``: those that are left, were asked for, or cannot be.

    Triples are of the factors ``thrice``, each at its neutral level, which is named, or at some other. ``apart`` are
    levels that exclude each other.
    """

    factors: Mapping[str, Sequence[str]]
    thrice: Mapping[str, str] = field(default_factory=dict[str, str])
    apart: frozenset[Together] = frozenset()
    asked: set[Together] = field(default_factory=set[Together])
    left: dict[Together, int] = field(default_factory=dict[Together, int])
    refused: dict[Together, str] = field(default_factory=dict[Together, str])
    _rows: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    _first: Together = ()
    _level_tries: dict[Level, int] = field(default_factory=dict[Level, int])

    def __post_init__(self) -> None:
        for names in combinations(sorted(self.factors), 2):
            for levels in product(*([(name, level) for level in self.factors[name]] for name in names)):
                if levels not in self.apart:
                    self.left[levels] = 0
        for three in combinations(sorted(self.thrice), 3):
            sides = ([(name, self.thrice[name]), (name, _other(self.thrice[name]))] for name in three)
            self.left |= dict.fromkeys(product(*sides), 0)

    @property
    def possible(self) -> int:
        """How many there are that could be asked for, as far as is known."""
        return len(self.asked) + len(self.left)

    def wishes(self, chance: random.Random) -> dict[str, str]:
        """A level for every factor, of which some are left to be asked for together; empty when none is."""
        if not self.left:
            return {}
        fewest = min(self.left.values())
        first = chance.choice([together for together, tries in self.left.items() if tries == fewest])
        self._first = first
        row = {name: self._fine(name, level, chance) for name, level in first}
        if fewest and self._rows:
            return {**chance.choice(self._rows), **row}
        others = [name for name in self.factors if name not in row]
        chance.shuffle(others)
        for name in others:
            levels = [level for level in self.factors[name] if not self._excluded((name, level), row)]
            chance.shuffle(levels)
            if levels:
                row[name] = max(levels, key=lambda level: self._gain((name, level), row))
        return row

    def took(self, levels: Mapping[str, str]) -> bool:
        """A row with these levels has come about; returns whether something in it was asked for the first time."""
        before = len(self.asked)
        self._rows.append({name: level for name, level in levels.items() if name in self.factors})
        for level in levels.items():
            self._level_tries[level] = -1
        for together in self.within(levels):
            if self.left.pop(together, None) is not None or self.refused.pop(together, None) is not None:
                self.asked.add(together)
        return len(self.asked) > before

    def missed(self, why: str) -> None:
        """The row that was wished for last has not come about, unless what it began with has been asked for since."""
        if self._first not in self.left:
            return
        self.left[self._first] += 1
        if self.left[self._first] >= _MOST_TRIES:
            self.refused[self._first] = why
            del self.left[self._first]
        for level in self._first:
            tries = self._level_tries.get(level, 0)
            if tries >= 0:
                self._level_tries[level] = tries + 1
                if tries + 1 == _MOST_TRIES_OF_LEVEL:
                    gone = [together for together in self.left if level in together]
                    self.refused |= dict.fromkeys(gone, why)
                    for together in gone:
                        del self.left[together]

    def within(self, levels: Mapping[str, str]) -> Iterable[Together]:
        """What a row with these levels asks for together."""
        pairs = sorted((name, level) for name, level in levels.items() if name in self.factors)
        yield from combinations(pairs, 2)
        coarse = [
            (name, level if level == self.thrice[name] else _other(self.thrice[name]))
            for name, level in pairs
            if name in self.thrice
        ]
        yield from combinations(coarse, 3)

    def _fine(self, name: str, level: str, chance: random.Random) -> str:
        """A level of the factor, where ``level`` may be any but the neutral one."""
        if level in self.factors[name]:
            return level
        return chance.choice([fine for fine in self.factors[name] if fine != self.thrice[name]])

    def _excluded(self, level: Level, row: Mapping[str, str]) -> bool:
        return bool(self.apart) and any(_sorted(level, other) in self.apart for other in row.items())

    def _gain(self, level: Level, row: Mapping[str, str]) -> int:
        return sum(_sorted(level, other) in self.left for other in row.items())


def _sorted(*levels: Level) -> Together:
    return tuple(sorted(levels))


def _other(neutral: str) -> str:
    return f"not {neutral}"
