"""The kernels that a decision compares, and their order: why one goes before another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.claims.request import Phase, Request
from portakernel.deciding.policies import Wishes
from portakernel.registry.kernel import Kernel
from portakernel.text.printable import brief
from portakernel.words.target import Target

Status = Literal["chosen", "eligible", "rejected"]


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

    def __repr__(self) -> str:
        codes = ", ".join(rejection.code for rejection in self.rejections)
        return brief(f"<Candidate {self.kernel.name}: {self.status}{f' ({codes})' if codes else ''}>")

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


def tier(kernel: Kernel) -> int:
    """First-party kernels go before the reference, which goes before third parties': those wait for a policy."""
    return 1 if kernel.is_reference else 0 if kernel.first_party else 2


def order(candidate: Candidate, wishes: Wishes) -> tuple[int, int, int, str]:
    """The key by which eligible candidates are sorted; the last part is the name, so that no two are equal."""
    kernel = candidate.kernel
    return wishes.rank(kernel.name), tier(kernel), -candidate.priority, kernel.name


def why_not(loser: Candidate, winner: Candidate, wishes: Wishes) -> Rejection:
    """The reason why an eligible candidate does not go first."""
    named = {**wishes.use, **wishes.prefer}
    if winner.kernel.name in named and order(loser, wishes)[0] != order(winner, wishes)[0]:
        text = f"{named[winner.kernel.name]} puts {winner.kernel.name} before it"
    elif tier(loser.kernel) != tier(winner.kernel):
        if not loser.kernel.is_reference:
            wish = f"prefer: {loser.kernel.plugin}, or PORTAKERNEL_PREFER={loser.kernel.plugin}"
            text = f"a third party's kernel waits until a policy names it ({wish}); {winner.kernel.name} serves"
            return Rejection(ReasonCode.THIRD_PARTY, text)
        text = f"the reference comes last; {winner.kernel.name} serves"
    elif loser.priority == winner.priority:
        text = f"priority {loser.priority} equals that of {winner.kernel.name}, whose name comes first"
    else:
        text = f"priority {loser.priority} is below {winner.priority} of {winner.kernel.name}"
    return Rejection(ReasonCode.LOWER_PRIORITY, text)


def is_recorded(kernel: Kernel, request: Request) -> bool:
    """Whether the request is for the gradient of what ``kernel`` computed, and PyTorch has recorded that."""
    return request.phase is Phase.BACKWARD and request.saved_by == kernel.name and kernel.saves == "autograd"


def why(winner: Candidate, losers: Sequence[Candidate], wishes: Wishes, request: Request) -> str:
    """The reason why the winner goes first."""
    name = winner.kernel.name
    if is_recorded(winner.kernel, request):
        return "it runs forward in training, where PyTorch records its gradient; no backward kernel is called"
    if name in wishes.use:
        return f"{wishes.use[name]} uses it"
    if name in wishes.prefer:
        return f"{wishes.prefer[name]} prefers it"
    if not losers:
        return "the only kernel that can serve this request"
    second = losers[0]
    if tier(second.kernel) != tier(winner.kernel):
        kinds = dict.fromkeys(
            "the reference" if loser.kernel.is_reference else "kernels of third parties" for loser in losers
        )
        return f"priority {winner.priority}; the only one beside {' and '.join(kinds)}"
    if second.priority == winner.priority:
        return f"priority {winner.priority}, shared with {second.kernel.name}; the first by name"
    return f"highest priority {winner.priority}, before {second.priority} of {second.kernel.name}"
