"""Recording the ops that a function calls: a dispatch mode, so that calls outside of a recording pay nothing for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from portakernel.calling.caller import OpCaller
from portakernel.claims.request import Phase
from portakernel.tensors.torch_internals import is_fake, outside_modes
from portakernel.torch_bridge.signature import Signature
from portakernel.warming.building import Progress, build_phases, training_phases


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's __init_subclass__ is not typed
    """While active, builds what each portakernel op that is called needs, just before it runs.

    A call under a dispatch mode goes through ``torch.ops.portakernel``, where this sees it as a kernel would: cast by
    autocast, batched by vmap, from whichever thread runs backward. Nothing of the tensors is kept.
    """

    looks_for_choices = True

    def __init__(self, callers: Iterable[OpCaller], progress: Progress) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # nor its constructor
        self._progress = progress
        self._seen: set[tuple[Any, ...]] = set()
        self._parts: dict[str, tuple[OpCaller, Signature, bool]] = {}
        for caller in callers:
            if any(kernel.build for kernel in caller.dispatcher.registry.for_op(caller.contract.op)):
                name, signature = f"{caller.namespace}::{caller.contract.op}", Signature(caller.contract)
                self._parts[name] = caller, signature, False
                self._parts[f"{name}_forward"] = caller, signature, True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Functions that ``torch.compile`` compiles are compiled as ever, and seen when what was made of them runs."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs ``func``, after what it needs was built."""
        part = self._parts.get(func.name())
        if part is not None:
            self._build(*part, args)
        return func(*args, **(kwargs or {}))

    def _build(self, caller: OpCaller, signature: Signature, training: bool, arguments: Any) -> None:
        tensors, values, (kernel, *_) = signature.forward(arguments) if training else signature.public(arguments)
        if is_fake([tensor for tensor in tensors if tensor is not None]):
            return  # a tracer's: the real call comes when what it makes is run
        caller.arguments.check(tensors, values)
        # as building in ``warmup(op, *tensors)``, for backward together with forward: both get forward's tensors
        phases = training_phases(caller.contract) if training else (Phase.INFERENCE,)
        policy = caller.policy(kernel)
        forms = ((t.dtype, t.device, t.shape, t.stride()) if t is not None else None for t in tensors)
        seen = (caller.contract.op, training, values, policy, *forms)
        if seen not in self._seen:
            self._seen.add(seen)
            with outside_modes():
                build_phases(caller, tensors, values, phases, policy, self._progress, winners_only=True)
