"""Deciding which kernel serves a request, and saying why for every kernel; no torch here."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from portakernel.claims.capability import ReasonCode, Rejection
from portakernel.claims.request import Phase, Request
from portakernel.config import Config
from portakernel.deciding.builds import Builds
from portakernel.deciding.decision import Decision
from portakernel.deciding.demotions import Demotions
from portakernel.deciding.gates import Knowledge, assess
from portakernel.deciding.hardware_shortfalls import shortfalls
from portakernel.deciding.kernel_argument import BLOCK_MARK
from portakernel.deciding.policies import Layer, Policy, Wishes, intern_policy
from portakernel.deciding.process_wishes import ProcessWishes, allowed_plugins, read
from portakernel.deciding.ranking import Candidate, order, why, why_not
from portakernel.deciding.readiness import Readiness
from portakernel.deciding.routes import Routes
from portakernel.deciding.sources import followed_plan, measurements
from portakernel.deciding.tallies import Tallies
from portakernel.deciding.trace_token import make_token
from portakernel.deciding.unmet import skipped_preferences
from portakernel.host.locks import make_lock
from portakernel.registry.kernel import Kernel
from portakernel.registry.plugin_manager import PluginManager
from portakernel.registry.registry import Registry
from portakernel.words.symbols import left_to_the_run

if TYPE_CHECKING:
    from portakernel.deciding.policy_file import Draft


class Dispatcher:
    """Decides over one registry; keeps what was probed and what is set for the process."""

    def __init__(self, registry: Registry | None = None, config: Config | None = None) -> None:
        config = Config.from_environment() if config is None else config
        drafts = read(config.policy)
        if registry is None:
            disabled, allowed = frozenset(config.disable), allowed_plugins(config, drafts)
            registry = Registry(PluginManager(disabled=disabled, allowed=allowed, patience_s=config.patience_s))
        self.registry = registry
        self.process = ProcessWishes(config, drafts, registry)
        self.readiness = Readiness(self.registry.manager)
        self.builds = Builds()
        self.routes = Routes(
            registry, followed_plan(config.plan, registry, named_by="PORTAKERNEL_PLAN"), measurements(config, registry)
        )
        self.tallies = Tallies()
        self.demotions = Demotions(registry)
        self.checks_values = config.checks
        self.trace_token = ""
        self._token = ""
        self._blocks = 0
        self._renewing = make_lock()
        self._renew_process_policy()
        self.context_layers: ContextVar[tuple[Layer, ...]] = ContextVar("portakernel_policy", default=())

    @functools.cached_property
    def reference_is_free(self) -> frozenset[str]:
        """The vendors whose torch device is the CPU: there the reference is no slower than expected."""
        return frozenset(backend.vendor for backend in self.registry.backends.values() if backend.torch_device == "cpu")

    def set_process_layer(self, layer: Layer | None) -> None:
        """Puts ``layer`` above the environment for the whole process, or takes it away.

        Raises:
            UnknownNameError: it uses what nothing here has.
        """
        self.process.above = None if layer is None else self.process.accepted(layer)
        self._renew_process_policy()

    def set_policy_files(self, drafts: Sequence[Draft], *, named_by: str = "") -> None:
        """Puts policy files under the environment, in the place of others (``ProcessWishes.set_files``)."""
        self.process.set_files(drafts, named_by=named_by)
        self._renew_process_policy()
        self.process.warn_of_doubts()

    def _renew_process_policy(self) -> None:
        # policy and token are of one making, whichever thread's is the last
        with self._renewing:
            self.process_policy = intern_policy(self.process.layers())
            if self.trace_token:
                self.refresh_trace_token()

    def refresh_trace_token(self) -> None:
        """Makes the token of all that decisions depend on (``trace_token.make_token``)."""
        process = self.process
        allowed = [plugins for plugins, _ in process.allow]
        # of ops whose kernels save each in its own way, a trace asks the plan
        paired = {kernel.op for kernel in self.registry.kernels.values() if kernel.is_paired}
        wishes = (
            self.process_policy.layers, sorted(process.disabled), allowed, self.checks_values,
            self.routes.traced(paired), *self.demotions.spelled(),
        )  # fmt: skip
        self._token = make_token(self.registry, wishes)
        self._show_token()

    def _show_token(self) -> None:
        self.trace_token = self._token + (BLOCK_MARK if self._blocks else "")

    def count_block(self, entered: int) -> None:
        """Counts a policy block that some thread has entered (1) or left (-1).

        What is inline in a compiled graph follows no block. While there is one, every compiled function runs a graph of
        calls, which follow the blocks of their own thread: that is what the token says.
        """
        with self._renewing:
            self._blocks += entered
            if self.trace_token:
                self._show_token()

    def is_current(self, token: str) -> bool:
        """Whether the token stands for what decisions depend on now, inside of policy blocks or outside."""
        return token.removesuffix(BLOCK_MARK) == self._token

    def policy(self, argument: Layer | None = None) -> Policy:
        """The policy in force here and now."""
        layers = self.context_layers.get()
        if argument is not None:
            layers = (argument, *layers)
        return intern_policy((*layers, *self.process_policy.layers)) if layers else self.process_policy

    @contextmanager
    def without_contexts(self) -> Iterator[None]:
        """Inside, the process's policy alone is in force."""
        token = self.context_layers.set(())
        try:
            yield
        finally:
            self.context_layers.reset(token)

    def kernels_here(self, op: str) -> list[Kernel]:
        """The kernels of ``op`` that could serve some device which the installed torch reaches; none is probed.

        Those that are switched off, or lack a module, are left out: what they would ask of a call costs none.
        """
        vendors = {"*", *(b.vendor for b in self.registry.backends.values() if self.registry.reaches(b))}
        return [
            kernel
            for kernel in self.registry.for_op(op)
            if kernel.disabled is None
            and not self.process.switched_off(kernel)
            and not self.readiness.not_installed(kernel)
            and any(not vendors.isdisjoint(capability.targets) for _, capability in kernel.variants)
        ]

    def decide(
        self, request: Request, policy: Policy | None = None, cannot: Mapping[str, Rejection] | None = None
    ) -> Decision:
        """The kernel for ``request``, with every kernel's reasons; never raises for want of a kernel.

        ``cannot`` are kernels that said ``CannotRun`` for calls like this one. When the request's device is in this
        machine, readiness is probed and the winner is imported; otherwise both are assumed.
        """
        request, wishes, below = self._wished(request, self.policy() if policy is None else policy)
        return self._decided(request, self.routes.follow(request, wishes, below), cannot or {})

    def decide_traced(self, request: Request, policy: Policy | None = None) -> Decision:
        """The decision for a call that is traced, as far as the trace has to fix it.

        What a graph dissolves no plan speaks of, and of what it calls the plan is asked when it runs; but not where it
        would come too late. Where some kernel saves in its own way for backward, forward and backward are chosen
        together, and the graph holds both; what PyTorch records has to be traced. Sizes that only the run can tell are
        compared with no plan.
        """
        decision, kernels = self.decide(request, policy), self.registry.for_op(request.op)
        left = request.unpaired or any(map(left_to_the_run, request.dims.values()))
        if left or request.phase not in (Phase.TRAINING, Phase.BACKWARD):
            return decision
        if self.chooses_together(request.op):
            return self._planned(decision, policy)
        recorded = {kernel.name for kernel in kernels if kernel.saves == "autograd"}
        return self._planned(decision, policy, recorded) if request.phase is Phase.TRAINING else decision

    def chooses_together(self, op: str) -> bool:
        """Whether some kernel of ``op`` saves in its own way, so that its forward and backward are one choice."""
        return any(kernel.saves == "own" for kernel in self.registry.for_op(op))

    def decide_in_graph(self, request: Request, policy: Policy | None = None) -> Decision:
        """The decision for a call of a compiled graph once it has run: by the plan where the graph calls a kernel."""
        return self._planned(self.decide(request, policy), policy)

    def _planned(self, decision: Decision, policy: Policy | None, among: Collection[str] | None = None) -> Decision:
        """``decision``, or where the graph is to keep the call whole and the plan speaks of it that by the plan."""
        if self.routes.plan is None or decision.form in ("inline", "kernel"):
            return decision
        request, _, below = self._wished(decision.request, self.policy() if policy is None else policy)
        planned = self.routes.planned(request, below, among)
        return decision if planned is below else self._decided(request, planned, {})

    def _decided(self, request: Request, wishes: Wishes, cannot: Mapping[str, Rejection]) -> Decision:
        kernels = self.registry.for_op(request.op)
        now = self._knowledge()
        cannot = {**self.routes.wrong(request), **self.demotions.of(request), **cannot}
        closed = request.without_symbols()
        candidates = [assess(now, kernel, closed, wishes, cannot) for kernel in kernels]
        eligible = sorted((c for c in candidates if not c.rejections), key=lambda c: order(c, wishes))
        rejected = [candidate for candidate in candidates if candidate.rejections]
        winner: Candidate | None = None
        while eligible and winner is None:
            first = eligible.pop(0)
            if closed is not request:  # a bound that an open size is compared with guards the graph
                first = assess(now, first.kernel, request, wishes, cannot)
            if not first.rejections and (failure := self._load_failure(first.kernel, request)):
                first = replace(first, status="rejected", rejections=(failure,), assumed=())
            if first.rejections:
                rejected.append(first)
            else:
                winner = replace(first, status="chosen")
        missing = shortfalls(request, self.registry)
        if winner is None:
            return Decision(
                request, None, "no kernel can serve this request", tuple(rejected), (), missing, wishes=wishes
            )
        losers = [replace(loser, rejections=(why_not(loser, winner, wishes),)) for loser in eligible]
        # a third party's kernel stands behind the reference: that the reference was passed over surprises nobody
        named = {*wishes.use, *wishes.prefer}
        before = [c for c in rejected if order(c, wishes) < order(winner, wishes)]
        before = [c for c in before if not c.kernel.is_reference or c.kernel.name in named]
        passed_over = tuple(c.kernel.name for c in sorted(before, key=lambda c: order(c, wishes)))
        notes = self.readiness.notes(winner.kernel, request.device) if request.device is not None else ()
        reason = why(winner, losers, wishes, request)
        ranked = (winner, *losers, *rejected)
        return Decision(request, winner.kernel, reason, ranked, passed_over, missing, notes, wishes)

    def rejections(self, name: str, request: Request, policy: Policy) -> tuple[Rejection, ...]:
        """Why the kernel ``name`` cannot serve ``request``, as ``decide`` would say; no other kernel is asked."""
        kernel = self.registry.kernels[name]
        request, wishes, below = self._wished(request, policy)
        wishes = self.routes.follow(request, wishes, below)
        rejections = assess(self._knowledge(), kernel, request, wishes, {}).rejections
        failure = self._load_failure(kernel, request) if not rejections else None
        return (failure,) if failure is not None else rejections

    def _wished(self, request: Request, policy: Policy) -> tuple[Request, Wishes, Wishes]:
        """What the policy wants of the request, which then asks for what the policy requires.

        The last are the wishes without what a trace chose: whoever speaks of the call goes before that.
        """
        wishes = policy.wishes(request.op, request.target, self.registry)
        for skipped in skipped_preferences(
            policy, request.op, request.target, self.registry, self.process.disabled, self.process.allow
        ):
            self.process.warn_once(
                f"{skipped} The preference is left out: {skipped.remedy}", skipped.where, skipped.name
            )
        if wishes.require:
            request = replace(request, requires=request.requires | wishes.require.keys())
        if not (policy.layers and policy.layers[0].traced):
            return request, wishes, wishes
        return request, wishes, intern_policy(policy.layers[1:]).wishes(request.op, request.target, self.registry)

    def demote(self, kernel: Kernel, request: Request, detail: str) -> None:
        """Has a kernel chosen for no call of the request's kind any more, because it gave a wrong result."""
        text = f"shadow verification found {detail}"
        self.demotions.add(kernel.name, request, Rejection(ReasonCode.SHADOW_MISMATCH, text))
        with self._renewing:
            if self.trace_token:
                self.refresh_trace_token()

    def announce(self, decision: Decision) -> None:
        """Tells plugins of a decision that a call will be served by."""
        self.registry.manager.call("portakernel_decided", decision=decision)

    def _knowledge(self) -> Knowledge:
        # made anew for each decision: the kit decides with copies, some of whose parts are others
        return Knowledge(self.registry, self.process, self.readiness, self.builds)

    def _load_failure(self, kernel: Kernel, request: Request) -> Rejection | None:
        if request.device is None:
            return None
        entry = kernel.backward if request.phase is Phase.BACKWARD else kernel.entry
        return self.readiness.load(kernel, entry or kernel.entry)

    def entry(self, entry: str) -> Any:
        """The function that ``module:function`` names, imported once."""
        return self.readiness.entry(entry)
