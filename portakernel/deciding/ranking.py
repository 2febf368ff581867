"""The kernels that a decision compares, and their order: why one goes before another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.claims.request import Phase, Request
from portakernel.contracts import contracts
from portakernel.deciding.policies import Wishes
from portakernel.registry.kernel import Kernel
from portakernel.text.printable import brief
from portakernel.words.graph_forms import GraphForm
from portakernel.words.target import Target

Status = Literal["chosen", "eligible", "rejected"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One kernel's place in a decision.

    ``target`` is what it would run on, which differs from the request's where the kernel serves an attached device.
    ``assumed`` lists what was taken for granted, not checked. ``form`` is how a compiled graph would hold it; None
    outside of graphs.
    """

    kernel: Kernel
    status: Status
    priority: int
    rejections: tuple[Rejection, ...] = ()
    assumed: tuple[str, ...] = ()
    variant: str = ""
    target: Target | None = None
    form: GraphForm | None = None

    def __repr__(self) -> str:
        codes = ", ".join(rejection.code for rejection in self.rejections)
        return brief(f"<Candidate {self.kernel.name}: {self.status}{f' ({codes})' if codes else ''}>")

    def to_json(self) -> dict[str, Any]:
        """The candidate as JSON-ready data; stable."""
        return {
            "kernel": self.kernel.name,
            "status": self.status,
            "priority": self.priority,
            "form": self.form,
            "rejections": [{"code": str(r.code), "text": r.text, "parameter": r.parameter} for r in self.rejections],
            "target": str(self.target) if self.target is not None else None,
            "assumed": list(self.assumed),
        }


def tier(candidate: Candidate) -> int:
    """First-party kernels go before the reference, which goes before third parties': those wait for a policy.

    Where the reference is a formula that Inductor fuses, it is one among the first-party kernels of a compiled graph.
    """
    kernel = candidate.kernel
    if kernel.is_reference:
        return 0 if candidate.form == "inline" and kernel.in_graphs.priority is not None else 1
    return 0 if kernel.first_party else 2


def form_of(kernel: Kernel, request: Request, wishes: Wishes) -> GraphForm | None:
    """How a compiled graph would hold ``kernel``; None where none is asked for.

    A kernel that a policy names strictly is not dissolved into torch operators, unless a policy says so. A plugin's is
    called where sizes are open, because how it runs depends on them; not one that is nothing but what PyTorch records.
    Where a size is left to the run, only the formulas that Inductor fuses stand there: it lacks products of such sizes.
    On the CPU, where an index outside is an error that names it, whatever takes indices is called: in a formula of
    Inductor's -1 is the last row.
    """
    if not request.compiled:
        return None
    if kernel.saves == "autograd" and request.phase is Phase.TRAINING and not request.below_autograd:
        return "inline"
    own = kernel.in_graphs.form
    left_open = request.open or request.without_symbols().open
    if left_open and not (own == "inline" and (kernel.is_reference or kernel.saves == "autograd")):
        return "call"
    if left_open == "run" and not (kernel.is_reference and kernel.in_graphs.priority is not None):
        return "call"
    if own == "inline" != wishes.compiled and request.target.vendor == "cpu" and _looks_at_values(request):
        return "call"
    if wishes.compiled == "call" or (own == "inline" != wishes.compiled and kernel.name in wishes.use):
        return "call"
    return own


def _looks_at_values(request: Request) -> bool:
    """Whether a tensor is given whose numbers have a rule; backward gets what forward has looked at."""
    given = (tensor for tensor in contracts()[request.op].tensors if tensor.name not in request.absent)
    return request.phase is not Phase.BACKWARD and any(tensor.rule is not None for tensor in given)


def order(candidate: Candidate, wishes: Wishes) -> tuple[int, bool, bool, int, int, str]:
    """The key by which eligible candidates are sorted; the last part is the name, so that no two are equal."""
    kernel, rank = candidate.kernel, tier(candidate)
    return (
        wishes.rank(kernel.name),
        rank == 2,
        _is_other_form(candidate, wishes),
        rank,
        -candidate.priority,
        kernel.name,
    )


def _is_other_form(candidate: Candidate, wishes: Wishes) -> bool:
    """Whether a policy wants compiled graphs to hold kernels in a form that this one has not."""
    return None not in (candidate.form, wishes.compiled) and candidate.form != wishes.compiled


def why_not(loser: Candidate, winner: Candidate, wishes: Wishes) -> Rejection:
    """The reason why an eligible candidate does not go first."""
    named = {**wishes.use, **wishes.prefer}
    if winner.kernel.name in named and order(loser, wishes)[0] != order(winner, wishes)[0]:
        text = f"{named[winner.kernel.name]} puts {winner.kernel.name} before it"
    elif tier(loser) == 2 != tier(winner):
        wish = f"prefer: {loser.kernel.plugin}, or PORTAKERNEL_PREFER={loser.kernel.plugin}"
        text = f"a third party's kernel waits until a policy names it ({wish}); {winner.kernel.name} serves"
        return Rejection(ReasonCode.THIRD_PARTY, text)
    elif _is_other_form(loser, wishes) and not _is_other_form(winner, wishes):
        text = f"{wishes.compiled_source} wants the form {winner.form} in compiled graphs; {winner.kernel.name} has it"
    elif tier(loser) != tier(winner):
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
        return wishes.reasons.get(name) or f"{wishes.prefer[name]} prefers it"
    if not losers:
        return "the only kernel that can serve this request"
    second = losers[0]
    if tier(second) != tier(winner):
        kinds = dict.fromkeys(
            "the reference" if loser.kernel.is_reference else "kernels of third parties" for loser in losers
        )
        return f"priority {winner.priority}; the only one beside {' and '.join(kinds)}"
    if second.priority == winner.priority:
        return f"priority {winner.priority}, shared with {second.kernel.name}; the first by name"
    return f"highest priority {winner.priority}, before {second.priority} of {second.kernel.name}"
