"""A decision: the chosen kernel, why it won, and every other kernel with its reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from portakernel.claims.capability import ReasonCode
from portakernel.claims.request import Phase, Request
from portakernel.claims.request_commands import explain_command
from portakernel.deciding.hardware_shortfalls import Shortfall
from portakernel.deciding.policies import Wishes
from portakernel.deciding.ranking import Candidate, tier
from portakernel.errors import NoKernelError
from portakernel.registry.kernel import Kernel
from portakernel.text.printable import brief
from portakernel.words.graph_forms import GraphForm
from portakernel.words.target import Target


class Use(NamedTuple):
    """What ``stats()`` counts calls by; ``fallback`` are the kernels that were expected to go before."""

    op: str
    kernel: str
    phase: str
    target: str
    fallback: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """The kernel chosen for a request, why it won, and every other kernel with its reasons; winner first.

    ``passed_over`` names the kernels that would have gone before the chosen one, had nothing spoken against them;
    ``shortfalls`` is what the target's hardware has no instructions for, of what was asked; ``notes`` is what the
    chosen kernel's plugin has to say of the device; ``wishes`` is what the policy said of such calls.
    """

    request: Request
    chosen: Kernel | None
    why: str
    candidates: tuple[Candidate, ...]
    passed_over: tuple[str, ...] = ()
    shortfalls: tuple[Shortfall, ...] = ()
    notes: tuple[str, ...] = ()
    wishes: Wishes | None = field(default=None, repr=False, compare=False)

    @property
    def passes(self) -> bool:
        """Whether a fault of this moment spoke against some kernel: the next call decides anew."""
        return any(rejection.passing for candidate in self.candidates for rejection in candidate.rejections)

    @property
    def target(self) -> Target:
        """The target that the chosen kernel runs on."""
        winner = self.candidates[0].target if self.chosen is not None else None
        return winner if winner is not None else self.request.target

    @property
    def form(self) -> GraphForm | None:
        """How a compiled graph holds the chosen kernel; None outside of graphs, and where there is none."""
        return self.candidates[0].form if self.chosen is not None else None

    def __repr__(self) -> str:
        chosen = self.chosen.name if self.chosen else "no kernel"
        return brief(f"<Decision: {chosen} of {len(self.candidates)} for {self.request}>")

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
            "form": self.form,
            "why": self.why,
            "shortfalls": [shortfall.to_json() for shortfall in self.shortfalls],
            "notes": list(self.notes),
            "candidates": [candidate.to_json() for candidate in self.candidates],
        }

    def __str__(self) -> str:
        where = f" on {self.target}" if self.target != self.request.target else ""
        form = f", {self.form}" if self.form is not None else ""
        chosen = self.chosen.name if self.chosen else "none"
        lines = [str(self.request), f"  chosen: {chosen}{form}{where} ({self.why})"]
        lines += [f"  note: {text}" for text in (*(shortfall.text for shortfall in self.shortfalls), *self.notes)]
        width = max((len(candidate.kernel.name) for candidate in self.candidates), default=0)
        for candidate in self.candidates:
            name = f"  {candidate.kernel.name:<{width}}  "
            lines += [f"{name}{rejection.code}: {rejection.text}" for rejection in candidate.rejections]
        return "\n".join(lines)

    @property
    def strict(self) -> tuple[Candidate, ...]:
        """The only kernels that the policy lets serve, where it names such; backward may be anybody's but theirs."""
        if self.wishes is None:
            return ()
        used = tuple(candidate for candidate in self.candidates if candidate.kernel.name in self.wishes.use)
        anybodys = self.request.phase is Phase.BACKWARD and all(one.kernel.backward is None for one in used)
        return () if anybodys else used

    def error(self) -> NoKernelError:
        """The error for a decision without a kernel: the request, the kernels' reasons, the way out.

        Where a policy names the kernels that alone may serve, their reasons; else those of all that are for such
        hardware. The others are counted.
        """
        shown = self.strict or [one for one in self.candidates if not _is_of_other_vendor(one)] or self.candidates
        rows = [(c.kernel.name, str(r.code), r.text) for c in shown for r in c.rejections]
        widths = [max((len(row[i]) for row in rows), default=0) for i in (0, 1)]
        lines = [f"no kernel for op {self.request}{self._strictly()}"]
        lines += [f"  {name:<{widths[0]}}  {code:<{widths[1]}}  {text}" for name, code, text in rows]
        if others := len(self.candidates) - len(shown):
            count = "1 more is" if others == 1 else f"{others} more are"
            lines.append(f"  {count} {self._left_out() if self.strict else 'for other hardware'}")
        lines.append(f"  Run `{explain_command(self.request, self.wishes)}` for the full decision.")
        return NoKernelError("\n".join(lines), self)

    def _strictly(self) -> str:
        """A clause that names who lets no other kernel serve; empty where nobody does."""
        if not self.strict or self.wishes is None:
            return ""
        sources = dict.fromkeys(self.wishes.use[one.kernel.name] for one in self.strict)
        names = ", ".join(one.kernel.name for one in self.strict)
        return f": {' and '.join(sources)} uses {names} strictly"

    def _left_out(self) -> str:
        """A clause on the kernels that only a strict policy keeps from serving."""
        # each of these has the strict policy among its reasons, a denial of its own is one more; what is refused is not
        # asked what its own check and its device's probe say
        alone = [
            one.kernel.name
            for one in sorted(self.candidates, key=lambda one: (tier(one), -one.priority, one.kernel.name))
            if one not in self.strict and len(one.rejections) == 1
        ]
        if not alone:
            return "left out by that, and could not serve either"
        more = ["", " and 1 other", f" and {len(alone) - 1} others"][min(len(alone) - 1, 2)]
        return f"left out by that; nothing else is known against {alone[0]}{more}"


def _is_of_other_vendor(candidate: Candidate) -> bool:
    return any(rejection.code is ReasonCode.VENDOR for rejection in candidate.rejections)
