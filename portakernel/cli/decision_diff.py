"""Two files of decisions, as `portakernel explain --all --json` prints them, and what differs between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from portakernel.cli.explain.decision_sheet import SCHEMA_VERSION
from portakernel.errors import ArgumentValueError
from portakernel.host.regular_file import read_regular

MOST_BYTES = 64 << 20
_SHOWN_PROBLEMS = 5
_MADE_BY = "`portakernel explain --all --target TARGET --json` writes one"
Question = tuple[str, str, str]  # op, target, phase


class _Model(BaseModel):
    # a later version may add keys
    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class Reason(_Model):
    """One rejection."""

    code: str
    text: str
    parameter: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The reason as JSON-ready data; stable."""
        return {"code": self.code, "text": self.text, "parameter": self.parameter}


class Standing(_Model):
    """One kernel in a decision."""

    kernel: str
    status: Literal["chosen", "eligible", "rejected"]
    rejections: tuple[Reason, ...] = Field(strict=False)


class Asked(_Model):
    """What a decision is about."""

    phase: str
    dtypes: dict[str, str]
    dims: dict[str, int]
    features: dict[str, Any]
    formats: dict[str, str]
    requires: tuple[str, ...] = Field(strict=False)


class Decided(_Model):
    """One decision."""

    op: str
    target: str
    request: Asked
    chosen: str | None
    why: str
    candidates: tuple[Standing, ...] = Field(strict=False)

    @property
    def question(self) -> Question:
        """What two files' decisions are matched by."""
        return self.op, self.target, self.request.phase


class Sheet(_Model):
    """A whole file."""

    schema_version: int
    portakernel: str
    decisions: tuple[Decided, ...] = Field(strict=False)


def read_sheet(path: Path) -> Sheet:
    """The decisions in the file at ``path``.

    Raises:
        ArgumentValueError: it cannot be read, or holds something else.
    """
    try:
        content = read_regular(path, limit=MOST_BYTES)
    except OSError as error:
        raise ArgumentValueError(f"{path} cannot be read: it {_reason(error)}; {_MADE_BY}") from error
    try:
        sheet = Sheet.model_validate_json(content)
    except ValidationError as error:
        raise ArgumentValueError(f"{path} holds no decisions: {_problems(error)}; {_MADE_BY}") from error
    if sheet.schema_version != SCHEMA_VERSION:
        text = f"{path} has schema_version {sheet.schema_version}, written by portakernel {sheet.portakernel}"
        raise ArgumentValueError(f"{text}; this one reads {SCHEMA_VERSION}")
    questions = Counter(decided.question for decided in sheet.decisions)
    if repeated := next((question for question, count in questions.items() if count > 1), None):
        raise ArgumentValueError(f"{path} has two decisions of {_worded(repeated)}; one for each is accepted")
    return sheet


@dataclass(frozen=True, slots=True)
class Changed:
    """One decision that both files have: what was chosen, and which kernels came, went or have other reasons."""

    old: Decided
    new: Decided
    appeared: tuple[Standing, ...]
    disappeared: tuple[Standing, ...]
    reasons: tuple[tuple[Standing, Standing], ...]

    @property
    def chosen_differs(self) -> bool:
        """Whether another kernel was chosen, or none."""
        return self.old.chosen != self.new.chosen

    @property
    def asked_differs(self) -> bool:
        """Whether the two were asked the same."""
        return self.old.request != self.new.request

    def __bool__(self) -> bool:
        return any((self.chosen_differs, self.asked_differs, self.appeared, self.disappeared, self.reasons))

    def to_json(self) -> dict[str, Any]:
        """The difference as JSON-ready data; stable."""
        return {
            "op": self.new.op,
            "target": self.new.target,
            "phase": self.new.request.phase,
            "chosen": {"old": self.old.chosen, "new": self.new.chosen},
            "why": {"old": self.old.why, "new": self.new.why},
            "asked_differs": self.asked_differs,
            "appeared": [one.kernel for one in self.appeared],
            "disappeared": [one.kernel for one in self.disappeared],
            "reasons": [
                {
                    "kernel": new.kernel,
                    "status": {"old": old.status, "new": new.status},
                    "rejections": {
                        "old": [reason.to_json() for reason in old.rejections],
                        "new": [reason.to_json() for reason in new.rejections],
                    },
                }
                for old, new in self.reasons
            ],
        }


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs between two files."""

    changed: tuple[Changed, ...]
    same: int
    only_old: tuple[Question, ...]
    only_new: tuple[Question, ...]

    @property
    def choices_differ(self) -> bool:
        """Whether some chosen kernel of the old file is not the new one's, or the new file has no such decision."""
        return bool(self.only_old) or any(one.chosen_differs for one in self.changed)

    def to_json(self) -> dict[str, Any]:
        """The difference as JSON-ready data; stable."""
        names = ("op", "target", "phase")
        return {
            "choices_differ": self.choices_differ,
            "changed": [one.to_json() for one in self.changed],
            "same": self.same,
            "only_old": [dict(zip(names, question, strict=True)) for question in self.only_old],
            "only_new": [dict(zip(names, question, strict=True)) for question in self.only_new],
        }


def difference(old: Sheet, new: Sheet) -> Difference:
    """What differs between two files' decisions, in the order of the new one.

    Raises:
        ArgumentValueError: no question is in both.
    """
    before = {decided.question: decided for decided in old.decisions}
    after = {decided.question: decided for decided in new.decisions}
    shared = [question for question in after if question in before]
    if not shared:
        text = "the two files have no op, target and phase in common, so that nothing can be compared"
        raise ArgumentValueError(f"{text}: {_targets(before)} in the first, {_targets(after)} in the second")
    compared = [_compared(before[question], after[question]) for question in shared]
    changed = tuple(filter(None, compared))
    return Difference(
        changed,
        len(compared) - len(changed),
        tuple(question for question in before if question not in after),
        tuple(question for question in after if question not in before),
    )


def _compared(old: Decided, new: Decided) -> Changed:
    before = {standing.kernel: standing for standing in old.candidates}
    after = {standing.kernel: standing for standing in new.candidates}
    both = [(before[name], standing) for name, standing in after.items() if name in before]
    return Changed(
        old,
        new,
        tuple(standing for name, standing in after.items() if name not in before),
        tuple(standing for name, standing in before.items() if name not in after),
        tuple((was, now) for was, now in both if _stands(was) != _stands(now)),
    )


def _stands(standing: Standing) -> tuple[bool, list[Reason]]:
    """What two standings of a kernel differ in: which of the able ones won is told once, of the decision."""
    able = standing.status != "rejected"
    return able, [] if able else list(standing.rejections)


def _worded(question: Question) -> str:
    op, target, phase = question
    return f"{op} on {target} for {phase}"


def _targets(questions: Mapping[Question, Decided]) -> str:
    return ", ".join(dict.fromkeys(target for _, target, _ in questions)) or "none"


def _reason(error: OSError) -> str:
    text = error.strerror or str(error)
    return text if text.startswith(("is ", "has ")) else f"says {text!r}"


def _problems(error: ValidationError) -> str:
    def told() -> Iterator[str]:
        for problem in error.errors(include_url=False, include_context=False, include_input=False)[:_SHOWN_PROBLEMS]:
            place = ".".join(map(str, problem["loc"]))
            yield f"{place}: {problem['msg']}" if place else problem["msg"]

    rest = error.error_count() - _SHOWN_PROBLEMS
    return "; ".join(told()) + (f"; and {rest} more" if rest > 0 else "")
