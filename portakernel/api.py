"""What ``import portakernel`` offers beside ``ops``: asking, binding, wishing, counting."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from typing import TYPE_CHECKING, Any, overload

from portakernel.claims.request import Phase
from portakernel.contract import Contract
from portakernel.contract.near_misses import sure_answer
from portakernel.deciding.decision import Decision, Use
from portakernel.deciding.dispatcher import Dispatcher
from portakernel.deciding.explaining import explain_in_words, first_device
from portakernel.deciding.kernel_argument import strictly
from portakernel.deciding.policies import Layer, Names, ReferenceMode, make_layer
from portakernel.deciding.policy_block import PolicyBlock
from portakernel.deciding.process_wishes import read
from portakernel.errors import ArgumentTypeError, UnknownNameError
from portakernel.host.as_written import as_written
from portakernel.registry.plugin_manager import Broken, Package
from portakernel.runtime import caller, callers_so_far, contract_of, dispatcher, follow_shadow
from portakernel.text.printable import brief
from portakernel.warming.outcome import Call, Warmup
from portakernel.words.graph_forms import GraphForm
from portakernel.words.target import Device

if TYPE_CHECKING:
    from portakernel.calling.arrays.copies import ArrayCopies
    from portakernel.calling.bound_kernel import BoundKernel


@dataclass(frozen=True, slots=True)
class PluginState:
    """A plugin or backend as found: what it ships, or why it is broken."""

    package: Package
    kernels: tuple[str, ...]
    backend: bool
    broken: tuple[Broken, ...]
    disabled: bool

    def __repr__(self) -> str:
        state = "disabled" if self.disabled else "broken" if self.broken else f"{len(self.kernels)} kernels"
        return brief(f"<PluginState {self.package}: {state}{', backend' if self.backend else ''}>")


@dataclass(frozen=True, slots=True)
class Served:
    """Calls that a kernel served for an op, by phase and target; ``fallback`` names the better ones that could not."""

    op: str
    kernel: str
    phase: str
    target: str
    calls: int
    fallback: tuple[str, ...]

    def __repr__(self) -> str:
        return brief(f"Served({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in fields(self))})")


class Stats(tuple[Served, ...]):
    """What was served, as a tuple; ``array_copies`` has what was copied between arrays and tensors (docs/arrays.md)."""

    array_copies: tuple[ArrayCopies, ...]

    def __new__(cls, served: Iterable[Served], array_copies: Iterable[ArrayCopies] = ()) -> Stats:
        """Both parts, in the order that they are given in."""
        made = super().__new__(cls, served)
        made.array_copies = tuple(array_copies)
        return made

    def __repr__(self) -> str:
        copied = f", array_copies={self.array_copies!r}" if self.array_copies else ""
        return f"{super().__repr__()}{copied}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Stats, (tuple(self), self.array_copies)


@as_written
def explain(
    op: str,
    *tensors: Any,
    target: str | None = None,
    dtype: Mapping[str, str] | str | None = None,
    shape: Mapping[str, Sequence[int]] | None = None,
    format: Mapping[str, str] | str | None = None,
    device: str | None = None,
    phase: str | None = None,
    compiled: bool = False,
    kernel: str | None = None,
    **parameters: Any,
) -> Decision:
    """Which kernel serves a call, why, and why each other does not; nothing runs.

    With tensors or arrays, for exactly that call on their device (``phase`` is ``training`` where they require
    gradients, and ``forward_ad`` where they have tangents: inside ``torch.func.jvp`` or a dual level). Without, for a
    ``target`` (``"amd:gfx942"`` or ``"mi300x"``, which need not be here), a ``device`` of this machine or its first
    one, with as much of dtypes, shapes and scale formats as you give::

        portakernel.explain("rms_norm", x, weight)
        portakernel.explain("rms_norm", target="amd:gfx942", dtype="bfloat16", shape={"x": (4096, 8192)})

    ``compiled``: for a graph of ``torch.compile``; the decision says the kernel's ``form`` there (docs/compile.md).

    Some ops have a ``dtype`` or ``format`` of their own. With tensors, which have theirs, ``dtype=`` and ``format=``
    are the op's. Without, they describe the tensors, and the op's own stands among them by name::

        portakernel.explain("quantize_fp8", x, dtype="float8_e5m2")
        portakernel.explain("quantize_fp8", target="h100", dtype={"x": "bfloat16", "dtype": "float8_e5m2"})

    Raises:
        UnknownNameError: the op, target, device, dtype, phase or a parameter does not exist.
        ArgumentTypeError, ArgumentValueError: arguments that the op does not accept.
    """
    described, now = contract_of(op), dispatcher()
    if phase is not None and phase not in list(Phase):
        raise UnknownNameError("phase", phase, [str(known) for known in Phase])
    if tensors:
        words = {"target": target, "dtype": dtype, "shape": shape, "format": format, "device": device}
        given_words = {name: value for name, value in words.items() if value is not None}
        asked = caller(op)
        given, values = _call(op, tensors, parameters | _own_words(described, "explain", given_words))
        given = asked.arrays.tensors(given)
        asked.arguments.check(given, values)
        wanted = Phase(phase) if phase else _phase_of([tensor for tensor in given if tensor is not None])
        strict = strictly(now.registry, op, kernel)
        return asked.explain(given, values, wanted, strict, compiled=compiled)
    return explain_in_words(
        now,
        op,
        target=target,
        device=device,
        dtype=dtype,
        shape=shape,
        format=format,
        parameters=parameters,
        phase=Phase(phase or "inference"),
        compiled=compiled,
        kernel=kernel,
    )


def _own_words(described: Contract, asking: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The words that stand beside tensors: each must be a parameter of the op, since the tensors say the rest.

    Raises:
        ArgumentTypeError: one describes what the tensors have.
    """
    own = [parameter.name for parameter in described.parameters]
    words = [name for name in given if name not in own]
    known = (*described.names, *own)
    if meant := {name: text for name in words if (text := sure_answer(described.op, name, known))}:
        told = "; ".join(f"unknown parameter {name!r}; {text}" for name, text in meant.items())
        raise ArgumentTypeError(f"{described.op}: {told}")
    if words:
        which = ", ".join(words)
        raise ArgumentTypeError(
            f"{asking} takes tensors, or {which}, not both: {described.op} has no parameter called so, and its tensors"
            " have their own"
        )
    return dict(given)


def _phase_of(given: Sequence[Any]) -> Phase:
    """The phase of a call that is made here and now with these tensors."""
    import torch

    from portakernel.tensors.torch_internals import has_tangent

    if has_tangent(given):
        return Phase.FORWARD_AD
    training = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
    return Phase.TRAINING if training else Phase.INFERENCE


def _call(op: str, tensors: Sequence[Any], named: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """A call's tensors and its parameters' values, each in the contract's order."""
    described = contract_of(op)
    positional = [tensor.name for tensor in described.tensors if not tensor.keyword]
    needed = [tensor.name for tensor in described.tensors if not tensor.optional]
    held = dict(zip(positional, tensors, strict=False))
    given = held | {name: value for name, value in named.items() if name in described.names and name not in held}
    if len(tensors) > len(positional):
        text = f"{op}: by position it takes {', '.join(positional)}; {len(tensors)} arguments were given so"
        raise ArgumentTypeError(f"{text}, and the rest goes by name")
    if missing := [name for name in needed if name not in given]:
        for name in named:
            if name not in described.names:
                described.parameter(name)  # where a tensor came by another name, that is what to say
        raise ArgumentTypeError(f"{op}: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not given")
    values = {name: described.value(name, value) for name, value in named.items() if name not in given}
    return [given.get(name) for name in described.names], list(described.values(values).values())


@as_written
def bind(op: str, *tensors: Any, kernel: str | None = None, **parameters: Any) -> BoundKernel:
    """The kernel for calls like this example, fixed: a callable with the op's own arguments and almost no overhead.

    ::

        norm = portakernel.bind("rms_norm", x, weight)
        y = norm(x, weight)

    Raises:
        UnknownNameError, ArgumentTypeError, ArgumentValueError: as for the op itself.
        NoKernelError: no kernel can serve it.
    """
    from portakernel.calling.bound_kernel import bind_kernel
    from portakernel.calling.observers import of_process

    given, values = _call(op, tensors, parameters)
    asked = caller(op)
    asked.arrays.refuse(given)
    bound = bind_kernel(asked, given, values, kernel)
    if of_process() is None:
        return bound
    from portakernel.torch_bridge.call_kinds import watched_handle

    return watched_handle(bound, asked.contract, asked.arguments.canonical(values))


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
@as_written
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
    terminal the progress is shown. An op's own ``dtype`` or ``format`` is given as to ``explain``.

    Raises:
        UnknownNameError, ArgumentTypeError, ArgumentValueError: as for the op itself.
        NoKernelError: no kernel can serve such calls, or none of ``kernel`` can.
        WarmupError: single calls could not be compiled, or run, or of a list not be made at all; all others were.
        CaptureError: a stream is being captured.
    """
    from portakernel.warming.rehearsal import rehearse_call, rehearse_described, rehearse_function

    if callable(what):
        return rehearse_function(what, args, kwargs)
    if not isinstance(what, str):
        listed = list(what) if isinstance(what, Iterable) else [what]
        if args or kwargs or not all(isinstance(call, Call) for call in listed):
            text = "an op's name with tensors or with dtype and shape, a list of portakernel.Call alone, or a function"
            raise ArgumentTypeError(f"warmup takes {text} with its arguments; its first argument is {what!r}")
        return rehearse_described(listed, _device_of)
    described = contract_of(what)
    if args:
        _own_words(described, "warmup", {name: kwargs[name] for name in _WORDS if name in kwargs})
        kernel = kwargs.pop("kernel", None)
        given, values = _call(what, args, kwargs)
        asked = caller(what)
        return rehearse_call(asked, asked.arrays.tensors(given), values, kernel)
    if missing := [word for word in ("dtype", "shape") if word not in kwargs]:
        lacks = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not given"
        text = f"{what}: warmup takes the call's tensors, or dtype and shape; {lacks}"
        raise ArgumentTypeError(text)
    known = {name: kwargs.pop(name) for name in (*_WORDS, "kernel") if name in kwargs}
    return rehearse_described([Call(what, **known, parameters=kwargs)], _device_of, alone=True)


def _device_of(call: Call) -> str:
    """The torch device of a call in words."""
    return call.device or first_device(dispatcher().registry).torch_device or "cpu"


# What describes a call, beside the op's own parameters.
_WORDS = ("dtype", "shape", "format", "device", "training")


@as_written
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
    Write the block around a compiled function, not inside one: there it runs a graph of calls, which follow the block
    (docs/compile.md). One block may be entered again, inside itself, and in several threads. Backward goes by the
    policy that forward went by, in whichever thread, unless it runs in another block.

    A name that nothing here has is an error under ``use`` alone; ``deny`` has nothing to do then, ``prefer`` leaves it
    out with a warning (docs/policy.md).

    Raises, when it is entered:
        UnknownNameError: a name under ``use`` that nothing has; with ``strict_names`` in a policy file, any.
    """

    def make() -> tuple[Dispatcher, Layer]:
        now = dispatcher()
        return now, now.process.accepted(make_layer("context", use, prefer, deny, require, reference))

    wishes = {"use": use, "prefer": prefer, "deny": deny, "require": require, "reference": reference}
    return PolicyBlock(make, ", ".join(f"{key}={named!r}" for key, named in wishes.items() if named))


@as_written
def use(*names: str) -> PolicyBlock:
    """``policy(use=names)``: inside the ``with`` block those kernels, or an error."""
    return policy(use=names)


@as_written
def set_policy(
    *,
    use: Names = (),
    prefer: Names = (),
    deny: Names = (),
    require: Names = (),
    reference: ReferenceMode | None = None,
    compiled: GraphForm | None = None,
) -> None:
    """Sets the process's policy, over the environment's and under any context; without arguments, takes it away.

    It reaches all threads and ``torch.compile``, which compiles once for each policy. ``compiled`` is the form that
    kernels have there, where they have it: ``inline``, ``kernel`` or ``call`` (docs/compile.md).

    Raises:
        UnknownNameError: a name under ``use`` that nothing has; with ``strict_names`` in a policy file, any.
    """
    layer = make_layer("set_policy", use, prefer, deny, require, reference, compiled)
    empty = make_layer("set_policy")
    dispatcher().set_process_layer(None if layer == empty else layer)


@as_written
def load_policy(*paths: str | PathLike[str] | None) -> None:
    """Sets the process's policy files (docs/policy.md), in the place of ``PORTAKERNEL_POLICY``'s; None takes them away.

    Of several, a later one goes before an earlier one: ``load_policy("base.yaml", "host.yaml")``. They stand under the
    environment. They are read now: what is written to them later changes nothing.

    Raises:
        PolicyFileError: one cannot be accepted; those before stay in force.
        ArgumentTypeError: what is given is neither paths nor None alone.
    """
    given: tuple[Any, ...] = paths
    files = [os.fspath(path) for path in given if isinstance(path, (str, os.PathLike))]
    if given != (None,) and (not files or len(files) < len(given)):
        text = "load_policy takes the paths of policy files, or None alone, which takes them away"
        raise ArgumentTypeError(f"{text}; this is {', '.join(map(repr, given)) or 'nothing'}")
    dispatcher().set_policy_files(read(files), named_by="load_policy")
    follow_shadow(anew=True)


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
            tuple(fault for fault in (*manager.broken, *manager.broken_but_off) if fault.package == package),
            manager.is_off(package),
        )
        for package in manager.packages
    )


@as_written
def stats() -> Stats:
    """How many calls each kernel served since the process began, most first; ``array_copies`` are what arrays cost."""
    asked_so_far = callers_so_far()
    total = sum((asked.table.counts() for asked in asked_so_far), Counter[Use]())
    rows = (Served(*use[:4], calls, use.fallback) for use, calls in total.items())
    copies = (copied for asked in asked_so_far for copied in asked.array_copies())
    return Stats(
        sorted(rows, key=lambda row: (-row.calls, row.op, row.kernel, row.phase)),
        sorted(copies, key=lambda copied: (-copied.copies, copied.op, copied.name, copied.library)),
    )
