"""Which kernels are measured for a call, and have to be in its record."""

from __future__ import annotations

from portakernel.claims.request import Phase
from portakernel.deciding.decision import Decision
from portakernel.registry.kernel import Kernel


def contending(decision: Decision) -> list[Kernel]:
    """The kernels that can serve the request, as priorities have them.

    Of backward, those that any forward goes with: what another forward alone saves is chosen with that. On an
    accelerator the reference, one call of which may take minutes, only where nothing else can serve.
    """
    request = decision.request
    serving = [one.kernel for one in decision.candidates if one.status in ("chosen", "eligible")]
    kernels = [kernel for kernel in serving if not (request.phase is Phase.BACKWARD and kernel.is_paired)]
    if request.target.vendor == "cpu":
        return kernels
    return [kernel for kernel in kernels if not kernel.is_reference] or kernels
