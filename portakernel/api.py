"""What ``import portakernel`` offers beside ``ops``: asking, binding, wishing, counting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from portakernel.contracts import contract
from portakernel.decision import Decision, Use
from portakernel.dispatch import Dispatcher
from portakernel.errors import ArgumentTypeError, ArgumentValueError, UnknownNameError
from portakernel.naming import layer_of, strictly
from portakernel.plugin_manager import Broken, Package
from portakernel.policies import Layer, Names, ReferenceMode, make_layer
from portakernel.policy_block import PolicyBlock
from portakernel.question import ask
from portakernel.registry import Registry
from portakernel.request import Phase
from portakernel.runtime import caller, callers_so_far, dispatcher
from portakernel.target import Device, Target
from portakernel.warmth import Call, Warmup

if TYPE_CHECKING:
    from portakernel.bound import BoundKernel


@dataclass(frozen=True, slots=True)
class PluginState:
    """A plugin or backend as found: what it ships, or why it is broken."""

    package: Package
    kernels: tuple[str, ...]
    backend: bool
    broken: tuple[Broken, ...]
    disabled: bool


@dataclass(frozen=True, slots=True)
class Served:
    """Calls that a kernel served for an op, by phase and target; ``fallback`` names the better ones that could not."""

    op: str
    kernel: str
    phase: str
    target: str
    calls: int
    fallback: tuple[str, ...]


def explain(
    op: str,
    *tensors: Any,
    target: str | None = None,
    dtype: Mapping[str, str] | str | None = None,
    shape: Mapping[str, Sequence[int]] | None = None,
    format: Mapping[str, str] | str | None = None,
    phase: str | None = None,
    kernel: str | None = None,
    **parameters: Any,
) -> Decision:
    """Which kernel serves a call, why, and why each other does not; nothing runs.

    With tensors, for exactly that call on their device (``phase`` is ``training`` where they require gradients).
    Without, for a ``target`` (``"amd:gfx942"``, which need not be here) or this machine's first device, with as much of
    dtypes, shapes and scale formats as you give::

        portakernel.explain("rms_norm", x, weight)
        portakernel.explain("rms_norm", target="amd:gfx942", dtype="bfloat16", shape={"x": (4096, 8192)})

    Raises:
        UnknownNameError: the op, target, dtype, phase or a parameter does not exist.
        ArgumentTypeError, ArgumentValueError: arguments that the op does not accept.
    """
    described, now = contract(op), dispatcher()
    if phase is not None and phase not in list(Phase):
        raise UnknownNameError("phase", phase, [str(known) for known in Phase])
    if tensors:
        if target is not None or dtype is not None or shape is not None or format is not None:
            raise ArgumentTypeError("explain takes tensors, or target, dtype, shape and format, not both")
        asked = caller(op)
        given, values = _call(op, tensors, parameters)
        asked.arguments.check(given, values)
        training = any(tensor.requires_grad for tensor in given if tensor is not None) and _records_gradients()
        inferred = Phase.TRAINING if training else Phase.INFERENCE
        return asked.explain(given, values, Phase(phase) if phase else inferred, strictly(now.registry, op, kernel))
    found, device, attached = _asked_target(now.registry, target)
    request = ask(
        described,
        found,
        dtypes=dtype,
        shapes=shape,
        formats=format,
        values=parameters,
        phase=Phase(phase or "inference"),
        device=device,
        attached=attached,
    )
    return now.decide(request, now.policy(layer_of(now.registry, op, strictly(now.registry, op, kernel))))


def _asked_target(registry: Registry, text: str | None) -> tuple[Target, Device | None, tuple[Device, ...]]:
    """The target that is asked about, its device where readiness shall be probed, and what is attached to it.

    A question about an attached target is one about calls on the torch device that it shares.
    """
    if text is None:
        device = _first_device(registry.devices)
        return device.target, device, registry.attached_to(device.torch_device or "")
    target = registry.target(text)
    backend = next(backend for backend in registry.backends.values() if backend.vendor == target.vendor)
    if not backend.attach:
        return target, None, registry.attached_to(backend.torch_device)
    host = next((d for d in registry.devices if not d.attached and d.torch_device == backend.torch_device), None)
    if host is None:
        raise ArgumentValueError(f"{target} is attached to torch's {backend.torch_device}, which no backend finds here")
    return host.target, host, registry.attached_to(backend.torch_device)


def _records_gradients() -> bool:
    import torch

    return torch.is_grad_enabled()


def _first_device(devices: Sequence[Device]) -> Device:
    usable = [device for device in devices if device.torch_device is not None and not device.attached]
    # an accelerator goes before the CPU
    usable.sort(key=lambda device: device.torch_device == "cpu")
    if not usable:
        raise ArgumentValueError("no backend found a device on this machine; name a target, such as nvidia:sm_90")
    return usable[0]


def _call(op: str, tensors: Sequence[Any], named: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """A call's tensors and its parameters' values, each in the contract's order."""
    described = contract(op)
    positional = [tensor.name for tensor in described.tensors if not tensor.keyword]
    needed = [tensor.name for tensor in described.tensors if not tensor.optional]
    held = dict(zip(positional, tensors, strict=False))
    given = held | {name: value for name, value in named.items() if name in described.names and name not in held}
    if len(tensors) > len(positional) or not given.keys() >= set(needed):
        raise ArgumentTypeError(f"{op} takes {len(needed)} tensors ({', '.join(positional)}); {len(given)} were given")
    values = {name: described.value(name, value) for name, value in named.items() if name not in given}
    return [given.get(name) for name in described.names], list(described.values(values).values())


def bind(op: str, *tensors: Any, kernel: str | None = None, **parameters: Any) -> BoundKernel:
    """The kernel for calls like this example, fixed: a callable with the op's own arguments and almost no overhead.

    ::

        norm = portakernel.bind("rms_norm", x, weight)
        y = norm(x, weight)

    Raises:
        UnknownNameError, ArgumentTypeError, ArgumentValueError: as for the op itself.
        NoKernelError: no kernel can serve it.
    """
    from portakernel.bound import bind_kernel

    given, values = _call(op, tensors, parameters)
    return bind_kernel(caller(op), given, values, kernel)


@overload
def warmup(op: str, tensor: Any, /, *tensors: Any, kernel: str | None = None, **parameters: Any) -> Warmup: ...
@overload
def warmup(
    op: str,
    /,
    *,
    dtype: Mapping[str, str] | str,
    shape: Mapping[str, Sequence[int]],
    format: Mapping[str, str] | str | None = None,
    device: str | None = None,
    training: bool = False,
    kernel: str | None = None,
    **parameters: Any,
) -> Warmup: ...
@overload
def warmup(calls: Sequence[Call], /) -> Warmup: ...
@overload
def warmup(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Warmup: ...
def warmup(what: Any, /, *args: Any, **kwargs: Any) -> Warmup:
    """Builds, loads and compiles what calls need, and runs them until a run brings nothing new; what came of it.

    ::

        portakernel.warmup("rms_norm", x, weight)  # a call like this one
        portakernel.warmup("rms_norm", dtype="bfloat16", shape={"x": (4096, 8192)}, device="cuda:0")  # one in words
        portakernel.warmup([portakernel.Call("rms_norm", "bfloat16", {"x": (4096, 8192)}), ...])  # several
        portakernel.warmup(step, model, tokens)  # every call that step(model, tokens) makes, backward included

    A function is run as it is, at least twice; single calls run on copies of their tensors, or on zeros. Afterwards
    calls like these neither decide, probe, import nor compile, so that they can be captured in a CUDA graph. A build is
    for these dtypes, sizes and values on this device; leading dimensions may differ later. Where tensors require
    gradients (or ``training``), backward is warmed up too. All of it serves this process; compilers keep caches of
    their own on disk, which make the next one quick. ``kernel`` names one kernel or plugin to warm up alone. On a
    terminal the progress is shown.

    Raises:
        UnknownNameError, ArgumentTypeError, ArgumentValueError: as for the op itself.
        NoKernelError: no kernel can serve such calls, or none of ``kernel`` can.
        WarmupError: single calls could not be compiled, or run; all others were.
        CaptureError: a stream is being captured.
    """
    from portakernel.rehearsal import rehearse_calls, rehearse_described, rehearse_function

    if callable(what):
        return rehearse_function(what, args, kwargs)
    if not isinstance(what, str):
        listed = list(what) if isinstance(what, Iterable) else [what]
        if args or kwargs or not all(isinstance(call, Call) for call in listed):
            text = "an op's name with tensors or with dtype and shape, a list of portakernel.Call alone, or a function"
            raise ArgumentTypeError(f"warmup takes {text} with its arguments; its first argument is {what!r}")
        return rehearse_described(listed, lambda: _first_device(dispatcher().registry.devices))
    contract(what)
    if args:
        if words := sorted(_WORDS & kwargs.keys()):
            raise ArgumentTypeError(f"warmup takes tensors, or {', '.join(words)}, not both")
        kernel = kwargs.pop("kernel", None)
        given, values = _call(what, args, kwargs)
        return rehearse_calls([(caller(what), given, values, kernel)])
    if missing := [word for word in ("dtype", "shape") if word not in kwargs]:
        text = f"{what}: warmup takes the call's tensors, or dtype and shape; {' and '.join(missing)} is not given"
        raise ArgumentTypeError(text)
    known = {name: kwargs.pop(name) for name in (*_WORDS, "kernel") if name in kwargs}
    return warmup([Call(what, **known, parameters=kwargs)])


# What describes a call, beside the op's own parameters.
_WORDS = frozenset({"dtype", "shape", "format", "device", "training"})


def policy(
    *,
    use: Names = (),
    prefer: Names = (),
    deny: Names = (),
    require: Names = (),
    reference: ReferenceMode | None = None,
) -> PolicyBlock:
    """What holds inside the ``with`` block or decorated function, in this thread or task, over what holds outside.

    ``use`` is strict for the ops that it mentions; ``prefer`` goes first where it can; ``deny`` adds up; ``require``
    names properties (``deterministic``, ``batch_invariant``, ``graph_capture``) that a kernel must declare;
    ``reference`` is ``allow``, ``warn`` or ``forbid``. Names are kernels (``triton.rms_norm``) or plugins (``triton``).
    Write the block around a compiled function, which then follows it, not inside one. One block may be entered again,
    inside itself, and in several threads.

    Raises, when it is entered:
        UnknownNameError: a name that nothing has.
    """

    def make() -> tuple[Dispatcher, Layer]:
        now = dispatcher()
        return now, make_layer("context", use, prefer, deny, require, reference).check(now.registry)

    return PolicyBlock(make)


def use(*names: str) -> PolicyBlock:
    """``policy(use=names)``: inside the ``with`` block those kernels, or an error."""
    return policy(use=names)


def set_policy(
    *,
    use: Names = (),
    prefer: Names = (),
    deny: Names = (),
    require: Names = (),
    reference: ReferenceMode | None = None,
) -> None:
    """Sets the process's policy, over the environment's and under any context; without arguments, takes it away.

    It reaches all threads and ``torch.compile``, which compiles once for each policy.

    Raises:
        UnknownNameError: a name that nothing has.
    """
    layer = make_layer("set_policy", use, prefer, deny, require, reference)
    empty = make_layer("set_policy")
    dispatcher().set_process_layer(None if layer == empty else layer)


def load_policy(path: str | Path | None) -> None:
    """Sets the process's policy file (docs/policy.md), in the place of ``PORTAKERNEL_POLICY``'s; None takes it away.

    It stands under the environment. It is read now: what is written to it later changes nothing.

    Raises:
        PolicyFileError: it cannot be accepted; the one before it stays in force.
    """
    now = dispatcher()
    if path is None:
        now.set_policy_file(None)
        return
    from portakernel.policy_file import load_policy_file

    now.set_policy_file(load_policy_file(path, now.registry, named_by="load_policy"))


def targets() -> tuple[Device, ...]:
    """The devices of this machine, as the backends find them; initialises none of them."""
    return dispatcher().registry.devices


def plugins() -> tuple[PluginState, ...]:
    """Every installed plugin and backend, the broken ones with their reasons."""
    now = dispatcher()
    manager = now.registry.manager
    return tuple(
        PluginState(
            package,
            tuple(name for name, kernel in now.registry.kernels.items() if kernel.package == package),
            any(backend.package == package for backend in now.registry.backends.values()),
            tuple(broken for broken in manager.broken if broken.package == package),
            package.name in manager.disabled,
        )
        for package in manager.packages
    )


def stats() -> tuple[Served, ...]:
    """How many calls each kernel served since the process began, most first."""
    total = sum((asked.table.counts() for asked in callers_so_far()), Counter[Use]())
    rows = (Served(*use[:4], calls, use.fallback) for use, calls in total.items())
    return tuple(sorted(rows, key=lambda row: (-row.calls, row.op, row.kernel, row.phase)))
