"""Warnings of fallbacks: one for each kernel and reason, and for each op that the reference serves."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.claims.float64 import is_test
from portakernel.claims.request import Request
from portakernel.deciding.decision import Decision
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.policies import Policy, Wishes
from portakernel.deciding.ranking import Candidate
from portakernel.errors import FallbackWarning, ReferenceWarning
from portakernel.host.call_site import callers_level
from portakernel.host.locks import make_lock
from portakernel.registry.kernel import Kernel

# Reasons for which nobody expects a kernel to serve, unless they asked for it.
_UNREMARKABLE = frozenset(
    {
        ReasonCode.VENDOR,
        ReasonCode.ARCH,
        ReasonCode.ATTACHED_TARGET,
        ReasonCode.DENIED_BY_POLICY,
        ReasonCode.DISABLED,
        ReasonCode.NOT_ALLOWED,
        ReasonCode.NOT_INSTALLED,
        ReasonCode.NEEDS_BUILD,
        ReasonCode.SCALE_FORMAT,  # a kernel for other formats was not meant
    }
)


# Tensors without memory, which have shapes alone.
_NOWHERE = "meta"


def _computes_nothing(decision: Decision) -> bool:
    """Whether no kernel is faster than another: of tensors without memory, or without elements."""
    sizes = decision.request.dims.values()  # some of which a trace may leave open
    return decision.request.target.vendor == _NOWHERE or any(type(size) is int and size == 0 for size in sizes)


class Fallbacks:
    """One op's fallbacks, and the warnings of them that were given already."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._warned: set[tuple[str, str, str | None]] = set()
        self._lock = make_lock()

    def reasons(self, decision: Decision, policy: Policy) -> list[tuple[str, Rejection]]:
        """The kernels that were expected to go before the chosen one, each with every reason why it does not."""
        if decision.chosen is None or is_test(decision.request):
            return []
        wishes = self._wishes(decision, policy)
        # a preference for a plugin is fulfilled by any kernel of it
        preferred = {name for name in wishes.prefer if wishes.rank(name) < wishes.rank(decision.chosen.name)}
        free = _computes_nothing(decision) or (decision.chosen.is_reference and self._is_free(decision))
        reasons: list[tuple[str, Rejection]] = []
        for name in decision.passed_over:
            kernel, rejections = decision.candidate(name).kernel, decision.candidate(name).rejections
            # made of PyTorch's operators, it goes first, if at all, where its gradient costs the host less
            recorded = kernel.saves == "autograd"
            expected = not (free or recorded) and not any(
                _is_unremarkable(rejection, decision.request) for rejection in rejections
            )
            if all(rejection.code is ReasonCode.FEATURE for rejection in rejections):
                expected = expected and not _are_one(kernel, decision.chosen)
            if (name in preferred and not _is_ruled_out(kernel, rejections)) or expected:
                reasons += [(name, rejection) for rejection in _of_nearest(rejections, kernel)]
        return reasons

    def warn(self, decision: Decision, policy: Policy) -> tuple[str, ...]:
        """Warns of what is new; returns the kernels that were expected to go before the chosen one."""
        chosen, request = decision.chosen, decision.request
        if chosen is None:
            return ()
        reasons = self.reasons(decision, policy)
        passed_over = tuple(dict.fromkeys(name for name, _ in reasons))
        for name, rejection in reasons:
            # whoever demoted it has warned
            demoted = rejection.code is ReasonCode.SHADOW_MISMATCH
            if not demoted and self._is_first(name, rejection.code, rejection.parameter):
                text = f"{request.op}: {name} cannot serve ({rejection.code}: {rejection.text}); {chosen.name} does"
                warnings.warn(text, FallbackWarning, stacklevel=callers_level())
        inline = decision.form == "inline"  # what Inductor makes of the formula is fast
        if not chosen.is_reference or inline or self._is_free(decision) or is_test(request):
            return passed_over
        wishes = self._wishes(decision, policy)
        asked_for = chosen.name in wishes.use or chosen.name in wishes.prefer
        if wishes.reference == "warn" and not asked_for and self._is_first(chosen.name, request.phase):
            text = f"{request} is served by the reference: correct, but not fast."
            waiting = [c.kernel.plugin for c in decision.candidates if _waits(c)]
            if waiting:
                text += f" {waiting[0]}'s kernel could, once a policy names it: PORTAKERNEL_PREFER={waiting[0]}."
            advice = f"`portakernel explain {request.op}` says why; policy(reference='allow') silences this"
            warnings.warn(f"{text} {advice}", ReferenceWarning, stacklevel=callers_level())
        return passed_over

    def _wishes(self, decision: Decision, policy: Policy) -> Wishes:
        return policy.wishes(decision.request.op, decision.request.target, self._dispatcher.registry)

    def _is_free(self, decision: Decision) -> bool:
        free = decision.request.target.vendor in self._dispatcher.reference_is_free
        return free or _computes_nothing(decision)

    def _is_first(self, name: str, code: str, parameter: str | None = None) -> bool:
        with self._lock:
            new = (name, code, parameter) not in self._warned
            self._warned.add((name, code, parameter))
        return new


def _waits(candidate: Candidate) -> bool:
    """Whether the kernel is a third party's, and could serve if a policy named it."""
    return any(rejection.code is ReasonCode.THIRD_PARTY for rejection in candidate.rejections)


def _is_unremarkable(rejection: Rejection, request: Request) -> bool:
    """Whether nobody expected the kernel to serve: it is for other hardware, say, or for other activations."""
    name = rejection.parameter
    of_value = rejection.code is ReasonCode.FEATURE and name in request.values and name not in request.features
    return of_value or rejection.code in _UNREMARKABLE


def _is_ruled_out(kernel: Kernel, rejections: Sequence[Rejection]) -> bool:
    """Whether a policy rules out the kernel that it prefers: `skipped_preferences` reports that, by the name given."""
    codes = [rejection.code for rejection in rejections]
    switched_off = codes.count(ReasonCode.DISABLED) > (kernel.disabled is not None)
    return switched_off or ReasonCode.DENIED_BY_POLICY in codes or ReasonCode.NOT_ALLOWED in codes


def _of_nearest(rejections: Sequence[Rejection], kernel: Kernel) -> Sequence[Rejection]:
    """The rejections of a kernel's variant for this call's dtype, if it has one; the other variants' say nothing."""
    others = [rejection for rejection in rejections if rejection.code is not ReasonCode.DTYPE]
    return others if others and len(kernel.variants) > 1 else rejections


def _are_one(kernel: Kernel, other: Kernel) -> bool:
    """Whether two kernels are of one module, and so each has features that the other lacks."""
    return kernel.plugin == other.plugin and kernel.entry.partition(":")[0] == other.entry.partition(":")[0]
