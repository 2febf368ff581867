"""A manifest changed in one place, and who notices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

# widened   a kernel claims more than it does: the kit has to fail
# removed   a kernel claims less than it did: lint has to report that the refusal would have worked
# required  a manifest lacks a key that it must have: validate has to say which, and where
Kind = Literal["widened", "removed", "required"]
# noticed            by whoever has to
# would_have_worked  the kernel does what was added: not the kit is blind, but the claim narrow
# unnoticed          by nobody, who could have: a hole in the kit
# skipped            it cannot be told here; proves nothing
Verdict = Literal["noticed", "would_have_worked", "unnoticed", "skipped"]
VERDICTS: tuple[Verdict, ...] = ("noticed", "would_have_worked", "unnoticed", "skipped")
By = Literal["", "check", "lint", "validate"]


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of a manifest: of a kernel's claim, in words, or of the key at ``claim``; ``subject`` is whose.

    ``parameter`` is what the claim is about, as in a rejection, or the key.
    """

    kind: Kind
    subject: str
    claim: str
    parameter: str


@dataclass(frozen=True, slots=True)
class Judged:
    """What came of a mutation: who noticed it, and by what; or why nobody could."""

    mutation: Mutation
    verdict: Verdict
    by: By = ""
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data; stable."""
        mutation = {key: value for key, value in asdict(self.mutation).items() if key != "subject"}
        return {**mutation, "verdict": self.verdict, "by": self.by, "detail": self.detail}


@dataclass(frozen=True, slots=True)
class Listed:
    """The mutations that are going to be tried of a kernel, and where."""

    mutations: tuple[Mutation, ...]
    device: str = ""
    mode: str | None = None


@dataclass(frozen=True, slots=True)
class Trying:
    """A mutation begins: what ends the process next, it ended."""

    mutation: Mutation


@dataclass(slots=True)
class Mutated:
    """What is known of one kernel's mutations, or of those of a manifest's keys."""

    subject: str
    device: str = ""
    mode: str | None = None
    listed: tuple[Mutation, ...] = ()
    judged: list[Judged] = field(default_factory=list[Judged])

    @property
    def left(self) -> int:
        """How many are still to be tried."""
        return len(self.listed) - len(self.judged)

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data; stable."""
        return {
            "subject": self.subject,
            "device": self.device,
            "mode": self.mode,
            "left": self.left,
            "mutations": [judged.to_json() for judged in self.judged],
        }


def counts(judged: Iterable[Judged]) -> dict[str, int]:
    """How many there are of each verdict."""
    found = Counter(one.verdict for one in judged)
    return {verdict: found[verdict] for verdict in VERDICTS}
