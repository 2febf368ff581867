"""Deciding which kernel serves a request, and saying why for every kernel; no torch here."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from portakernel.claims.capability import Capability, ReasonCode, Rejection
from portakernel.claims.request import Phase, Request
from portakernel.claims.request_words import warmup_call
from portakernel.config import Config
from portakernel.contracts import contract
from portakernel.deciding.builds import Builds, without_promises
from portakernel.deciding.decision import Candidate, Decision, is_recorded, lost, order, why
from portakernel.deciding.kernel_argument import TOKEN_MARK
from portakernel.deciding.policies import Layer, Policy, Wishes, intern_policy
from portakernel.deciding.process_wishes import ProcessWishes, allowed_plugins, read
from portakernel.deciding.readiness import Readiness, required
from portakernel.deciding.shortfalls import shortfalls
from portakernel.deciding.unmet import skipped_preferences
from portakernel.host.locks import make_lock
from portakernel.registry.kernel import Kernel
from portakernel.registry.plugin_manager import PluginManager
from portakernel.registry.registry import Registry
from portakernel.tensors import torch_build
from portakernel.text.spelling import spelled
from portakernel.words.symbols import left_to_the_run
from portakernel.words.target import Device

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
        self.trace_token = ""
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
        """Names what decisions depend on: a compiled graph, perhaps kept on disk, holds while the token is the same.

        The devices are no part of it, which would have to be probed: torch keeps graphs by device itself.
        """
        import hashlib
        import platform

        claims = [
            (_claims(kernel), [version for _, _, version in required(kernel)])
            for _, kernel in sorted(self.registry.kernels.items())
        ]
        allowed = [plugins for plugins, _ in self.process.allow]
        hardware = platform.machine(), torch_build.installed()
        facts = (self.process_policy.layers, sorted(self.process.disabled), allowed, hardware, claims)
        self.trace_token = TOKEN_MARK + hashlib.sha256(spelled(facts).encode()).hexdigest()[:16]

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
        request, wishes = self._wished(request, self.policy() if policy is None else policy)
        kernels = self.registry.for_op(request.op)
        candidates = [self._assess(kernel, request, wishes, cannot or {}) for kernel in kernels]
        eligible = sorted((c for c in candidates if not c.rejections), key=lambda c: order(c, wishes))
        rejected = [candidate for candidate in candidates if candidate.rejections]
        while eligible and (failure := self._load_failure(eligible[0].kernel, request)):
            rejected.append(replace(eligible.pop(0), status="rejected", rejections=(failure,), assumed=()))
        missing = shortfalls(request, self.registry)
        if not eligible:
            return Decision(
                request, None, "no kernel can serve this request", tuple(rejected), (), missing, wishes=wishes
            )
        winner = replace(eligible[0], status="chosen")
        losers = [replace(loser, rejections=(lost(loser, winner, wishes),)) for loser in eligible[1:]]
        # nobody expects the reference where it was not asked for: what stands after it waits for a policy
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
        request, wishes = self._wished(request, policy)
        rejections = self._assess(kernel, request, wishes, {}).rejections
        failure = self._load_failure(kernel, request) if not rejections else None
        return (failure,) if failure is not None else rejections

    def _wished(self, request: Request, policy: Policy) -> tuple[Request, Wishes]:
        """What the policy wants of the request, which then asks for what the policy requires."""
        wishes = policy.wishes(request.op, request.target, self.registry)
        for skipped in skipped_preferences(
            policy, request.op, request.target, self.registry, self.process.disabled, self.process.allow
        ):
            self.process.warn_once(
                f"{skipped} The preference is left out: {skipped.remedy}", skipped.where, skipped.name
            )
        if wishes.require:
            request = replace(request, requires=request.requires | wishes.require.keys())
        return request, wishes

    def announce(self, decision: Decision) -> None:
        """Tells plugins of a decision that a call will be served by."""
        self.registry.manager.call("portakernel_decided", decision=decision)

    def _assess(self, kernel: Kernel, request: Request, wishes: Wishes, cannot: Mapping[str, Rejection]) -> Candidate:
        found = [*self._policy_rejections(kernel, request, wishes), *self._pairing_rejections(kernel, request)]
        assumed: list[str] = []
        variant, capability, claimed = self._claim(kernel, request)
        found += claimed
        devices = self._serving_devices(capability, request) if capability is not None else ()
        attached = devices[0] if devices and devices[0].target != request.target else None
        if attached is not None and kernel.name not in (*wishes.use, *wishes.prefer):
            text = f"runs on {attached.target}, attached to {request.target}: only when a policy names it"
            found.append(Rejection(ReasonCode.ATTACHED_TARGET, text, "target"))
        if kernel.name in cannot:
            found.append(cannot[kernel.name])
        if request.device is None:
            assumed += [f"{module} {version}".rstrip() + " is installed" for module, version in kernel.requires.items()]
            assumed += ["the device passes the plugin's readiness probe"] if kernel.ready else []
        else:
            found += self.readiness.not_installed(kernel)
        if kernel.check is not None and not found:
            values = {name: request.value(name) for name in kernel.check.reads}
            if request.device is None or None in values.values():
                assumed.append(f"its check of {', '.join(values)} passes")
            elif later := [name for name, value in values.items() if left_to_the_run(value)]:
                text = f"its check asks for {', '.join(later)}, known only when the graph runs"
                found.append(Rejection(ReasonCode.LIMIT, text, later[0]))
            elif rejection := self.readiness.check(kernel, values):
                found.append(rejection)
        if not found and request.device is not None:
            answers = [self.readiness.probe(kernel, device) for device in devices or (request.device,)]
            found += [] if None in answers else [answer for answer in answers if answer is not None]
        if kernel.built is not None:
            if request.device is None:
                ahead = self.registry.units(kernel.plugin) is not None
                command = f"`portakernel build {kernel.plugin} --target {request.target}`"
                assumed.append(f"it is built: {command if ahead else warmup_call(request)}")
            elif not found and (unbuilt := self.readiness.built(kernel, request)):
                failed = self.builds.failure(contract(request.op), kernel, request)
                found.append(failed or unbuilt)
        # beside other reasons too: of a kernel that nobody built nobody expects anything
        elif kernel.build is not None and (unbuilt := self.builds.rejection(contract(request.op), kernel, request)):
            found.append(unbuilt)
        if capability is not None:
            assumed += capability.assumptions(request, self.registry.spaces, _possible_dtypes(request))
        rejections = tuple(dict.fromkeys(without_promises(found)))
        return Candidate(
            kernel,
            "rejected" if found else "eligible",
            kernel.priority.of(request),
            tuple(map(wishes.sourced, rejections)) if wishes.require else rejections,
            () if found else tuple(assumed),
            variant,
            devices[0].target if devices else request.target if capability is not None else None,
        )

    def _claim(self, kernel: Kernel, request: Request) -> tuple[str, Capability | None, list[Rejection]]:
        """The variant that fits, or every variant's rejections: of those for this hardware, where there are any."""
        rejections: list[Rejection] = []
        spaces = self.registry.spaces
        here = [variant for variant in kernel.variants if variant[1].serving_target(request, spaces) is not None]
        for name, capability in here or kernel.variants:
            found = capability.rejections(request, spaces)
            if is_recorded(kernel, request):
                found = tuple(rejection for rejection in found if rejection.code is not ReasonCode.NO_BACKWARD)
            if not found:
                return name, capability, []
            prefix = f"{name}: " if name else ""
            rejections += [replace(rejection, text=prefix + rejection.text) for rejection in found]
        return "", None, [self._explained(kernel, request, rejection) for rejection in rejections]

    def _explained(self, kernel: Kernel, request: Request, rejection: Rejection) -> Rejection:
        """Where a kernel's vendor would be attached to the request's device, and no such device was found, says so."""
        if rejection.code is not ReasonCode.VENDOR or request.device is None:
            return rejection
        claimed = {vendor for _, capability in kernel.variants for vendor in capability.targets}
        torch_device = (request.device.torch_device or "").partition(":")[0]
        for backend in self.registry.backends.values():
            if backend.attach and backend.vendor in claimed and backend.torch_device == torch_device:
                found = self.registry.devices_of(backend)
                text = f"the {backend.name} backend finds no device here; see `portakernel doctor`"
                return rejection if found else replace(rejection, text=f"{rejection.text}: {text}")
        return rejection

    def _serving_devices(self, capability: Capability, request: Request) -> tuple[Device, ...]:
        """The request's own device where the claim covers it, else the attached ones that it covers."""
        target = capability.serving_target(request, self.registry.spaces)
        if target == request.target:
            return (request.device,) if request.device is not None else ()
        return tuple(device for device in request.attached if device.target == target)

    def _pairing_rejections(self, kernel: Kernel, request: Request) -> Sequence[Rejection]:
        if request.phase is not Phase.BACKWARD or request.saved_by == kernel.name:
            return ()
        found = []
        saver = self.registry.kernels[request.saved_by] if request.saved_by is not None else None
        if saver is not None and saver.saves in ("own", "autograd"):
            recorded = f"is not called: PyTorch records the gradient of {saver.name}"
            text = recorded if saver.saves == "autograd" else f"cannot read what {saver.name} saved"
            found.append(Rejection(ReasonCode.BACKWARD_MISMATCH, text, "requires_grad"))
        if kernel.saves == "own":
            text = "reads only what its own forward saves"
            found.append(Rejection(ReasonCode.BACKWARD_MISMATCH, text, "requires_grad"))
        return found

    def _policy_rejections(self, kernel: Kernel, request: Request, wishes: Wishes) -> Sequence[Rejection]:
        if is_recorded(kernel, request):  # it has run, and nobody is chosen
            return ()
        found = []
        if kernel.disabled is not None:
            found.append(Rejection(ReasonCode.DISABLED, f"switched off in its manifest: {kernel.disabled}"))
        found += self.process.switched_off(kernel, wishes.allow)
        if kernel.name in wishes.deny:
            found.append(Rejection(ReasonCode.DENIED_BY_POLICY, f"denied by {wishes.deny[kernel.name]}"))
        if wishes.use and kernel.name not in wishes.use and self._use_binds(request, wishes):
            source = next(iter(wishes.use.values()))
            text = f"{source} uses {', '.join(wishes.use)} strictly"
            found.append(Rejection(ReasonCode.DENIED_BY_POLICY, text))
        if kernel.is_reference and wishes.reference == "forbid" and kernel.name not in wishes.use:
            text = f"reference: forbid ({wishes.reference_source})"
            found.append(Rejection(ReasonCode.DENIED_BY_POLICY, text, "reference"))
        return found

    def _use_binds(self, request: Request, wishes: Wishes) -> bool:
        # A forward kernel without a backward leaves the gradient to whoever has one; naming it says nothing of that.
        if request.phase is not Phase.BACKWARD:
            return True
        return any(self.registry.kernels[name].backward is not None for name in wishes.use)

    def _load_failure(self, kernel: Kernel, request: Request) -> Rejection | None:
        if request.device is None:
            return None
        entry = kernel.backward if request.phase is Phase.BACKWARD else kernel.entry
        return self.readiness.load(kernel, entry or kernel.entry)

    def entry(self, entry: str) -> Any:
        """The function that ``module:function`` names, imported once."""
        return self.readiness.entry(entry)


@functools.lru_cache(maxsize=4096)
def _claims(kernel: Kernel) -> str:
    """What of a kernel decides whether, and how early, it is chosen."""
    return spelled((kernel.name, kernel.package, kernel.variants, kernel.priority, kernel.disabled))


def _possible_dtypes(request: Request) -> Mapping[str, Sequence[str]]:
    """The dtypes that the op lets each argument have in calls with these values; scale formats among them decide."""
    made = contract(request.op).at(request.values)
    return {name: made.possible_dtypes(name) for name in made.typed if name not in request.dtypes}
