"""A decision: the chosen kernel, why it won, and every other kernel with its reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from portakernel.capability import ReasonCode, Rejection
from portakernel.errors import NoKernelError
from portakernel.kernel import Kernel
from portakernel.policies import Wishes
from portakernel.request import Phase, Request
from portakernel.support import Shortfall
from portakernel.target import Target

Status = Literal["chosen", "eligible", "rejected"]


class Use(NamedTuple):
    """What ``stats()`` tells calls apart by; ``fallback`` are the kernels that were expected to go before."""

    op: str
    kernel: str
    phase: str
    target: str
    fallback: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One kernel's place in a decision.

    ``target`` is what it would run on, which differs from the request's where the kernel serves an attached device.
    ``assumed`` lists what was taken for granted, not checked.
    """

    kernel: Kernel
    status: Status
    priority: int
    rejections: tuple[Rejection, ...] = ()
    assumed: tuple[str, ...] = ()
    variant: str = ""
    target: Target | None = None

    def to_json(self) -> dict[str, Any]:
        """The candidate as JSON-ready data; stable."""
        return {
            "kernel": self.kernel.name,
            "status": self.status,
            "priority": self.priority,
            "rejections": [{"code": str(r.code), "text": r.text, "parameter": r.parameter} for r in self.rejections],
            "target": str(self.target) if self.target is not None else None,
            "assumed": list(self.assumed),
        }


@dataclass(frozen=True, slots=True)
class Decision:
    """The kernel chosen for a request, why it won, and every other kernel with its reasons; winner first.

    ``passed_over`` names the kernels that would have gone before the chosen one, had nothing spoken against them;
    ``shortfalls`` is what the target's hardware has no instructions for, of what was asked; ``notes`` is what the
    chosen kernel's plugin has to say of the device.
    """

    request: Request
    chosen: Kernel | None
    why: str
    candidates: tuple[Candidate, ...]
    passed_over: tuple[str, ...] = ()
    shortfalls: tuple[Shortfall, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def target(self) -> Target:
        """What the chosen kernel runs on."""
        winner = self.candidates[0].target if self.chosen is not None else None
        return winner if winner is not None else self.request.target

    def candidate(self, name: str) -> Candidate:
        """The candidate with the full name ``name``."""
        return next(candidate for candidate in self.candidates if candidate.kernel.name == name)

    def to_json(self) -> dict[str, Any]:
        """The decision as JSON-ready data; stable."""
        return {
            "op": self.request.op,
            "target": str(self.request.target),
            "request": self.request.to_json(),
            "chosen": self.chosen.name if self.chosen else None,
            "why": self.why,
            "shortfalls": [shortfall.to_json() for shortfall in self.shortfalls],
            "notes": list(self.notes),
            "candidates": [candidate.to_json() for candidate in self.candidates],
        }

    def __str__(self) -> str:
        where = f" on {self.target}" if self.target != self.request.target else ""
        lines = [str(self.request), f"  chosen: {self.chosen.name if self.chosen else 'none'}{where} ({self.why})"]
        lines += [f"  note: {text}" for text in (*(shortfall.text for shortfall in self.shortfalls), *self.notes)]
        width = max((len(candidate.kernel.name) for candidate in self.candidates), default=0)
        for candidate in self.candidates:
            name = f"  {candidate.kernel.name:<{width}}  "
            lines += [f"{name}{rejection.code}: {rejection.text}" for rejection in candidate.rejections]
        return "\n".join(lines)

    def error(self) -> NoKernelError:
        """The error for a decision without a kernel: the request, each kernel's reasons, the way out."""
        request = self.request
        rows = [(c.kernel.name, str(r.code), r.text) for c in self.candidates for r in c.rejections]
        widths = [max((len(row[i]) for row in rows), default=0) for i in (0, 1)]
        lines = [f"no kernel for op {request}"]
        lines += [f"  {name:<{widths[0]}}  {code:<{widths[1]}}  {text}" for name, code, text in rows]
        dtype = next(iter(request.dtypes.values()), None)
        flags = f" --dtype {dtype}" if dtype else ""
        flags += f" --phase {request.phase}" if request.phase is not Phase.INFERENCE else ""
        lines.append(
            f"  Run `portakernel explain {request.op} --target {request.target}{flags}` for the full decision."
        )
        return NoKernelError("\n".join(lines), self)


def tier(kernel: Kernel) -> int:
    """First-party kernels go before third parties', which go before the reference."""
    return 2 if kernel.is_reference else 0 if kernel.first_party else 1


def order(candidate: Candidate, wishes: Wishes) -> tuple[int, int, int, str]:
    """The key by which eligible candidates are sorted; the last part is the name, so that no two are equal."""
    kernel = candidate.kernel
    named = [*wishes.use, *wishes.prefer]
    place = named.index(kernel.name) if kernel.name in named else len(named)
    return place, tier(kernel), -candidate.priority, kernel.name


def lost(loser: Candidate, winner: Candidate, wishes: Wishes) -> Rejection:
    """Why an eligible candidate does not go first."""
    named = {**wishes.use, **wishes.prefer}
    if winner.kernel.name in named and order(loser, wishes)[0] != order(winner, wishes)[0]:
        text = f"{named[winner.kernel.name]} puts {winner.kernel.name} before it"
    elif tier(loser.kernel) != tier(winner.kernel):
        kind = (
            "the reference comes last" if loser.kernel.is_reference else "a third party's kernel wins by policy alone"
        )
        text = f"{kind}; {winner.kernel.name} serves"
    elif loser.priority == winner.priority:
        text = f"priority {loser.priority} equals that of {winner.kernel.name}, whose name comes first"
    else:
        text = f"priority {loser.priority} is below {winner.priority} of {winner.kernel.name}"
    return Rejection(ReasonCode.LOWER_PRIORITY, text)


def why(winner: Candidate, losers: Sequence[Candidate], wishes: Wishes) -> str:
    """What made the winner win."""
    name = winner.kernel.name
    if name in wishes.use:
        return f"{wishes.use[name]} uses it"
    if name in wishes.prefer:
        return f"{wishes.prefer[name]} prefers it"
    if not losers:
        return "the only kernel that can serve this request"
    second = losers[0]
    if tier(second.kernel) != tier(winner.kernel):
        other = "the reference" if second.kernel.is_reference else "kernels of third parties"
        return f"priority {winner.priority}; the only one beside {other}"
    if second.priority == winner.priority:
        return f"priority {winner.priority}, shared with {second.kernel.name}; the first by name"
    return f"highest priority {winner.priority}, before {second.priority} of {second.kernel.name}"
