"""The policies that a call's own ``kernel`` argument makes of the policy in force."""

from __future__ import annotations

import warnings

from portakernel.calling.key_table import remember_few
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.kernel_argument import TOKEN_MARK, is_automatic, layer_of
from portakernel.deciding.policies import Policy, intern_policy
from portakernel.errors import StaleGraphWarning
from portakernel.host.call_site import callers_level


class ArgumentPolicies:
    """One op's policies by argument and by the policy above; both are few.

    ``pinned`` are those of a caller's strict ``kernel=``, which the fast path reads; ``named`` those of a torch op's
    ``kernel``.
    """

    def __init__(self, dispatcher: Dispatcher, op: str) -> None:
        self._dispatcher, self._op = dispatcher, op
        self.pinned: dict[tuple[str, Policy], Policy] = {}
        self.named: dict[tuple[str, Policy], Policy] = {}

    def under(self, above: Policy, argument: str) -> Policy:
        """``above``, with what a torch op's ``kernel`` argument adds to it.

        A compiled graph follows the policy contexts that it is called in: a name that was chosen automatically while
        tracing, by the process's policy, yields to them.
        """
        if not argument or argument == self._dispatcher.trace_token:
            return above
        known = self.named.get((argument, above))
        if known is None:
            known = self._made(above, argument)
            remember_few(self.named, (argument, above), known)
        return known

    def _made(self, above: Policy, argument: str) -> Policy:
        if argument.startswith(TOKEN_MARK):
            self._warn_if_stale(argument)
            return above
        if is_automatic(argument) and self._dispatcher.context_layers.get():
            return above
        layer = layer_of(self._dispatcher.registry, self._op, argument)
        if layer is None:
            text = f"{self._op}: this graph runs {argument}, which is not installed here; the policy in force chooses"
            warnings.warn(text, StaleGraphWarning, stacklevel=callers_level())
            return above
        return intern_policy((layer, *above.layers))

    def _warn_if_stale(self, token: str) -> None:
        if not self._dispatcher.trace_token:  # a graph that another process traced, and nothing was traced here
            self._dispatcher.refresh_trace_token()
        if not self._dispatcher.is_current(token):
            text = (
                f"{self._op}: this graph was traced under another policy or plan, or with other kernels than there are"
                " here and now; the policy in force chooses. Trace it again, or name a kernel in it:"
                f" ops.{self._op}(..., kernel=...)"
            )
            warnings.warn(text, StaleGraphWarning, stacklevel=callers_level())
