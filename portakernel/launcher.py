"""A kernel's entry under the one signature that its phase has, on the device of its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from portakernel.capability import CannotRun, ReasonCode, Rejection
from portakernel.capture import is_capturing
from portakernel.contract import Contract
from portakernel.dispatch import Dispatcher
from portakernel.guard_key import define
from portakernel.kernel import Kernel
from portakernel.request import Phase, Request


def launcher(contract: Contract, kernel: Kernel, request: Request, dispatcher: Dispatcher) -> Callable[..., Any]:
    """``kernel`` for the request's phase, taking all arguments by position, on its device whichever is current."""
    names = signature(contract, request.phase)
    source = f"def launch({', '.join(names)}):\n    return {call_source(contract, kernel, request.phase)}\n"
    scope = {"kernel": entry_of(kernel, request.phase, dispatcher)}
    run = _on_device(request, define(source, "launch", f"{kernel.name} {request.phase}", scope))
    return run if _can_be_captured(kernel, request, dispatcher) else _outside_captures(run)


def entry_of(kernel: Kernel, phase: Phase, dispatcher: Dispatcher) -> Callable[..., Any]:
    """The plugin's function for ``phase``."""
    entry = kernel.backward if phase is Phase.BACKWARD else None
    function: Callable[..., Any] = dispatcher.entry(entry or kernel.entry)
    return function


def is_bare(kernel: Kernel, request: Request, dispatcher: Dispatcher) -> bool:
    """Whether a launcher does no more than ``call_source`` says."""
    return _device_to_enter(request) is None and _can_be_captured(kernel, request, dispatcher)


def _can_be_captured(kernel: Kernel, request: Request, dispatcher: Dispatcher) -> bool:
    """Whether every claim of the kernel for the request's target has the property; elsewhere nothing is captured."""
    if request.device is None or not (request.device.torch_device or "").startswith("cuda"):
        return True
    spaces = dispatcher.registry.spaces
    here = [capability for _, capability in kernel.variants if capability.serving_target(request, spaces) is not None]
    return all("graph_capture" in capability.properties for capability in here)


def _outside_captures(run: Callable[..., Any]) -> Callable[..., Any]:
    """``run``, declining while a stream is captured: that the choice fell before costs a kernel that can be nothing."""

    def run_now(*arguments: Any) -> Any:
        if is_capturing():
            text = "cannot be launched while a stream is captured"
            raise CannotRun(Rejection(ReasonCode.NOT_CAPTURABLE, text, "graph_capture"))
        return run(*arguments)

    return run_now


def signature(contract: Contract, phase: Phase) -> list[str]:
    """The names of what a launcher of ``phase`` takes, in order."""
    parameters = [parameter.name for parameter in contract.parameters]
    match phase:
        case Phase.INFERENCE:
            return [*contract.names, *parameters, "out"]
        case Phase.TRAINING | Phase.FORWARD_AD:
            return [*contract.names, *parameters]
        case Phase.BACKWARD:
            grads = [f"grad_{output.name}" for output in contract.outputs if output.differentiable]
            return [*grads, *contract.backward_inputs, *(saved.name for saved in contract.saved), *parameters, "needs"]


def call_source(contract: Contract, kernel: Kernel, phase: Phase) -> str:
    """The call of ``kernel`` with a launcher's arguments, as source: one call, no loops.

    Features that the kernel does not list are neutral, and not passed.
    """
    names = signature(contract, phase)
    left_out = {feature.name for feature in contract.features if feature.name not in kernel.features}
    by_keyword = {parameter.name for parameter in contract.parameters}
    if phase is Phase.BACKWARD:
        by_keyword.add("needs")  # `out` may be the name of an output there
    else:
        by_keyword |= {"out", *(tensor.name for tensor in contract.tensors if tensor.keyword)}
    arguments = {name: f"{name}={name}" if name in by_keyword else name for name in names if name not in left_out}
    if phase is Phase.TRAINING and contract.saved and kernel.saves in ("contract", "own"):
        arguments["save"] = "save=True"
    returned = "{call}"
    if phase is Phase.BACKWARD and left_out & set(contract.names):
        # the kernel knows nothing of tensors that it does not take: neither whether their gradients are needed
        taken = [place for place, name in enumerate(contract.names) if name not in left_out]
        arguments["needs"] = f"needs=({''.join(f'needs[{place}], ' for place in taken)})"
        spread = [f"g[{taken.index(i)}]" if i in taken else "None" for i in range(len(contract.names))]
        returned = f"(lambda g: ({', '.join(spread)}))({{call}})"
    positional = [text for text in arguments.values() if "=" not in text]
    call = f"kernel({', '.join([*positional, *(text for text in arguments.values() if '=' in text)])})"
    return returned.format(call=call)


def _on_device(request: Request, run: Callable[..., Any]) -> Callable[..., Any]:
    """``run`` with the request's device current: a raw launch goes to the current one."""
    device = _device_to_enter(request)
    if device is None:
        return run
    index, module = device.index, torch.get_device_module(device)
    current: Callable[[], int] = module.current_device

    def run_there(*arguments: Any) -> Any:
        if current() == index:
            return run(*arguments)
        with module.device(index):
            return run(*arguments)

    return run_there


def _device_to_enter(request: Request) -> torch.device | None:
    """The device that has to be made current for the request; None where there is one alone."""
    device = torch.device(request.device.torch_device) if request.device and request.device.torch_device else None
    if device is None or device.type not in ("cuda", "xpu") or torch.get_device_module(device).device_count() < 2:
        return None
    return device
