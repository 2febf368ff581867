"""Deciding which kernel serves a request, and saying why for every kernel; no torch here."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import threading
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Literal

from packaging.specifiers import SpecifierSet

from portakernel.capability import ReasonCode, Rejection
from portakernel.config import Config
from portakernel.errors import ConfigError, NoKernelError, nearest
from portakernel.kernel import Kernel, load_entry
from portakernel.plugin_manager import PluginManager, find_folder
from portakernel.policy import Layer, Policy, Wishes, environment_layer, intern_policy
from portakernel.registry import Registry
from portakernel.request import Phase, Request
from portakernel.target import Device

Status = Literal["chosen", "eligible", "rejected"]
TRACE_MARK = "@"  # begins a policy token, which stands where a traced graph may name a kernel


@dataclass(frozen=True, slots=True)
class Candidate:
    """One kernel's place in a decision. ``assumed`` lists what was taken for granted, not checked."""

    kernel: Kernel
    status: Status
    priority: int
    rejections: tuple[Rejection, ...] = ()
    assumed: tuple[str, ...] = ()
    variant: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """The kernel chosen for a request, why it won, and every other kernel with its reasons; winner first."""

    request: Request
    chosen: Kernel | None
    why: str
    candidates: tuple[Candidate, ...]

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
            "candidates": [
                {
                    "kernel": candidate.kernel.name,
                    "status": candidate.status,
                    "priority": candidate.priority,
                    "rejections": [
                        {"code": str(rejection.code), "text": rejection.text, "parameter": rejection.parameter}
                        for rejection in candidate.rejections
                    ],
                    "assumed": list(candidate.assumed),
                }
                for candidate in self.candidates
            ],
        }

    def __str__(self) -> str:
        lines = [str(self.request), f"  chosen: {self.chosen.name if self.chosen else 'none'} ({self.why})"]
        width = max((len(candidate.kernel.name) for candidate in self.candidates), default=0)
        for candidate in self.candidates:
            name = f"  {candidate.kernel.name:<{width}}  "
            lines += [f"{name}{rejection.code}: {rejection.text}" for rejection in candidate.rejections]
        return "\n".join(lines)


class Dispatcher:
    """Decides over one registry; keeps what was probed, warned about and set for the process."""

    def __init__(self, registry: Registry | None = None, config: Config | None = None) -> None:
        config = Config.from_environment() if config is None else config
        self.registry = (
            registry if registry is not None else Registry(PluginManager(disabled=frozenset(config.disable)))
        )
        self._disabled = frozenset(config.disable)
        manager = self.registry.manager
        known = [*self.registry.kernels, *self.registry.plugins(), *self.registry.backends, *manager.broken_names()]
        for name in self._disabled:
            if name not in known:
                raise ConfigError(f"PORTAKERNEL_DISABLE names {name!r}, which does not exist; {nearest(name, known)}")
        self._environment = environment_layer(config).check(self.registry)
        self.set_process_layer(None)
        self.context_layers: ContextVar[tuple[Layer, ...]] = ContextVar("portakernel_policy", default=())
        self._lock = threading.RLock()
        self._ready: dict[tuple[str, Device], Rejection | None] = {}
        self._loaded: dict[str, Any] = {}

    @functools.cached_property
    def reference_is_free(self) -> frozenset[str]:
        """The vendors whose torch device is the CPU: there the reference is no slower than expected."""
        return frozenset(backend.vendor for backend in self.registry.backends.values() if backend.torch_device == "cpu")

    def set_process_layer(self, layer: Layer | None) -> None:
        """Puts ``layer`` above the environment for the whole process, or takes it away."""
        layers = (self._environment,) if layer is None else (layer.check(self.registry), self._environment)
        self.process_policy = intern_policy(layers)
        kernels = sorted(f"{kernel.name} {kernel.package}" for kernel in self.registry.kernels.values())
        self.trace_token = TRACE_MARK + hashlib.sha256(repr((layers, kernels)).encode()).hexdigest()[:16]

    def policy(self, argument: Layer | None = None) -> Policy:
        """The policy in force here and now."""
        layers = self.context_layers.get()
        if argument is not None:
            layers = (argument, *layers)
        return intern_policy((*layers, *self.process_policy.layers)) if layers else self.process_policy

    def decide(
        self, request: Request, policy: Policy | None = None, cannot: Mapping[str, Rejection] | None = None
    ) -> Decision:
        """The kernel for ``request``, with every kernel's reasons; never raises for want of a kernel.

        ``cannot`` are kernels that said ``CannotRun`` for calls like this one. When the request's device is in this
        machine, readiness is probed and the winner is imported; otherwise both are assumed.
        """
        policy = self.policy() if policy is None else policy
        if policy.require:
            request = replace(request, requires=request.requires | policy.require)
        wishes = policy.wishes(request.op, self.registry)
        candidates = [
            self._assess(kernel, request, wishes, cannot or {}) for kernel in self.registry.for_op(request.op)
        ]
        eligible = sorted((c for c in candidates if not c.rejections), key=lambda c: _order(c, wishes))
        rejected = [candidate for candidate in candidates if candidate.rejections]
        while eligible and request.device is not None and (failure := self._load_failure(eligible[0].kernel, request)):
            rejected.append(replace(eligible.pop(0), status="rejected", rejections=(failure,)))
        if not eligible:
            decision = Decision(request, None, "no kernel can serve this request", tuple(rejected))
        else:
            winner = replace(eligible[0], status="chosen")
            losers = [replace(loser, rejections=(_lost(loser, winner, wishes),)) for loser in eligible[1:]]
            why = _why(winner, losers, wishes)
            decision = Decision(request, winner.kernel, why, (winner, *losers, *rejected))
        return decision

    def announce(self, decision: Decision) -> None:
        """Tells plugins of a decision that a call will be served by."""
        self.registry.manager.call("portakernel_decided", decision=decision)

    def entry(self, entry: str) -> Any:
        """The function that ``module:function`` names, imported once."""
        with self._lock:
            if entry not in self._loaded:
                self._loaded[entry] = load_entry(entry)
            return self._loaded[entry]

    def no_kernel_error(self, decision: Decision) -> NoKernelError:
        """The error for a decision without a kernel: the request, each kernel's reasons, the way out."""
        request = decision.request
        rows = [(c.kernel.name, str(r.code), r.text) for c in decision.candidates for r in c.rejections]
        widths = [max((len(row[i]) for row in rows), default=0) for i in (0, 1)]
        lines = [f"no kernel for op {request}"]
        lines += [f"  {name:<{widths[0]}}  {code:<{widths[1]}}  {text}" for name, code, text in rows]
        dtype = next(iter(request.dtypes.values()), None)
        flags = f" --dtype {dtype}" if dtype else ""
        lines.append(
            f"  Run `portakernel explain {request.op} --target {request.target}{flags}` for the full decision."
        )
        return NoKernelError("\n".join(lines), decision)

    def _assess(self, kernel: Kernel, request: Request, wishes: Wishes, cannot: Mapping[str, Rejection]) -> Candidate:
        found = [*self._policy_rejections(kernel, request, wishes)]
        assumed: list[str] = []
        variant, claimed, assumptions, attached = self._claim(kernel, request)
        found += claimed
        if attached is not None and kernel.name not in (*wishes.use, *wishes.prefer):
            text = f"runs on {attached.target}, attached to {request.target}: only when a policy names it"
            found.append(Rejection(ReasonCode.ATTACHED_TARGET, text, "target"))
        if request.phase is Phase.BACKWARD and request.saved_by is not None and request.saved_by != kernel.name:
            text = f"cannot read what {request.saved_by} saved"
            found.append(Rejection(ReasonCode.BACKWARD_MISMATCH, text, "requires_grad"))
        if request.phase is Phase.BACKWARD and kernel.saves == "own" and request.saved_by != kernel.name:
            text = "reads only what its own forward saves"
            found.append(Rejection(ReasonCode.BACKWARD_MISMATCH, text, "requires_grad"))
        if kernel.name in cannot:
            found.append(cannot[kernel.name])
        if request.device is None:
            assumed += [f"{module} {version} is installed" for module, version in kernel.requires.items()]
            assumed += ["the device passes the plugin's readiness probe"] if kernel.ready else []
        else:
            found += self._not_installed(kernel)
        if not found and kernel.check is not None:
            found += self._checked(kernel, request)
        if not found and request.device is not None:
            found += self._not_ready(kernel, attached or request.device)
        return Candidate(
            kernel,
            "rejected" if found else "eligible",
            kernel.priority.of(request),
            tuple(dict.fromkeys(found)),
            () if found else (*assumed, *assumptions),
            variant,
        )

    def _claim(self, kernel: Kernel, request: Request) -> tuple[str, list[Rejection], tuple[str, ...], Device | None]:
        """The variant that fits, or every variant's rejections; and the attached device it would run on."""
        spaces, rejections = self.registry.spaces, []
        for name, capability in kernel.variants:
            found = capability.rejections(request, spaces)
            if not found:
                target = capability.serving_target(request, spaces)
                attached = next((d for d in request.attached if d.target == target and target != request.target), None)
                return name, [], capability.assumptions(request, spaces), attached
            prefix = f"{name}: " if name else ""
            rejections += [replace(rejection, text=prefix + rejection.text) for rejection in found]
        return "", rejections, (), None

    def _policy_rejections(self, kernel: Kernel, request: Request, wishes: Wishes) -> Sequence[Rejection]:
        found = []
        if kernel.disabled is not None:
            found.append(Rejection(ReasonCode.DISABLED, f"switched off in its manifest: {kernel.disabled}"))
        if switched_off := self._disabled & {kernel.name, kernel.plugin}:
            found.append(Rejection(ReasonCode.DISABLED, f"PORTAKERNEL_DISABLE names {', '.join(sorted(switched_off))}"))
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

    def _not_installed(self, kernel: Kernel) -> list[Rejection]:
        found = []
        for module, specifier in kernel.requires.items():
            version = installed_version(module)
            if version is None:
                text = f"needs {module} {specifier}; it is not installed"
                found.append(Rejection(ReasonCode.NOT_INSTALLED, text, module))
            elif not SpecifierSet(specifier).contains(version, prereleases=True):
                found.append(
                    Rejection(ReasonCode.NOT_INSTALLED, f"needs {module} {specifier}; {version} is installed", module)
                )
        return found

    def _checked(self, kernel: Kernel, request: Request) -> list[Rejection]:
        check = kernel.check
        if check is None or request.device is None:
            return []
        values = {name.replace(".", "_"): request.value(name) for name in check.reads}
        try:
            function = self.entry(check.entry)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the plugin border: the reason is kept
            return [self._import_failed(kernel, error)]
        rejection = function(**values)
        return [rejection] if rejection is not None else []

    def _not_ready(self, kernel: Kernel, device: Device) -> list[Rejection]:
        if kernel.ready is None:
            return []
        key = (kernel.plugin, device)
        with self._lock:
            if key not in self._ready:
                try:
                    self._ready[key] = self.entry(kernel.ready)(device)
                except (Exception, SystemExit) as error:  # noqa: BLE001 - the plugin border: the reason is kept
                    if kernel.package is not None:
                        reason = f"{kernel.ready} raised {type(error).__name__}: {error}"
                        self.registry.manager.report_broken(kernel.package, "ready", reason, error)
                    text = f"its probe raised {type(error).__name__}: {error}; see `portakernel doctor`"
                    self._ready[key] = Rejection(ReasonCode.PROBE_FAILED, text)
            rejection = self._ready[key]
        return [rejection] if rejection is not None else []

    def _load_failure(self, kernel: Kernel, request: Request) -> Rejection | None:
        entry = kernel.backward if request.phase is Phase.BACKWARD else kernel.entry
        try:
            self.entry(entry or kernel.entry)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the plugin border: the reason is kept
            return self._import_failed(kernel, error)
        return None

    def _import_failed(self, kernel: Kernel, error: BaseException) -> Rejection:
        reason = f"importing {kernel.entry} raised {type(error).__name__}: {error}"
        if kernel.package is not None:
            self.registry.manager.report_broken(kernel.package, "import", reason, error)
        return Rejection(ReasonCode.IMPORT_FAILED, f"{reason}; see `portakernel doctor`")


@functools.lru_cache(maxsize=256)
def installed_version(module: str) -> str | None:
    """The version of the distribution that provides the import name ``module``; None when it cannot be imported."""
    if find_folder(module) is None:
        return None
    try:
        return importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        providers = importlib.metadata.packages_distributions().get(module, [])
        return importlib.metadata.version(providers[0]) if providers else "0"


def _tier(kernel: Kernel) -> int:
    return 2 if kernel.is_reference else 0 if kernel.first_party else 1


def _order(candidate: Candidate, wishes: Wishes) -> tuple[int, int, int, str]:
    kernel = candidate.kernel
    named = [*wishes.use, *wishes.prefer]
    place = named.index(kernel.name) if kernel.name in named else len(named)
    return place, _tier(kernel), -candidate.priority, kernel.name


def _lost(loser: Candidate, winner: Candidate, wishes: Wishes) -> Rejection:
    named = {**wishes.use, **wishes.prefer}
    if winner.kernel.name in named and _order(loser, wishes)[0] != _order(winner, wishes)[0]:
        text = f"{named[winner.kernel.name]} puts {winner.kernel.name} before it"
    elif _tier(loser.kernel) != _tier(winner.kernel):
        kind = (
            "the reference comes last" if loser.kernel.is_reference else "a third party's kernel wins by policy alone"
        )
        text = f"{kind}; {winner.kernel.name} serves"
    elif loser.priority == winner.priority:
        text = f"priority {loser.priority} equals that of {winner.kernel.name}, whose name comes first"
    else:
        text = f"priority {loser.priority} is below {winner.priority} of {winner.kernel.name}"
    return Rejection(ReasonCode.LOWER_PRIORITY, text)


def _why(winner: Candidate, losers: Sequence[Candidate], wishes: Wishes) -> str:
    name = winner.kernel.name
    if name in wishes.use:
        return f"{wishes.use[name]} uses it"
    if name in wishes.prefer:
        return f"{wishes.prefer[name]} prefers it"
    if not losers:
        return "the only kernel that can serve this request"
    second = losers[0]
    if _tier(second.kernel) != _tier(winner.kernel):
        other = "the reference" if second.kernel.is_reference else "kernels of third parties"
        return f"priority {winner.priority}; the only one beside {other}"
    if second.priority == winner.priority:
        return f"priority {winner.priority}, shared with {second.kernel.name}; the first by name"
    return f"highest priority: {winner.priority}, before {second.priority} of {second.kernel.name}"
